"""A listing that repeats, jumps back or stops unannounced never passes for a whole one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from durastore.errors import EndpointUnreachable, InventoryIncomplete, UnknownAnswer
from durastore.model import ObjectKey
from durastore.objectstore.listing import Listing, RawPage, listed_key, pages_of
from durastore.objectstore.port import ListPage, ObjectStat


def _page(*keys: str) -> ListPage:
    return [ObjectStat(key=ObjectKey(key), size_bytes=1, etag="e") for key in keys]


def _listing(
    *pages: ListPage, prefix: str = "", start_after: str | None = None, token: Callable[[int], str] = str
) -> Listing:
    def fetch_page(marker: str | None) -> RawPage:
        at = int(marker or 0)
        return RawPage(rows=pages[at], next_token=token(at + 1) if at + 1 < len(pages) else None)

    return Listing(fetch_page, prefix=prefix, start_after=start_after)


def _keys(listing: Iterator[ListPage]) -> list[str]:
    return [row.key.text for page in listing for row in page]


def test_ascending_pages_pass_and_empty_ones_are_passed_over() -> None:
    assert _keys(_listing(_page("a", "a-b"), [], _page("a/b", "b"))) == ["a", "a-b", "a/b", "b"]


def test_the_order_of_a_directory_walk_passes_too() -> None:
    assert _keys(_listing(_page("run/a", "run/b"), _page("run-2/a", "run.x"))) == ["run/a", "run/b", "run-2/a", "run.x"]


def test_keys_compare_as_bytes_not_as_characters() -> None:
    # U+FFFD comes before U+10000 in UTF-8, and after it in UTF-16
    assert _keys(_listing(_page("\ufffd", "\U00010000"))) == ["\ufffd", "\U00010000"]


@pytest.mark.parametrize(
    "pages",
    [
        (("a", "b"), ("a", "b")),  # case B140: a page given twice
        (("a", "b"), ("b", "c")),
        (("b", "a"),),
        (("a", "a"),),
        (("a/b", "a-b"), ("a/c",)),  # neither in byte order nor in the order of a walk
        (("a-b", "a/b"), ("a-c",)),
    ],
)
def test_a_jump_back_is_an_incomplete_inventory(pages: tuple[tuple[str, ...], ...]) -> None:
    listing = _listing(*[_page(*keys) for keys in pages])
    with pytest.raises(InventoryIncomplete):
        _keys(listing)
    with pytest.raises(InventoryIncomplete):  # and it stays one: asked again it must not look finished
        next(listing)


def test_a_marker_given_twice_is_found_within_three_requests() -> None:
    # case B140
    requests: list[str | None] = []

    def fetch_page(token: str | None) -> RawPage:
        requests.append(token)
        return RawPage(rows=[], next_token="same")

    with pytest.raises(InventoryIncomplete):
        next(Listing(fetch_page, prefix="", start_after=None))
    assert len(requests) <= 3


def test_endless_empty_pages_end() -> None:
    def fetch_page(token: str | None) -> RawPage:
        return RawPage(rows=[], next_token=str(int(token or 0) + 1))

    with pytest.raises(InventoryIncomplete):
        next(Listing(fetch_page, prefix="", start_after=None))


def test_keys_outside_what_was_asked_for_are_refused() -> None:
    with pytest.raises(InventoryIncomplete):
        _keys(_listing(_page("p/a", "q/a"), prefix="p/"))
    with pytest.raises(InventoryIncomplete):
        _keys(_listing(_page("p/a"), prefix="p/", start_after="p/b"))


def test_a_page_that_failed_can_be_asked_for_again() -> None:
    failures = [EndpointUnreachable("x"), UnknownAnswer("y")]

    def fetch_page(token: str | None) -> RawPage:
        if token == "1" and failures:
            raise failures.pop()
        return RawPage(rows=_page(f"k{token or 0}"), next_token="1" if token is None else None)

    listing = Listing(fetch_page, prefix="", start_after=None)
    assert [row.key.text for row in next(listing)] == ["k0"]
    for error in (UnknownAnswer, EndpointUnreachable):
        with pytest.raises(error):
            next(listing)
    assert [row.key.text for row in next(listing)] == ["k1"]
    with pytest.raises(StopIteration):
        next(listing)


def test_a_generator_that_raised_does_not_look_finished() -> None:
    def pages() -> Iterator[ListPage]:
        yield _page("a")
        raise EndpointUnreachable("broke")

    listing = pages_of(pages(), prefix="", start_after=None)
    next(listing)
    for _ in range(2):
        with pytest.raises(EndpointUnreachable):
            next(listing)


def test_folder_markers_are_no_objects_and_other_names_are_not_dropped() -> None:
    assert listed_key("packs/", size_bytes=0) is None
    assert listed_key("packs/x", size_bytes=0) == ObjectKey("packs/x")
    for text in ("packs/", "a//b", "/a", "a/../b"):
        with pytest.raises(InventoryIncomplete):
            listed_key(text, size_bytes=7)

"""A listing that is checked while it is read: ascending, no page twice, no end that was not announced.

Duty: turn an adapter's raw pages into pages that a plan may rest on. A listing with a gap is not a listing.
Must never sort, repair or drop anything to make a listing look right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from inspect import isgenerator
from typing import Generic, Protocol, TypeVar

from durastore.errors import DurastoreError, EndpointUnreachable, InvalidInput, InventoryIncomplete, UnknownAnswer
from durastore.model import ObjectKey
from durastore.objectstore.port import ListPage

__all__ = ["CheckedPages", "Listing", "RawPage", "listed_key", "pages_of"]

_MAX_EMPTY_PAGES = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class RawPage:
    """One page as an adapter got it. `next_token` None says that the store announced the end."""

    rows: ListPage
    next_token: str | None


def listed_key(text: str, *, size_bytes: int) -> ObjectKey | None:
    """The key of a listed object; None for a folder marker (an empty object whose name ends in a slash).

    `InventoryIncomplete` for a name that no `ObjectKey` can hold: an inventory that cannot name an object is not one.
    """
    if text.endswith("/") and size_bytes == 0:
        return None
    try:
        return ObjectKey(text)
    except InvalidInput as exc:
        raise InventoryIncomplete(
            f"the bucket lists an object called {ascii(text)[:200]}, which durastore cannot address",
            hint="it was not written by durastore: move it out of this prefix with the tool that made it",
        ) from exc


class _Tokened(Protocol):
    @property
    def next_token(self) -> str | None: ...


Raw = TypeVar("Raw", bound=_Tokened)
Page = TypeVar("Page")


class CheckedPages(Iterator[Page], Generic[Raw, Page]):
    """Pages in order; InventoryIncomplete as soon as they cannot be the whole of one ascending listing.

    Two orders are accepted, byte order (S3's) and the order of a directory walk (`a/b` before `a-b`), because servers
    exist that list so and are complete; a listing has to keep one of them from its first key to its last.
    After an `EndpointUnreachable` or `UnknownAnswer` the same page may be asked for again; any other error is final.
    """

    def __init__(self, fetch_page: Callable[[str | None], Raw], *, prefix: str, start_after: str | None = None) -> None:
        self._fetch_page = fetch_page
        self._prefix = prefix
        self._token: str | None = None
        self._is_done = False
        self._failure: DurastoreError | None = None
        self._last = start_after
        self._is_byte_order = True
        self._is_walk_order = True

    def _checked(self, page: Raw) -> Page | None:
        """What is handed out of a page whose keys go on from `_last`; None where nothing is. `InventoryIncomplete`."""
        raise NotImplementedError

    def __next__(self) -> Page:
        if self._failure is not None:
            raise self._failure  # never StopIteration: a failed listing must not look like a finished one
        try:
            return self._next_page()
        except (EndpointUnreachable, UnknownAnswer):
            raise
        except DurastoreError as exc:
            self._failure = exc
            raise

    def _next_page(self) -> Page:
        for _ in range(_MAX_EMPTY_PAGES):
            if self._is_done:
                raise StopIteration
            page = self._fetch_page(self._token)
            if page.next_token is not None and page.next_token == self._token:
                raise InventoryIncomplete(f"listing {self._prefix!r}: the store gave the same page marker twice")
            checked = self._checked(page)
            self._token = page.next_token
            self._is_done = page.next_token is None
            if checked is not None:
                return checked
        raise InventoryIncomplete(f"listing {self._prefix!r}: {_MAX_EMPTY_PAGES} pages in a row were empty")


class Listing(CheckedPages[RawPage, ListPage]):
    """A listing of objects, each of them checked."""

    def _checked(self, page: RawPage) -> ListPage | None:
        self._check(page.rows)
        return page.rows or None

    def _check(self, rows: ListPage) -> None:
        for row in rows:
            key = row.key.text
            if not key.startswith(self._prefix):
                raise InventoryIncomplete(f"listing {self._prefix!r}: the store answered with {key!r}")
            if self._last is not None and not self._is_after(key, self._last):
                raise InventoryIncomplete(
                    f"listing {self._prefix!r}: {key!r} came after {self._last!r}",
                    hint="the endpoint repeats or reorders pages (old Ceph does); its listing cannot be used",
                )
            self._last = key

    def _is_after(self, key: str, last: str) -> bool:
        new, old = key.encode(), last.encode()
        if self._is_byte_order:
            self._is_byte_order = new > old
        if self._is_walk_order:
            self._is_walk_order = new.split(b"/") > old.split(b"/")
        return self._is_byte_order or self._is_walk_order


def pages_of(pages: Iterator[ListPage], *, prefix: str, start_after: str | None) -> Listing:
    """A `Listing` over pages that some iterator yields; the iterator's end is the announced end."""
    broken: list[Exception] = []

    def fetch_page(token: str | None) -> RawPage:
        if broken:
            raise broken[0]
        try:
            page = next(pages, None)
        except Exception as exc:
            if isgenerator(pages):
                broken.append(exc)  # a generator that raised is over, and asked again would look like the end
            raise
        if page is None:
            return RawPage(rows=[], next_token=None)
        return RawPage(rows=page, next_token=str(int(token or 0) + 1))

    return Listing(fetch_page, prefix=prefix, start_after=start_after)

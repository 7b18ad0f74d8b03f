"""Listings that lie, over the wire: what reconcile makes of each, and that no lie makes it act."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from durastore.clock import SYSTEM_CLOCK
from durastore.config import StoreOptions
from durastore.errors import DurastoreError, InventoryIncomplete
from durastore.objectstore.columns import ColumnPage, list_columns
from durastore.objectstore.folders import FolderPage, checked_folder
from durastore.objectstore.location import BucketUrl, S3Options, open_object_store
from durastore.objectstore.port import ObjectStore
from durastore.objectstore.retrying import RetryingStore, RetryPolicy
from durastore.reconcile import bucket as bucket_module
from durastore.reconcile.bucket import load_keys
from durastore.reconcile.columns import KeyTable, names_of
from durastore.reconcile.report import ReconcileReport
from durastore.reconcile.run import reconcile
from durastore.reconcile.session import ReconcileRequest
from durastore.testing.strict_s3 import Lie, Rule, StrictS3
from tests.unit.reconcile_lab import by_kind, npy

FILES = 15


@pytest.fixture
def server(strict_s3: StrictS3, monkeypatch: pytest.MonkeyPatch) -> StrictS3:
    for name, value in strict_s3.environment().items():
        monkeypatch.setenv(name, value)
    return strict_s3


def _store(server: StrictS3, bucket: str) -> ObjectStore:
    bare = open_object_store(BucketUrl.parse(f"s3://{bucket}"), s3=S3Options(endpoint_url=server.endpoint_url))
    return RetryingStore(bare, RetryPolicy(budget_s=1.0), clock=SYSTEM_CLOCK)


def _columns(server: StrictS3, bucket: str, prefix: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for page in list_columns(_store(server, bucket), prefix):
        assert not found.keys() & set(page.keys)
        found.update(zip(page.keys, page.sizes, strict=True))
    return found


def test_every_page_is_listed_and_each_key_once(server: StrictS3) -> None:
    # case B138
    bucket = server.make_bucket()
    server.populate(bucket, "p/files/", count=2_500, size_bytes=60)
    assert len(_columns(server, bucket, "p/files/")) == 2_500
    server.script(Rule(lie=Lie.PAGE_SIZE, amount=7))
    bucket = server.make_bucket()
    server.populate(bucket, "q/", count=100, size_bytes=24)
    assert set(_columns(server, bucket, "q/").values()) == {24}


def test_columns_and_objects_are_one_listing(server: StrictS3) -> None:
    # case B128, case B130, case B135
    bucket = server.make_bucket()
    names = [
        "a b+c%2B",
        "a/b",
        "a%2Fb",
        "!'()*",
        '&<>"',
        "\u00e9\u4e2d",
        "x?y#z",
        "[*]",
        "sp ace",
        "plus+plus",
        "\u2028",
    ]
    for number, name in enumerate(names):
        server.client().put_object(Bucket=bucket, Key=f"o/{name}", Body=b"x" * number)
    store = _store(server, bucket)
    told = {stat.key.text: stat.size_bytes for page in store.list("o/") for stat in page}
    assert _columns(server, bucket, "o/") == told == {f"o/{name}": number for number, name in enumerate(names)}
    server.script(Rule(lie=Lie.LIST_UNENCODED))
    plain = {f"o/{name}": number for number, name in enumerate(names)}
    assert _columns(server, bucket, "o/") == plain


# --- folders beside each other ---------------------------------------------------------------------------------------


class _Counting(RetryingStore):
    """Notes which rows are listed."""

    def __init__(self, bare: ObjectStore) -> None:
        super().__init__(bare, RetryPolicy(budget_s=1.0), clock=SYSTEM_CLOCK)
        self.rows: list[str] = []

    def list_columns(self, prefix: str) -> Iterator[ColumnPage]:
        self.rows.append(prefix)
        return super().list_columns(prefix)


def _counting(server: StrictS3, bucket: str) -> _Counting:
    s3 = S3Options(endpoint_url=server.endpoint_url)
    return _Counting(open_object_store(BucketUrl.parse(f"s3://{bucket}"), s3=s3))


def _list_folders_of(monkeypatch: pytest.MonkeyPatch, *, keys: int) -> None:
    monkeypatch.setattr(bucket_module, "_MANY_KEYS", keys)
    monkeypatch.setattr(bucket_module, "_FOLDER_KEYS", keys)


_NAMES = ["a b+c%2B", "\u00e9", "0123456789abcdef", "x&y", "a"]


def _fill(server: StrictS3, bucket: str) -> dict[str, int]:
    """Objects below five folders with odd names, and right below the prefix."""
    placed = {f"f/{name}/{deep}k{size}": size for name in _NAMES for size in range(1, 9) for deep in ("", "d/")}
    placed |= {"f/top+1": 1, "f/top 2": 2}
    for key, size in {**placed, "g/other": 3, "f.x": 4}.items():
        server.client().put_object(Bucket=bucket, Key=key, Body=b"x" * size)
    return placed


def _held(table: KeyTable) -> dict[str, int]:
    assert len(set(names_of(table.keys))) == len(table)
    return dict(zip(names_of(table.keys), table.sizes.tolist(), strict=True))


def test_folders_are_listed_beside_each_other_and_nothing_is_missed(
    server: StrictS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    _list_folders_of(monkeypatch, keys=10)
    bucket = server.make_bucket()
    placed = _fill(server, bucket)
    store = _counting(server, bucket)
    assert _held(load_keys(store, "f/", expected=len(placed))) == placed
    assert sorted(store.rows) == sorted(f"f/{name}/" for name in _NAMES)
    for expected, prefix in ((9, "f/"), (49, "f/"), (80, "f/a/"), (80, "nothing/")):
        store.rows.clear()  # too few keys, or too many folders for them, or only one, or none
        wanted = {key: size for key, size in placed.items() if key.startswith(prefix)}
        assert _held(load_keys(store, prefix, expected=expected)) == wanted
        assert store.rows == [prefix]


@pytest.mark.parametrize(
    "rule",
    [
        Rule(lie=Lie.PAGE_SIZE, op="list", amount=3),  # more than one page of folders
        Rule(lie=Lie.LIST_REPEATS, op="list", count=1),
        Rule(lie=Lie.LIST_UNORDERED, op="list", count=1),
    ],
    ids=["pages", "repeats", "unordered"],
)
def test_where_folders_are_not_told_in_one_good_answer_there_is_one_row(
    server: StrictS3, monkeypatch: pytest.MonkeyPatch, rule: Rule
) -> None:
    _list_folders_of(monkeypatch, keys=10)
    bucket = server.make_bucket()
    placed = _fill(server, bucket)
    store = _counting(server, bucket)
    server.script(rule)
    assert _held(load_keys(store, "f/", expected=len(placed))) == placed
    assert store.rows == ["f/"] or rule.lie is not Lie.PAGE_SIZE


def test_a_folder_that_cannot_be_listed_leaves_no_listing(server: StrictS3, monkeypatch: pytest.MonkeyPatch) -> None:
    # case B18
    _list_folders_of(monkeypatch, keys=10)
    bucket = server.make_bucket()
    placed = _fill(server, bucket)
    store = _counting(server, bucket)
    row = store.list_columns

    def broken(prefix: str) -> Iterator[ColumnPage]:
        yield from row(prefix)
        if prefix == "f/a/":
            raise InventoryIncomplete("out of order")

    monkeypatch.setattr(store, "list_columns", broken)
    with pytest.raises(InventoryIncomplete):
        load_keys(store, "f/", expected=len(placed))


@pytest.mark.parametrize(
    "folders, keys, token",
    [
        (["f/a/"], ["f/a/b"], None),  # takes no notice of a delimiter
        (["f/a/", "f/a/"], [], None),
        (["f/a/b/"], [], None),
        (["f/a"], [], None),
        (["f/"], [], None),
        (["g/a/"], [], None),
        (["f/a/"], ["f/b", "f/a"], None),
        (["f/a/"], ["g"], None),
        (["f/a/"], ["f/b"], "more"),
    ],
)
def test_answers_that_are_not_all_folders_and_objects_below(
    folders: list[str], keys: list[str], token: str | None
) -> None:
    page = ColumnPage(keys=keys, sizes=[1] * len(keys), next_token=token)
    assert checked_folder(FolderPage(folders=tuple(folders), page=page), "f/") is None


LIES = {
    "list-empty": Rule(lie=Lie.LIST_EMPTY, count=None),
    "list-omits": Rule(lie=Lie.LIST_OMITS, count=None),
    "list-repeats": Rule(lie=Lie.LIST_REPEATS, count=None),
    "list-short": Rule(lie=Lie.LIST_SHORT, count=None),
    "list-unordered": Rule(lie=Lie.LIST_UNORDERED, count=None),
    "list-no-token": Rule(lie=Lie.LIST_NO_TOKEN, count=None),
    "v2-broken": Rule(lie=Lie.V2_BROKEN, count=None),
    "html-200": Rule(lie=Lie.HTML_200, op="list", count=None),
}


def _run(server: StrictS3, bucket: str, folder: Path, *, is_applied: bool) -> ReconcileReport:
    options = StoreOptions(endpoint_url=server.endpoint_url, region=server.region, transport="threads")
    request = ReconcileRequest(
        local=folder,
        bucket=BucketUrl.parse(f"s3://{bucket}/p"),
        options=options,
        is_applied=is_applied,
        settle_s=0.0,
    )
    return reconcile(request)


@pytest.mark.parametrize("folders", [1, 3], ids=["one row", "folders beside each other"])
@pytest.mark.parametrize("lie", LIES)
def test_a_lying_listing_makes_no_plan(
    server: StrictS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lie: str, folders: int
) -> None:
    # case B18, case B140, case B141
    _list_folders_of(monkeypatch, keys=1)
    bucket = server.make_bucket()
    folder = tmp_path / "data"
    for number in range(FILES):
        path = folder / f"{number % folders}" / f"{number:03d}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(npy(number))
    server.script(Rule(lie=Lie.PAGE_SIZE, op="list", amount=4))
    assert _run(server, bucket, folder, is_applied=True).exit_code == 0
    before = {key: server.stored(bucket, key) for key in server.keys(bucket)}
    (folder / "new.npy").write_bytes(npy(999))
    server.script(LIES[lie], Rule(lie=Lie.PAGE_SIZE, op="list", amount=4))
    try:
        report = _run(server, bucket, folder, is_applied=True)
    except DurastoreError as exc:
        assert exc.exit_code in (12, 20)  # noqa: PT017 - some lies end the run, others only the plan
    else:
        assert report.exit_code == 12
        assert ("unreadable", "bucket") in by_kind(report.findings)
    server.script()
    assert {key: server.stored(bucket, key) for key in server.keys(bucket)} == before
    assert _run(server, bucket, folder, is_applied=True).exit_code == 0

"""Listings that lie, over the wire: what reconcile makes of each, and that no lie makes it act."""

from __future__ import annotations

from pathlib import Path

import pytest

from durastore.clock import SYSTEM_CLOCK
from durastore.config import StoreOptions
from durastore.errors import DurastoreError
from durastore.objectstore.columns import list_columns
from durastore.objectstore.location import BucketUrl, S3Options, open_object_store
from durastore.objectstore.port import ObjectStore
from durastore.objectstore.retrying import RetryingStore, RetryPolicy
from durastore.reconcile.report import ReconcileReport
from durastore.reconcile.run import reconcile
from durastore.reconcile.session import ReconcileRequest
from durastore.testing.strict_s3 import Lie, Rule, StrictS3
from tests.unit.reconcile_lab import by_kind, npy

FILES = 30


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


@pytest.mark.parametrize("lie", LIES)
def test_a_lying_listing_makes_no_plan(server: StrictS3, tmp_path: Path, lie: str) -> None:
    # case B18, case B140, case B141
    bucket = server.make_bucket()
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(FILES):
        (folder / f"{number:03d}.npy").write_bytes(npy(number))
    server.script(Rule(lie=Lie.PAGE_SIZE, op="list", amount=10))
    assert _run(server, bucket, folder, is_applied=True).exit_code == 0
    before = {key: server.stored(bucket, key) for key in server.keys(bucket)}
    (folder / "new.npy").write_bytes(npy(999))
    server.script(LIES[lie], Rule(lie=Lie.PAGE_SIZE, op="list", amount=10))
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

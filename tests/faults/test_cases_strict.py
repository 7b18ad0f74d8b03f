"""Losses of other tools, tried on a whole store against the strict S3 server while it lies as each case tells."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import durastore
from durastore.errors import CredentialsRefused, DurastoreError, RequestRefused
from durastore.model import ObjectKey
from durastore.objectstore.memory import MemoryStore
from durastore.store.store import Store
from durastore.testing.faulty import FaultyStore
from durastore.testing.strict_s3 import Lie, Rule, StrictS3
from durastore.upload.job import UploadLimits
from tests.faults.trial import SpeedClock, Trial, arm

CLOCK = SpeedClock(speed=8.0)  # the server's Date is the machine's, and may not drift far from ours
NAMES = ("s/0", "s/1", "s/2")
PART = 64 << 10


@dataclass(kw_only=True)
class StrictTrial(Trial):
    """The trial's bucket is one of the strict server's."""

    server: StrictS3
    bucket: str

    def open(self, **changes: Any) -> Store:
        options: dict[str, Any] = {
            "reclaim": "eager",
            "settle_s": 0.0,
            "pack_target_bytes": 2000,
            "single_pack_bytes": 3 * PART,
            "reserve_bytes": 1,
            "endpoint_url": self.server.endpoint_url,
            "addressing_style": "path",
            "probe": "never",
            "transport": "threads",  # the other one passes the same faults in the upload suite, and costs a client more
            "clock": CLOCK,
        }
        return durastore.open(f"s3://{self.bucket}/p", local=self.local, **(options | changes))

    @property
    def packs(self) -> list[Path]:
        return sorted(path for path in self.local.glob("w-*/packs/*"))

    def object_keys(self, kind: str = "packs") -> list[ObjectKey]:
        return [ObjectKey(key) for key in self.server.keys(self.bucket) if key.startswith(f"p/{kind}/")]

    def content(self, key: ObjectKey) -> bytes | None:
        return self.server.stored(self.bucket, key.text)

    def heal(self) -> None:
        self.server.script()

    def put_all(self, store: Store, *, is_multipart: bool) -> None:
        with contextlib.suppress(CredentialsRefused):  # which stops puts, as soon as it is known
            self.put(store, *NAMES)
            if is_multipart:
                self.put(store, "s/big", size=4 * PART + 7)


@pytest.fixture
def strict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strict_s3: StrictS3) -> StrictTrial:
    for name, value in strict_s3.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("durastore.store.opening._LIMITS", UploadLimits(part_bytes=PART, multipart_above=PART))
    made = StrictTrial(tmp_path / "spool", FaultyStore(MemoryStore()), server=strict_s3, bucket=strict_s3.make_bucket())
    arm(made, monkeypatch)
    return made


SMALL_PARTS = Rule(lie=Lie.SMALL_PARTS)
"""Parts of 64 KiB are what makes a multipart upload cheap enough here."""
PACKS = "p/packs/"
OWNER = "111122223333"


def case(name: str, *rules: Rule) -> Any:
    return pytest.param(rules, id=name)


PASSING = [
    case("B50 SlowDown after the body", Rule(lie=Lie.SLOW_DOWN, op="put", first=3, count=3)),
    case("B53 Complete says 200 and an error", Rule(lie=Lie.COMPLETE_200_ERROR, count=1)),
    case("B55 would store framing as content", Rule(lie=Lie.STORES_AWS_CHUNKED_RAW)),
    case("B98 answer to PUT lost", Rule(lie=Lie.DROP_RESPONSE, op="put", first=2, count=2)),
    case("B99 answer to Complete lost", Rule(lie=Lie.DROP_RESPONSE, op="complete_upload", count=1)),
    case("B107 body said to be incomplete", Rule(lie=Lie.INCOMPLETE_BODY, op="put", first=2, count=1)),
    case("B152 parts sent again leak", Rule(lie=Lie.LEAK_PARTS), Rule(lie=Lie.ERROR, op="upload_part", count=2)),
    case("B153 short pages of parts", Rule(lie=Lie.PAGE_SIZE, amount=2)),
    case("B157 a request limit", Rule(lie=Lie.RATE_LIMIT, amount=40)),
    case("B159 wants equal parts", Rule(lie=Lie.EQUAL_PARTS)),
    case("B161 conditions are not kept", Rule(lie=Lie.IGNORE_CONDITIONS, op="put")),
    case("B161 conditions are not known", Rule(lie=Lie.REFUSE_CONDITIONS)),
    case("B167 a replica lags", Rule(lie=Lie.LAGGING_REPLICA, key_part=PACKS, amount=0.3)),
    case("B169 compressed on the way", Rule(lie=Lie.GZIP)),
    case("B27 a stale HEAD", Rule(lie=Lie.STALE_HEAD, key_part=PACKS, count=1)),
    case("B75 stores nothing once", Rule(lie=Lie.STORE_EMPTY, key_part=PACKS, count=1)),
]


REFUSING = (SMALL_PARTS, Rule(lie=Lie.REJECT_CHECKSUM_HEADERS))


@pytest.mark.parametrize("transport", ["threads", "aio"])
def test_where_checksum_headers_are_refused_others_are_sent(strict: StrictTrial, transport: str) -> None:
    # case B160: the very first write is refused, and the endpoint is asked which headers it takes
    strict.server.script(*REFUSING)
    store = strict.open(probe="auto", transport=transport)
    strict.put_all(store, is_multipart=True)
    assert strict.stop(store) is None
    assert strict.packs == []
    strict.check_nothing_lost()


def test_headers_refused_from_some_day_on_are_found_by_the_background_probe(strict: StrictTrial) -> None:
    # case B160: the marker is there already, and the refusal comes with a pack
    strict.server.script(SMALL_PARTS)
    strict.open().close()
    strict.server.script(*REFUSING)
    store = strict.open(probe="auto")
    strict.put_all(store, is_multipart=True)
    assert strict.stop(store) is None
    strict.check_nothing_lost()


def test_without_a_probe_the_headers_are_the_users_choice(strict: StrictTrial) -> None:
    # case B160
    strict.server.script(*REFUSING)
    with pytest.raises(RequestRefused, match="InvalidArgument"):
        strict.open()
    store = strict.open(checksum="md5")
    strict.put_all(store, is_multipart=True)
    assert strict.stop(store) is None
    strict.check_nothing_lost()


@pytest.mark.parametrize("rules", PASSING)
def test_what_an_endpoint_may_do_is_outlasted(strict: StrictTrial, rules: tuple[Rule, ...]) -> None:
    store = strict.open(reclaim="lazy")
    strict.server.script(SMALL_PARTS, *rules)
    strict.put_all(store, is_multipart=True)
    store.flush(600)
    store.abandon()
    held = {path.read_bytes() for path in strict.packs}
    assert len(held) == len(NAMES) + 1
    assert held <= {strict.content(key) for key in strict.object_keys()}
    strict.check_nothing_lost()


LASTING = [
    case("B05 acknowledges and has not", Rule(lie=Lie.LOSE, key_part=PACKS)),
    case("B06 B156 500 for ever", Rule(lie=Lie.ERROR, op="put", key_part=PACKS)),
    case("B47 forgets a part", Rule(lie=Lie.FORGET_PART, amount=2), Rule(lie=Lie.IGNORE_CHECKSUM)),
    case("B53 Complete always 200 and an error", Rule(lie=Lie.COMPLETE_200_ERROR)),
    case("B56 bodies end early", Rule(lie=Lie.SHORT_BODY, key_part=PACKS)),
    case("B61 loses the data, not the entry", Rule(lie=Lie.HOLLOW, key_part=PACKS)),
    case("B65 one byte is wrong", Rule(lie=Lie.FLIP_BYTE, key_part=PACKS)),
    case("B75 stores nothing", Rule(lie=Lie.STORE_EMPTY, key_part=PACKS)),
    case("B79 a block of zeros", Rule(lie=Lie.ZERO_BLOCK, key_part=PACKS)),
    case("B79 a part of zeros", Rule(lie=Lie.ZERO_PART), Rule(lie=Lie.IGNORE_CHECKSUM)),
    case("B147 hidden by a delete marker", Rule(lie=Lie.DELETE_MARKER, key_part=PACKS)),
    case("B149 the token expires", Rule(lie=Lie.EXPIRED_TOKEN, op="*")),
    case("B164 the bucket is another", Rule(lie=Lie.RECREATED_BUCKET, op="put", first=2)),
    case("B165 no HEAD allowed", Rule(lie=Lie.FORBIDDEN_HEAD)),
    case("archived at once", Rule(lie=Lie.ARCHIVE_CLASS, key_part=PACKS)),
]


@pytest.mark.parametrize("rules", LASTING)
def test_no_lie_frees_a_byte_that_is_not_there(strict: StrictTrial, rules: tuple[Rule, ...]) -> None:
    # case B123: it also never ends like a success
    store = strict.open()
    strict.server.script(SMALL_PARTS, *rules)
    strict.put_all(store, is_multipart=True)
    before = {path.name for path in strict.packs}
    error = strict.stop(store, timeout_s=6)
    assert error is not None
    assert getattr(error, "exit_code", 1) != 0
    kept = {path.name for path in [*strict.packs, *strict.local.glob("w-*/quarantine/*")]}
    assert before <= kept | set(strict.unlinked)
    strict.check_nothing_lost()


def test_a_power_cut_after_the_look_loses_nothing(strict: StrictTrial) -> None:
    # case B62: the server comes back without the last seconds of what it acknowledged
    store = strict.open(reclaim="lazy")
    strict.put_all(store, is_multipart=False)
    store.flush(600)
    store.abandon()
    held = {path.name: path.read_bytes() for path in strict.packs}
    for key in strict.object_keys():
        strict.server.lose(strict.bucket, key.text)
    strict.refuse(strict.open(reclaim="lazy"))
    assert {path.name: path.read_bytes() for path in strict.packs} == held
    store = strict.open(reclaim="never")
    store.flush(600)
    store.abandon()
    assert set(held.values()) <= {strict.content(key) for key in strict.object_keys()}
    strict.check_nothing_lost()


@pytest.mark.parametrize("transport", ["threads", "aio"])
def test_a_bucket_of_another_account_gets_no_byte(strict: StrictTrial, transport: str) -> None:
    # case B170
    with contextlib.closing(strict.open(bucket_owner=OWNER, transport=transport)) as store:
        strict.put(store, "s/0")
        store.flush(600)  # the right account's bucket takes what carries the header
    keys, counts = strict.server.keys(strict.bucket), strict.server.counts()
    strict.server.script(Rule(lie=Lie.WRONG_OWNER))
    with pytest.raises(CredentialsRefused):
        strict.open(bucket_owner=OWNER, transport=transport)
    assert strict.server.keys(strict.bucket) == keys
    assert strict.server.counts().get("put") == counts.get("put")
    strict.server.script()
    store = strict.open(bucket_owner=OWNER, transport=transport)
    strict.server.script(Rule(lie=Lie.WRONG_OWNER))
    strict.put(store, "s/1")
    assert isinstance(strict.stop(store), CredentialsRefused)
    assert strict.server.keys(strict.bucket) == keys
    strict.check_nothing_lost()


def test_a_hostile_listing_hides_nothing_from_the_proof(strict: StrictTrial) -> None:
    # cases B141, B18: listings are never what a byte is freed on
    store = strict.open(reclaim="lazy")
    strict.put_all(store, is_multipart=False)
    store.flush(600)
    strict.server.script(Rule(lie=Lie.LIST_OMITS), Rule(lie=Lie.LIST_EMPTY))
    assert strict.stop(store) is None
    assert len(strict.unlinked) == len(NAMES)
    strict.check_nothing_lost()


@pytest.mark.parametrize("lie", [Lie.V2_BROKEN, Lie.LIST_REPEATS, Lie.LIST_UNORDERED])
def test_an_open_on_a_listing_that_is_none_is_refused_or_right(strict: StrictTrial, lie: Lie) -> None:
    # case B140
    store = strict.open(reclaim="lazy")
    strict.put_all(store, is_multipart=False)
    store.flush(600)
    store.abandon()
    held = {path.name: path.read_bytes() for path in strict.packs}
    strict.server.script(Rule(lie=lie), Rule(lie=Lie.PAGE_SIZE, op="list", amount=1))
    with contextlib.suppress(DurastoreError):
        strict.open(reclaim="lazy").abandon()
    assert {path.name: path.read_bytes() for path in strict.packs} == held
    strict.check_nothing_lost()

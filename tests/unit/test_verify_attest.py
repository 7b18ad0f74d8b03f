"""ATTESTED: every answer that differs is refused, every answer that lacks something is not believed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from durastore.clock import ManualClock
from durastore.errors import IntegrityError, NotVerified, ObjectAbsent, RequestRefused
from durastore.model import EvidenceLevel, ObjectKey
from durastore.objectstore.crc import crc64nvme_b64
from durastore.objectstore.memory import MemoryStore
from durastore.objectstore.port import ObjectReader, ObjectStat
from durastore.objectstore.probe.result import ChecksumKind
from durastore.observe.events import Counting, Observer, Silent
from durastore.spool.records import PackRecord
from durastore.testing.faulty import Fault, FaultyStore
from durastore.verify.attest import CHUNK_BYTES, WHOLE_BYTES, _stretches, attest
from durastore.verify.verifier import BucketIdentity, Verifier
from tests.unit.reclaim_lab import Chosen
from tests.unit.verify_lab import DATA, KEY, policy, probe_result, record

MIB = 1 << 20
CLOCK = ManualClock()
GUARDED = policy(probe=probe_result(ChecksumKind.CRC64NVME))


class Told:
    """A reader whose HEAD answers what the test says."""

    def __init__(self, inner: ObjectReader, **changes: Any) -> None:
        self.inner = inner
        self.changes = changes

    def head(self, key: Any) -> ObjectStat:
        return replace(self.inner.head(key), **self.changes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@pytest.fixture
def store() -> FaultyStore:
    made = FaultyStore(MemoryStore())
    made.put(KEY, DATA, crc64nvme=crc64nvme_b64(DATA), metadata={})
    return made


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "pack").write_bytes(DATA)
    opened = os.open(tmp_path / "pack", os.O_RDONLY)
    yield opened
    os.close(opened)


@pytest.fixture
def pack(store: FaultyStore) -> PackRecord:
    return record(CLOCK, etag=store.head(KEY).etag, crc64nvme=crc64nvme_b64(DATA))


def test_a_guarded_checksum_and_a_spot_attest(store: FaultyStore, pack: PackRecord, fd: int) -> None:
    found = attest(store, pack, fd=fd, policy=GUARDED, clock=CLOCK)
    assert (found.level, found.probe, found.key) == (EvidenceLevel.ATTESTED, GUARDED.probe_id, KEY)
    assert (found.digest, found.size_bytes) == (None, len(DATA))
    assert (store.count("head"), store.count("fetch"), store.count("fetch_chunks")) == (2, 1, 0)  # one HEAD is ours


@pytest.mark.parametrize("probe", [None, probe_result(), probe_result(None, ChecksumKind.CRC64NVME)])
def test_without_a_guarded_path_nothing_is_attested(store: FaultyStore, pack: PackRecord, fd: int, probe: Any) -> None:
    with pytest.raises(NotVerified):
        attest(store, pack, fd=fd, policy=policy(probe=probe), clock=CLOCK)


@pytest.mark.parametrize(
    "changes",
    [
        {"crc64nvme": None},
        {"crc64nvme": ""},
        {"etag": ""},
        {"etag": '"another"'},
        {"size_bytes": None},
        {"version_id": "v2"},
        {"is_readable": False},
    ],
)
def test_an_answer_that_lacks_something_is_not_believed(
    store: FaultyStore, pack: PackRecord, fd: int, changes: dict[str, Any]
) -> None:
    with pytest.raises(NotVerified):
        attest(Told(store, **changes), pack, fd=fd, policy=GUARDED, clock=CLOCK)


@pytest.mark.parametrize("changes", [{"crc64nvme": "AAAAAAAAAAA="}, {"size_bytes": 1}, {"size_bytes": 0}])
def test_an_answer_that_differs_is_damage(
    store: FaultyStore, pack: PackRecord, fd: int, changes: dict[str, Any]
) -> None:
    with pytest.raises(IntegrityError):
        attest(Told(store, **changes), pack, fd=fd, policy=GUARDED, clock=CLOCK)


def test_data_that_are_gone_or_wrong_behind_a_good_head_are_found(
    store: FaultyStore, pack: PackRecord, fd: int
) -> None:  # cases B61, B79: a pack smaller than the spot is compared whole
    store.damage(KEY, Fault.FLIP_BYTE)
    with pytest.raises(IntegrityError):
        attest(store, pack, fd=fd, policy=GUARDED, clock=CLOCK)
    store.lose(KEY)
    with pytest.raises(ObjectAbsent):
        attest(store, pack, fd=fd, policy=GUARDED, clock=CLOCK)


def test_an_object_replaced_between_head_and_spot_is_noticed(store: FaultyStore, pack: PackRecord, fd: int) -> None:
    class Replaced(Told):
        def head(self, key: Any) -> ObjectStat:
            found = self.inner.head(key)
            store.inner.put(KEY, b"other", crc64nvme=None, metadata={})
            return found

    with pytest.raises((IntegrityError, RequestRefused)):
        attest(Replaced(store), pack, fd=fd, policy=GUARDED, clock=CLOCK)


def test_a_spot_of_equal_bytes_under_another_etag_is_not_taken(store: FaultyStore, pack: PackRecord, fd: int) -> None:
    # what HEAD told of one write says nothing about the bytes of another
    etag = '"of the write that HEAD still sees"'
    with pytest.raises(RequestRefused):
        attest(Told(store, etag=etag), replace(pack, etag=etag), fd=fd, policy=GUARDED, clock=CLOCK)


def test_md5_etags_attest_where_the_probe_saw_them(store: FaultyStore, pack: PackRecord, fd: int) -> None:
    by_md5 = policy(probe=probe_result(ChecksumKind.ETAG_MD5))
    etag = f'"{hashlib.md5(DATA, usedforsecurity=False).hexdigest()}"'
    right = replace(pack, etag=etag)

    class Loose(Told):
        def fetch(self, key: Any, **facts: Any) -> bytes:
            return self.inner.fetch(key, offset=facts["offset"], length=facts["length"])

    assert attest(Loose(store, etag=etag), right, fd=fd, policy=by_md5, clock=CLOCK).level is EvidenceLevel.ATTESTED
    wrong = '"00000000000000000000000000000000"'
    with pytest.raises(IntegrityError):
        attest(Loose(store, etag=wrong), replace(pack, etag=wrong), fd=fd, policy=by_md5, clock=CLOCK)


def test_md5_of_part_md5s_attests_multipart_writes(store: FaultyStore, pack: PackRecord, fd: int) -> None:
    by_md5 = policy(probe=probe_result(None, ChecksumKind.ETAG_MD5))
    pack = replace(pack, part_bytes=400)
    parts = [DATA[at : at + 400] for at in range(0, len(DATA), 400)]
    joined = b"".join(hashlib.md5(part, usedforsecurity=False).digest() for part in parts)
    etag = f'"{hashlib.md5(joined, usedforsecurity=False).hexdigest()}-{len(parts)}"'

    class Loose(Told):
        def fetch(self, key: Any, **facts: Any) -> bytes:
            return self.inner.fetch(key, offset=facts["offset"], length=facts["length"])

    found = attest(Loose(store, etag=etag), replace(pack, etag=etag), fd=fd, policy=by_md5, clock=CLOCK)
    assert found.level is EvidenceLevel.ATTESTED
    other = f'"{"0" * 32}-{len(parts)}"'  # cut otherwise, perhaps: not damage, and not proof
    with pytest.raises(NotVerified):
        attest(Loose(store, etag=other), replace(pack, etag=other), fd=fd, policy=by_md5, clock=CLOCK)


def verifier(store: FaultyStore, *, observer: Observer | None = None, **changes: Any) -> Verifier:
    bucket = BucketIdentity(prefix="p", store_id="0" * 32)
    return Verifier(store, bucket=bucket, policy=policy(**changes), clock=CLOCK, observer=observer or Silent())


def test_the_verifier_attests_reads_back_and_audits(store: FaultyStore, pack: PackRecord, tmp_path: Path) -> None:
    (tmp_path / "p").write_bytes(DATA)
    probe = probe_result(ChecksumKind.CRC64NVME)

    def open_local() -> int:
        return os.open(tmp_path / "p", os.O_RDONLY)

    attesting = verifier(store, probe=probe)
    # an endpoint may guard what a probe sends and nothing after: the first copy of a write path is read in full
    assert attesting.verify_remote_copy(pack, open_local=open_local).level is EvidenceLevel.READ_BACK
    assert attesting.verify_remote_copy(pack, open_local=open_local).level is EvidenceLevel.ATTESTED
    assert attesting.verify_remote_copy(pack).level is EvidenceLevel.READ_BACK  # no local side to compare a spot with
    assert verifier(store).verify_remote_copy(pack, open_local=open_local).level is EvidenceLevel.READ_BACK
    audited = verifier(store, probe=probe, audit_share=1.0)
    audited.verify_remote_copy(pack)
    assert audited.verify_remote_copy(pack, open_local=open_local).level is EvidenceLevel.READ_BACK
    other = replace(pack, etag='"older"')  # HEAD shows another write: read, not believed
    assert attesting.verify_remote_copy(other, open_local=open_local).level is EvidenceLevel.READ_BACK
    attesting.stop_reclaiming("a look at another pack found a wrong copy")  # caught once: nothing is believed any more
    assert attesting.verify_remote_copy(pack, open_local=open_local).level is EvidenceLevel.READ_BACK


def test_one_write_path_earns_nothing_for_the_other(store: FaultyStore, pack: PackRecord, tmp_path: Path) -> None:
    (tmp_path / "p").write_bytes(DATA)

    def look(looking: Verifier, **changes: Any) -> EvidenceLevel:
        kept = replace(pack, **changes)
        return looking.verify_remote_copy(kept, open_local=lambda: os.open(tmp_path / "p", os.O_RDONLY)).level

    probe = probe_result(ChecksumKind.CRC64NVME, ChecksumKind.CRC64NVME)
    single = verifier(store, probe=probe)
    assert [look(single), look(single)] == [EvidenceLevel.READ_BACK, EvidenceLevel.ATTESTED]
    nobody_knows = [look(single, part_bytes=None), look(single, part_bytes=None)]  # it may have gone in parts
    assert nobody_knows == [EvidenceLevel.READ_BACK] * 2
    in_parts = [look(single, part_bytes=100), look(single, part_bytes=100)]
    assert in_parts == [EvidenceLevel.READ_BACK, EvidenceLevel.ATTESTED]
    assert look(single, part_bytes=None) is EvidenceLevel.ATTESTED
    single.use(policy(probe=probe_result(ChecksumKind.CRC64NVME, id="ff112233445566ff")))  # probed anew
    assert [look(single), look(single)] == [EvidenceLevel.READ_BACK, EvidenceLevel.ATTESTED]


class Hollow(Told):
    """Its HEAD answers as before, and its data are other ones."""

    def __init__(self, inner: ObjectReader, *, data: bytes) -> None:
        super().__init__(inner)
        self.data = data

    def fetch(self, key: Any, *, offset: int = 0, length: int | None = None, **_: Any) -> bytes:
        return self.data[offset:][:length]


@pytest.mark.parametrize("sent", [400, None])
def test_each_part_is_looked_into(
    store: FaultyStore, pack: PackRecord, fd: int, monkeypatch: pytest.MonkeyPatch, sent: int | None
) -> None:
    # case B47: of an object that went in parts, or may have, a part that is gone is not found by a block of another one
    monkeypatch.setattr("durastore.verify.attest.WHOLE_BYTES", 0)
    monkeypatch.setattr("durastore.verify.attest.SPOT_BYTES", 1)
    crc = ChecksumKind.CRC64NVME
    in_parts, pack = policy(probe=probe_result(crc, crc), part_bytes=400), replace(pack, part_bytes=sent)
    for start in range(0, len(DATA), 400):
        wrong = bytearray(DATA)
        wrong[start : start + 400] = bytes(byte ^ 0xFF for byte in wrong[start : start + 400])
        with pytest.raises(IntegrityError, match="differs from pack"):
            attest(Hollow(store, data=bytes(wrong)), pack, fd=fd, policy=in_parts, clock=CLOCK)


@pytest.mark.parametrize("sent", [100, 250, 700])
def test_each_part_is_looked_into_as_it_was_cut(
    store: FaultyStore, pack: PackRecord, fd: int, monkeypatch: pytest.MonkeyPatch, sent: int
) -> None:
    # case B47: an upload that was gone on with keeps the part size it began with, whatever is the size today
    monkeypatch.setattr("durastore.verify.attest.WHOLE_BYTES", 0)
    monkeypatch.setattr("durastore.verify.attest.SPOT_BYTES", 1)
    today = policy(probe=probe_result(None, ChecksumKind.CRC64NVME), part_bytes=400)
    cut = replace(pack, part_bytes=sent)
    assert attest(store, cut, fd=fd, policy=today, clock=CLOCK).level is EvidenceLevel.ATTESTED
    for start in range(0, len(DATA), sent):
        wrong = bytearray(DATA)
        wrong[start : start + sent] = bytes(byte ^ 0xFF for byte in wrong[start : start + sent])
        with pytest.raises(IntegrityError, match="differs from pack"):
            attest(Hollow(store, data=bytes(wrong)), cut, fd=fd, policy=today, clock=CLOCK)


def test_md5_of_part_md5s_is_taken_over_the_parts_that_were_sent(store: FaultyStore, pack: PackRecord, fd: int) -> None:
    today = policy(probe=probe_result(None, ChecksumKind.ETAG_MD5), part_bytes=400)
    parts = [DATA[at : at + 300] for at in range(0, len(DATA), 300)]
    joined = b"".join(hashlib.md5(part, usedforsecurity=False).digest() for part in parts)
    etag = f'"{hashlib.md5(joined, usedforsecurity=False).hexdigest()}-{len(parts)}"'
    told = Hollow(store, data=DATA)
    told.changes = {"etag": etag}
    cut = replace(pack, etag=etag, part_bytes=300)
    assert attest(told, cut, fd=fd, policy=today, clock=CLOCK).level is EvidenceLevel.ATTESTED
    with pytest.raises(NotVerified):  # a record of an older version does not say how it was cut
        attest(told, replace(cut, part_bytes=None), fd=fd, policy=today, clock=CLOCK)


def test_one_mismatch_stops_all_reclaiming_and_is_told_once(store: FaultyStore, pack: PackRecord) -> None:
    stopped = verifier(store)
    told: list[str] = []
    stopped.on_distrust(told.append)
    store.damage(KEY, Fault.ZERO_BLOCK if len(DATA) > 8192 else Fault.FLIP_BYTE)
    for _ in range(2):
        with pytest.raises(IntegrityError):
            stopped.verify_remote_copy(pack)
    assert len(told) == 1
    assert stopped.distrust is not None
    with pytest.raises(NotVerified, match="stopped"):
        stopped.open_batch([pack])


class Breaks:
    """An observer whose metrics socket is gone."""

    def emit(self, name: str, **facts: object) -> None:
        raise BrokenPipeError(name)


def test_the_switch_is_thrown_before_anybody_hears_of_the_mismatch(store: FaultyStore, pack: PackRecord) -> None:
    looking = verifier(store, observer=Breaks())
    store.damage(KEY, Fault.FLIP_BYTE)
    with pytest.raises(BrokenPipeError):
        looking.verify_remote_copy(pack)
    assert looking.distrust is not None


def test_a_lifecycle_rule_that_expires_the_prefix_blocks_reclaim(store: FaultyStore, pack: PackRecord) -> None:
    blocked = verifier(store, probe=probe_result(ChecksumKind.CRC64NVME, expiring_rule="rule-1"))
    with pytest.raises(NotVerified, match="rule-1"):
        blocked.open_batch([pack])


@pytest.mark.parametrize("missing", ["key", "size_bytes", "digest"])
def test_what_was_never_sealed_is_not_looked_for(store: FaultyStore, pack: PackRecord, fd: int, missing: str) -> None:
    facts: dict[str, Any] = {missing: None}
    asked = len(store.calls)
    with pytest.raises(NotVerified, match="never sealed"):
        attest(store, replace(pack, **facts), fd=fd, policy=GUARDED, clock=CLOCK)
    assert len(store.calls) == asked


def test_a_local_file_that_is_cut_is_said_to_be_damaged(
    store: FaultyStore, pack: PackRecord, fd: int, tmp_path: Path
) -> None:
    os.truncate(tmp_path / "pack", len(DATA) - 1)
    with pytest.raises(NotVerified, match="shorter") as caught:
        attest(store, pack, fd=fd, policy=GUARDED, clock=CLOCK)
    assert caught.value.facts["is_local_damaged"] is True


def test_the_share_of_audits_is_as_told(
    store: FaultyStore, pack: PackRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "p").write_bytes(DATA)
    monkeypatch.setattr("random.SystemRandom", Chosen)  # which says 0.5
    for share, level in ((0.5, EvidenceLevel.ATTESTED), (0.51, EvidenceLevel.READ_BACK)):
        looking = verifier(store, probe=probe_result(ChecksumKind.CRC64NVME), audit_share=share)
        looking.verify_remote_copy(pack)
        found = looking.verify_remote_copy(pack, open_local=lambda: os.open(tmp_path / "p", os.O_RDONLY))
        assert found.level is level


def test_looks_are_counted_and_leave_no_descriptor_open(store: FaultyStore, pack: PackRecord, tmp_path: Path) -> None:
    (tmp_path / "p").write_bytes(DATA)
    heard = Counting()
    looking = verifier(store, probe=probe_result(ChecksumKind.CRC64NVME), observer=heard)
    before = os.listdir("/proc/self/fd")
    looking.verify_remote_copy(pack)
    looking.verify_remote_copy(pack, open_local=lambda: os.open(tmp_path / "p", os.O_RDONLY))
    store.damage(KEY, Fault.FLIP_BYTE)
    for open_local in (None, lambda: os.open(tmp_path / "p", os.O_RDONLY)):
        with pytest.raises(IntegrityError):
            looking.verify_remote_copy(pack, open_local=open_local)
    assert os.listdir("/proc/self/fd") == before
    names = (
        "verify.attested",
        "verify.attested.bytes",
        "verify.read_back",
        "verify.read_back.bytes",
        "verify.mismatch",
    )
    assert [heard.count(name) for name in names] == [1, len(DATA), 1, len(DATA), 2]


def test_every_connection_of_its_own_is_closed(store: FaultyStore, pack: PackRecord) -> None:
    opened: list[str] = []
    closed: list[str] = []

    class Reader(Told):
        def close(self) -> None:
            closed.append("x")

    class Opener(Told):
        def fresh_reader(self) -> Any:
            opened.append("x")
            return Reader(store)

    looking = verifier(cast(Any, Opener(store)))
    looking.verify_remote_copy(pack)
    assert not looking.holds_segment(ObjectKey("p/manifest/0123456789abcdef/000000000001-0123456789abcdef.parquet"))
    with pytest.raises(NotVerified, match="marker"):
        looking.check_bucket()
    with pytest.raises(NotVerified, match="marker"):
        looking.open_batch([pack])
    assert len(opened) == len(closed) == 4


def test_the_second_look_comes_a_while_after_the_first() -> None:
    # a lagging replica answers 404 for a moment
    late = MemoryStore()

    def arrive(_: float) -> None:
        late.put(KEY, DATA, crc64nvme=None, metadata={})

    clock = ManualClock(on_sleep=arrive)
    bucket = BucketIdentity(prefix="p", store_id="0" * 32)
    looking = Verifier(late, bucket=bucket, policy=policy(), clock=clock, observer=Silent())
    assert looking.look_twice(record(clock)).level is EvidenceLevel.READ_BACK


@pytest.mark.parametrize("part_bytes", [0, 5 * MIB, 8 * MIB, 16 * MIB])
@pytest.mark.parametrize("size", [0, 1, 64 << 10, MIB, MIB + 1, 2 * MIB, 4 * MIB, 9 * MIB + 7, 64 * MIB])
def test_every_stretch_that_a_server_may_lose_by_itself_gets_a_look(size: int, part_bytes: int) -> None:
    # case B47; and an object sent whole may lose a half or a chunk of it
    found = list(_stretches(size, part_bytes=part_bytes))
    assert [start for start, _ in found] == [0, *(start + length for start, length in found[:-1])]
    assert sum(length for _, length in found) == size
    assert all(length <= CHUNK_BYTES for _, length in found)
    edges = {start for start, _ in found}
    assert edges >= set(range(0, size, part_bytes or size or 1))
    if size > WHOLE_BYTES:
        assert len(found) >= 2
    if not part_bytes:  # each look costs a request: no more of them than there are chunks, or halves
        assert len(found) == max(1 if size <= WHOLE_BYTES else 2, -(-size // CHUNK_BYTES))


@pytest.mark.parametrize("part_bytes", [0, None])
@pytest.mark.parametrize("lost", [slice(0, MIB), slice(MIB, 2 * MIB)])
def test_a_lost_half_of_an_object_sent_whole_is_always_noticed(
    lost: slice, part_bytes: int | None, tmp_path: Path
) -> None:
    both = policy(probe=probe_result(ChecksumKind.CRC64NVME, ChecksumKind.CRC64NVME))
    data = os.urandom(2 * MIB)
    held = bytearray(data)
    held[lost] = bytes(MIB)
    made = MemoryStore()
    made.put(KEY, bytes(held), crc64nvme=None, metadata={})
    crc = crc64nvme_b64(data)
    sealed = record(CLOCK, size_bytes=len(data), crc64nvme=crc, etag=made.head(KEY).etag, part_bytes=part_bytes)
    (tmp_path / "pack").write_bytes(data)
    opened = os.open(tmp_path / "pack", os.O_RDONLY)
    try:
        for _ in range(8):
            with pytest.raises(IntegrityError, match="differs from pack"):
                attest(cast(Any, Told(made, crc64nvme=crc)), sealed, fd=opened, policy=both, clock=CLOCK)
    finally:
        os.close(opened)

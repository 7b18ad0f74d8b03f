"""The engine over every kind of store that the `threads` transport serves, whole and with faults in between."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from durastore.clock import ManualClock
from durastore.errors import ConfigError, DurastoreError, IntegrityError
from durastore.model import EvidenceLevel
from durastore.objectstore.directory import DirectoryStore
from durastore.objectstore.location import S3Options
from durastore.objectstore.memory import MemoryStore
from durastore.objectstore.port import ObjectStore
from durastore.objectstore.probe.result import ChecksumKind
from durastore.objectstore.retrying import RetryPolicy
from durastore.testing.faulty import Fault, FaultRule, FaultyStore
from durastore.upload.engine import Uploader
from durastore.upload.job import UploadLimits
from durastore.upload.transports import choose_transport
from tests.unit.upload_fakes import Pack
from tests.unit.verify_lab import policy, probe_result, record

PART = 1000
LIMITS = UploadLimits(part_bytes=PART, multipart_above=PART, budget_bytes=4 * PART, max_requests=4)
POLICY = RetryPolicy(budget_s=5, base_s=0.002, cap_s=0.01, max_attempts=5)


@pytest.fixture(params=["memory", "directory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ObjectStore]:
    folder = tmp_path / "bucket"
    folder.mkdir()
    store: ObjectStore = MemoryStore() if request.param == "memory" else DirectoryStore(folder)
    yield store
    store.close()


def _engine(store: ObjectStore) -> Uploader:
    return Uploader(choose_transport(store, "auto", max_requests=4), limits=LIMITS, policy=POLICY)


def _packs(folder: Path, sizes: list[int]) -> list[Pack]:
    return [Pack.make(folder, f"p{n}", random.Random(n).randbytes(size)) for n, size in enumerate(sizes)]


def test_packs_of_all_sizes_arrive(store: ObjectStore, tmp_path: Path) -> None:
    packs = _packs(tmp_path, [0, 1, PART - 1, PART, PART + 1, 5 * PART, 5 * PART + 1])
    engine = _engine(store)
    for future in [engine.submit(pack.job()) for pack in packs]:
        assert future.result(20).settled_by == "answer"
    engine.close(5)
    for pack in packs:
        assert store.fetch(pack.key) == pack.data
        assert dict(store.head(pack.key).metadata)["durastore-write-id"] == pack.write_id


def test_a_second_sending_recognises_the_first(store: ObjectStore, tmp_path: Path) -> None:
    engine = _engine(store)
    for pack in _packs(tmp_path, [10, 3 * PART]):
        engine.submit(pack.job()).result(10)
        again = engine.submit(pack.job()).result(10)
        assert (again.settled_by, again.part_bytes) == ("head", None), "who looks does not see how it was sent"
    engine.close(5)


def test_an_object_sent_in_parts_before_the_limit_was_raised_is_no_single_put(
    store: ObjectStore, tmp_path: Path
) -> None:
    (pack,) = _packs(tmp_path, [3 * PART])
    engine = _engine(store)
    assert engine.submit(pack.job()).result(20).part_bytes == PART
    engine.close(5)
    # the pack went back to SEALED for a doubt: another write id, no session; and today's limit is higher
    limits = UploadLimits(multipart_above=1 << 20)
    engine = Uploader(choose_transport(store, "auto", max_requests=4), limits=limits, policy=POLICY)
    reply = engine.submit(replace(pack.job(), write_id="another", session=None)).result(20)
    engine.close(5)
    assert (reply.settled_by, reply.part_bytes) == ("head", None)
    found = record(ManualClock(), etag=reply.etag, part_bytes=reply.part_bytes)
    # of this endpoint only single PUTs were seen to be checked
    today = policy(probe=probe_result(ChecksumKind.CRC64NVME, None))
    assert today.level_for(found) is EvidenceLevel.READ_BACK


def test_other_bytes_under_the_key_stay_and_are_a_conflict(store: ObjectStore, tmp_path: Path) -> None:
    packs = _packs(tmp_path, [10, 3 * PART])
    if isinstance(store, MemoryStore):
        packs.pop()  # a Complete has no condition there, as on S3
    engine = _engine(store)
    for pack in packs:
        other = b"x" * len(pack.data)
        store.put(pack.key, other, crc64nvme=None, metadata={})
        with pytest.raises(IntegrityError, match="conflict") as caught:
            engine.submit(pack.job()).result(10)
        assert caught.value.facts["is_conflict"] is True
        assert store.fetch(pack.key) == other
        assert pack.path.read_bytes() == pack.data
    engine.close(5)


def test_a_wrong_object_is_replaced_or_reported(store: ObjectStore, tmp_path: Path) -> None:
    engine = _engine(store)
    for pack in _packs(tmp_path, [10, 3 * PART]):
        store.put(pack.key, b"x" * len(pack.data), crc64nvme=None, metadata=pack.job().metadata())
        future = engine.submit(pack.job(is_overwriting=True))
        if isinstance(store, MemoryStore):
            future.result(10)
            assert store.fetch(pack.key) == pack.data
        else:
            with pytest.raises(IntegrityError, match="does not replace"):
                future.result(10)
            assert store.fetch(pack.key) == b"x" * len(pack.data)
    engine.close(5)


@pytest.mark.parametrize("seed", range(12))
def test_random_faults_never_make_a_wrong_object(store: ObjectStore, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    ops = ["put", "create_upload", "upload_part", "complete_upload", "head", "list_parts", "abort_upload"]
    kinds = [Fault.DROP_REQUEST, Fault.DROP_RESPONSE, Fault.SERVER_ERROR, Fault.SLOW_DOWN]
    rules = [
        FaultRule(
            op=chance.choice(ops), fault=chance.choice(kinds), first=chance.randint(1, 9), count=chance.randint(1, 4)
        )
        for _ in range(14)
    ]
    faulty = FaultyStore(store, *rules)
    packs = _packs(tmp_path, [chance.choice([10, PART, 3 * PART, 7 * PART + 1]) for _ in range(10)])
    waiting = list(packs)
    for _ in range(12):  # what surfaced is submitted again with the session as recorded, as the store does
        engine = _engine(faulty)
        futures = [(engine.submit(pack.job()), pack) for pack in waiting]
        waiting = []
        for future, pack in futures:
            error = future.exception(30)
            assert error is None or isinstance(error, DurastoreError)
            if error is not None:
                assert not isinstance(error, IntegrityError), f"seed {seed}: {error}"
                waiting.append(pack)
        engine.close(5)
        if not waiting:
            break
    assert not waiting, f"seed {seed}: {rules}"
    for pack in packs:
        assert store.fetch(pack.key) == pack.data


def test_b80_two_writers_of_one_key(tmp_path: Path) -> None:
    """Whoever comes second is told; what is stored is one whole input."""
    for round_number in range(20):
        store = MemoryStore()
        pair = [Pack.make(tmp_path, f"{side}-{round_number}", bytes([side]) * (50 + side)) for side in (0, 1)]
        for pack in pair:
            pack.key = pair[0].key
        engines = [_engine(store), _engine(store)]
        with ThreadPoolExecutor(2) as pool:
            futures = list(pool.map(lambda work: work[0].submit(work[1].job()), zip(engines, pair, strict=True)))
        errors = [future.exception(10) for future in futures]
        for engine in engines:
            engine.close(5)
        assert sorted(type(error).__name__ for error in errors) == ["IntegrityError", "NoneType"]
        assert store.fetch(pair[0].key) == pair[errors.index(None)].data


def test_which_transport() -> None:
    memory = MemoryStore()
    with pytest.raises(ConfigError, match="for S3 only"):
        choose_transport(memory, "aio")
    with pytest.raises(ConfigError, match="for S3 only"):
        choose_transport(memory, "aio", s3=S3Options())
    with pytest.raises(ConfigError, match="use auto, aio or threads"):
        choose_transport(memory, "curl")

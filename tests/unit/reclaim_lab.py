"""A real spool and a bucket in memory, joined by the real verifier and reclaimer, on a clock that a test moves.

Duty: bring packs to MANIFESTED without threads or waiting, so that a test can make one fact wrong and see what reclaim
does. Each unlink of a pack is judged at its moment (O2), and the bytes of every pack must stay somewhere (O1).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest

from durastore.clock import ManualClock
from durastore.config import StoreOptions
from durastore.errors import ObjectAbsent
from durastore.formats.keys import marker_key
from durastore.formats.marker import MARKER_FORMAT, Marker
from durastore.fsio.sys import SYS
from durastore.manifest.segments import publish_segment
from durastore.model import PackState
from durastore.objectstore.memory import MemoryStore
from durastore.observe.events import Counting
from durastore.reclaim.engine import Reclaimer, ReclaimReport
from durastore.reclaim.plan import ReclaimPlan
from durastore.spool.journal import PackRecord
from durastore.spool.spool import Spool
from durastore.store.board import Board
from durastore.store.services import Services
from durastore.testing.faulty import FaultyStore
from durastore.upload.job import UploadReply
from durastore.verify.policy import ProofPolicy
from durastore.verify.verifier import BucketIdentity, Verifier
from tests.unit.spool_lab import LIMITS, PREFIX, RUN, sample, spool_at, writer_of
from tests.unit.verify_lab import policy

STORE_ID = "ab" * 16
SETTLE_S = 600.0


class Chosen:
    """No chance: the canary of a batch is its last pack, nothing is audited, the spot is the file's end."""

    def choice(self, records: list[Any]) -> Any:
        return records[-1]

    def random(self) -> float:
        return 0.5

    def randrange(self, stop: int) -> int:
        return stop - 1


@dataclass
class ReclaimLab:
    """One spool, one bucket, and what was unlinked on which grounds."""

    spool: Spool
    objects: FaultyStore
    clock: ManualClock
    observer: Counting = field(default_factory=Counting)
    unlinked: list[str] = field(default_factory=list)
    false_unlinks: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._contents: dict[str, bytes] = {}
        marker = Marker(store_id=STORE_ID, format=MARKER_FORMAT, run=RUN, created_ns=self.clock.now_ns())
        self.objects.put(marker_key(PREFIX), marker.render(), crc64nvme=None, metadata={})
        self.verifier = self.make_verifier(policy())
        self.reclaimer = Reclaimer(self.spool, self.verifier, observer=self.observer)

    def make_verifier(self, chosen: ProofPolicy) -> Verifier:
        bucket = BucketIdentity(prefix=PREFIX, store_id=STORE_ID)
        return Verifier(self.objects, bucket=bucket, policy=chosen, clock=self.clock, observer=self.observer)

    # --- a pack's way, one recorded step at a time -----------------------------------------------------------------

    def sealed(self, name: str) -> PackRecord:
        writer = writer_of(self.spool, limits=LIMITS)
        ((pack_id, _),) = writer.append([sample(name)])
        writer.seal_open()
        writer.close()
        record = self.spool.journal.pack(pack_id)
        self._contents[record.name] = self.path(record).read_bytes()
        return record

    def uploaded(self, name: str) -> PackRecord:
        return self.send(self.sealed(name))

    def send(self, record: PackRecord) -> PackRecord:
        assert record.key is not None
        self.spool.journal.write_id(record.pack_id)
        answer = self.objects.put(record.key, self.content(record), crc64nvme=record.crc64nvme, metadata={})
        reply = UploadReply(
            etag=answer.etag,
            version_id=answer.version_id,
            server_time_s=answer.server_time_s,
            write_id="w",
            settled_by="answer",
            part_bytes=0,
        )
        self.spool.journal.record_uploaded(record.pack_id, reply=reply, at=self.clock.stamp())
        return self.spool.journal.pack(record.pack_id)

    def verify(self, record: PackRecord) -> PackRecord:
        def open_local() -> int:
            return self.spool.packs_folder.open_read(record.name)

        self.spool.journal.record_verified(
            record.pack_id, self.verifier.verify_remote_copy(record, open_local=open_local)
        )
        return self.spool.journal.pack(record.pack_id)

    def manifest(self, *records: PackRecord) -> list[PackRecord]:
        """All of them in one segment."""
        text = b"rows of " + b", ".join(record.name.encode() for record in records)
        seq = self.spool.journal.packs(PackState.MANIFESTED)
        key = publish_segment(self.objects, text, prefix=PREFIX, writer=self.spool.writer, seq=len(seq) + 1)
        self.spool.journal.record_manifested([record.pack_id for record in records], key, at=self.clock.stamp())
        return [self.spool.journal.pack(record.pack_id) for record in records]

    def manifested(self, *names: str) -> list[PackRecord]:
        """Packs of one sample each, all steps done, at the clock's present moment: nothing has settled yet."""
        return self.manifest(*[self.verify(self.uploaded(name)) for name in names])

    def settled(self, *names: str) -> list[PackRecord]:
        """The same, and `settle_s` has passed: with nothing wrong they go."""
        records = self.manifested(*names)
        self.clock.advance(SETTLE_S)
        return records

    def alter(self, record: PackRecord, **columns: Any) -> PackRecord:
        """Write into the journal what the library itself would never record."""
        with self.spool.journal._db.writing() as conn:
            for name, value in columns.items():
                conn.execute(f"UPDATE packs SET {name} = ? WHERE pack_id = ?", (value, record.pack_id))  # noqa: S608 - our own names
        return self.spool.journal.pack(record.pack_id)

    # --- acting and looking ----------------------------------------------------------------------------------------

    def reclaim(self, *records: PackRecord) -> ReclaimReport:
        return self.reclaimer.execute(ReclaimPlan(packs=records))

    def state(self, record: PackRecord) -> PackState:
        return self.spool.journal.pack(record.pack_id).state

    def path(self, record: PackRecord) -> Path:
        return self.spool.packs_folder.path / record.name

    def content(self, record: PackRecord) -> bytes:
        """What was sealed."""
        return self._contents[record.name]

    def is_here(self, record: PackRecord) -> bool:
        """The file is in its place with every sealed byte."""
        return self.path(record).exists() and self.path(record).read_bytes() == self.content(record)

    def judge_unlink(self, folder: Path, name: str) -> None:
        self.unlinked.append(name)
        (record,) = [r for r in self.spool.journal.packs() if r.name == name]
        if record.state is not PackState.MANIFESTED or record.intent is None or record.manifested_in is None:
            self.false_unlinks.append(f"{name}: {record.state.value}, intent {record.intent}")
        with self.objects.truthful():
            try:
                is_held = record.key is not None and self.objects.fetch(record.key) == (folder / name).read_bytes()
            except ObjectAbsent:
                is_held = False
        if not is_held:
            self.false_unlinks.append(f"{name}: the bucket does not hold these bytes")


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ReclaimLab]:
    """Import this fixture into a test module to use it."""
    clock = ManualClock()
    monkeypatch.setattr("random.SystemRandom", Chosen)
    with spool_at(tmp_path / "root") as spool:
        spool.journal._db._connection.execute("PRAGMA synchronous=OFF")  # no power is cut here
        made = ReclaimLab(spool, FaultyStore(MemoryStore(clock=clock)), clock)
        monkeypatch.setattr(SYS, "unlink", _judging(made, SYS.unlink))
        yield made
    assert made.false_unlinks == []


def _judging(lab: ReclaimLab, plain: Callable[..., None]) -> Callable[..., None]:
    def unlink(name: str, *, dir_fd: int) -> None:
        folder = Path(os.readlink(f"/proc/self/fd/{dir_fd}"))
        if folder.name == "packs" and not (folder.parent / "quarantine" / name).exists():
            lab.judge_unlink(folder, name)
        plain(name, dir_fd=dir_fd)

    return unlink


def changed(verifier: Verifier, **facts: Any) -> ProofPolicy:
    """The verifier's policy with other facts."""
    return replace(verifier._policy, **facts)


class AtOnce:
    """A pool without threads: what is submitted is done by the time it returns."""

    def submit(self, work: Callable[..., Any], *args: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(work(*args))
        except Exception as exc:  # noqa: BLE001 - a pool hands every error to who asks for the result
            future.set_exception(exc)
        return future


def services_of(lab: ReclaimLab, **options: Any) -> Services:
    """What the parts of a store share, without those that send."""
    return Services(
        objects=lab.objects,
        prefix=PREFIX,
        run=RUN,
        uploader=cast(Any, None),
        verifier=lab.verifier,
        options=StoreOptions(**options),
        pool=cast(Any, AtOnce()),
        board=Board(lab.clock),
        clock=lab.clock,
        observer=lab.observer,
    )

"""A machine with one disk, one bucket and a clock of its own, on which a whole store runs one step at a time.

Duty: run the real store without a thread of its own (a lane works when somebody waits, uploads are waited for), so that
one seed is one history; end its process at any step, with the disk as it was at that moment; know what disk and bucket
truly hold. Judges every unlink of a pack and every step of the journal; what it finds is in `breaches`.
"""

from __future__ import annotations

import os
import random
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from durastore.clock import ManualClock
from durastore.errors import DurastoreError, EndpointUnreachable
from durastore.formats.segment import parse_segment
from durastore.fsio.sys import SYS, SystemCalls
from durastore.manifest.snapshot import fetch_snapshot
from durastore.manifest.view import ResolvedView, fetch_view
from durastore.model import Digest, ObjectKey, PackState, SampleId
from durastore.objectstore.memory import MemoryStore
from durastore.objectstore.port import Body, WriteReply
from durastore.objectstore.retrying import RetryPolicy
from durastore.spool.journal_db import JournalDatabase
from durastore.spool.pack_writer import PackWriter
from durastore.store import opening
from durastore.store.lane import Lane
from durastore.store.store import Store
from durastore.testing.faulty import FaultyStore
from durastore.upload.engine import Uploader
from durastore.upload.job import UploadJob, UploadReply
from durastore.upload.port import TransportFactory
from tests.property.disk_image import DiskImage, pack_files
from tests.property.pack_steps import PackRow, journaled_packs, newest_journal, step_fault

__all__ = ["Died", "World", "installed"]

URL = "memory://model/p"
_STEPS = ("open", "writev", "fsync", "fdatasync", "link", "link_fd", "unlink", "mkdir")
_OUTAGE_ENDS_AFTER = 150
_HANGS_AFTER = 600


class Died(BaseException):
    """The process ends at this very step."""


class _Clock(ManualClock):
    """Waiting lets the lanes work; time passes only where somebody waits for it."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self.server = ManualClock(start_ns=self.now_ns())

    def advance(self, seconds: float) -> None:
        super().advance(seconds)
        self.server.advance(seconds)

    def wait(self, condition: threading.Condition, timeout_s: float) -> None:
        self._world.on_wait(timeout_s)


class _HastyClock(ManualClock):
    """The uploader's pauses, which it sleeps in real time, are over by the next look."""

    def monotonic(self) -> float:
        self.advance(30.0)
        return super().monotonic()


class _Bucket(MemoryStore):
    """Both sides of every write are steps at which the process may end."""

    def __init__(self, world: World) -> None:
        super().__init__("model", clock=world.clock.server)
        self._world = world

    def put(
        self, key: ObjectKey, body: Body, *, crc64nvme: str | None, metadata: Mapping[str, str], if_absent: bool = False
    ) -> WriteReply:
        self._world.step("send")
        reply = super().put(key, body, crc64nvme=crc64nvme, metadata=metadata, if_absent=if_absent)
        self._world.step("sent")
        return reply


class World:
    """Everything that outlives a process of the store."""

    def __init__(self, base: Path, *, seed: int) -> None:
        self.local = base / "spool"
        self.clock = _Clock(self)
        self.bucket = FaultyStore(_Bucket(self))
        self.random = random.Random(seed)
        self.breaches: list[str] = []
        self.unlinks = 0
        self.lanes: list[Lane] = []
        self.is_dead = False
        self._fuse = 0
        self._image: DiskImage | None = None
        self._ended: set[int] = set()
        self._waits = 0
        self._lane: Lane | None = None
        self._is_parked = False
        self._main = threading.current_thread()
        self._packs: dict[Path, dict[int, PackRow]] = {}

    # --- processes -------------------------------------------------------------------------------------------------

    def open(self, **changes: Any) -> Store:
        """A process opens the store; its lanes have done nothing yet."""
        self._packs.clear()
        self._waits = 0
        options: dict[str, Any] = {
            "reclaim": "eager",
            "settle_s": 30.0,
            "pack_target_bytes": 5_000,
            "single_pack_bytes": 9_000,
            "reserve_bytes": 1,
            "transport": "threads",
        }
        return opening.open_store(URL, local=self.local, objects=self.bucket, clock=self.clock, **(options | changes))

    def stop(self, store: Store | None) -> None:
        """The process of `store` is gone, as after SIGKILL between two steps. After a death: with the disk of then."""
        self.is_dead, self._fuse = False, 0
        if store is not None:
            with suppress(DurastoreError):
                store.abandon()
            self.lanes = [lane for lane in self.lanes if lane not in store._parts.lanes]
        image, self._image = self._image, None
        if image is not None:
            image.restore()

    def dying(self, after: int, action: Callable[[], object]) -> bool:
        """Do `action` in a process that ends at its step number `after`; True if it got that far."""
        self._fuse = after
        try:
            action()
        except Died:
            pass
        finally:
            self._fuse = 0
        return self.is_dead

    def step(self, name: str) -> None:
        """One step that changes a disk or a bucket is about to be made (or, "sent" and "committed", was just made)."""
        if self.is_dead:
            raise self._end()
        if self._fuse:
            self._fuse -= 1
            if not self._fuse:
                self.is_dead = True
                self._image = DiskImage(self.local)
                raise self._end()

    def is_last_step(self) -> bool:
        return self._fuse == 1 and not self.is_dead

    def _end(self) -> BaseException:
        # the uploader's threads cannot take the process down; they find no network, and `submit` sees to the rest
        return Died() if threading.current_thread() is self._main else EndpointUnreachable("the process is gone")

    # --- time ------------------------------------------------------------------------------------------------------

    def on_wait(self, timeout_s: float) -> None:
        if self._lane is not None:
            self._lane._is_stopping = self._is_parked = True
            return
        self._waits += 1
        if self._waits > _HANGS_AFTER:
            raise AssertionError("a caller waits for ever although the endpoint is well")
        if self._waits > _OUTAGE_ENDS_AFTER:
            self.bucket.heal()
        self.work()
        self.clock.advance(max(timeout_s, 2.0))

    def begin(self) -> None:
        """A new call of a user begins: how long it waits is counted from here."""
        self._waits = 0

    def work(self) -> None:
        """Every lane does what is due now."""
        for lane in list(self.lanes):
            if id(lane) in self._ended:
                continue
            self._lane, self._is_parked = lane, False
            try:
                lane._run()
            finally:
                self._lane = None
            if self.is_dead:
                raise self._end()  # which the lane has taken for a fault of its own
            if self._is_parked:
                lane._is_stopping = False
            else:
                self._ended.add(id(lane))  # it gave up: in a process of its own its thread would have ended

    # --- what is true ----------------------------------------------------------------------------------------------

    def objects(self, folder: str = "packs/") -> dict[str, bytes]:
        """Key and bytes of what the bucket gives back, loss and damage included, passing faults left out."""
        with self.bucket.truthful():
            keys = [stat.key for page in self.bucket.list(f"p/{folder}") for stat in page]
            return {key.text: self.bucket.fetch(key) for key in keys}

    def view(self) -> ResolvedView:
        with self.bucket.truthful():
            return fetch_view(self.bucket, fetch_snapshot(self.bucket, "p"))

    def holds(self, data: bytes) -> bool:
        """Whether these bytes are in a pack file of the disk or in an object that is whole."""
        return any(data in path.read_bytes() for path in pack_files(self.local)) or self.has_remote(data)

    def whole_objects(self) -> dict[str, bytes]:
        """Those objects whose bytes are the ones that their key names."""
        return {key: held for key, held in self.objects().items() if f"-{Digest.of(held).short}." in key}

    def has_remote(self, data: bytes) -> bool:
        return any(data in held for held in self.whole_objects().values())

    def has_file_of(self, sample_id: str, data: bytes) -> bool:
        """Whether a journal has the sample in a pack file with these bytes: not a copy that was superseded since."""
        named = {row.name for row, ids in journaled_packs(self.local) if sample_id in ids}
        paths = pack_files(self.local, with_quarantine=False)
        return any(path.name in named and data in path.read_bytes() for path in paths)

    def has_object_of(self, sample_id: str, data: bytes) -> bool:
        """Whether a journal or a live row of the manifest has the sample in an object with these bytes."""
        named = {row.key for row, ids in journaled_packs(self.local) if sample_id in ids}
        live = self.view().row(SampleId(sample_id))
        if live is not None:
            named.add(live.object.key.text)
        return any(data in held for key, held in self.whole_objects().items() if key in named)

    # --- judging ---------------------------------------------------------------------------------------------------

    def judge_unlink(self, name: str, dir_fd: int) -> None:
        """O2: intent, segment and object are all there at the moment the last local name of a pack goes."""
        folder = Path(os.readlink(f"/proc/self/fd/{dir_fd}"))
        if folder.name != "packs" or name.startswith("."):
            return
        inode = (folder / name).stat().st_ino
        if any(entry.stat().st_ino == inode for entry in (folder.parent / "quarantine").iterdir()):
            return  # moved, not dropped
        self.unlinks += 1
        fault = self._unlink_fault(folder, name)
        if fault is not None:
            self.breaches.append(f"unlink of {name}: {fault}")

    def _unlink_fault(self, folder: Path, name: str) -> str | None:
        connection = sqlite3.connect(f"file:{newest_journal(folder.parent)}?mode=ro", uri=True)
        try:
            row = connection.execute(
                "SELECT state, key, intent, manifested_in, pack_id FROM packs WHERE name = ?", (name,)
            ).fetchone()
            if row is None or row[0] != "manifested" or not all(row):
                return f"the journal says {row}"
            offsets = {at for (at,) in connection.execute("SELECT offset FROM samples WHERE pack_id = ?", row[4:])}
        finally:
            connection.close()
        if self.objects().get(row[1]) != (folder / name).read_bytes():
            return "the bucket does not hold the bytes of the file"
        segment = self.objects("manifest/").get(row[3])
        if segment is None:
            return "the bucket does not hold the manifest segment"
        listed = {entry.entry.offset for entry in parse_segment(segment).rows if entry.object.key.text == row[1]}
        return None if offsets <= listed else f"samples at {offsets - listed} are not in the manifest segment"

    def judge_commit(self, path: Path, connection: sqlite3.Connection) -> None:
        """Each pack went one step on, or back; and what a state says of the bucket is true of it."""
        now = PackRow.load(connection)
        before = self._packs.get(path)
        self._packs[path] = now
        if before is None:
            return
        for pack_id in before.keys() | now.keys():
            old, new = before.get(pack_id), now.get(pack_id)
            fault = step_fault(old, new, has_file=new is not None and (path / "packs" / new.name).exists())
            if fault is None and new is not None and _claims_more(old, new):
                fault = self._claim_fault(new)
            if fault is not None:
                self.breaches.append(f"pack {pack_id}: {fault} ({old} -> {new})")

    def _claim_fault(self, row: PackRow) -> str | None:
        if row.state not in (PackState.VERIFIED, PackState.MANIFESTED):
            return None
        held = self.objects().get(row.key or "")
        if row.state is PackState.VERIFIED and (held is None or Digest.of(held).hex != row.digest):
            return "verified, and the bucket does not hold it"
        if row.state is PackState.MANIFESTED and row.segment not in self.objects("manifest/"):
            return "manifested, and the segment is not in the bucket"
        return None


def _claims_more(old: PackRow | None, new: PackRow) -> bool:
    """Doubt about its segment moves a pack back to VERIFIED: that says of its object what was said before. The server
    may have lost it since, which only the next look at it can tell.
    """
    if old is None or old.state is new.state:
        return old is None
    return (old.state, new.state) != (PackState.MANIFESTED, PackState.VERIFIED)


# --- putting a world under the library -----------------------------------------------------------------------------


class _InlinePool:
    """Looks at the bucket at once, in the thread that asks."""

    def __init__(self, **_: Any) -> None:
        pass

    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(call(*args, **kwargs))
        except Exception as exc:  # noqa: BLE001 - as a pool does
            future.set_exception(exc)
        return future

    def shutdown(self, **_: Any) -> None:
        pass


class _Calls(SystemCalls):
    """Each call is a step. A subclass, so that the delete guard looks past it to the caller."""

    def __init__(self, world: Callable[[], World]) -> None:
        self._world = world

    def counted(self, name: str) -> Callable[..., Any]:
        plain: Callable[..., Any] = getattr(SystemCalls, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            world = self._world()
            if name == "writev" and world.is_last_step():
                first = memoryview(args[1][0]).cast("B")
                plain(self, args[0], [first[: len(first) // 2]])  # a write torn in the middle
            world.step(name)
            if name == "unlink":
                world.judge_unlink(args[0], kwargs["dir_fd"])
            return plain(self, *args, **kwargs)

        return call


@contextmanager
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[World]]:
    """Let the library run in the world that stands in the list that is handed out."""
    current: list[World] = []

    def world() -> World:
        return current[0]

    class PatientUploader(Uploader):
        def __init__(self, transport: TransportFactory, **facts: Any) -> None:
            super().__init__(transport, **(facts | {"clock": _HastyClock()}))

        def submit(self, job: UploadJob) -> Future[UploadReply]:
            future = super().submit(job)
            wait_for([future])
            if world().is_dead:
                raise Died
            return future

    plain_writing = JournalDatabase.writing

    @contextmanager
    def writing(database: JournalDatabase) -> Iterator[sqlite3.Connection]:
        path = database._folder.path
        with plain_writing(database) as connection:
            if path not in world()._packs:
                world().judge_commit(path, connection)
            yield connection
            world().step("commit")
        with database.reading() as connection:
            world().judge_commit(path, connection)
        world().step("committed")

    calls = _Calls(world)
    for name in _STEPS:
        monkeypatch.setattr(SYS, name, calls.counted(name))
    monkeypatch.setattr(JournalDatabase, "writing", writing)

    def start(lane: Lane, writer: PackWriter | None) -> None:
        lane.writer = writer
        world().lanes.append(lane)

    def urandom(count: int) -> bytes:
        return current[0].random.randbytes(count) if current else os.urandom(count)

    monkeypatch.setattr(Lane, "start", start)
    monkeypatch.setattr(opening, "ThreadPoolExecutor", _InlinePool)
    monkeypatch.setattr(opening, "Uploader", PatientUploader)
    monkeypatch.setattr(opening, "RetryPolicy", _quick_policy)
    monkeypatch.setattr(random, "_urandom", urandom)
    yield current


def _quick_policy(**_: Any) -> RetryPolicy:
    return RetryPolicy(base_s=0.0, max_attempts=3)

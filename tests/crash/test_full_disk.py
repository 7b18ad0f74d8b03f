"""A file system that is really full (ext4 on a loop device): the store waits, frees what is proven, and loses nothing.

The bucket is a directory on another file system; each unlink of a pack is judged at its moment (O2).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import durastore
from durastore.codec.encode import EncodedSample, encode_sample
from durastore.errors import DiskFailed, JournalFailed, SpoolFull
from durastore.formats.status import SLOT_BYTES, STORE_STATUS_NAME, parse_status
from durastore.fsio.folder import Folder
from durastore.fsio.status_file import load_status_bytes
from durastore.fsio.sys import SYS
from durastore.model import SampleId
from durastore.observe.status import StoreRecord
from durastore.spool import spool as spool_module
from durastore.store.store import Store
from durastore.testing.oracles import lost_samples
from tests.crash.unlink_oracle import UnlinkOracle

MIB = 1 << 20
DISK_BYTES = 96 * MIB
BALLAST_BYTES = 4 * MIB
SAMPLE_BYTES = 300_000
TOOLS = ("mkfs.ext4", "mount", "umount", "losetup")


def _why_not() -> str | None:
    if os.geteuid() != 0:
        return "mounting a file system needs root"
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    if subprocess.run(["losetup", "--find"], capture_output=True, check=False).returncode:
        return "no loop device can be had"
    return None


pytestmark = [
    pytest.mark.skipif(_why_not() is not None, reason=str(_why_not())),
    pytest.mark.timeout(300),
]


def tensors_of(name: str) -> dict[str, Any]:
    seed = int.from_bytes(name.encode()[-8:], "little")
    return {"h": np.random.default_rng(seed).integers(0, 255, size=SAMPLE_BYTES, dtype=np.uint8)}


def is_equal(found: Any, put: Any) -> bool:
    return bool(np.array_equal(np.asarray(found), put))


@dataclass
class Scene:
    """One small disk with a spool on it, a bucket beside it, and a file of somebody else's."""

    mount: Path
    bucket: Path
    acknowledged: dict[str, dict[str, Any]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    unlinked: list[str] = field(default_factory=list)
    events: list[tuple[str, dict[str, object]]] = field(default_factory=list)

    def emit(self, name: str, **facts: object) -> None:
        self.events.append((name, facts))

    @property
    def causes(self) -> list[object]:
        return [facts["cause"] for name, facts in self.events if name == "put.waits"]

    @property
    def foreign(self) -> Path:
        return self.mount / "foreign"

    @property
    def ballast(self) -> Path:
        return self.mount / "spool" / "w-00" / "ballast"

    def open(self, **changes: Any) -> Store:
        """Nothing but the disk itself stops a put, and lazy reclaim would keep everything."""
        options: dict[str, Any] = {
            "settle_s": 0.0,
            "seal_age_s": 0.5,
            "pack_target_bytes": 2 * MIB,
            "reserve_bytes": 1,
            "compress": "none",
            "observer": self,
        }
        return durastore.open(str(self.bucket), local=self.mount / "spool", **(options | changes))

    def put(self, store: Store, *names: str) -> None:
        for name in names:
            tensors = tensors_of(name)
            store.put(name, tensors)
            self.acknowledged[name] = tensors

    def fill(self) -> None:
        """Somebody else takes every block that is left."""
        fd = os.open(self.foreign, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            size, step = os.fstat(fd).st_size, 16 * MIB
            while step >= 4096:
                try:
                    os.posix_fallocate(fd, size, step)
                except OSError:
                    step //= 2
                else:
                    size += step
            os.fsync(fd)
        finally:
            os.close(fd)
        stat = os.statvfs(self.mount)
        assert stat.f_bavail * stat.f_frsize < 64 * 1024

    def check(self) -> None:
        """Both oracles, and that no pack is left that was not set aside."""
        assert self.faults == []
        assert self.ballast.stat().st_blocks * 512 >= BALLAST_BYTES
        with self.open(reclaim="never") as store:
            assert lost_samples(self.acknowledged, store.get, is_equal=is_equal) == {}
            assert store.status().packs_by_state.keys() <= {"reclaimed", "manifested"}


@contextmanager
def mounted(folder: Path) -> Iterator[Path]:
    image, mount = folder / "image", folder / "mount"
    with image.open("wb") as file:
        file.truncate(DISK_BYTES)
    quiet = ["-q", "-F", "-m", "0", "-J", "size=4", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard"]
    subprocess.run(["mkfs.ext4", *quiet, str(image)], check=True)
    mount.mkdir()
    subprocess.run(["mount", "-o", "loop", str(image), str(mount)], check=True)
    try:
        yield mount
    finally:
        if subprocess.run(["umount", str(mount)], check=False).returncode:
            subprocess.run(["umount", "--lazy", str(mount)], check=True)
            pytest.fail("a closed store keeps a file or folder of its spool open")


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    monkeypatch.setattr(spool_module, "_BALLAST_BYTES", BALLAST_BYTES)
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    with mounted(tmp_path) as mount:
        made = Scene(mount, bucket)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SYS, "unlink", SYS.unlink)  # what the oracle installs is taken out again
            UnlinkOracle(bucket, report=made.faults.append).install()
            judged = SYS.unlink

            def unlink(name: str, *, dir_fd: int) -> None:
                made.unlinked.append(name)
                judged(name, dir_fd=dir_fd)

            vars(SYS)["unlink"] = unlink
            yield made


def before_call(monkeypatch: pytest.MonkeyPatch, name: str, act: Callable[[], None]) -> None:
    """Let `act` happen once, right before the next call of that name."""
    plain = getattr(SYS, name)
    is_due = [True]

    def call(*args: Any, **kwargs: Any) -> Any:
        if is_due[0]:
            is_due[0] = False
            act()
        return plain(*args, **kwargs)

    monkeypatch.setattr(SYS, name, call)


def in_threads(jobs: Sequence[Callable[[], None]]) -> None:
    errors: list[BaseException] = []

    def run(job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as exc:  # noqa: BLE001 - told below
            errors.append(exc)

    threads = [threading.Thread(target=run, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_puts_that_fill_the_disk_wait_and_all_get_through(scene: Scene) -> None:
    """Three times as much as the disk holds, from three threads: nothing is evicted, and nothing fails (case B04)."""
    with scene.open() as store:
        in_threads([lambda t=t: scene.put(store, *[f"{t}/{n}" for n in range(320)]) for t in range(3)])  # type: ignore[misc]
        store.drain(120)
        assert store.status().failures == ()
    assert sum(x["h"].nbytes for x in scene.acknowledged.values()) > 2.5 * DISK_BYTES
    assert set(scene.causes) <= {"disk reserve", "disk full"}
    assert scene.causes
    scene.check()


@pytest.mark.parametrize("call", ["writev", "fdatasync", "open"])
def test_a_disk_that_somebody_fills_in_the_middle_of_a_put_is_freed_by_reclaim(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """The foreign file stays: only proven packs make room, and their records need the ballast (case B83)."""
    with scene.open() as store:
        scene.put(store, *[f"before/{n}" for n in range(80)])
        store.flush(120)
        before_call(monkeypatch, call, scene.fill)
        scene.put(store, *[f"after/{n}" for n in range(40)])
        store.flush(120)
        assert store.status().failures == ()
    assert "ballast" in scene.unlinked, "the disk was never full"
    assert [name for name in scene.unlinked if name.endswith(".tar")]
    assert scene.foreign.exists()
    scene.check()


def test_a_foreign_file_that_fills_the_disk_is_waited_for(scene: Scene) -> None:
    """Nothing is left in the spool that could be freed: the put goes on once the foreign file is gone."""
    is_gone = threading.Event()

    def go() -> None:
        is_gone.set()
        scene.foreign.unlink()

    with scene.open() as store:
        scene.put(store, *[f"before/{n}" for n in range(20)])
        store.drain(120)
        scene.fill()
        timer = threading.Timer(3.0, go)
        timer.start()
        scene.put(store, "after/1")
        assert is_gone.is_set()
        scene.put(store, *[f"after/{n}" for n in range(2, 30)])
        store.drain(120)
        timer.join()
    assert [name for name, _ in scene.events if name.startswith("put.")] == ["put.waits", "put.resumed"]
    scene.check()


def test_a_disk_that_stays_full_ends_the_put_and_nothing_else(scene: Scene) -> None:
    with scene.open(stall_s=2.0, reclaim="never") as store:
        scene.put(store, *[f"before/{n}" for n in range(20)])
        store.flush(120)
        scene.fill()
        for _ in range(2):
            with pytest.raises(SpoolFull):
                store.put("refused", tensors_of("refused"))
        assert "refused" not in store
        scene.foreign.unlink()
        scene.put(store, "after")
        store.flush(120)
    scene.check()


def test_a_store_opens_on_a_full_disk_and_is_drained(scene: Scene) -> None:
    """An ended process left packs that nothing proved yet, and somebody took all the rest of the disk."""
    store = scene.open()
    scene.put(store, *[f"before/{n}" for n in range(60)])
    store.abandon()
    scene.fill()
    with scene.open() as store:
        store.drain(120)
        scene.put(store, *[f"after/{n}" for n in range(10)])
    assert "ballast" in scene.unlinked
    assert scene.foreign.exists()
    scene.check()


def leave(scene: Scene, size: int) -> None:
    """Somebody else's file takes all but so much."""
    scene.foreign.unlink(missing_ok=True)
    scene.fill()
    with scene.foreign.open("r+b") as file:
        file.truncate(max(0, scene.foreign.stat().st_size - size))
        os.fsync(file.fileno())


@pytest.mark.parametrize("is_torn", [False, True])
def test_the_open_tar_is_sealed_while_a_copy_waits_for_room(scene: Scene, is_torn: bool) -> None:
    """20 MB of an abandoned tar are to be copied, 6 MiB are free, and the 18 MB of the next tar would make room."""
    store = scene.open(pack_target_bytes=64 * MIB, seal_age_s=1e9, reclaim="eager", stall_s=1e9)
    parts = store._parts

    def encoded(name: str) -> EncodedSample:
        return encode_sample(SampleId(name), tensors_of(name), context=store._context(name, None, inputs=None))

    try:
        scene.put(store, *[f"a{n}" for n in range(66)])
        writer = parts.lanes[0].writer
        assert writer is not None
        if is_torn:
            leave(scene, 0)
            with pytest.raises(DiskFailed):
                parts.intake.put([encoded("torn")])  # past the waiting of `Store.put`
            assert writer._abandoned
            writer._save_at += 3_600  # not looked at again before the disk is as it should be
        leave(scene, 30 * MIB)
        names = [f"b{n}" for n in range(60)]
        parts.intake.put([encoded(name) for name in names])
        scene.acknowledged |= {name: tensors_of(name) for name in names}
        leave(scene, 6 * MIB)
        store.drain(60)
        scene.foreign.unlink()
        scene.put(store, "last")  # only with the ballast back
        store.drain(60)
    finally:
        store.abandon()
    scene.check()


def killed(act: Callable[[], None]) -> None:
    """Do it in a child that is then killed."""
    pid = os.fork()
    if pid == 0:
        try:
            act()
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)


def test_a_killed_spool_without_its_ballast_opens_where_a_checkpoint_has_no_room(scene: Scene) -> None:
    """There is room for a few commits and not for the pages that the last process left in the WAL."""
    names = [f"s{n}" for n in range(40)]

    def work() -> None:
        store = scene.open(reclaim="never")
        scene.put(store, *names)
        store.flush(60)
        spool = store._parts.lanes[0].spool
        for n in range(20):
            spool.journal.set_fact(f"filler {n}", "x" * 40_000)
        spool.ballast.release()
        scene.fill()
        os.truncate(scene.foreign, scene.foreign.stat().st_size - 256 * 1024)

    killed(work)
    scene.acknowledged |= {name: tensors_of(name) for name in names}
    wal = scene.mount / "spool/w-00/journal-1.sqlite-wal"
    assert wal.stat().st_size > 800_000
    with scene.open(reclaim="eager") as store:
        store.drain(60)
        assert [name for name in scene.unlinked if name.endswith(".tar")]
        scene.put(store, "after")
    scene.foreign.unlink()
    scene.check()


def test_an_open_that_found_no_room_lets_go_of_the_spool(scene: Scene) -> None:
    """An older journal gets its new columns only with room; once there is some, the same process can open it."""
    with scene.open(reclaim="never") as store:
        scene.put(store, "s0")
    spool = scene.mount / "spool/w-00"
    with contextlib.closing(sqlite3.connect(spool / "journal-1.sqlite")) as conn:
        conn.execute("ALTER TABLE packs DROP COLUMN part_bytes")
        conn.execute("PRAGMA user_version=100")
        conn.commit()
        conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    scene.ballast.unlink()
    scene.fill()
    with pytest.raises(DiskFailed) as caught:
        scene.open(reclaim="never")
    assert caught.value.is_full
    assert not isinstance(caught.value, JournalFailed)
    open_files = [os.path.realpath(link) for link in Path("/proc/self/fd").iterdir()]
    assert [name for name in open_files if name.startswith(str(scene.mount))] == []
    scene.foreign.unlink()
    with scene.open(reclaim="never") as store:
        assert is_equal(store.get("s0").tensors["h"], tensors_of("s0")["h"])
    scene.check()


@pytest.mark.parametrize("blocks", range(4))
def test_a_first_open_on_a_nearly_full_disk_says_so(scene: Scene, blocks: int) -> None:
    """Wherever the room ends: a typed error with the next step, and nothing of the spool stays held."""
    scene.fill()
    os.truncate(scene.foreign, scene.foreign.stat().st_size - blocks * 4096)
    with pytest.raises(DiskFailed) as caught:
        scene.open().abandon()
    assert caught.value.hint
    scene.foreign.unlink()
    scene.open().close()


def test_the_status_is_told_while_the_disk_is_full(scene: Scene) -> None:
    """Its blocks are taken when the store opens: a full disk is when somebody looks at it."""
    with scene.open(reclaim="never") as store:
        scene.put(store, "s0")
        before = told(scene, lambda record: record.room.free_bytes > 16 * MIB)
        scene.fill()
        full = told(scene, lambda record: record.room.free_bytes < 2 * BALLAST_BYTES)  # the ballast may be given back
        assert full.teller.written_ns > before.teller.written_ns
        scene.foreign.unlink()
    assert told(scene, lambda record: record.teller.is_ended).stages[1].done.samples == 1
    with scene.open(reclaim="never") as store:
        assert lost_samples(scene.acknowledged, store.get, is_equal=is_equal) == {}


def told(scene: Scene, is_it: Callable[[StoreRecord], bool]) -> StoreRecord:
    """The first record like that, within ten seconds."""
    until = time.monotonic() + 10
    while time.monotonic() < until:
        with Folder.open(scene.mount / "spool" / "w-00") as folder:
            data = load_status_bytes(folder, STORE_STATUS_NAME, slot_bytes=SLOT_BYTES)
        record = parse_status(data, StoreRecord)
        if record is not None and is_it(record):
            return record
        time.sleep(0.05)
    pytest.fail("it was not told")

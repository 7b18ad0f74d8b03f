"""A whole store on a bucket that a test can make lie, with both oracles armed.

Duty: open stores quickly on one bucket and one spool root, judge every unlink of a pack at its moment (O2: a durable
intent, a manifest segment, and the very bytes in the bucket) and, at the end, every acknowledged sample (O1).
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from durastore.clock import Stamp, SystemClock
from durastore.errors import DurastoreError, ObjectAbsent
from durastore.fsio.sys import SYS
from durastore.model import ObjectKey
from durastore.objectstore.memory import MemoryStore
from durastore.store.opening import open_store
from durastore.store.store import Store
from durastore.testing.faulty import FaultyStore
from durastore.testing.oracles import lost_samples
from durastore.upload.engine import Uploader

__all__ = ["CLOCK", "SpeedClock", "Trial", "arm", "tensors_of", "wait_until"]

SPEED = 20.0


class SpeedClock(SystemClock):
    """The machine's clock, `speed` times as fast, so that back-off and settle times cost a test little."""

    def __init__(self, speed: float = SPEED) -> None:
        self._speed = speed
        self._start = super().monotonic()
        self._wall_ns = super().now_ns()

    def monotonic(self) -> float:
        return self._start + (super().monotonic() - self._start) * self._speed

    def now_ns(self) -> int:
        return self._wall_ns + int((self.monotonic() - self._start) * 1e9)

    def stamp(self) -> Stamp:
        passed_ns = int((self.monotonic() - self._start) * 1e9)
        return Stamp(wall_ns=self._wall_ns + passed_ns, boottime_ns=10**12 + passed_ns, boot_id="trial")

    def wait(self, condition: threading.Condition, timeout_s: float) -> None:
        condition.wait(timeout_s / self._speed)

    def sleep(self, seconds: float) -> None:
        time.sleep(min(seconds / self._speed, 0.02))  # pauses only matter between machines


CLOCK = SpeedClock()  # one for the process: evidence taken by one store is judged by the next


def tensors_of(name: str, *, size: int = 3000) -> dict[str, Any]:
    """Content that the name decides."""
    seed = int.from_bytes(name.encode()[-8:], "little")
    return {"h": np.random.default_rng(seed).integers(0, 255, size=size, dtype=np.uint8)}


def is_equal(found: Any, put: Any) -> bool:
    return bool(np.array_equal(np.asarray(found), put))


def wait_until(is_done: Any, timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_done():
        assert time.monotonic() < deadline, "the scene did not come about"
        time.sleep(0.005)


@dataclass
class Trial:
    """One bucket, one spool root, what was acknowledged, and what every unlink of a pack had to stand on."""

    local: Path
    objects: FaultyStore
    acknowledged: dict[str, dict[str, Any]] = field(default_factory=dict)
    unlinked: list[str] = field(default_factory=list)
    false_unlinks: list[str] = field(default_factory=list)

    # --- acting ----------------------------------------------------------------------------------------------------

    def open(self, **changes: Any) -> Store:
        """A store whose every sample becomes a pack of its own, and that frees nothing before `drain`."""
        options: dict[str, Any] = {
            "reclaim": "lazy",
            "settle_s": 0.0,
            "pack_target_bytes": 2000,
            "reserve_bytes": 1,
            "objects": self.objects,
            "clock": CLOCK,
        }
        return open_store("memory://trial/p", local=self.local, **(options | changes))

    def put(self, store: Store, *names: str, size: int = 3000) -> None:
        for name in names:
            tensors = tensors_of(name, size=size)
            store.put(name, tensors)
            self.acknowledged[name] = tensors

    def stop(self, store: Store, *, timeout_s: float = 400.0) -> BaseException | None:
        """Drain, and end the store whatever comes of it; hands out the error, as a job's last line would.

        `timeout_s` is of the trial's clock: 20 of it pass in a second.
        """
        try:
            store.drain(timeout_s)
        except (DurastoreError, TimeoutError) as exc:
            return exc
        finally:
            store.abandon()
        return None

    def refuse(self, store: Store) -> None:
        """Drain until the store tried to free something and refused, then end it. Fails if it freed anything at all."""
        before = list(self.unlinked)
        counters = store._parts.counters
        deadline = time.monotonic() + 60
        while not counters.count("reclaim.refused") + counters.count("reclaim.kept"):
            assert time.monotonic() < deadline, "nothing was tried"
            with contextlib.suppress(DurastoreError, TimeoutError):
                store.drain(1.0)
        with contextlib.suppress(DurastoreError, TimeoutError):
            store.drain(4.0)
        store.abandon()
        assert self.unlinked == before

    # --- looking ---------------------------------------------------------------------------------------------------

    @property
    def packs(self) -> list[Path]:
        """The pack files in all spools, without what the library does not regard as one."""
        return sorted(self.local.glob("w-*/packs/*.tar"))

    @property
    def quarantined(self) -> list[Path]:
        return sorted(self.local.glob("w-*/quarantine/*.tar*"))

    def object_keys(self, kind: str = "packs") -> list[ObjectKey]:
        return [stat.key for page in self.objects.inner.list(f"p/{kind}/") for stat in page]

    def key_of(self, store: Store, name: str) -> ObjectKey:
        (row,) = store.rows_of(name)
        return row.object.key

    def content(self, key: ObjectKey) -> bytes | None:
        """What the bucket holds under the key, damage included, rules left out."""
        probe = FaultyStore(self.objects.inner)
        probe._state.lost, probe._state.damage = self.objects._state.lost, self.objects._state.damage
        try:
            return probe.fetch(key)
        except ObjectAbsent:
            return None

    def journal(self, query: str) -> list[tuple[Any, ...]]:
        """What the newest journal of `w-00` says, read past the library."""
        return _query(self.local / "w-00", query)

    def states(self) -> dict[str, str]:
        """Pack name -> state."""
        return dict(self.journal("SELECT name, state FROM packs"))

    # --- the oracles -----------------------------------------------------------------------------------------------

    def judge_unlink(self, folder: Path, name: str) -> None:
        data = (folder / name).read_bytes()
        self.unlinked.append(name)
        found = _query(folder.parent, f"SELECT state, intent, manifested_in FROM packs WHERE name = '{name}'")  # noqa: S608 - our own name
        if not found or found[0][0] != "manifested" or not found[0][1] or not found[0][2]:
            self.false_unlinks.append(f"{name}: journal says {found}")
        if data not in [self.content(key) for key in self.object_keys()]:
            self.false_unlinks.append(f"{name}: the bucket does not hold these bytes")

    def heal(self) -> None:
        """The endpoint behaves from now on; what it lost or damaged stays so."""
        self.objects.heal()

    def check_nothing_lost(self) -> None:
        """O1 and O2, with the endpoint healthy again."""
        assert self.false_unlinks == []
        self.heal()
        store = self.open(reclaim="never")
        try:
            assert lost_samples(self.acknowledged, store.get, is_equal=is_equal) == {}
        finally:
            store.abandon()


def _query(spool: Path, query: str) -> list[tuple[Any, ...]]:
    journals = sorted(spool.glob("journal-*.sqlite"), key=lambda path: int(path.stem.rpartition("-")[2]))
    connection = sqlite3.connect(f"file:{journals[-1]}?mode=ro", uri=True)
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


@pytest.fixture
def trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trial:
    """Import this fixture into a test module to use it."""
    made = Trial(tmp_path / "spool", FaultyStore(MemoryStore(name=f"trial-{os.urandom(4).hex()}", clock=CLOCK)))
    arm(made, monkeypatch)
    return made


def arm(made: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on the trial judges every unlink, and a store that is abandoned does not wait for its requests."""
    plain = SYS.unlink

    def unlink(name: str, *, dir_fd: int) -> None:
        folder = Path(os.readlink(f"/proc/self/fd/{dir_fd}"))
        if folder.name == "packs" and not _has_other_name(folder, name):
            made.judge_unlink(folder, name)
        plain(name, dir_fd=dir_fd)

    monkeypatch.setattr(SYS, "unlink", unlink)
    patient = Uploader.close
    monkeypatch.setattr(Uploader, "close", lambda engine, timeout_s=30.0: patient(engine, min(timeout_s, 0.05)))


def _has_other_name(folder: Path, name: str) -> bool:
    """A relocated file, which lives on in quarantine."""
    inode = (folder / name).stat().st_ino
    return any(entry.stat().st_ino == inode for entry in (folder.parent / "quarantine").iterdir())

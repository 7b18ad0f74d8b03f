"""What came of the files so far, collected from several threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from durastore.errors import DiskFailed
from durastore.migrate.record import Proven
from durastore.migrate.scan import SourceFile
from durastore.model import Digest

__all__ = ["Item", "Outcome", "Progress", "StopCopying", "cut_units"]

Progress = Callable[[int, int], None]


class StopCopying(Exception):
    """No further file can go well: the target is full or fails, or a tree is gone. The message says why."""

    @classmethod
    def of(cls, exc: OSError | DiskFailed) -> StopCopying:
        why = exc.message if isinstance(exc, DiskFailed) else (exc.strerror or str(exc))
        return cls(f"the destination cannot be written: {why}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One file to be copied."""

    file: SourceFile
    seal: Digest | None = None
    """What the journal says of its bytes."""
    is_ours: bool = False
    """Its place in DST belongs to this migration alone: what is there and differs is an earlier state of it."""
    may_copy: bool = True
    """False where only a copy that is there already counts: nothing is made in DST."""


class Outcome:
    """Thread-safe. Paths are named once: what failed is not proven."""

    def __init__(self, total: int, *, on_progress: Progress | None = None) -> None:
        self._lock = threading.Lock()
        self._total = total
        self._on_progress = on_progress
        self._done = 0
        self.proven: dict[str, Proven] = {}
        self.failed: dict[str, str] = {}
        self.mismatched: dict[str, str] = {}
        """Read back otherwise than written: a subset of `failed`."""
        self.superseded: dict[str, str] = {}
        """Path -> name of its earlier state, which was set aside in DST."""
        self.skipped: list[str] = []
        """Had to be there already, and were not."""
        self.copied = 0
        self.copied_bytes = 0
        self.there_before = 0
        self.stopped: str | None = None

    def copy(self, copies: Sequence[Proven]) -> None:
        """Copied in this run."""
        with self._lock:
            for proven in copies:
                self.copied += 1
                self.copied_bytes += proven.copied.source.size_bytes
                self._prove(proven)

    def find(self, proven: Proven) -> None:
        """Was there, and is proven."""
        with self._lock:
            self.there_before += 1
            self._prove(proven)

    def fail(self, path: str, reason: str, *, is_mismatch: bool = False) -> None:
        with self._lock:
            self.failed[path] = reason
            if is_mismatch:
                self.mismatched[path] = reason
            self._tick()

    def skip(self, path: str) -> None:
        with self._lock:
            self.skipped.append(path)
            self._tick()

    def doubt(self, path: str, reason: str) -> None:
        """Was proven, and is another file by now."""
        with self._lock:
            self.proven.pop(path, None)
            self.failed[path] = reason

    def supersede(self, path: str, name: str) -> None:
        with self._lock:
            self.superseded[path] = name

    def stop(self, reason: str) -> None:
        """The first reason counts."""
        with self._lock:
            self.stopped = self.stopped or reason

    @property
    def is_stopped(self) -> bool:
        return self.stopped is not None

    def damaged(self) -> dict[str, str]:
        """Path -> why the source is not what it should be."""
        return {path: each.damage for path, each in self.proven.items() if each.damage is not None}

    def _prove(self, proven: Proven) -> None:
        self.proven[proven.copied.path] = proven
        self._tick()

    def _tick(self) -> None:
        self._done += 1
        if self._on_progress is not None:
            self._on_progress(self._done, self._total)


def cut_units(items: Sequence[Item], *, large_bytes: int, limits: tuple[int, int, int]) -> list[list[Item]]:
    """Units of work, in order: a large file by itself, small ones in batches of at most `limits` (files, bytes,
    folders), so that descriptors and memory are bounded.
    """
    max_files, max_bytes, max_folders = limits
    units: list[list[Item]] = []
    batch: list[Item] = []
    folders: set[str] = set()
    size_bytes = 0
    for item in items:
        size, folder = item.file.identity.size_bytes, item.file.path.rpartition("/")[0]
        if size >= large_bytes:
            units.append([item])
            continue
        is_full = len(batch) >= max_files or size_bytes + size > max_bytes
        if batch and (is_full or (folder not in folders and len(folders) >= max_folders)):
            units.append(batch)
            batch, folders, size_bytes = [], set(), 0
        batch.append(item)
        folders.add(folder)
        size_bytes += size
    return [*units, batch] if batch else units

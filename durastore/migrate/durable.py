"""When bytes and names of DST are durable, and when that is on record.

Duty: one `syncfs` for all that several threads wait for, and lines in the record only for names that it covered (M4).
Must never take a sync for good after one that failed: what the kernel could not write it drops, and tells once.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Sequence

from durastore.fsio.paths import open_folder
from durastore.fsio.sys import SYS
from durastore.migrate.outcome import StopCopying
from durastore.migrate.places import Target
from durastore.migrate.record import Proven, ProvenLog
from durastore.migrate.scan import parent_of
from durastore.migrate.tools import sync_file

__all__ = ["DurableNames"]

_UNRECORDED_BYTES = 1 << 30
"""Of copies with a name that a kill may leave to be read once more."""


class DurableNames:
    """Thread-safe."""

    def __init__(self, target: Target, log: ProvenLog) -> None:
        self._target = target
        self._log = log
        self._lock = threading.Lock()
        self._named: list[Proven] = []
        """Have their names, which are not known to be durable."""
        self._named_bytes = 0
        self._turn = threading.Lock()
        self._begun = 0
        """How many calls of `syncfs` were begun so far."""
        self._has_syncfs = target.has_syncfs
        self._failed: OSError | None = None

    def note(self, copies: Sequence[Proven]) -> None:
        """They have their names: on record with the next sync."""
        with self._lock:
            self._named += copies
            self._named_bytes += sum(each.copied.source.size_bytes for each in copies)

    def sync_due(self) -> None:
        """Where many bytes wait for a sync: now. `StopCopying`, `DiskFailed`."""
        with self._lock:
            is_due = self._named_bytes >= _UNRECORDED_BYTES
        if is_due:
            self._sync_named()

    def sync(self, fds: Sequence[int]) -> None:
        """What was written to these files is durable, and every name noted before. `StopCopying` if that fails.

        One call for whoever waits: a batch of fsyncs is a batch of disk flushes.
        """
        with self._lock:
            begun = self._begun
        with self._turn:
            # whoever had the turn meanwhile began after this was asked: it covers what is asked for
            if self._has_syncfs and (self._failed is not None or self._begun == begun):
                self._sync_all()
        if not self._has_syncfs:
            for fd in fds:
                sync_file(fd)

    def finish(self) -> None:
        """The last names are durable, and on record. `StopCopying`, `DiskFailed`, OSError; see `undurable` then."""
        self._sync_named()
        self._log.close()

    def undurable(self) -> list[str]:
        """Paths of the names that no sync has covered."""
        with self._lock:
            return [each.copied.path for each in self._named]

    def _sync_named(self) -> None:
        self.sync([])
        if not self._has_syncfs:
            self._sync_folders()

    def _sync_all(self) -> None:
        """By the descriptor of DST that was opened before the first byte and that nobody else syncs by. The kernel
        tells a failed write (of whoever, to this file system) once to each descriptor, here to the thread that has the
        turn: so it is kept, and every later call fails with it.
        """
        if self._failed is not None:
            raise StopCopying.of(self._failed)
        with self._lock:
            self._begun += 1
            named = self._take()
        try:
            SYS.syncfs(self._target.folder.fd)
        except OSError as exc:
            self._put_back(named)
            if exc.errno != errno.ENOSYS:
                self._failed = exc
                raise StopCopying.of(exc) from exc
            self._has_syncfs = False
            return
        self._log.add(named)  # M4: after the sync

    def _sync_folders(self) -> None:
        with self._lock:
            named = self._take()
        try:
            for path in sorted({parent_of(each.copied.path) for each in named}):
                with open_folder(self._target.folder, path) as folder:
                    sync_file(folder.fd)
        except BaseException:
            self._put_back(named)
            raise
        self._log.add(named)

    def _take(self) -> list[Proven]:
        named, self._named = self._named, []
        self._named_bytes = 0
        return named

    def _put_back(self, named: list[Proven]) -> None:
        with self._lock:
            self._named = [*named, *self._named]

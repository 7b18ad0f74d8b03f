"""The worker of `files.py`: forks children, watches how they end.

A child writes the number of each file into shared memory before it opens it, so whatever ends the child (an exception,
a signal, the alarm) has a file to its name. The address space of a child may grow by 256 MiB; a file for which a
library asked for more, and was refused, is opened again with room, and must then not really use more.
"""

from __future__ import annotations

import json
import mmap
import os
import resource
import signal
import struct
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

HANG_S = 20.0
LIMIT_BYTES = 256 << 20
ROOMY_BYTES = 16 << 30
_EXIT_FOUND, _EXIT_WANTS_MEMORY = 3, 4


class FileKind(Protocol):
    """One kind of file: `make` builds mutation `number`, `check` opens it, True where it gave values.

    Numbers below zero are the `seed_count` sound files.
    """

    batch: int
    seed_count: int

    def make(self, number: int) -> bytes: ...

    def check(self, data: bytes) -> bool: ...


class WantsMemory(Exception):
    """A library asked for more memory than the child may have."""


@dataclass(slots=True, kw_only=True)
class Watch:
    """Runs children over files and keeps the score."""

    name: str
    kind: FileKind
    work: Path
    base_bytes: int = field(default_factory=lambda: _own_bytes(1))
    shared: mmap.mmap = field(default_factory=lambda: mmap.mmap(-1, 16))
    peak_kib: int = 0
    accepted: int = 0
    findings: list[str] = field(default_factory=list)

    def run(self, count: int) -> None:
        how = self.fork(-self.kind.seed_count, 0, limit_bytes=LIMIT_BYTES)
        _, accepted = struct.unpack("qq", self.shared[:16])
        if how or accepted != self.kind.seed_count:  # then every refusal below would say nothing
            raise RuntimeError(f"only {accepted} of {self.kind.seed_count} sound files can be read in a child ({how})")
        at = 0
        while at < count:
            stop = min(at + self.kind.batch, count)
            how = self.fork(at, stop, limit_bytes=LIMIT_BYTES)
            last, accepted = struct.unpack("qq", self.shared[:16])
            self.accepted += accepted
            if how == _EXIT_WANTS_MEMORY:
                before = self.peak_kib
                how = self.fork(last, last + 1, limit_bytes=ROOMY_BYTES)
                if not how and (self.peak_kib << 10) - self.base_bytes > LIMIT_BYTES:
                    how, self.peak_kib = _EXIT_FOUND, before
            if how:
                self.note(last, how)
            at = last + 1 if how or last + 1 < stop else stop

    def fork(self, start: int, stop: int, *, limit_bytes: int) -> int:
        """Open files `start`..`stop` in a child; 0, or how it ended (minus the signal)."""
        self.shared[:16] = struct.pack("qq", start, 0)
        pid = os.fork()
        if not pid:
            os._exit(self.child(start, stop, limit_bytes=limit_bytes))
        _, status, usage = os.wait4(pid, 0)
        self.peak_kib = max(self.peak_kib, usage.ru_maxrss)
        return os.waitstatus_to_exitcode(status)

    def child(self, start: int, stop: int, *, limit_bytes: int) -> int:
        allowed = _own_bytes(0) + limit_bytes
        resource.setrlimit(resource.RLIMIT_AS, (allowed, allowed))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        accepted = 0
        for number in range(start, stop):
            self.shared[:16] = struct.pack("qq", number, accepted)
            try:
                data = self.kind.make(number)
                signal.setitimer(signal.ITIMER_REAL, HANG_S)
                accepted += self.kind.check(data)
            except WantsMemory:
                return _EXIT_WANTS_MEMORY
            except BaseException:  # noqa: BLE001  # whatever it is, it is the finding
                traceback.print_exc()
                sys.stderr.flush()
                return _EXIT_FOUND
        self.shared[:16] = struct.pack("qq", stop - 1, accepted)
        return 0

    def note(self, number: int, how: int) -> None:
        path = self.work / f"{self.name}-{number}"
        path.write_bytes(self.kind.make(number))
        self.findings.append(f"{path}: {'signal' if how < 0 else 'exit'} {abs(how)}")
        sys.stderr.write(self.findings[-1] + "\n")


def _own_bytes(column: int) -> int:
    """Of /proc/self/statm: 0 the address space, 1 the resident memory."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[column])
    return pages * mmap.PAGESIZE


def kind_of(name: str, seed: int) -> FileKind:
    """The kind, with what it needs imported and its seed files made."""
    makers: dict[str, Callable[[int], FileKind]] = {}
    if name == "parquet_files":
        from tests.fuzz.parquet_files import ParquetFiles

        makers[name] = ParquetFiles
    elif name == "sqlite_files":
        from tests.fuzz.sqlite_files import SqliteFiles

        makers[name] = SqliteFiles
    return makers[name](seed)


def main(name: str, count: int, *, seed: int, work: Path) -> int:
    watch = Watch(name=name, kind=kind_of(name, seed), work=work)
    watch.base_bytes = _own_bytes(1)
    watch.run(count)
    facts = {
        "accepted": watch.accepted,
        "peak_mib": watch.peak_kib >> 10,
        "grown_mib": max(0, (watch.peak_kib << 10) - watch.base_bytes) >> 20,
        "findings": watch.findings,
    }
    sys.stdout.write(json.dumps(facts) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), seed=int(sys.argv[3]), work=Path(sys.argv[4])))

"""The two files of an extraction that people read: what happened, and what failed.

Duty: append whole lines to `extract.log` (with a marker at each start) and `failures.jsonl` in the spool root. Nothing
is ever decided by reading them: the store alone knows what is done. Must never overwrite, shorten or rotate them.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from durastore.clock import Clock
from durastore.errors import DiskFailed
from durastore.extract.report import ExtractReport
from durastore.extract.rows import RowFailure

__all__ = ["FAILURES_FILE", "LOG_FILE", "Ledger"]

LOG_FILE = "extract.log"
FAILURES_FILE = "failures.jsonl"
Fact = str | int | float | bool | None


class _Appended:
    """One file opened for appending; a line is one write, so lines of several processes do not mix."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._fd = os.open(path, flags, 0o600)
        except OSError as exc:
            raise DiskFailed(f"opening {path}: {exc.strerror}", errno=exc.errno) from exc
        self.is_new = os.fstat(self._fd).st_size == 0

    def append(self, line: str) -> None:
        data = line.encode("utf-8", "backslashreplace") + b"\n"
        try:
            written = os.write(self._fd, data)
        except OSError as exc:
            raise DiskFailed(f"writing {self._path}: {exc.strerror}", errno=exc.errno) from exc
        if written != len(data):
            raise DiskFailed(f"writing {self._path}: {written} of {len(data)} bytes went out, the disk is full")

    def close(self) -> None:
        if self._fd < 0:
            return
        fd, self._fd = self._fd, -1
        try:
            os.fsync(fd)
        except OSError as exc:
            raise DiskFailed(f"syncing {self._path}: {exc.strerror}", errno=exc.errno) from exc
        finally:
            os.close(fd)


class Ledger:
    """Log and failures of one process's run. Raises `DiskFailed` where a line cannot be written."""

    def __init__(self, root: Path, *, clock: Clock, run: str = "", worker: str = "") -> None:
        """`run`: the run's digest, if `start` does not tell it. `worker`: what tells this process from the others."""
        self._clock = clock
        self.worker = worker or f"pid {os.getpid()}"
        self._run = run
        self._log = _Appended(root / LOG_FILE)
        self._failures = _Appended(root / FAILURES_FILE)
        self.failures_path = root / FAILURES_FILE

    def start(self, *, run: str, **facts: Fact) -> None:
        """The marker of a start or restart. `run` is the run's digest."""
        self._run = run
        self.note("START" if self._log.is_new else "RESTART", pid=os.getpid(), run=run, **facts)

    def note(self, event: str, **facts: Fact) -> None:
        """One line: time, event, facts as JSON values."""
        shown = " ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in facts.items())
        self._log.append(f"{self._now()} {event} {shown}".rstrip())

    def end(self, report: ExtractReport) -> None:
        """The marker of an end, with the counts."""
        counts = report.counts
        self.note(
            "END",
            exit_code=report.exit_code,
            ok=counts.ok,
            failed=counts.failed,
            skipped=counts.skipped,
            not_attempted=counts.left,
            local_only=len(report.local_only),
            error=str(report.error) if report.error is not None else None,
        )

    def failure(self, failure: RowFailure) -> None:
        """One JSON object per failure. The sample is not done, so the next run tries it again."""
        entry = {
            "time": self._now(),
            "run": self._run,
            "line": failure.line,
            "id": str(failure.sample_id) if failure.sample_id is not None else None,
            "stage": failure.stage,
            "reason": failure.reason,
            "attempts": failure.attempts,
            "worker": self.worker,
        }
        self._failures.append(json.dumps(entry, ensure_ascii=False))

    @contextmanager
    def hearing(self, logger: logging.Logger) -> Iterator[None]:
        """Copy the logger's lines into the log while the block runs, at the level its owner chose."""
        handler = _Copied(self)
        logger.addHandler(handler)
        try:
            yield
        finally:
            logger.removeHandler(handler)

    def close(self) -> None:
        self._log.close()
        self._failures.close()

    def _now(self) -> str:
        return datetime.fromtimestamp(self._clock.now_ns() / 1e9, tz=UTC).isoformat(timespec="milliseconds")


class _Copied(logging.Handler):
    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self._ledger = ledger

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._ledger.note("LOG", level=record.levelname, message=record.getMessage())
        except DiskFailed:
            self.handleError(record)  # told on stderr; whoever logged must not fail for it

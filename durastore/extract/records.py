"""The three records of one process's extraction: log, list of failures for people, failures by sample.

Duty: open and close them together, and write a failure to both. Must never decide anything from them.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

from durastore.clock import Clock
from durastore.extract.failure_book import FailureBook
from durastore.extract.ledger import Ledger
from durastore.extract.rows import RowFailure

__all__ = ["Records"]


class Records:
    """Raises `DiskFailed` where a line cannot be written."""

    def __init__(self, root: Path, *, run: str, clock: Clock, worker: str = "") -> None:
        """`run`: the run's digest. `worker`: the name of this process, by default its process id."""
        self.ledger = Ledger(root, run=run, clock=clock, worker=worker)
        try:
            self.book = FailureBook(root, run=run, worker=self.ledger.worker, clock=clock)
        except BaseException:  # the caller gets no object to close
            self.ledger.close()
            raise

    def failure(self, failure: RowFailure) -> None:
        """The sample is not done, so the next run tries it again."""
        self.ledger.failure(failure)
        self.book.add(failure)

    def close(self) -> None:
        """Safe to repeat."""
        self.book.close()
        self.ledger.close()

    def __enter__(self) -> Records:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

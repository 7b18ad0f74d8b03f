"""How many inputs ended how.

Duty: thread-safe counts over distinct inputs, so that `ok + failed + skipped == inputs` can be checked (INV-10), and
the failures themselves. Must never count a sample as ok before `put` has returned.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from durastore.extract.rows import RowFailure, TokenRow

__all__ = ["Counts", "Tally"]

SHOWN_FAILURES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Counts at one moment."""

    inputs: int
    ok: int = 0
    failed: int = 0
    skipped: int = 0
    """Done before: a live row of this run with this input's digest."""
    tokens: int = 0
    tensor_bytes: int = 0

    @property
    def left(self) -> int:
        """Inputs that have no outcome (yet)."""
        return self.inputs - self.ok - self.failed - self.skipped


class Tally:
    """The counts of one run. `record` is called with each failure and `settle` with each row that is stored, now (with
    the bytes of its tensors) or before (with 0), under the lock, before it is counted.
    """

    def __init__(
        self,
        inputs: int,
        *,
        record: Callable[[RowFailure], None],
        settle: Callable[[TokenRow, int], None] = lambda row, tensor_bytes: None,
    ) -> None:
        self._lock = threading.Lock()
        self._record = record
        self._settle = settle
        self._inputs = inputs
        self._ok = self._failed = self._skipped = self._tokens = self._bytes = 0
        self._failures: list[RowFailure] = []
        self.queued: Callable[[], tuple[int, int]] = lambda: (0, 0)
        """Samples and bytes that are extracted and not stored yet; whoever queues them says so."""
        self.audited: Callable[[], int] = lambda: 0
        """Samples that went through the model twice so far; whoever compares them says so."""

    def add_ok(self, row: TokenRow, *, tensor_bytes: int) -> None:
        with self._lock:
            self._settle(row, tensor_bytes)
            self._ok += 1
            self._tokens += len(row.input_ids)
            self._bytes += tensor_bytes

    def add_skipped(self, row: TokenRow) -> None:
        with self._lock:
            self._settle(row, 0)
            self._skipped += 1

    def add_failed(self, failure: RowFailure) -> None:
        """Count and record a failure; whatever `record` raises goes to the caller, and nothing is counted then."""
        with self._lock:
            self._record(failure)
            self._failed += 1
            if len(self._failures) < SHOWN_FAILURES:
                self._failures.append(failure)

    def counts(self) -> Counts:
        with self._lock:
            return Counts(
                inputs=self._inputs,
                ok=self._ok,
                failed=self._failed,
                skipped=self._skipped,
                tokens=self._tokens,
                tensor_bytes=self._bytes,
            )

    def failures(self) -> tuple[RowFailure, ...]:
        """The first thousand; the failures file holds all."""
        with self._lock:
            return tuple(self._failures)

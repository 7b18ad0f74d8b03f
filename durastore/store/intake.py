"""Group commit: many threads put, one of them pays for the fsync.

The first thread that finds nobody leading takes everything queued, writes it as one durable group and wakes the others.
No thread of its own, so a lone `put` costs no hand-over.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from durastore.codec.encode import EncodedSample
from durastore.model import SampleEntry, Tombstone

__all__ = ["Intake", "Placed"]

Placed = tuple[int, SampleEntry]
"""Pack id and entry of one durable sample."""


class _Group:
    """What one caller handed in, and how it ended."""

    __slots__ = ("error", "placed", "samples", "supersedes")

    def __init__(self, samples: Sequence[EncodedSample], supersedes: Sequence[Tombstone]) -> None:
        self.samples = samples
        self.supersedes = supersedes
        self.placed: list[Placed] | None = None
        self.error: BaseException | None = None

    @property
    def is_settled(self) -> bool:
        return self.placed is not None or self.error is not None


class Intake:
    """Thread-safe front of a pack writer's `append`."""

    def __init__(
        self, append: Callable[[Sequence[EncodedSample], Sequence[Tombstone]], list[Placed]], *, group_bytes: int
    ) -> None:
        self._append = append
        self._group_bytes = group_bytes
        self._turn = threading.Condition()
        self._queue: list[_Group] = []
        self._is_led = False

    def put(self, samples: Sequence[EncodedSample], supersedes: Sequence[Tombstone] = ()) -> list[Placed]:
        """Durable when it returns, together with the rows it supersedes. Raises what the write raised, to every caller
        of the group it was in (INV-1).
        """
        mine = _Group(samples, supersedes)
        with self._turn:
            self._queue.append(mine)
        while True:
            with self._turn:
                while self._is_led and not mine.is_settled:
                    self._turn.wait()
                if mine.is_settled:
                    return _outcome(mine)
                self._is_led = True
            self._lead()

    def _lead(self) -> None:
        batch: list[_Group] = []
        try:
            with self._turn:
                batch = self._take()
            self._write(batch)
        finally:
            # also on Ctrl-C in the leader: a group left unsettled would leave its caller waiting for ever
            with self._turn:
                for group in batch:
                    if not group.is_settled:
                        group.error = InterruptedError("the thread that wrote this group was interrupted")
                self._is_led = False
                self._turn.notify_all()

    def _take(self) -> list[_Group]:
        """The next groups in order, at least one; bounded in bytes, so that none waits long."""
        taken: list[_Group] = []
        size_bytes = 0
        while self._queue and (not taken or size_bytes < self._group_bytes):
            group = self._queue.pop(0)
            taken.append(group)
            size_bytes += sum(sample.length for sample in group.samples)
        return taken

    def _write(self, batch: list[_Group]) -> None:
        try:
            placed = self._append(
                [sample for group in batch for sample in group.samples],
                [stone for group in batch for stone in group.supersedes],
            )
        except Exception as exc:  # noqa: BLE001 - whatever it is, every caller of the group gets it
            for group in batch:
                group.error = exc
            return
        start = 0
        for group in batch:
            group.placed = placed[start : start + len(group.samples)]
            start += len(group.samples)


def _outcome(group: _Group) -> list[Placed]:
    if group.error is not None:
        raise group.error
    if group.placed is None:
        raise AssertionError("a settled group has an outcome")
    return group.placed

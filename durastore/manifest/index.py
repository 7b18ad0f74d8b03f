"""Membership of 10^8 sample ids in about 33 bytes a row.

Duty: answer "is this id (with this input) in the manifest, or put since" from sorted digest arrays plus a small dict
of recent additions. Must never hold ids as text, never touch the network, and never answer "yes" for an id that was
not added: the full 128 bits are compared.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_128_intdigest

from durastore.model import Digest, SampleId

__all__ = ["DigestPairs", "IdIndex", "IndexHit"]

_RECENT_LIMIT = 65_536
_MASK = (1 << 64) - 1
_NO_INPUT = (None,)

DigestPairs = NDArray[np.uint64]
"""Digests as an (n, 2) array: high half, low half."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexHit:
    """What the index knows of one id: the input digests it is held with (None: recorded without one)."""

    input_digests: tuple[Digest | None, ...]

    def has_input(self, digest: Digest) -> bool:
        """Whether the id is held with exactly this input (INV-8: a row without an input digest is no match)."""
        return digest in self.input_digests


@dataclass(frozen=True, slots=True, kw_only=True)
class _SortedRun:
    """Columns of one immutable run, sorted by `high`."""

    high: NDArray[np.uint64]
    low: NDArray[np.uint64]
    input_high: NDArray[np.uint64]
    input_low: NDArray[np.uint64]
    has_input: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.high)

    def positions(self, high: int, low: int) -> list[int]:
        """Rows of the digest `high`:`low`, which all lie in one stretch of equal `high`."""
        at = int(np.searchsorted(self.high, np.uint64(high)))
        found = []
        while at < len(self.high) and int(self.high[at]) == high:
            if int(self.low[at]) == low:
                found.append(at)
            at += 1
        return found

    def input_at(self, at: int) -> Digest | None:
        if not self.has_input[at]:
            return None
        return Digest(f"{int(self.input_high[at]):016x}{int(self.input_low[at]):016x}")


def _sorted_run(columns: tuple[NDArray[np.uint64], ...], has_input: NDArray[np.bool_]) -> _SortedRun:
    # stable: numpy's stable sort of uint64 is a merge sort, so concatenated sorted runs merge in near linear time
    order = np.argsort(columns[0], kind="stable")
    high, low, input_high, input_low = (column[order] for column in columns)
    return _SortedRun(high=high, low=low, input_high=input_high, input_low=input_low, has_input=has_input[order])


def _merged(left: _SortedRun, right: _SortedRun) -> _SortedRun:
    names = ("high", "low", "input_high", "input_low")
    columns = tuple(np.concatenate([getattr(left, name), getattr(right, name)]) for name in names)
    return _sorted_run(columns, np.concatenate([left.has_input, right.has_input]))


class IdIndex:
    """A set of (id, input digest) pairs that only grows. Thread-safe; adding a pair twice changes nothing.

    `recent_limit` is how many ids the dict takes before they move into a sorted run.
    """

    def __init__(self, *, recent_limit: int = _RECENT_LIMIT) -> None:
        self._lock = threading.Lock()
        self._runs: list[_SortedRun] = []
        self._recent: dict[int, tuple[str | None, ...]] = {}
        """Input digests as hex digits: of tuples of texts the garbage collector soon has nothing to do."""
        self._recent_limit = recent_limit

    @classmethod
    def of_columns(cls, ids: DigestPairs, inputs: DigestPairs, *, has_input: NDArray[np.bool_]) -> IdIndex:
        """An index of whole columns: id digests, input digests, and which rows have an input at all."""
        index = cls()
        columns = (ids[:, 0], ids[:, 1], inputs[:, 0], inputs[:, 1])
        if len(ids):
            index._runs.append(_sorted_run(columns, has_input))
        return index

    def __len__(self) -> int:
        """Pairs held; a pair that was added again after it moved into a sorted run may count twice."""
        with self._lock:
            return sum(len(run) for run in self._runs) + sum(len(inputs) for inputs in self._recent.values())

    @property
    def size_bytes(self) -> int:
        """Bytes of the sorted runs (the dict of recent additions is bounded by its limit)."""
        with self._lock:
            return sum(
                column.nbytes
                for run in self._runs
                for column in (run.high, run.low, run.input_high, run.input_low, run.has_input)
            )

    def add(self, sample_id: SampleId, input_digest: Digest | None) -> None:
        """Record one pair. Safe to repeat."""
        self.add_many([sample_id.text], [None if input_digest is None else input_digest.hex])

    def add_many(self, ids: Sequence[str], inputs: Sequence[str | None]) -> list[bool]:
        """Record pairs of id and input digest (hex), in order; tells of each id whether it was held before that."""
        keys = [xxh3_128_intdigest(text.encode()) for text in ids]
        with self._lock:
            held = self._are_in_runs(keys)
            recent = self._recent
            for at, (key, hex_digits) in enumerate(zip(keys, inputs, strict=True)):
                known = recent.get(key)
                if known is None:
                    recent[key] = _NO_INPUT if hex_digits is None else (hex_digits,)
                    continue
                held[at] = True
                if hex_digits not in known:
                    recent[key] = (*known, hex_digits)
            if len(recent) >= self._recent_limit:
                self._settle_recent()
        return held

    def holds_any(self, ids: Sequence[str]) -> bool:
        """Whether one of these ids is held, with whatever input."""
        keys = [xxh3_128_intdigest(text.encode()) for text in ids]
        with self._lock:
            return not self._recent.keys().isdisjoint(keys) or any(self._are_in_runs(keys))

    def _are_in_runs(self, keys: Sequence[int]) -> list[bool]:
        held = [False] * len(keys)
        highs = np.array([key >> 64 for key in keys] if self._runs else [], dtype=np.uint64)
        for run in self._runs:
            at = np.minimum(np.searchsorted(run.high, highs), len(run) - 1)
            for number in map(int, np.flatnonzero(run.high[at] == highs)):
                key = keys[number]
                held[number] = held[number] or bool(run.positions(key >> 64, key & _MASK))
        return held

    def find(self, sample_id: SampleId) -> IndexHit | None:
        """What is held of this id, or None where nothing is."""
        key = xxh3_128_intdigest(sample_id.text.encode())
        high, low = key >> 64, key & _MASK
        with self._lock:
            inputs = [None if text is None else Digest(text) for text in self._recent.get(key, ())]
            for run in self._runs:
                inputs.extend(run.input_at(at) for at in run.positions(high, low))
        return IndexHit(input_digests=tuple(dict.fromkeys(inputs))) if inputs else None

    def contains(self, sample_id: SampleId, input_digest: Digest | None) -> bool:
        """Whether the id is held; with an `input_digest`, whether it is held with exactly that input."""
        hit = self.find(sample_id)
        return hit is not None and (input_digest is None or hit.has_input(input_digest))

    def _settle_recent(self) -> None:
        """Move the recent dict into a sorted run; merge runs of like size, so their number stays logarithmic."""
        pairs = [(key, digest) for key, digests in self._recent.items() for digest in digests]
        halves = [divmod(int(digest, 16), 1 << 64) if digest is not None else (0, 0) for _, digest in pairs]
        columns = (
            np.array([key >> 64 for key, _ in pairs], dtype=np.uint64),
            np.array([key & _MASK for key, _ in pairs], dtype=np.uint64),
            np.array([high for high, _ in halves], dtype=np.uint64),
            np.array([low for _, low in halves], dtype=np.uint64),
        )
        has_input = np.array([digest is not None for _, digest in pairs], dtype=np.bool_)
        self._runs.append(_sorted_run(columns, has_input))
        self._recent = {}
        while len(self._runs) > 1 and len(self._runs[-2]) < 2 * len(self._runs[-1]):
            last = self._runs.pop()
            self._runs.append(_merged(self._runs.pop(), last))

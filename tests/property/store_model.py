"""What a store has to know: the acknowledged samples with their content, and what was destroyed behind its back.

Duty: the small in-memory truth that a store is held against. Knows no pack, file or object.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from durastore.codec.encode import SampleContext, encode_sample
from durastore.errors import DurastoreError
from durastore.model import Digest, Run, Sample, SampleId
from durastore.store.store import Store

__all__ = ["BIG", "RUN", "Held", "Model", "Version", "input_digest"]

RUN = {"model": "property-test"}
BIG = 2
"""The content that makes a sample a pack of its own."""


def input_digest(number: int | None) -> str | None:
    return None if number is None else f"{number + 1:032x}"


@dataclass(frozen=True, slots=True)
class Version:
    """One content of one sample, made from one input."""

    sample_id: str
    content: int
    input: int | None

    def tensors(self) -> dict[str, Any]:
        rows = 2_500 if self.content == BIG else 60 + 97 * self.content
        start = sum(self.sample_id.encode()) + 31 * self.content
        return {"h": np.arange(start, start + rows, dtype=np.int32).reshape(-1, 1), "n": np.int64(self.content)}

    @lru_cache(maxsize=500)  # noqa: B019 - a few dozen values in all
    def data(self) -> bytes:
        """The sample's bytes as they stand in a pack and in an object."""
        number = input_digest(self.input)
        context = SampleContext(
            run=Run.of(RUN),
            meta=None,
            input_digest=None if number is None else Digest(number),
            embed_run_above_bytes=9_000,
        )
        encoded = encode_sample(SampleId(self.sample_id), self.tensors(), context=context)
        return b"".join(bytes(chunk) for chunk in encoded.chunks())

    def is_in(self, sample: Sample) -> bool:
        """Whether this is what was read back, to the last value."""
        wanted = self.tensors()
        is_equal = sample.tensors.keys() == wanted.keys() and all(
            np.array_equal(np.asarray(sample.tensors[name]), wanted[name]) for name in wanted
        )
        number = input_digest(self.input)
        return is_equal and sample.input_digest == (None if number is None else Digest(number))


@dataclass(slots=True)
class Held:
    """What is known of one id."""

    acked: Version | None = None
    """The last content that a put acknowledged."""
    maybe: set[Version] = field(default_factory=set)
    """Contents whose put did not return: each may be there or not."""
    earlier: set[Version] = field(default_factory=set)
    is_excused: bool = False
    """The test itself destroyed the last copy, or the record of it: it may be reported gone, or an earlier content."""
    acked_at: int = 0

    @property
    def allowed(self) -> set[Version]:
        """What a reader may be given."""
        found = self.maybe | ({self.acked} if self.acked else set())
        return found | self.earlier if self.is_excused else found


class Model:
    """All ids."""

    def __init__(self) -> None:
        self.held: dict[str, Held] = {}
        self.moment = 0
        """Counts acknowledgements, to tell which came after a copy of the journal was taken."""

    def of(self, sample_id: str) -> Held:
        return self.held.setdefault(sample_id, Held())

    def attempt(self, version: Version) -> None:
        """A put of it began."""
        self.of(version.sample_id).maybe.add(version)

    def refused(self, version: Version) -> None:
        """It was refused before anything was written."""
        held = self.of(version.sample_id)
        if version != held.acked:
            held.maybe.discard(version)

    def acknowledge(self, version: Version, *, is_new: bool) -> None:
        """Its put returned."""
        held = self.of(version.sample_id)
        self.moment += 1
        held.earlier |= held.maybe | ({held.acked} if held.acked else set())
        held.acked, held.maybe, held.acked_at = version, set(), self.moment
        if is_new:
            held.is_excused = False

    def may_clash(self, version: Version) -> bool:
        """Whether `SampleExists` is an answer that a put of this may get."""
        held = self.of(version.sample_id)
        return any(other.input == version.input and other != version for other in held.allowed | held.earlier)

    def must_clash(self, version: Version) -> bool:
        held = self.of(version.sample_id)
        is_certain = held.acked is not None and not held.is_excused and not held.maybe
        return is_certain and held.acked != version and held.acked is not None and held.acked.input == version.input

    def excuse(self, is_gone: Callable[[Version], bool]) -> None:
        """After the test destroyed something: no longer expected is what is gone (or what may have taken its place)."""
        for held in self.held.values():
            if any(is_gone(version) for version in held.allowed):
                held.is_excused = True

    def excuse_since(self, moment: int) -> None:
        """After the journal was taken back to what it was at `moment`."""
        for held in self.held.values():
            if held.acked_at > moment:
                held.is_excused = True

    def expected(self) -> list[Version]:
        """What has to be obtainable, whatever happened."""
        return [held.acked for held in self.held.values() if held.acked is not None and not held.is_excused]

    def faults(self, store: Store) -> list[str]:
        """O1: what the store says and gives that it must not, or does not give that it must."""
        found = (self._fault(store, sample_id, held=held) for sample_id, held in sorted(self.held.items()))
        return [fault for fault in found if fault is not None]

    def _fault(self, store: Store, sample_id: str, *, held: Held) -> str | None:
        is_expected = held.acked is not None and not held.is_excused
        try:
            sample: Sample | None = store.get(sample_id)
            error = ""
        except DurastoreError as exc:
            sample, error = None, f"{type(exc).__name__}: {exc}"
        if sample is None and is_expected:
            return f"{sample_id}: {held.acked} cannot be obtained: {error}"
        if sample is not None and not any(version.is_in(sample) for version in held.allowed):
            return f"{sample_id}: content that is not {held.allowed}: {sample.input_digest} {len(sample.tensors['h'])}"
        if is_expected and sample_id not in store:
            return f"{sample_id}: acknowledged, and not in the store"
        if sample_id in store and not held.allowed:
            return f"{sample_id}: in the store, and never put"
        return self._input_fault(store, sample_id, held=held)

    @staticmethod
    def _input_fault(store: Store, sample_id: str, *, held: Held) -> str | None:
        """INV-8: done means made from this very input."""
        inputs = {version.input for version in held.allowed}
        for number in range(3):
            digest = input_digest(number)
            if number not in inputs and store.contains(sample_id, input_digest=digest):
                return f"{sample_id}: said to be done for input {number}, holds {held.allowed}"
        return None

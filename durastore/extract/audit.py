"""A sampled second look: does a sample alone give the states that it got in its batch?

Duty: choose samples by their id, run them once more alone, and compare before they are stored. Finds what padding,
batching and prefix caches do to states without any NaN. Must never choose by order or by chance: a resumed run chooses
the same samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from durastore.errors import ConfigError, EngineFailed
from durastore.extract.engine import Engine, Extracted, Holds, Refused
from durastore.extract.rows import TokenRow
from durastore.extract.state_faults import numbers_of, state_bits

__all__ = ["Audit"]

_TOLERANCES = {"torch.bfloat16": 0.1, "torch.float16": 0.05}
_TOLERANCE = 0.002
_BUCKETS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """Which samples are looked at twice. `note` is called with each difference, by the thread that stores."""

    share: float
    """Of the samples, 0 to 1."""
    note: Callable[[float], None] = lambda difference: None

    def looks_at(self, row: TokenRow) -> bool:
        return int(row.sample_id.digest().hex[-12:], 16) % _BUCKETS < self.share * _BUCKETS

    def with_second_look(
        self, engine: Engine, batch: Sequence[TokenRow], *, results: Sequence[Extracted | Refused]
    ) -> list[Extracted | Refused]:
        """The results, those of chosen samples with a comparison that has to be passed before they are stored.

        A sample that was alone in its batch has nothing to be compared with. `ConfigError` and `EngineFailed` pass.
        """
        if self.share <= 0 or len(batch) < 2:
            return list(results)
        return [
            self._looked_at(engine, row, result=result)
            if isinstance(result, Extracted) and self.looks_at(row)
            else result
            for row, result in zip(batch, results, strict=True)
        ]

    def over_stream(
        self,
        stream: Callable[[Iterator[TokenRow | None]], Iterator[tuple[TokenRow, Extracted | Refused]]],
        rows: Iterator[TokenRow | None],
    ) -> Iterator[tuple[TokenRow, Extracted | Refused]]:
        """What a server's stream gives for the rows. A chosen row is asked for twice, among other neighbours and with
        whatever the server kept of the first time, and has one result.
        """
        first: dict[str, Extracted | Refused] = {}

        def doubled() -> Iterator[TokenRow | None]:
            for row in rows:
                yield row
                if row is not None and self.looks_at(row):
                    yield row

        for row, result in stream(doubled()):
            name = str(row.sample_id)
            if not self.looks_at(row):
                yield row, result
            elif name not in first:
                first[name] = result
            else:
                yield row, self._joined(first.pop(name), result)
        for left in first.values():  # the end came before its second answer
            if isinstance(left, Extracted):
                left.settle(None)

    def _joined(self, one: Extracted | Refused, other: Extracted | Refused) -> Extracted | Refused:
        if isinstance(one, Refused) or isinstance(other, Refused):
            for each in (one, other):
                if isinstance(each, Extracted):
                    each.settle(None)
            return one if isinstance(one, Refused) else Refused(reason=f"asked again: {_reason(other)}", attempts=2)

        def settle(holds: Holds | None) -> None:
            one.settle(holds)
            other.settle(holds)

        return replace(self._compared_with(one, other), settle=settle)

    def _compared_with(self, result: Extracted, alone: Extracted) -> Extracted:
        def find_fault(tensors: Mapping[str, Any]) -> str | None:
            return result.find_fault(tensors) or self._compared(tensors["hidden_states"], alone)

        return replace(result, find_fault=find_fault, held_bytes=result.held_bytes + alone.held_bytes)

    def _looked_at(self, engine: Engine, row: TokenRow, *, result: Extracted) -> Extracted | Refused:
        try:
            (alone,) = engine.extract([row])
        except (ConfigError, EngineFailed):
            raise  # not about this sample
        except Exception as exc:  # noqa: BLE001 - the reason of a failed sample, as in a batch
            alone = Refused(reason=f"{type(exc).__name__}: {exc}")
        if isinstance(alone, Refused):
            return Refused(reason=f"alone, without its batch: {alone.reason}", attempts=2)
        return self._compared_with(result, alone)

    def _compared(self, states: Any, alone: Extracted) -> str | None:
        other = alone.tensors["hidden_states"].cpu()
        if states.shape != other.shape:
            return f"audit: states of shape {tuple(states.shape)} in the batch, {tuple(other.shape)} alone"
        here, there = (numbers_of(bits, states) for bits in (state_bits(states), state_bits(other)) if bits is not None)
        size = np.sqrt(np.square(there, dtype=np.float64).sum(axis=(0, 2)))
        distance = np.sqrt(np.square(here - there, dtype=np.float64).sum(axis=(0, 2)))
        differences = distance / np.maximum(size, np.finfo(np.float64).tiny)
        worst = int(np.argmax(differences))
        self.note(float(differences[worst]))
        if differences[worst] <= _TOLERANCES.get(str(states.dtype), _TOLERANCE):
            return None
        return f"audit: slot {worst} of its states differs by {differences[worst]:.2g} from what the sample gives alone"


def _reason(result: Extracted | Refused) -> str:
    return result.reason if isinstance(result, Refused) else ""

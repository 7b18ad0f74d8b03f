"""What whole samples say about each other: norms that stand out, and states that two samples share.

Duty: per layer the usual size of a state over many samples and those far from it; samples whose states are another
sample's though their tokens are not; and states that do not belong to their tokens at all. With numpy, on the thread
that stores, over a few rows of each sample. Must never refuse a sample for being unusual: only for being another's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import xxhash

from durastore.extract.rows import TokenRow
from durastore.extract.state_faults import numbers_of, state_bits

if TYPE_CHECKING:
    pass

__all__ = ["CheckReport", "LayerNorms", "NormOutlier", "StateWatch", "find_row_fault", "merged"]

_ROWS_LOOKED_AT = 32
_KNOWN_STATES = 1 << 20
_SAMPLES_BEFORE = 50
"""So many samples make what is usual."""
_FAR = 8.0
_LEAST_SPREAD = 0.1
"""In powers of two: a spread below it is no reason to call eight times of it far."""
_SHOWN_OUTLIERS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerNorms:
    """Over samples: the median root mean square of a token's state, in powers of two."""

    layer: int
    """Its place among the stored ones, from 0, as in the second dimension of the states."""
    samples: int
    mean: float
    spread: float
    """Standard deviation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NormOutlier:
    """A sample whose states are far larger or smaller than those of the samples before it."""

    sample_id: str
    line: int
    layer: int
    """As in `LayerNorms`."""
    value: float
    usual: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """What the checks over many samples found."""

    norms: tuple[LayerNorms, ...] = ()
    outliers: tuple[NormOutlier, ...] = ()
    """The first hundred of a process."""
    outlier_count: int = 0
    audited: int = 0
    """Samples that went through the model alone as well, to compare."""
    worst_difference: float = 0.0
    """The largest relative difference of a layer that such a comparison found."""

    def render(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "norms": [
                {"layer": n.layer, "samples": n.samples, "mean_log2": round(n.mean, 4), "std_log2": round(n.spread, 4)}
                for n in self.norms
            ],
            "outliers": [
                {
                    "id": o.sample_id,
                    "line": o.line,
                    "layer": o.layer,
                    "log2": round(o.value, 3),
                    "usual": round(o.usual, 3),
                }
                for o in self.outliers
            ],
            "outlier_count": self.outlier_count,
            "audited": self.audited,
            "worst_difference": round(self.worst_difference, 6),
        }


def find_row_fault(row: TokenRow, tensors: Mapping[str, Any]) -> str | None:
    """Why these tensors are not this sample's: other token ids, or not one state a token."""
    ids = tensors.get("input_ids")
    if ids is not None and not np.array_equal(np.asarray(ids), row.input_ids):
        return "the engine's token ids are not the sample's"
    states = tensors.get("hidden_states")
    if states is not None and len(states) != len(row.input_ids):
        return f"has {len(states)} rows of states for {len(row.input_ids)} tokens"
    return None


class StateWatch:
    """Remembers what it saw. Used from the one thread that stores."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, int]] = {}
        self._count = 0
        self._mean: npt.NDArray[np.float64] = np.zeros(0)
        self._squares: npt.NDArray[np.float64] = np.zeros(0)
        self._outliers: list[NormOutlier] = []
        self._outlier_count = 0
        self._audited = 0
        self._worst = 0.0

    def find_fault(self, row: TokenRow, tensors: Mapping[str, Any]) -> str | None:
        """Why this sample may not be stored, after a look at those before it; None adds it to them."""
        states = tensors.get("hidden_states")
        if states is None or not hasattr(states, "element_size") or states.ndim != 3:
            return None
        bits = state_bits(states)
        if bits is None:
            return None
        twin = self._twin_of(row, bits)
        if twin is not None:
            return f"its states are those of line {twin}, whose tokens are others"
        self._add_norms(row, numbers_of(bits[:: max(1, len(bits) // _ROWS_LOOKED_AT)], states))
        return None

    @property
    def audit_count(self) -> int:
        """Samples compared so far."""
        return self._audited

    def audited(self, difference: float) -> None:
        """A sample was compared with itself alone."""
        self._audited += 1
        self._worst = max(self._worst, difference)

    def _twin_of(self, row: TokenRow, bits: npt.NDArray[Any]) -> int | None:
        key = xxhash.xxh3_64_intdigest(np.ascontiguousarray(bits).data)
        tokens = xxhash.xxh3_64_intdigest(np.ascontiguousarray(row.input_ids).data)
        known = self._known.get(key)
        if known is not None:
            return known[1] if known[0] != tokens else None
        if len(self._known) >= _KNOWN_STATES:
            del self._known[next(iter(self._known))]  # the oldest; what is further apart is not compared
        self._known[key] = (tokens, row.line)
        return None

    def _add_norms(self, row: TokenRow, numbers: npt.NDArray[np.float32]) -> None:
        with np.errstate(divide="ignore", over="ignore"):
            sizes = np.log2(np.sqrt(np.mean(np.square(numbers, dtype=np.float64), axis=2)))
        values = np.median(sizes, axis=0)  # the first token's states are huge in many models: not the mean
        if self._count == 0:
            self._mean, self._squares = np.zeros(len(values)), np.zeros(len(values))
        if self._count >= _SAMPLES_BEFORE:
            self._look_for_outliers(row, values)
        self._count += 1
        difference = values - self._mean
        self._mean = self._mean + difference / self._count
        self._squares = self._squares + difference * (values - self._mean)

    def _look_for_outliers(self, row: TokenRow, values: npt.NDArray[np.float64]) -> None:
        spread = np.maximum(np.sqrt(self._squares / self._count), _LEAST_SPREAD)
        for slot in np.flatnonzero(np.abs(values - self._mean) > _FAR * spread):
            self._outlier_count += 1
            if len(self._outliers) < _SHOWN_OUTLIERS:
                self._outliers.append(
                    NormOutlier(
                        sample_id=str(row.sample_id),
                        line=row.line,
                        layer=int(slot),
                        value=float(values[slot]),
                        usual=float(self._mean[slot]),
                    )
                )

    def report(self) -> CheckReport:
        norms = [
            LayerNorms(
                layer=slot,
                samples=self._count,
                mean=float(self._mean[slot]),
                spread=math.sqrt(float(self._squares[slot]) / self._count),
            )
            for slot in range(len(self._mean))
        ]
        return CheckReport(
            norms=tuple(norms),
            outliers=tuple(self._outliers),
            outlier_count=self._outlier_count,
            audited=self._audited,
            worst_difference=self._worst,
        )


def merged(reports: Sequence[CheckReport]) -> CheckReport:
    """What several processes found, as one. Norms by their numbers of samples."""
    norms = []
    for slot in sorted({norm.layer for report in reports for norm in report.norms}):
        parts = [norm for report in reports for norm in report.norms if norm.layer == slot]
        samples = sum(part.samples for part in parts)
        mean = sum(part.mean * part.samples for part in parts) / samples
        square = sum((part.spread**2 + (part.mean - mean) ** 2) * part.samples for part in parts) / samples
        norms.append(LayerNorms(layer=slot, samples=samples, mean=mean, spread=math.sqrt(square)))
    return CheckReport(
        norms=tuple(norms),
        outliers=tuple(outlier for report in reports for outlier in report.outliers)[:_SHOWN_OUTLIERS],
        outlier_count=sum(report.outlier_count for report in reports),
        audited=sum(report.audited for report in reports),
        worst_difference=max((report.worst_difference for report in reports), default=0.0),
    )

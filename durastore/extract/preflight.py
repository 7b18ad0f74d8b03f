"""What an extraction will take, before it begins: bytes, requests, time and money; and whether it can work at all.

Duty: from real token counts to a `Preflight`, purely. Byte counts are of the states as they are, before compression, so
that the truth is less. Must never refuse what might work: only what cannot, however well it compresses.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from durastore.errors import ConfigError, PartlyDone
from durastore.extract.rows import RowFailure

__all__ = ["Budget", "Limits", "Preflight", "SampleShape", "Workload", "plan_preflight"]

_BEST_RATIO = 0.5
"""Lossless compression of states takes off about a quarter; nobody has seen it take half."""
_SAMPLE_OVERHEAD_BYTES = 2048
_LOOKS_PER_OBJECT = 2  # a HEAD and a ranged GET prove the copy
_GB = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is left to do."""

    samples: int
    tokens: int
    longest_tokens: int
    unusable: int = 0
    """Rows that cannot become samples as they are."""
    first_unusable: tuple[RowFailure, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleShape:
    """How large the states of a token are."""

    layers: int
    hidden_size: int
    value_bytes: int

    def sample_bytes(self, tokens: int) -> int:
        """States and token ids, uncompressed."""
        return tokens * (self.layers * self.hidden_size * self.value_bytes + 8) + _SAMPLE_OVERHEAD_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What there is. None: not known, or not limited."""

    pack_bytes: int
    single_pack_bytes: int
    part_bytes: int
    high_watermark_bytes: int
    disk_bytes: int
    """The spool's file system, without the reserve."""
    kept_bytes: int | None = None
    """Room for everything, where nothing is ever reclaimed."""
    bucket_bytes: int | None = None
    """Free space of a bucket that is a directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What the user knows or wants. Prices are in any one currency."""

    tokens_per_s: float | None = None
    """Of all processes together."""
    deadline_s: float | None = None
    price_per_hour: float | None = None
    price_per_gb_month: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Preflight:
    """The estimate. `refusals`: why it cannot work; empty if nothing speaks against it."""

    work: Workload
    state_bytes: int
    longest_bytes: int
    objects: int
    requests: int
    seconds: float | None
    compute_cost: float | None
    storage_cost_per_month: float | None
    refusals: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        """2 where it cannot work; else that of the extraction, which fails every row that cannot be used."""
        if self.refusals:
            return ConfigError.exit_code
        return PartlyDone.exit_code if self.work.unusable else 0

    def render(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "samples": self.work.samples,
            "tokens": self.work.tokens,
            "longest_tokens": self.work.longest_tokens,
            "state_bytes": self.state_bytes,
            "longest_bytes": self.longest_bytes,
            "objects": self.objects,
            "requests": self.requests,
            "seconds": round(self.seconds, 1) if self.seconds is not None else None,
            "compute_cost": round(self.compute_cost, 2) if self.compute_cost is not None else None,
            "storage_cost_per_month": (
                round(self.storage_cost_per_month, 2) if self.storage_cost_per_month is not None else None
            ),
            "unusable_rows": self.work.unusable,
            "first_unusable": [
                {"line": row.line, "stage": row.stage, "reason": row.reason} for row in self.work.first_unusable
            ],
            "refusals": list(self.refusals),
        }


def plan_preflight(work: Workload, shape: SampleShape, *, limits: Limits, budget: Budget) -> Preflight:
    """The estimate for this work. Never raises for what it finds."""
    state_bytes = shape.sample_bytes(work.tokens) + max(0, work.samples - 1) * _SAMPLE_OVERHEAD_BYTES
    objects = _count_objects(state_bytes, work, limits=limits)
    object_bytes = state_bytes / objects if objects else 0
    sends = 1 if object_bytes <= limits.part_bytes else 2 + math.ceil(object_bytes / limits.part_bytes)
    seconds = work.tokens / budget.tokens_per_s if budget.tokens_per_s else None
    hours = seconds / 3600 if seconds is not None else None
    longest_bytes = shape.sample_bytes(work.longest_tokens)
    return Preflight(
        work=work,
        state_bytes=state_bytes,
        longest_bytes=longest_bytes,
        objects=objects,
        requests=objects * (sends + _LOOKS_PER_OBJECT),
        seconds=seconds,
        compute_cost=_times(hours, budget.price_per_hour),
        storage_cost_per_month=_times(state_bytes / _GB, budget.price_per_gb_month),
        refusals=tuple(_refusals(state_bytes, longest_bytes, seconds=seconds, limits=limits, budget=budget)),
    )


def _count_objects(state_bytes: int, work: Workload, *, limits: Limits) -> int:
    if not work.samples:
        return 0
    if state_bytes / work.samples >= limits.single_pack_bytes:
        return work.samples
    return max(1, math.ceil(state_bytes / limits.pack_bytes))


def _times(first: float | None, second: float | None) -> float | None:
    return first * second if first is not None and second is not None else None


def _refusals(
    state_bytes: int, longest_bytes: int, *, seconds: float | None, limits: Limits, budget: Budget
) -> Iterator[str]:
    least, least_longest = state_bytes * _BEST_RATIO, longest_bytes * _BEST_RATIO
    if least_longest > limits.high_watermark_bytes:
        yield (
            f"the longest sample is {longest_bytes} bytes, and the high watermark lets the spool hold"
            f" {limits.high_watermark_bytes}: raise --high-watermark"
        )
    if least_longest > limits.disk_bytes:
        yield f"the longest sample is {longest_bytes} bytes, and the spool's disk has {limits.disk_bytes} in all"
    if limits.kept_bytes is not None and least > limits.kept_bytes:
        yield (
            f"nothing is reclaimed (--reclaim never), and {state_bytes} bytes of states do not fit into"
            f" {limits.kept_bytes} free bytes"
        )
    if limits.bucket_bytes is not None and least > limits.bucket_bytes:
        yield f"the bucket's disk has {limits.bucket_bytes} free bytes for {state_bytes} bytes of states"
    if budget.deadline_s is not None and seconds is not None and seconds > budget.deadline_s:
        yield f"it takes {seconds:.0f} s, and the deadline is in {budget.deadline_s:.0f} s"

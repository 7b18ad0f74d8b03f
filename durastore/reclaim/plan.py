"""Which packs may be considered for reclaim, decided from facts alone.

Pure: no I/O. A plan is only a wish; every pack in it is proven again, one by one, before anything goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from durastore.clock import Stamp, age_s
from durastore.model import PackState
from durastore.spool.journal import PackRecord
from durastore.verify.guards import settle_age_s

__all__ = ["ReclaimMode", "ReclaimPlan", "ReclaimPolicy", "plan_reclaim"]

ReclaimMode = str
_MODES = ("lazy", "eager", "never")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReclaimPolicy:
    """When local copies go: `lazy` (oldest first above the low watermark), `eager` (as soon as settled), `never`."""

    mode: ReclaimMode
    low_bytes: int
    settle_s: float
    evidence_ttl_s: float
    batch_packs: int
    batch_bytes: int

    def __post_init__(self) -> None:
        if self.mode not in _MODES:
            raise ValueError(f"reclaim mode {self.mode!r} is none of {', '.join(_MODES)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReclaimPlan:
    """Packs to prove and then free, oldest first, within the batch limits."""

    packs: tuple[PackRecord, ...]
    stale: tuple[PackRecord, ...] = ()
    """Packs whose evidence has expired (age, reboot, stepped clock): to be read back anew before they can go."""


def plan_reclaim(records: Sequence[PackRecord], *, policy: ReclaimPolicy, used_bytes: int, now: Stamp) -> ReclaimPlan:
    """The next batch: only MANIFESTED packs that have settled; under `lazy` no more than brings `used_bytes` down to
    the low watermark. Where an age cannot be told the pack is stale, never settled.
    """
    if policy.mode == "never":
        return ReclaimPlan(packs=())
    to_free = used_bytes - policy.low_bytes if policy.mode == "lazy" else None
    chosen: list[PackRecord] = []
    stale: list[PackRecord] = []
    size_bytes = 0
    for record in sorted(records, key=lambda r: r.pack_id):
        size = record.size_bytes or 0
        if to_free is not None and size_bytes >= to_free:
            break
        if record.state is not PackState.MANIFESTED:
            continue
        if _is_stale(record, policy.evidence_ttl_s, now=now):
            stale.append(record)
            continue
        age = settle_age_s(record, record.evidence, now=now)
        if age is None or age < policy.settle_s:
            continue
        if len(chosen) >= policy.batch_packs or (chosen and size_bytes + size > policy.batch_bytes):
            break
        chosen.append(record)
        size_bytes += size
    return ReclaimPlan(packs=tuple(chosen), stale=tuple(stale))


def _is_stale(record: PackRecord, ttl_s: float, *, now: Stamp) -> bool:
    age = age_s(Stamp.parse(record.evidence.taken), now) if record.evidence is not None else None
    return age is None or age > ttl_s

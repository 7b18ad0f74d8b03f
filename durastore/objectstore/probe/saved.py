"""Probe results on disk, beside the spool: kept with their date, never changed, the newest one counts.

Duty: save, load and judge the age of results. Must never take an unreadable or foreign result for an answer: whoever
finds none probes again. Must never let a verdict that objects do not stay fade with its age.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from durastore.clock import Stamp, age_s
from durastore.errors import FormatUnsupported, IntegrityError, SpoolUnreadable
from durastore.fsio.folder import Folder
from durastore.fsio.publish import publish
from durastore.objectstore.probe.result import MAX_RESULT_BYTES, Outcome, ProbeResult

__all__ = [
    "MAX_AGE_S",
    "is_fresh",
    "load_probe",
    "load_probes",
    "newest_of",
    "save_probe",
    "standing_block",
    "target_of",
]

MAX_AGE_S = 7 * 86_400.0
INCONCLUSIVE_AGE_S = 3600.0
_PREFIX, _SUFFIX = "probe-", ".json"


def target_of(*, endpoint: str, bucket: str, prefix: str, account: str) -> str:
    """What a result is about, as 32 hex digits. `account` is `ProbePort.account`; no secret goes in or comes out."""
    text = "\0".join((endpoint.rstrip("/"), bucket, prefix, account))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def save_probe(folder: Folder, result: ProbeResult) -> None:
    """Keep `result` in `folder`, durably, under a name of its own. `DiskFailed` if that fails. Safe to repeat."""
    data = result.render()
    try:
        publish(folder, f"{_PREFIX}{result.id}{_SUFFIX}", chunks=[data], expect_size=len(data))
    except FileExistsError:
        pass  # the id is random and the bytes follow from the result: it is this very result


def load_probe(folder: Folder, *, target: str) -> ProbeResult | None:
    """The newest readable result about `target`; None if there is none. OSError if the folder cannot be read."""
    return newest_of(load_probes(folder, target=target))


def load_probes(folder: Folder, *, target: str | None = None) -> list[ProbeResult]:
    """Every readable result about `target`, or about anything. OSError if the folder cannot be read."""
    found: list[ProbeResult] = []
    for name in folder.names():
        if not (name.startswith(_PREFIX) and name.endswith(_SUFFIX)):
            continue
        try:
            result = ProbeResult.parse(folder.read_bytes(name, limit_bytes=MAX_RESULT_BYTES))
        except (IntegrityError, FormatUnsupported, SpoolUnreadable):
            continue  # not an answer; probing again costs a minute, believing garbage could cost data
        if target in (None, result.target):
            found.append(result)
    return found


def newest_of(results: Iterable[ProbeResult]) -> ProbeResult | None:
    """The result that was taken last; None of none."""
    newest: ProbeResult | None = None
    for result in results:
        if newest is None or _is_newer(result, newest):
            newest = result
    return newest


def standing_block(results: Sequence[ProbeResult]) -> ProbeResult | None:
    """The last result that says that objects do not stay here and that no newer one contradicts; None without such.

    It stands at any age: that the endpoint could not be asked again, or did not answer this very question, does not
    make its rule go away.
    """
    blocks = [result for result in results if result.is_blocking]
    return newest_of(block for block in blocks if not any(_is_contradicting(result, block) for result in results))


def _is_contradicting(result: ProbeResult, block: ProbeResult) -> bool:
    """Whether `result` is newer and found that nothing of what blocked in `block` is so any more; from a person's
    probe, that it does not find it is enough: the person sees that, and may know that the endpoint will never tell.
    """
    asked = {c.name for c in block.checks if c.outcome is Outcome.BLOCKING}
    if block.expiring_rule is not None:
        asked.add("lifecycle")
    if not _is_newer(result, block) or (result.expiring_rule is not None and "lifecycle" in asked):
        return False
    answers = [result.check(name) for name in asked]
    if result.is_by_person:
        return all(c is None or c.outcome is not Outcome.BLOCKING for c in answers)
    return all(c is not None and c.outcome not in (Outcome.BLOCKING, Outcome.UNKNOWN) for c in answers)


def is_fresh(result: ProbeResult, *, now: Stamp, max_age_s: float = MAX_AGE_S) -> bool:
    """True while `result` may be used. One with an open question ages within the hour; an unknown age is too old."""
    age = age_s(Stamp.parse(result.taken), now)
    limit_s = max_age_s if result.is_conclusive else min(max_age_s, INCONCLUSIVE_AGE_S)
    return age is not None and age <= limit_s


def _is_newer(one: ProbeResult, other: ProbeResult) -> bool:
    first, second = Stamp.parse(one.taken), Stamp.parse(other.taken)
    if first.boot_id == second.boot_id:
        return first.boottime_ns > second.boottime_ns  # of one boot this holds also where the wall clock was set back
    return first.wall_ns > second.wall_ns

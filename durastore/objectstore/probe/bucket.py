"""What the bucket itself does to objects: versions, lifecycle rules, and the server's clock.

Duty: find rules that would take our objects away. A lifecycle that cannot be read is told, and does not block.
"""

from __future__ import annotations

from durastore.objectstore.probe.interview import Interview
from durastore.objectstore.probe.port import ExpiryRule
from durastore.objectstore.probe.result import Outcome

__all__ = ["check_clock", "check_lifecycle", "check_versioning", "find_expiring_rule"]

MAX_SKEW_S = 60.0


def check_versioning(talk: Interview) -> bool | None:
    """Whether a replaced object stays as a version; None where neither the bucket nor a write says so."""
    answer = talk.fetch_versioning()
    word = (answer.versioning or "").lower()
    if talk.version_ids or word == "enabled":
        talk.note("versioning", Outcome.PRESENT, detail="writes return version ids" if talk.version_ids else word)
        return True
    if answer.versioning is None:
        talk.note("versioning", Outcome.UNKNOWN, detail=f"{answer.shown()}; writes return no version id")
        return None
    talk.note("versioning", Outcome.ABSENT, detail=word or "never switched on")
    return False


def check_lifecycle(talk: Interview, prefix: str) -> str | None:
    """The rule that expires objects under `prefix`, if one is known of."""
    answer = talk.fetch_lifecycle()
    rule = find_expiring_rule(answer.rules or (), f"{prefix}/" if prefix else "")
    if talk.expirations:
        # Said about an object of ours, so it holds even where the rules themselves may not be read.
        expiring = f"announced by the endpoint for our own object: {_printable(talk.expirations[0])}"
        talk.note("lifecycle", Outcome.BLOCKING, detail=expiring)
        return expiring
    if rule is not None:
        expiring = _printable(f"rule {rule.name} on prefix {rule.prefix!r}: {rule.what}")
        talk.note("lifecycle", Outcome.BLOCKING, detail=expiring)
        return expiring
    if answer.rules is None:
        talk.note("lifecycle", Outcome.UNKNOWN, detail=answer.shown())
        return None
    others = [r for r in answer.rules if r.is_tagged or not r.is_expiring]
    detail = f"none that expires objects here ({len(answer.rules)} rules)"
    if others:
        detail += "; look at " + ", ".join(_printable(f"{r.name} ({r.what})") for r in others[:3])
    talk.note("lifecycle", Outcome.PRESENT if others else Outcome.ABSENT, detail=detail)
    return None


def find_expiring_rule(rules: tuple[ExpiryRule, ...], ours: str) -> ExpiryRule | None:
    """The first rule that can take away an untagged object under `ours` ("" or a prefix ending in a slash)."""
    for rule in rules:
        is_meeting = ours.startswith(rule.prefix) or rule.prefix.startswith(ours)
        if rule.is_expiring and not rule.is_tagged and is_meeting:
            return rule
    return None


def check_clock(talk: Interview) -> float | None:
    """Server clock minus ours, seconds; None where its answers carry no usable time."""
    skew_s, spread_s = talk.clock_skew_s()
    if skew_s is None:
        talk.note("clock", Outcome.UNKNOWN, detail="answers carry no Date")
        return None
    if spread_s > MAX_SKEW_S:
        talk.note("clock", Outcome.WRONG, detail=f"its answers differ by {spread_s:.0f} s among themselves")
        return None
    outcome = Outcome.HONOURED if abs(skew_s) <= MAX_SKEW_S else Outcome.WRONG
    talk.note("clock", outcome, detail=f"{skew_s:+.1f} s from ours")
    return round(skew_s, 3)


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)[:200]

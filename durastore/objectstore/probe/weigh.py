"""What a handful of answers to lies, and to the truth, show. Pure.

Duty: be hard to persuade. Only a lie refused every time, by an endpoint that accepts the truth, shows anything.
"""

from __future__ import annotations

from collections.abc import Sequence

from durastore.objectstore.probe.port import Answer
from durastore.objectstore.probe.result import Outcome

__all__ = ["is_missing_feature", "shown_all", "weigh_condition", "weigh_lies"]


def is_missing_feature(answer: Answer) -> bool:
    """The endpoint says that it does not know this kind of request."""
    return answer.status in (405, 501) or (answer.status == 400 and answer.code == "NotImplemented")


def weigh_lies(lies: Sequence[Answer], *, control: Answer | None) -> Outcome:
    """The outcome of sending `lies`, and the truth (`control`; None: not sent).

    IGNORED where a lie was stored (the caller looks whether it is echoed, too), REFUSED only where every lie was
    refused for its content and the truth was accepted, UNKNOWN for everything unclear.
    """
    if not lies:
        return Outcome.UNKNOWN
    accepted = [lie for lie in lies if lie.is_success]
    if accepted:
        return Outcome.IGNORED if len(accepted) == len(lies) else Outcome.INCONSISTENT
    if all(is_missing_feature(lie) for lie in lies):
        return Outcome.UNSUPPORTED
    if not all(lie.is_refusal for lie in lies) or control is None:
        return Outcome.UNKNOWN
    if control.is_success:
        return Outcome.REFUSED
    return Outcome.UNSUPPORTED if control.is_refusal or is_missing_feature(control) else Outcome.UNKNOWN


def weigh_condition(met: Answer, unmet: Answer) -> Outcome:
    """A condition: sent where it holds (`met`), and where it does not (`unmet`)."""
    if is_missing_feature(unmet):
        return Outcome.UNSUPPORTED
    if unmet.is_success:
        return Outcome.NOT_ENFORCED
    if unmet.status != 412:
        return Outcome.UNKNOWN
    if met.is_success:
        return Outcome.HONOURED
    return Outcome.UNSUPPORTED if met.status == 412 or is_missing_feature(met) else Outcome.UNKNOWN


def shown_all(answers: Sequence[Answer]) -> str:
    """The answers for a detail, each once, in order."""
    return ", ".join(dict.fromkeys(answer.shown() for answer in answers)) or "not asked"

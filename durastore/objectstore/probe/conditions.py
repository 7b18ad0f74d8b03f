"""Conditions and ranges on one small object, and a body that ends early.

Duty: see whether create-only, If-Match and ranges do what they say, and that a torn write leaves nothing. Findings go
to the interview; nothing is decided.
"""

from __future__ import annotations

import os
import secrets

from durastore.objectstore.probe.interview import Interview
from durastore.objectstore.probe.port import Answer, Condition
from durastore.objectstore.probe.result import Outcome
from durastore.objectstore.probe.single import PlainObject
from durastore.objectstore.probe.weigh import is_missing_feature, weigh_condition

__all__ = ["check_absent", "check_conditions", "check_stored", "put_truncated"]

_TORN_BYTES = 65_536


def check_stored(talk: Interview, plain: PlainObject) -> None:
    """The first object, read back in full: the least an endpoint can do."""
    if not plain.stored.is_success:
        talk.note("get.whole", Outcome.UNKNOWN, detail=f"storing: {plain.stored.shown()}")
        return
    answer = talk.get(plain.key)
    if not answer.is_success:
        # 404 for what was just acknowledged is a lie about the write, not about the bytes: nothing is known.
        talk.note("get.whole", Outcome.UNKNOWN, detail=answer.shown())
    elif answer.body == plain.body:
        talk.note("get.whole", Outcome.HONOURED, detail="the bytes that were stored")
    else:
        talk.note("get.whole", Outcome.BLOCKING, detail=f"{len(answer.body)} other bytes than were stored")


def check_conditions(talk: Interview, plain: PlainObject) -> None:
    """Create-only, If-Match on GET with a range, If-Match on PUT. Each may replace the plain object's bytes."""
    _check_create_only(talk, plain)
    met = _check_range(talk, plain)
    stale = Condition(if_match=f'"{secrets.token_hex(16)}"')
    unmet = talk.get(plain.key, condition=stale)
    talk.note("get.if-match", weigh_condition(met, unmet), detail=f"stale: {unmet.shown()}; current: {met.shown()}")
    answer = talk.put(plain.key, os.urandom(len(plain.body)), condition=stale)
    outcome = weigh_condition(plain.stored, answer)
    talk.note("put.if-match", outcome, detail=f"stale: {answer.shown()}")


def _check_create_only(talk: Interview, plain: PlainObject) -> None:
    body = os.urandom(len(plain.body))
    answer = talk.put(plain.key, body, condition=Condition(is_create_only=True))
    outcome = weigh_condition(plain.created, answer) if plain.stored.is_success else Outcome.UNKNOWN
    if answer.is_success:
        plain.body, plain.stored = body, answer
    detail = f"on an existing key: {answer.shown()}; on an absent one: {plain.created.shown()}"
    talk.note("put.create-only", outcome, detail=detail)


def _check_range(talk: Interview, plain: PlainObject) -> Answer:
    """Also shows that a refused create-only left the old bytes."""
    start, stop = 1000, 1100
    answer = talk.get(plain.key, span=(start, stop), condition=Condition(if_match=plain.stored.etag))
    expected = f"bytes {start}-{stop - 1}/{len(plain.body)}"
    if not answer.is_success:
        outcome, detail = Outcome.UNKNOWN, answer.shown()
    elif answer.status == 206 and answer.content_range == expected and answer.body == plain.body[start:stop]:
        outcome, detail = Outcome.HONOURED, "exactly the bytes asked for"
    elif answer.status == 200 and answer.body in (plain.body, plain.body[start:stop]):
        is_whole = answer.body == plain.body
        detail = "the whole object" if is_whole else "the range, but announced with 200 as if it were the whole object"
        outcome = Outcome.NOT_ENFORCED
    else:
        outcome, detail = Outcome.WRONG, f"{answer.status} with {len(answer.body)} bytes that are not the range"
    talk.note("get.range", outcome, detail=detail)
    return answer


def put_truncated(talk: Interview) -> tuple[str, Answer]:
    """Send half a body. To be looked at by `check_absent` at the end: a server may still be at it now."""
    key = talk.base + "torn"
    return key, talk.put_truncated(key, os.urandom(_TORN_BYTES), sent_bytes=_TORN_BYTES // 2)


def check_absent(talk: Interview, torn: tuple[str, Answer]) -> None:
    """What became of the torn body, and how the endpoint speaks of a key that holds nothing."""
    key, sent = torn
    looked = talk.head(key)
    if looked.is_success:
        # With the bytes that lack, or as if it had all of them: either way a torn write looks like an object.
        talk.note(
            "put.truncated", Outcome.WRONG, detail=f"half of a body became an object of {looked.size_bytes} bytes"
        )
        looked = talk.head(talk.base + "nothing-here")
    elif (
        looked.status in (403, 404) and sent.code not in ("NotRun", "NotThroughProxy") and not is_missing_feature(sent)
    ):
        outcome = Outcome.REFUSED if looked.status == 404 else Outcome.UNKNOWN
        talk.note("put.truncated", outcome, detail=f"sent: {sent.shown()}; afterwards: {looked.shown()}")
    else:
        outcome = Outcome.UNSUPPORTED if is_missing_feature(sent) else Outcome.UNKNOWN
        talk.note("put.truncated", outcome, detail=f"sent: {sent.shown()}; afterwards: {looked.shown()}")
    outcome = {404: Outcome.HONOURED, 403: Outcome.NOT_ENFORCED}.get(looked.status or 0, Outcome.UNKNOWN)
    talk.note("absent", outcome, detail=looked.shown())

"""What goes wrong with an answer: another one, a shorter one, a slower one, none.

Duty: tell those lies that leave the operation as it was and bend what is said of it.
"""

from __future__ import annotations

import base64
import gzip
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace

from durastore.testing.strict_s3.answers import NO_LENGTH, Answer, xml_answer
from durastore.testing.strict_s3.checksums import ALGORITHMS, PREFIX
from durastore.testing.strict_s3.request import Request
from durastore.testing.strict_s3.rules import Lie, Rule

__all__ = ["bent", "delivered", "odd_completion"]

_SPAN = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_ERROR = b'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>InternalError</Code><Message>scripted</Message></Error>'


def bent(answer: Answer, request: Request, *, whole: Callable[[], bytes | memoryview]) -> Answer:
    """The answer to give in the place of a good one. `whole` looks up the whole object's bytes."""
    if answer.status >= 300:
        return answer
    told = request.told
    if request.op == "complete_upload":
        return odd_completion(told) or answer
    if request.op not in ("get", "head"):
        return answer
    answer = _bent_headers(answer, told)
    if request.op == "get":
        answer = _bent_range(answer, told, whole=whole)
        answer = _bent_body(answer, request)
    elif Lie.HEAD_WITHOUT_LENGTH in told:
        answer = replace(answer, said_length=NO_LENGTH)
    return answer


def delivered(answer: Answer, told: Mapping[Lie, Rule]) -> Answer:
    """The answer with what happens to it on its way."""
    if Lie.DROP_RESPONSE in told:
        answer = replace(answer, is_lost=True)
    if (delay := told.get(Lie.DELAY)) is not None:
        answer = replace(answer, delay_s=1.0 if delay.amount is None else delay.amount)
    if (throttle := told.get(Lie.THROTTLE)) is not None:
        answer = replace(answer, bytes_per_s=throttle.amount or 1024.0)
    if (skew := told.get(Lie.CLOCK_SKEW)) is not None:
        answer = replace(answer, clock_offset_s=3600.0 if skew.amount is None else skew.amount)
    if Lie.NO_DATE in told:
        answer = replace(answer, has_date=False)
    return answer


def odd_completion(told: Mapping[Lie, Rule], *, is_done: bool = True) -> Answer | None:
    """What Complete says that is no success, for rules by which the upload was (`text="done"`) or was not completed."""
    told = {lie: rule for lie, rule in told.items() if (rule.text == "done") == is_done}
    headers = {"Content-Type": "application/xml"}
    if (error := told.get(Lie.COMPLETE_200_ERROR)) is not None:
        return Answer(headers=headers, body=_ERROR, white_space_s=0.2 if error.amount is None else error.amount)
    if Lie.COMPLETE_200_EMPTY in told:
        return Answer()
    if Lie.COMPLETE_200_ODD in told:
        return xml_answer("ListAllMyBucketsResult", "<Buckets></Buckets>")
    return None


def _bent_headers(answer: Answer, told: Mapping[Lie, Rule]) -> Answer:
    headers = dict(answer.headers)
    if Lie.WRONG_ETAG in told:
        headers["ETag"] = f'"{secrets.token_hex(16)}"'
    if Lie.WRONG_CHECKSUM in told:
        for name, value in headers.items():
            if name.removeprefix(PREFIX) in ALGORITHMS:
                raw = base64.b64decode(value)
                headers[name] = base64.b64encode(bytes([raw[0] ^ 1]) + raw[1:]).decode("ascii")
    return replace(answer, headers=headers)


def _bent_range(answer: Answer, told: Mapping[Lie, Rule], *, whole: Callable[[], bytes | memoryview]) -> Answer:
    match = _SPAN.fullmatch(answer.headers.get("Content-Range", ""))
    if match is None:
        return answer
    start, last, size = map(int, match.groups())
    headers = dict(answer.headers)
    if Lie.IGNORE_RANGE in told:
        del headers["Content-Range"]
        return replace(answer, status=200, headers=headers, body=whole())
    if (rule := told.get(Lie.WRONG_RANGE)) is not None:
        # The neighbouring range of the same length, honestly labelled: only Content-Range gives it away.
        length = last - start + 1
        moved = start + length if start + 2 * length <= size else max(0, start - length)
        if rule.text != "unlabelled":
            headers["Content-Range"] = f"bytes {moved}-{moved + length - 1}/{size}"
        return replace(answer, headers=headers, body=memoryview(whole())[moved : moved + length])
    return answer


def _bent_body(answer: Answer, request: Request) -> Answer:
    told, size = request.told, len(answer.body)
    if Lie.SHORT_BODY in told:
        short = _cut(told[Lie.SHORT_BODY], size)
        return replace(answer, body=answer.body[:short])
    if Lie.TRUNCATE_BODY in told:
        return replace(answer, sent_bytes=_cut(told[Lie.TRUNCATE_BODY], size))
    accepts = request.headers.get("accept-encoding", "")
    if Lie.GZIP_ALWAYS in told or (Lie.GZIP in told and "gzip" in accepts):
        headers = {**answer.headers, "Content-Encoding": "gzip"}
        return replace(answer, headers=headers, body=gzip.compress(bytes(answer.body), 1), said_length=None)
    return answer


def _cut(rule: Rule, size: int) -> int:
    return size // 2 if rule.amount is None else min(int(rule.amount), size)

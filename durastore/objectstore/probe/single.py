"""Lies on a single PUT: which checksums the endpoint looks at, and what it tells about an object afterwards.

Duty: for each kind send wrong values, then the right one, then look. Findings go to the interview; nothing is decided.
"""

from __future__ import annotations

import base64
import os
from dataclasses import dataclass

from durastore.objectstore.probe.interview import Interview
from durastore.objectstore.probe.lies import LIE_COUNT, etag_md5, lie_about, md5_hex, true_checksum
from durastore.objectstore.probe.port import Answer, Condition
from durastore.objectstore.probe.result import ChecksumKind, Outcome
from durastore.objectstore.probe.weigh import is_missing_feature, shown_all, weigh_lies

__all__ = ["CASE_TWINS", "PlainObject", "check_single", "put_plain"]

BODY_BYTES = 4096
CASE_TWINS = ("odd/k-x", "odd/K-x")
"""Where the right objects of the two deciding checksums go: two keys that only case tells apart."""
_HEX_MD5 = 32


@dataclass(slots=True, kw_only=True)
class PlainObject:
    """The object that later checks look at: its key, and what it should hold now."""

    key: str
    body: bytes
    created: Answer
    """The answer to the create-only PUT on the absent key."""
    stored: Answer
    """The answer to the PUT that stored it (the same, where create-only was accepted)."""


def put_plain(talk: Interview) -> PlainObject:
    """Store one object without any checksum: create-only if the endpoint takes that, else plainly."""
    key, body = talk.base + "odd/k/child", os.urandom(BODY_BYTES + 1)
    created = talk.put(key, body, condition=Condition(is_create_only=True))
    stored = created
    if not created.is_success and (created.status in (400, 412) or is_missing_feature(created)):
        stored = talk.put(key, body)
    return PlainObject(key=key, body=body, created=created, stored=stored)


def check_single(talk: Interview, plain: PlainObject) -> None:
    """All checksum checks of the single PUT."""
    etags = [(plain.stored, plain.body)]
    _check_kind(talk, ChecksumKind.CRC64NVME, etags=etags, lie_count=LIE_COUNT)
    for kind in (ChecksumKind.CRC32, ChecksumKind.SHA256):
        _check_kind(talk, kind, etags=etags, lie_count=1)
    _check_etag(talk, etags)
    # MD5 has to carry the proof only where CRC64NVME cannot, and can only where no lie was caught: else one is enough.
    is_needed = not (
        talk.outcome("put.crc64nvme") is Outcome.REFUSED and talk.outcome("put.returned") is Outcome.RETURNED
    )
    _check_md5(talk, lie_count=LIE_COUNT if is_needed and not talk.is_caught else 1)


def _check_kind(talk: Interview, kind: ChecksumKind, *, etags: list[tuple[Answer, bytes]], lie_count: int) -> None:
    name, body = f"put.{kind.value}", os.urandom(BODY_BYTES)
    lies = _put_lies(talk, kind, body=body, lie_count=lie_count)
    etags += [(lie, body) for lie in lies if lie.is_success]
    is_deciding = kind is ChecksumKind.CRC64NVME
    control, told = None, None
    if is_deciding or lies[-1].is_refusal:
        key = talk.base + (CASE_TWINS[0] if is_deciding else f"right-{kind.value}")
        control = talk.put(key, body, claims={kind: true_checksum(kind, body)})
        etags.append((control, body))
        told = talk.head(key) if is_deciding and control.is_success else None
    outcome = weigh_lies(lies, control=control)
    detail = f"wrong: {shown_all(lies)}" + (f"; right: {control.shown()}" if control is not None else "")
    if outcome is Outcome.IGNORED:
        outcome, seen = _look_for_echo(talk, kind, body=body)
        detail += f"; {seen}"
    elif outcome is Outcome.REFUSED and is_deciding:
        left = talk.get(_lie_key(talk, kind, number=0))
        if left.is_success:
            outcome, detail = Outcome.INCONSISTENT, f"{detail}; refused, and stored all the same"
    talk.note(name, outcome, detail=detail)
    if is_deciding:
        _note_returned(talk, told, expected=true_checksum(kind, body), size_bytes=len(body))


def _put_lies(talk: Interview, kind: ChecksumKind, *, body: bytes, lie_count: int) -> list[Answer]:
    """Lie until one is accepted or unclear, at most `lie_count` times: after that nothing can be shown any more."""
    lies: list[Answer] = []
    for number in range(lie_count):
        claims = {kind: lie_about(kind, body, number=number)}
        lies.append(talk.put(_lie_key(talk, kind, number=number), body, claims=claims))
        if not lies[-1].is_refusal:
            break
    return lies


def _lie_key(talk: Interview, kind: ChecksumKind, *, number: int) -> str:
    return f"{talk.base}wrong-{kind.value}-{number}"


def _look_for_echo(talk: Interview, kind: ChecksumKind, *, body: bytes) -> tuple[Outcome, str]:
    """The first lie was stored: does the endpoint return it as the object's checksum?"""
    told = talk.head(_lie_key(talk, kind, number=0))
    if not told.is_success:
        return Outcome.UNKNOWN, f"looking at it: {told.shown()}"
    value = told.checksums.get(kind)
    if value is None:
        return Outcome.IGNORED, "HEAD returns no such checksum"
    if value == true_checksum(kind, body):
        return Outcome.IGNORED, "HEAD returns the right value, so the claim was dropped"
    return Outcome.ECHOED, "HEAD returns a wrong checksum"


def _note_returned(talk: Interview, told: Answer | None, *, expected: str, size_bytes: int) -> None:
    if told is None or not told.is_success:
        outcome, detail = Outcome.UNKNOWN, "no right object to look at" if told is None else told.shown()
    else:
        value = told.checksums.get(ChecksumKind.CRC64NVME)
        if value is None:
            outcome, detail = Outcome.NOT_RETURNED, "HEAD returns none"
        elif value == expected and told.is_whole_object and told.size_bytes == size_bytes:
            outcome, detail = Outcome.RETURNED, "HEAD returns the right one"
        else:
            outcome, detail = Outcome.WRONG, "HEAD returns another checksum, type or size"
    talk.note("put.returned", outcome, detail=detail)


def _check_etag(talk: Interview, etags: list[tuple[Answer, bytes]]) -> None:
    """Is the etag an MD5 of the body that nobody told the endpoint? Only bodies sent without Content-MD5 count."""
    seen = [(answer.etag, body) for answer, body in etags if answer.is_success]
    right = sum(etag_md5(etag) == md5_hex(body) for etag, body in seen)
    if len(seen) < 2:
        outcome = Outcome.UNKNOWN
    else:
        outcome = Outcome.MD5 if right == len(seen) else Outcome.OPAQUE
    talk.note("put.etag", outcome, detail=f"the MD5 of the body for {right} of {len(seen)} objects")


def _check_md5(talk: Interview, *, lie_count: int) -> None:
    kind, body = ChecksumKind.CONTENT_MD5, os.urandom(BODY_BYTES)
    lies = _put_lies(talk, kind, body=body, lie_count=lie_count)
    key = talk.base + CASE_TWINS[1]
    control = talk.put(key, body, claims={kind: true_checksum(kind, body)})
    outcome = weigh_lies(lies, control=control)
    detail = f"wrong: {shown_all(lies)}; right: {control.shown()}"
    if outcome is Outcome.IGNORED:
        told = etag_md5(lies[0].etag)
        is_echo = len(told) == _HEX_MD5 and told == base64.b64decode(lie_about(kind, body, number=0)).hex()
        outcome, seen = (Outcome.ECHOED, "the etag is the wrong MD5") if is_echo else (outcome, "stored")
        detail += f"; {seen}"
    elif outcome is Outcome.REFUSED:
        looked = talk.head(key)
        if not looked.is_success:
            outcome, detail = Outcome.UNKNOWN, f"{detail}; looking at it: {looked.shown()}"
        elif (looked.etag, looked.size_bytes) != (control.etag, len(body)):
            outcome, detail = Outcome.INCONSISTENT, f"{detail}; HEAD tells another etag or size than PUT"
    talk.note("put.content-md5", outcome, detail=detail)

"""Lies in a multipart upload: on its parts, and about the whole object when it is completed.

Duty: find out whether the endpoint looks at part checksums, at the whole object's CRC64NVME and at its size, and what
it tells about the object afterwards. Findings go to the interview; nothing is decided.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace

from durastore.objectstore.probe.interview import Interview
from durastore.objectstore.probe.lies import etag_md5, lie_about, md5_hex, multipart_etag_md5, true_checksum
from durastore.objectstore.probe.port import NO_CLAIMS, Answer, PartClaim, WholeClaim
from durastore.objectstore.probe.result import ChecksumKind, Outcome
from durastore.objectstore.probe.weigh import is_missing_feature, shown_all, weigh_lies

__all__ = ["check_multipart", "check_part_kinds"]

FIRST_PART_BYTES = 5 << 20  # the least that S3 takes for a part that is not the last
LAST_PART_BYTES = 4096
_CRC = ChecksumKind.CRC64NVME
_RESTARTS = 4
_LIES = 3  # of each kind: one that refuses lies at random seldom gets through all


@dataclass(frozen=True, slots=True, kw_only=True)
class _Upload:
    """One upload with both parts sent."""

    key: str
    upload_id: str
    parts: tuple[PartClaim, ...]


@dataclass(slots=True, kw_only=True)
class _Whole:
    """Everything about the two-part object under test, and the answers on the way."""

    bodies: tuple[bytes, bytes] = field(
        default_factory=lambda: (os.urandom(FIRST_PART_BYTES), os.urandom(LAST_PART_BYTES))
    )
    failed: Answer | None = None
    """Why the last upload could not be brought to where it can be completed."""
    number: int = 0
    restarts_left: int = _RESTARTS

    @property
    def content(self) -> bytes:
        return b"".join(self.bodies)

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.bodies))

    def next_key(self, talk: Interview) -> str:
        self.number += 1
        return f"{talk.base}whole-{self.number}"


def check_multipart(talk: Interview) -> None:
    """All checks that decide the multipart path."""
    whole = _Whole()
    _check_crc(talk, whole)
    is_needed = not all(
        (
            talk.outcome("part.crc64nvme") is Outcome.REFUSED,
            talk.outcome("complete.crc64nvme") is Outcome.REFUSED,
            talk.outcome("complete.returned") is Outcome.RETURNED,
        )
    )
    # More lies only where MD5 can still carry the proof.
    _check_md5(talk, whole.bodies, lie_count=_LIES if is_needed and not talk.is_caught else 1)


def check_part_kinds(talk: Interview) -> None:
    """The part checksums that nothing here rests on, in uploads that declare them; each is given up afterwards."""
    for kind in (ChecksumKind.CRC32, ChecksumKind.SHA256):
        name, body = f"part.{kind.value}", os.urandom(LAST_PART_BYTES)
        key = f"{talk.base}parts-{kind.value}"
        created = talk.create_upload(key, kind=kind)
        if not created.upload_id:
            _note_no_upload(talk, (name,), answer=created)
            continue
        lies = [_send_lie(talk, (key, created.upload_id), kind=kind, body=body, number=0)]
        control = None
        if lies[-1].is_refusal:
            claims = {kind: true_checksum(kind, body)}
            control = talk.upload_part(key, created.upload_id, number=1, body=body, claims=claims)
        talk.note(name, weigh_lies(lies, control=control), detail=_detail(lies, control))


def _send_lie(talk: Interview, place: tuple[str, str], *, kind: ChecksumKind, body: bytes, number: int) -> Answer:
    """One lie about part 1. `place` is (key, upload id)."""
    claims = {kind: lie_about(kind, body, number=number)}
    return talk.upload_part(place[0], place[1], number=1, body=body, claims=claims)


def _lie_on_parts(
    talk: Interview, key: str, *, kind: ChecksumKind, body: bytes, lie_count: int
) -> tuple[Answer, list[Answer]]:
    """Begin an upload and lie about its part 1 until a lie is accepted or unclear, at most `lie_count` times.

    Returns the answer to the creation of the upload that is left, and the lies' answers. Where a refusal ends the
    upload, the next lie goes to a new one.
    """
    declared = kind if kind is _CRC else None
    created, lies, is_new = talk.create_upload(key, kind=declared), list[Answer](), True
    while created.upload_id and len(lies) < lie_count:
        answer = _send_lie(talk, (key, created.upload_id), kind=kind, body=body, number=len(lies))
        if answer.code == "NoSuchUpload" and not is_new:
            created, is_new = talk.create_upload(key, kind=declared), True
            continue
        is_new = False
        lies.append(answer)
        if not answer.is_refusal:
            break
    return created, lies


def _check_crc(talk: Interview, whole: _Whole) -> None:
    key, names = whole.next_key(talk), ("complete.crc64nvme", "complete.size", "complete.returned")
    created, lies = _lie_on_parts(talk, key, kind=_CRC, body=whole.bodies[1], lie_count=_LIES)
    if not lies:
        _note_no_upload(talk, ("part.crc64nvme", *names), answer=created)
        return
    upload = _send_parts(talk, whole, place=(key, created.upload_id)) if created.upload_id else None
    if upload is None:  # some servers take a part number once only, or end an upload with the first bad part
        upload = _begin(talk, whole)
    control = whole.failed if upload is None else Answer(status=200)
    talk.note("part.crc64nvme", weigh_lies(lies, control=control), detail=_detail(lies, control))
    if upload is None:
        _note_no_upload(talk, names, answer=whole.failed)
        return
    upload = _lie_about_checksum(talk, whole, upload=upload)
    upload, control = _lie_about_size(talk, whole, upload=upload)
    if control is None and upload is not None:
        control, upload = _complete(talk, whole, upload=upload, claim=_truth(whole))
    _note_returned(talk, whole, upload=upload, control=control)
    # Only now it is known whether the truth is accepted; without that, no refusal above shows anything.
    if control is None or not control.is_success:
        is_refused = control is not None and (control.is_refusal or is_missing_feature(control))
        for name in names[:2]:
            if talk.outcome(name) is Outcome.REFUSED:
                shown = control.shown() if control is not None else "not asked"
                outcome = Outcome.UNSUPPORTED if is_refused else Outcome.UNKNOWN
                talk.note(name, outcome, detail=f"refused when wrong; and when right: {shown}")


def _begin(talk: Interview, whole: _Whole) -> _Upload | None:
    """A new upload that declares CRC64NVME, its two parts sent rightly."""
    key = whole.next_key(talk)
    created = talk.create_upload(key, kind=_CRC)
    if not created.upload_id:
        whole.failed = created
        return None
    return _send_parts(talk, whole, place=(key, created.upload_id))


def _send_parts(talk: Interview, whole: _Whole, *, place: tuple[str, str]) -> _Upload | None:
    claims = []
    for number, body in enumerate(whole.bodies, start=1):
        told = {_CRC: true_checksum(_CRC, body)}
        answer = talk.upload_part(place[0], place[1], number=number, body=body, claims=told)
        if not answer.is_success:
            whole.failed = answer
            return None
        claims.append(PartClaim(number=number, etag=answer.etag, claims=told))
    return _Upload(key=place[0], upload_id=place[1], parts=tuple(claims))


def _truth(whole: _Whole) -> WholeClaim:
    return WholeClaim(crc64nvme=true_checksum(_CRC, whole.content), size_bytes=whole.size_bytes)


def _complete(talk: Interview, whole: _Whole, *, upload: _Upload, claim: WholeClaim) -> tuple[Answer, _Upload | None]:
    """Complete `upload`, or a new one like it where an earlier refusal turns out to have ended it.

    Returns the answer and the upload it is about, None if that could not be made again.
    """
    answer = talk.complete_upload(upload.key, upload.upload_id, parts=upload.parts, whole=claim)
    if answer.code != "NoSuchUpload" or whole.restarts_left == 0:
        return answer, upload
    whole.restarts_left -= 1
    again = _begin(talk, whole)
    if again is None:
        return answer, None
    return talk.complete_upload(again.key, again.upload_id, parts=again.parts, whole=claim), again


def _lie_about_checksum(talk: Interview, whole: _Whole, *, upload: _Upload) -> _Upload | None:
    """Complete with wrong checksums of the whole object. Returns an upload that can still be completed."""
    lies, current, left = list[Answer](), upload, None
    # Where each refusal costs a whole new upload, two have to do.
    while len(lies) < (_LIES if whole.restarts_left == _RESTARTS else _LIES - 1):
        lie = lie_about(_CRC, whole.content, number=len(lies))
        answer, left = _complete(
            talk, whole, upload=current, claim=WholeClaim(crc64nvme=lie, size_bytes=whole.size_bytes)
        )
        lies.append(answer)
        if left is None or not answer.is_refusal:
            break
        current = left
    # The truth is told at the very end; until then a refusal is taken as one.
    outcome, detail = weigh_lies(lies, control=Answer(status=200)), f"wrong: {shown_all(lies)}"
    if outcome is Outcome.IGNORED:
        told = talk.head((left or current).key)
        value = told.checksums.get(_CRC)
        if not told.is_success:
            outcome, detail = Outcome.UNKNOWN, f"{detail}; looking at it: {told.shown()}"
        elif value == lie_about(_CRC, whole.content, number=0):
            outcome, detail = Outcome.ECHOED, f"{detail}; HEAD returns the wrong checksum"
        else:
            detail += "; HEAD returns " + ("none" if value is None else "a checksum that was not sent")
    talk.note("complete.crc64nvme", outcome, detail=detail)
    return _begin(talk, whole) if lies[-1].is_success else current


def _lie_about_size(talk: Interview, whole: _Whole, *, upload: _Upload | None) -> tuple[_Upload | None, Answer | None]:
    """Complete with a wrong size. Returns the upload, and the answer where it stored the object after all."""
    if upload is None:
        talk.note("complete.size", Outcome.UNKNOWN, detail="no upload to complete")
        return None, None
    claim = replace(_truth(whole), size_bytes=whole.size_bytes + 1)
    lie, left = _complete(talk, whole, upload=upload, claim=claim)
    talk.note("complete.size", weigh_lies([lie], control=Answer(status=200)), detail=f"wrong: {lie.shown()}")
    # The checksum was right, so what was stored is also the object to look at afterwards.
    return left, lie if lie.is_success else None


def _note_returned(talk: Interview, whole: _Whole, *, upload: _Upload | None, control: Answer | None) -> None:
    """What HEAD tells of the object completed with the right checksum."""
    if upload is None or control is None or not control.is_success:
        shown = control.shown() if control is not None else "not asked"
        talk.note("complete.returned", Outcome.UNKNOWN, detail=f"completing rightly: {shown}")
        return
    told = talk.head(upload.key)
    value = told.checksums.get(_CRC)
    if not told.is_success:
        outcome, detail = Outcome.UNKNOWN, told.shown()
    elif value is None and told.checksum_type:
        # The type of a checksum that it does not have: it repeats a header of ours as if it knew something.
        outcome, detail = Outcome.WRONG, f"HEAD tells of a {told.checksum_type} checksum and returns none"
    elif value is None and told.size_bytes == whole.size_bytes:
        outcome, detail = Outcome.NOT_RETURNED, "HEAD returns none"
    elif value == _truth(whole).crc64nvme and told.is_whole_object and told.size_bytes == whole.size_bytes:
        outcome, detail = Outcome.RETURNED, "HEAD returns the right one"
    else:
        outcome, detail = Outcome.WRONG, "HEAD returns another checksum, type or size"
    talk.note("complete.returned", outcome, detail=detail)


def _check_md5(talk: Interview, bodies: tuple[bytes, bytes], *, lie_count: int) -> None:
    """An upload without declared checksums: Content-MD5 on parts, and what the etags are."""
    kind, key = ChecksumKind.CONTENT_MD5, f"{talk.base}whole-md5"
    created, lies = _lie_on_parts(talk, key, kind=kind, body=bodies[1], lie_count=lie_count)
    if not lies:
        _note_no_upload(talk, ("part.content-md5", "complete.etag"), answer=created)
        return
    first, control = _send_md5_parts(talk, (key, created.upload_id or ""), bodies=bodies)
    if not (first.is_success and control.is_success):
        key += "-again"  # see _check_crc
        created = talk.create_upload(key, kind=None)
        if created.upload_id:
            first, control = _send_md5_parts(talk, (key, created.upload_id), bodies=bodies)
    upload_id = created.upload_id or ""
    talk.note("part.content-md5", weigh_lies(lies, control=control), detail=_detail(lies, control))
    if not (first.is_success and control.is_success):
        is_refused = first.is_success and (control.is_refusal or is_missing_feature(control))
        outcome = Outcome.UNSUPPORTED if is_refused else Outcome.UNKNOWN
        talk.note("complete.etag", outcome, detail=f"parts: {shown_all([first, control])}")
        return
    parts = [PartClaim(number=1, etag=first.etag), PartClaim(number=2, etag=control.etag)]
    completed = talk.complete_upload(key, upload_id, parts=parts, whole=WholeClaim())
    told = talk.head(key) if completed.is_success else completed
    if not told.is_success:
        outcome, detail = Outcome.UNKNOWN, told.shown()
    elif told.size_bytes != sum(map(len, bodies)):
        outcome, detail = Outcome.WRONG, "HEAD tells another size"
    else:
        is_part_md5 = etag_md5(first.etag) == md5_hex(bodies[0])
        is_whole_md5 = etag_md5(told.etag) == multipart_etag_md5(bodies)
        outcome = Outcome.MD5 if is_part_md5 and is_whole_md5 else Outcome.OPAQUE
        detail = f"part etag is {'' if is_part_md5 else 'not '}the part's MD5; "
        detail += f"object etag is {'' if is_whole_md5 else 'not '}the MD5 of the parts' MD5s"
    talk.note("complete.etag", outcome, detail=detail)


def _send_md5_parts(talk: Interview, place: tuple[str, str], *, bodies: tuple[bytes, bytes]) -> tuple[Answer, Answer]:
    """Part 1 goes without a checksum, so its etag, if an MD5, is one that nobody told the endpoint; part 2 with one."""
    kind = ChecksumKind.CONTENT_MD5
    claims = {kind: true_checksum(kind, bodies[1])}
    first = talk.upload_part(place[0], place[1], number=1, body=bodies[0], claims=NO_CLAIMS)
    if not first.is_success:
        return first, first
    return first, talk.upload_part(place[0], place[1], number=2, body=bodies[1], claims=claims)


def _note_no_upload(talk: Interview, names: tuple[str, ...], *, answer: Answer | None) -> None:
    is_refused = answer is not None and (answer.is_refusal or is_missing_feature(answer))
    shown = "not asked" if answer is None else answer.shown()
    for name in names:
        outcome = Outcome.UNSUPPORTED if is_refused else Outcome.UNKNOWN
        talk.note(name, outcome, detail=f"no such upload can be made: {shown}")


def _detail(lies: list[Answer], control: Answer | None) -> str:
    return f"wrong: {shown_all(lies)}" + (f"; right: {control.shown()}" if control is not None else "")

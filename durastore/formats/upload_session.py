"""The record of one multipart upload, so that a later process can go on with it.

Duty: the values `UploadSession` and `PartRecord`, and a text form of them (the journal keeps them in tables). No I/O.
Must never be taken as a statement about the object: a recorded part says what an endpoint acknowledged once, not what
it holds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from durastore.errors import FormatUnsupported, IntegrityError
from durastore.model import parse_json, render_json

__all__ = ["MAX_PARTS", "PartRecord", "UploadSession", "parse_session", "render_session"]

MAX_PARTS = 10_000
_FORMAT = 1
_LIMIT_CHARACTERS = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PartRecord:
    """One part the endpoint acknowledged: what has to be said about it again on Complete."""

    number: int
    etag: str
    size_bytes: int
    crc64nvme: str

    def __post_init__(self) -> None:
        if not 1 <= self.number <= MAX_PARTS or self.size_bytes < 0 or not self.etag:
            raise IntegrityError(
                f"part record {self.number} is not usable: size {self.size_bytes}, etag {self.etag[:80]!r}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadSession:
    """A multipart upload under way. `part_bytes` is the size its parts were cut with and is kept on resume:
    parts cut with another size would not line up.
    """

    upload_id: str
    part_bytes: int
    parts: tuple[PartRecord, ...] = ()

    def __post_init__(self) -> None:
        numbers = [part.number for part in self.parts]
        if not self.upload_id or self.part_bytes < 1 or numbers != sorted(set(numbers)):
            raise IntegrityError(
                f"upload session {self.upload_id[:80]!r} is not usable: {len(numbers)} parts of {self.part_bytes} bytes"
            )

    def with_part(self, part: PartRecord) -> UploadSession:
        """This session with `part` in its place; a part sent again takes the place of the earlier one."""
        others = [known for known in self.parts if known.number != part.number]
        return replace(self, parts=tuple(sorted([*others, part], key=lambda known: known.number)))


def render_session(session: UploadSession) -> str:
    """Canonical JSON of a session; equal sessions give equal text."""
    parts = [[part.number, part.etag, part.size_bytes, part.crc64nvme] for part in session.parts]
    return render_json(
        {"format": _FORMAT, "upload_id": session.upload_id, "part_bytes": session.part_bytes, "parts": parts}
    )


def parse_session(text: str) -> UploadSession:
    """Inverse of `render_session`. Raises `FormatUnsupported` on a newer format, `IntegrityError` on anything odd."""
    if len(text) > _LIMIT_CHARACTERS:
        raise IntegrityError(f"upload session record has {len(text)} characters")
    try:
        value = parse_json(text, what="upload session record")
        if not isinstance(value, dict) or type(value["format"]) is not int:
            raise TypeError("not a session object")
        if value["format"] > _FORMAT:
            raise FormatUnsupported(
                f"upload session record has format {value['format']}", hint="open it with a newer durastore"
            )
        return UploadSession(
            upload_id=_text(value["upload_id"]),
            part_bytes=_count(value["part_bytes"]),
            parts=tuple(_part(item) for item in value["parts"]),
        )
    except (ValueError, KeyError, TypeError) as exc:
        raise IntegrityError(f"upload session record cannot be read: {exc}") from exc


def _part(item: object) -> PartRecord:
    if not isinstance(item, list) or len(item) != 4:
        raise TypeError("a part is not a list of four")
    number, etag, size_bytes, crc64nvme = item
    return PartRecord(
        number=_count(number), etag=_text(etag), size_bytes=_count(size_bytes), crc64nvme=_text(crc64nvme)
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected text, found {type(value).__name__}")
    return value


def _count(value: object) -> int:
    if type(value) is not int:  # bool is an int too, and no count
        raise TypeError(f"expected a whole number, found {type(value).__name__}")
    return value

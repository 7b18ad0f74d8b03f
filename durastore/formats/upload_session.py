"""The record of one multipart upload, so that a later process can go on with it.

Duty: the values `UploadSession` and `PartRecord`; the journal keeps them in tables. No I/O.
Must never be taken as a statement about the object: a recorded part says what an endpoint acknowledged once, not what
it holds.
"""

from __future__ import annotations

from dataclasses import dataclass

from durastore.errors import IntegrityError

__all__ = ["MAX_PARTS", "PartRecord", "UploadSession"]

MAX_PARTS = 10_000


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

"""What the upload engine is asked to do, within which limits, and what it answers.

Duty: the values `UploadJob`, `UploadReply`, `UploadLimits` and the pure plan of parts. No I/O. Must never carry a
statement that the object is there: a reply says what the endpoint answered, and only `verify` makes evidence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from durastore.errors import ConfigError, InvalidInput
from durastore.formats.upload_session import MAX_PARTS, PartRecord, UploadSession
from durastore.model import Digest, ObjectKey
from durastore.objectstore.port import WRITE_ID

__all__ = ["DIGEST_METADATA", "PartPlan", "UploadJob", "UploadLimits", "UploadReply", "plan_parts"]

DIGEST_METADATA = "durastore-digest"
"""Metadata name that carries the digest of what was sent: another writing of the same bytes is known by it."""
_MIB = 1 << 20
_FEW_PARTS = 8
_COUNTS = ("part_bytes", "least_part_bytes", "max_requests", "budget_bytes", "max_jobs", "max_queued", "io_threads")


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadJob:
    """One sealed pack to be sent. The engine opens its own descriptor, reads the file once in order, and closes it.

    `write_id` names this pack's writing and has to be the same at every attempt, in this process or a later one: by
    it the engine knows its own object again. The callbacks run on a worker thread of the engine, may block, and are
    durable when they return; what they raise ends the job with that error.
    """

    open_source: Callable[[], int]
    """Returns a new descriptor of the sealed file."""
    key: ObjectKey
    size_bytes: int
    digest: Digest
    crc64nvme: str
    write_id: str
    session: UploadSession | None
    """The multipart upload under way, as recorded, or None."""
    on_session: Callable[[UploadSession | None], None]
    """A multipart upload was begun (record it before a part is sent), or (None) is void: aborted or gone. It is not
    called at the end of a successful upload: the record stays until the caller has recorded the upload itself."""
    on_part: Callable[[PartRecord], None]
    """The endpoint acknowledged one part of the session last given to `on_session` (or handed in)."""
    is_overwriting: bool = False
    """The object that lies under the key was found wrong: replace it. Nothing found there can settle a doubt then, so a
    lost answer is settled by sending again."""

    is_past_cache: bool = False
    """The file was written past the page cache, and is read past it."""

    body: bytes | None = field(default=None, repr=False, compare=False)
    """All bytes of a small file, where they are in memory: it is not opened then. They are checked like those read."""

    def __post_init__(self) -> None:
        if self.size_bytes < 0 or not self.write_id or not self.write_id.isascii():
            raise InvalidInput(f"upload of {self.key} has size {self.size_bytes} and write id {self.write_id!r}")

    def metadata(self) -> dict[str, str]:
        """The user metadata of the object: what settles a lost answer later."""
        return {WRITE_ID: self.write_id, DIGEST_METADATA: self.digest.hex}


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadReply:
    """The endpoint acknowledged the object. Not evidence."""

    etag: str
    version_id: str | None
    server_time_s: float | None
    write_id: str
    settled_by: Literal["answer", "head"]
    """`head`: the answer was lost, and the object was recognised by its write id or content facts."""
    part_bytes: int | None = None
    """Size of the parts that were sent (of all but the last); 0: the object went whole. None where it was recognised
    by a look: an earlier writing, under other limits, may have made it, and the level of proof goes by the path.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadLimits:
    """How much the engine may have under way at once. Checks itself (`ConfigError`)."""

    part_bytes: int = 16 * _MIB
    """Of each part of a large file but the last; raised where 10,000 of them would not be enough."""
    least_part_bytes: int = 8 * _MIB
    """A file that would get less than eight parts gets smaller ones, down to this size, to go side by side."""
    multipart_above: int = 16 * _MIB
    """Files larger than this go in parts."""
    max_requests: int = 32
    """Requests in flight; SlowDown answers bring it down for a while, and other processes on this machine."""
    machine_requests: int | None = None
    """Requests in flight of all engines of this user on this machine that have such a cap; None: no other is heeded."""
    budget_bytes: int = 256 * _MIB
    """File bytes held in memory at once, over all jobs."""
    max_jobs: int = 64
    """Packs worked on at once (each holds one descriptor)."""
    max_queued: int = 1024
    """Packs submitted and not yet ended; beyond it `submit` blocks."""
    io_threads: int = 4
    """Threads that read, hash and record."""
    request_timeout_s: float = 120.0
    """A request without a body that takes longer is stuck and given up."""
    least_bytes_per_s: float = 64 * 1024.0
    """A request with a body may take longer by its size at this rate."""
    is_create_only: bool = True
    """Single PUTs say If-None-Match: *. The engine stops saying so on an endpoint that does not know it: keys carry
    their content's digest, so the condition is a belt and not the braces (INV-4)."""

    def __post_init__(self) -> None:
        for name in _COUNTS:
            if getattr(self, name) < 1:
                raise ConfigError(f"upload limit {name} is {getattr(self, name)}", hint="it has to be at least 1")
        if self.machine_requests is not None and self.machine_requests < 1:
            raise ConfigError(f"upload limit machine_requests is {self.machine_requests}", hint="it is at least 1")
        if self.multipart_above < 0 or self.request_timeout_s <= 0 or self.least_bytes_per_s <= 0:
            raise ConfigError("multipart_above, request_timeout_s and least_bytes_per_s have to be positive")

    def timeout_s(self, body_bytes: int) -> float:
        """When a request with that much body counts as stuck."""
        return self.request_timeout_s + body_bytes / self.least_bytes_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class PartPlan:
    """How a file is cut: all parts equal except the last (R2 asks for it), never an empty one, at most 10,000."""

    size_bytes: int
    part_bytes: int

    @property
    def count(self) -> int:
        return -(-self.size_bytes // self.part_bytes)

    def offset(self, number: int) -> int:
        return (number - 1) * self.part_bytes

    def length(self, number: int) -> int:
        return min(self.part_bytes, self.size_bytes - self.offset(number))


def plan_parts(size_bytes: int, *, part_bytes: int, least_part_bytes: int | None = None) -> PartPlan:
    """The plan with parts of `part_bytes`: raised to whole MiB where 10,000 parts would not be enough, and lowered, not
    below `least_part_bytes` (None: never), where the file would get fewer than eight. All in whole MiB.
    """
    if size_bytes < 1:
        raise InvalidInput("an empty file cannot be sent in parts")
    if least_part_bytes is not None:
        eighth = -(-size_bytes // (_FEW_PARTS * _MIB)) * _MIB
        part_bytes = min(part_bytes, max(eighth, least_part_bytes))
    least = -(-size_bytes // MAX_PARTS)
    if least > part_bytes:
        part_bytes = -(-least // _MIB) * _MIB
    return PartPlan(size_bytes=size_bytes, part_bytes=part_bytes)

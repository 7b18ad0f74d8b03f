"""What the journal keeps, as values: packs, seals, replacements, lost samples, writers.

Duty: frozen records, and which step of a pack's life may follow which. No I/O.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from durastore.clock import Stamp
from durastore.fsio.identity import FileIdentity
from durastore.model import Digest, Evidence, ObjectKey, PackKind, PackState, SampleEntry, SampleId, WriterId

__all__ = [
    "FACT_DOUBTFUL",
    "FACT_OLDER",
    "FACT_PREFIX",
    "FACT_REBUILD",
    "FACT_STORE_ID",
    "FACT_URL",
    "SIDE_STATES",
    "UNMANIFESTED",
    "WITHOUT_FILE",
    "LostSample",
    "PackFile",
    "PackRecord",
    "Replacement",
    "SealFacts",
    "UploadAnswer",
    "WriterRecord",
    "is_step_back",
]

FACT_PREFIX = "prefix"
"""Of the object keys that this spool gives its packs."""
FACT_STORE_ID = "store_id"
"""Of the durastore that the spool was filled for, as its bucket's marker has it."""
FACT_URL = "bucket_url"
"""Of the bucket and prefix that the spool was filled for."""
FACT_OLDER = "older"
"""Set before a file is read back that shows this journal to be older than its spool: no state is to be trusted."""
FACT_DOUBTFUL = "doubtful "
"""With a pack id: read back from a file that this journal had no row of, and not held against the manifest yet."""
FACT_REBUILD = "rebuild"
"""Set with the tables of a journal that began beside existing packs: those are still to be read back into it."""
UNMANIFESTED = (
    PackState.OPEN,
    PackState.SEALED,
    PackState.UPLOADED,
    PackState.VERIFIED,
    PackState.UNKNOWN,
    PackState.CONFLICT,
)
WITHOUT_FILE = frozenset({PackState.RECLAIMED, PackState.LOST, PackState.QUARANTINED})
"""What such a pack had of a file among the packs was freed, or set aside."""
SIDE_STATES = frozenset({PackState.UNKNOWN, PackState.CONFLICT, PackState.QUARANTINED, PackState.LOST})
_ORDER = (
    PackState.OPEN,
    PackState.SEALED,
    PackState.UPLOADED,
    PackState.VERIFIED,
    PackState.MANIFESTED,
    PackState.RECLAIMED,
)
_NAME = re.compile(r"([0-9a-f]{16})-([0-9]{12})\.(tar|safetensors)")


def is_step_back(old: PackState, new: PackState) -> bool:
    """True if `new` says less than `old`: an earlier state, or a side state. Nothing goes back to OPEN, nor from or to
    RECLAIMED.
    """
    if old is PackState.RECLAIMED:
        return False
    if new in SIDE_STATES:
        return old is not new
    if new in (PackState.OPEN, PackState.RECLAIMED):
        return False
    if old in SIDE_STATES:
        return new is PackState.SEALED  # out of doubt leads one way only: proven again from the start
    return _ORDER.index(new) < _ORDER.index(old)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackFile:
    """The lasting local name of a pack: `<writer>-<12-digit seq>.<kind>`."""

    writer: WriterId
    seq: int
    kind: PackKind

    @property
    def name(self) -> str:
        return f"{self.writer.hex}-{self.seq:012d}.{self.kind.value}"

    @classmethod
    def parse(cls, name: str) -> PackFile | None:
        """The parts of a pack's name; None if it is no such name."""
        match = _NAME.fullmatch(name)
        if match is None:
            return None
        return cls(writer=WriterId(match[1]), seq=int(match[2]), kind=PackKind(match[3]))


@dataclass(frozen=True, slots=True, kw_only=True)
class SealFacts:
    """What is known of a pack once it cannot change any more; all computed by us from the bytes written."""

    size_bytes: int
    digest: Digest
    crc64nvme: str
    key: ObjectKey
    identity: FileIdentity


@dataclass(frozen=True, slots=True, kw_only=True)
class PackRecord:
    """One pack as the journal knows it."""

    pack_id: int
    name: str
    kind: PackKind
    state: PackState
    writer: WriterId
    seq: int
    size_bytes: int | None
    """While OPEN: the acknowledged length; later the file's length."""
    digest: Digest | None
    crc64nvme: str | None
    key: ObjectKey | None
    identity: FileIdentity | None
    write_id: str | None
    etag: str | None
    version_id: str | None
    uploaded_at: Stamp | None
    uploaded_server_time_s: float | None
    evidence: Evidence | None
    manifested_in: ObjectKey | None
    manifested_at: Stamp | None
    """When the segment with its rows had been read back."""
    intent: str | None
    """Text of the receipt whose spending was announced; None while nothing is about to be freed."""
    reason: str | None
    sample_count: int
    part_bytes: int | None = None
    """Size of the parts (but the last) that the object was sent in; 0: it went whole; None: not known."""

    @property
    def file(self) -> PackFile:
        return PackFile(writer=self.writer, seq=self.seq, kind=self.kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacement:
    """The new file that takes a damaged pack's place: its name, its seal, and the entries that were saved into it."""

    file: PackFile
    facts: SealFacts
    entries: tuple[SampleEntry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LostSample:
    """An acknowledged sample whose local bytes no longer match their digest, and why."""

    entry: SampleEntry
    pack_id: int
    pack_name: str
    reason: str

    @property
    def sample_id(self) -> SampleId:
        return self.entry.sample_id


class WriterRecord(NamedTuple):
    """One opening of this spool, and the highest numbers it used or announced; zeros if it wrote nothing."""

    writer: WriterId
    last_pack_seq: int
    last_segment_seq: int


class UploadAnswer(Protocol):
    """What an upload's answer tells of the object. It is a claim of the server, never evidence."""

    @property
    def etag(self) -> str: ...

    @property
    def version_id(self) -> str | None: ...

    @property
    def server_time_s(self) -> float | None: ...

    @property
    def part_bytes(self) -> int | None: ...

"""A file kept as it is, as the values that the rest of durastore knows: a pack of one, a manifest row.

Pure. Must never make a row without evidence that the object's bytes were read back (INV-5).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from durastore.clock import Stamp
from durastore.errors import NotVerified
from durastore.formats.file_keys import FileKeyParts, file_key, parse_file_key
from durastore.fsio.identity import FileIdentity
from durastore.model import (
    VERBATIM_SCHEMA,
    Digest,
    Evidence,
    EvidenceLevel,
    ManifestRow,
    ObjectFacts,
    ObjectKey,
    PackKind,
    PackState,
    Run,
    SampleEntry,
    SampleId,
    WriterId,
)
from durastore.spool.records import PackRecord

__all__ = ["EMPTY_RUN", "NO_WRITER", "HashedFile", "as_listed", "as_pack", "as_row", "file_row"]

EMPTY_RUN = Run.of({})
NO_WRITER = WriterId("0" * 16)
"""Of an object that no spool wrote."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HashedFile:
    """A local file whose bytes we hashed, and which file that was."""

    path: SampleId
    identity: FileIdentity
    digest: Digest
    crc64nvme: str
    is_leased: bool = False
    """Nobody had it open for writing meanwhile, as the kernel said, and who writes from then on shows in its times."""
    body: bytes | None = field(default=None, repr=False, compare=False)
    """The bytes that were hashed, of a small file that is to be sent: they need not be read and hashed again."""


def as_pack(file: HashedFile, prefix: str, *, known: Sequence[ObjectKey] = ()) -> PackRecord:
    """The file as a sealed pack: a local file that becomes exactly one object. It is in no journal.

    `known`: keys that rows or objects have, perhaps in the first layout. The first that is a key of this file with
    these bytes is taken: what has a name in the bucket is neither kept twice nor missed under that name.
    """
    return PackRecord(
        pack_id=int(Digest.of(file.path.text.encode()).hex[:15], 16),  # tells files of one batch apart
        name=file.path.text,
        kind=PackKind.SAFETENSORS,
        state=PackState.SEALED,
        writer=NO_WRITER,
        seq=0,
        size_bytes=file.identity.size_bytes,
        digest=file.digest,
        crc64nvme=file.crc64nvme,
        key=_key_of(file, prefix, known=known),
        identity=file.identity,
        write_id=None,
        etag=None,
        version_id=None,
        uploaded_at=None,
        uploaded_server_time_s=None,
        evidence=None,
        manifested_in=None,
        manifested_at=None,
        intent=None,
        reason=None,
        sample_count=1,
    )


def _key_of(file: HashedFile, prefix: str, *, known: Sequence[ObjectKey]) -> ObjectKey:
    parts = FileKeyParts(short_digest=file.digest.short, path=file.path)
    own = (key for key in known if parse_file_key(prefix, key) == parts)
    return next(own, None) or file_key(prefix, file.path, digest=file.digest)


def as_listed(pack: PackRecord, evidence: Evidence, *, segment: ObjectKey, seen_at: Stamp) -> PackRecord:
    """The pack once its object was read back and `segment` names it; both are known since `seen_at` at the latest."""
    return replace(
        pack,
        state=PackState.MANIFESTED,
        etag=evidence.etag,
        version_id=evidence.version_id,
        uploaded_at=seen_at,
        evidence=evidence,
        manifested_in=segment,
        manifested_at=seen_at,
    )


def as_row(pack: PackRecord, evidence: Evidence, *, writer: WriterId, time_ns: int) -> ManifestRow:
    """The manifest row. `NotVerified` unless the evidence is of this object, read back."""
    is_proven = evidence.level is EvidenceLevel.READ_BACK and evidence.key == pack.key
    if not is_proven or evidence.digest != pack.digest or evidence.size_bytes != pack.size_bytes:
        raise NotVerified(f"{pack.name}: its object was not read back")
    assert pack.key is not None
    assert pack.digest is not None
    assert pack.size_bytes is not None
    facts = ObjectFacts(
        key=pack.key,
        size_bytes=pack.size_bytes,
        digest=pack.digest,
        crc64nvme=pack.crc64nvme or "",
        etag=evidence.etag,
        version_id=evidence.version_id,
        writer=writer,
    )
    return file_row(SampleId(pack.name), facts, time_ns=time_ns)


def file_row(path: SampleId, facts: ObjectFacts, *, time_ns: int) -> ManifestRow:
    """The row of a file whose object was read in full."""
    entry = SampleEntry(
        sample_id=path,
        offset=0,
        length=facts.size_bytes,
        header_length=facts.size_bytes,
        header_digest=facts.digest,
        schema=VERBATIM_SCHEMA,
        meta="{}",
        run=EMPTY_RUN.digest,
        input_digest=None,
        provenance="asserted",
        time_ns=time_ns,
    )
    return ManifestRow(entry=entry, object=facts)

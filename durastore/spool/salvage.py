"""Saving what is right in a pack file that is not: the only repair there is.

A file whose write failed, or that was torn by a crash, is never appended to, truncated or synced again (DESIGN 7).
Order, so that a crash at any point loses nothing and a repetition ends the same:
1. read every acknowledged sample of the old file and check it against the journal's digest
2. publish a new file with those that match (all or nothing; it is not in the journal yet, so a crash here makes it an
   untracked file, and the salvage begins anew)
3. one journal transaction: the pack id gets the new file, SEALED; what did not match becomes a LOST pack
4. move the old file, which no pack names any more, into quarantine; where the disk refuses that it stays, untracked, as
   after a crash: what became of the samples is on record by then, and whoever asked has to hear of it
Must never drop a byte: the old file stays, whole, in quarantine.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from durastore.errors import DiskFailed, SpoolUnreadable
from durastore.formats.keys import pack_key
from durastore.formats.pack import TRAILER, member_header, member_padding, run_member
from durastore.fsio.folder import Folder
from durastore.fsio.publish import publish
from durastore.model import Digest, PackKind, PackState, Run, SampleEntry, WriterId
from durastore.observe.events import LOGGER
from durastore.spool.journal import Journal, PackRecord
from durastore.spool.journal_file import set_aside
from durastore.spool.pack_bytes import PackHasher, read_exact, sample_fault
from durastore.spool.records import LostSample, PackFile, Replacement, SealFacts

__all__ = ["Place", "SalvageReport", "salvage_pack"]

# every byte of it was read back from the bucket: there is nothing to save, and its record is for those who wait on it
_HELD_ELSEWHERE = (PackState.RECLAIMED, PackState.QUARANTINED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the files of one spool are, and under whose name new ones are made."""

    packs: Folder
    quarantine: Folder
    journal: Journal
    writer: WriterId
    prefix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SalvageReport:
    """What became of a damaged pack."""

    saved: int
    """Samples that are now in a new SEALED file under the same pack id."""
    lost: tuple[LostSample, ...]
    quarantined: str | None
    """Name of the old file in quarantine; None if there was none, or if it could not be moved there."""
    left: DiskFailed | None = None
    """Why the old file could not be moved: it stays among the packs, and the next recovery sets it aside."""

    def raise_unless_full(self) -> None:
        """To be asked once `lost` was told: a disk that refuses the move for another reason than room is a bad one."""
        if self.left is not None and not self.left.is_full:
            raise self.left


def salvage_pack(place: Place, record: PackRecord, *, reason: str) -> SalvageReport:
    """Copy every acknowledged sample that still matches into a new sealed file, and set the old one aside.

    `SpoolUnreadable` if the old file cannot be read, `DiskFailed` if the new one cannot be written: nothing changed
    then. A pack that the bucket holds whole (RECLAIMED, QUARANTINED) is left as it is. Safe to repeat.
    """
    if record.state in _HELD_ELSEWHERE:
        return SalvageReport(saved=0, lost=(), quarantined=None)
    entries = place.journal.entries(record.pack_id)
    source = next((folder for folder in (place.packs, place.quarantine) if folder.has(record.name)), None)
    good: list[SampleEntry] = []
    faults: dict[int, str] = {entry.offset: "its file is gone" for entry in entries}
    if source is not None and entries:
        fd = source.open_read(record.name)
        try:
            faults = _faults(fd, record, entries=entries)
            good = [entry for entry in entries if entry.offset not in faults]
            if good:
                _replace_file(place, record, fd=fd, good=good, reason=reason)
        finally:
            os.close(fd)
    if not entries:
        place.journal.drop_empty(record.pack_id)
    elif not good and record.state is not PackState.LOST:
        place.journal.move_back(record.pack_id, PackState.LOST, reason=reason)
    quarantined = record.name if source is place.quarantine else None
    left: DiskFailed | None = None
    if source is place.packs:
        try:
            quarantined = set_aside(place.packs, record.name, quarantine=place.quarantine)
        except DiskFailed as exc:  # most often a full one; what became of the samples is on record and must be told
            LOGGER.error("%s stays among the packs until the spool is opened again: %s", record.name, exc)
            left = exc
    lost = tuple(
        LostSample(entry=entry, pack_id=record.pack_id, pack_name=record.name, reason=faults[entry.offset])
        for entry in entries
        if entry.offset in faults
    )
    return SalvageReport(saved=len(good), lost=lost, quarantined=quarantined, left=left)


def _faults(fd: int, record: PackRecord, *, entries: Sequence[SampleEntry]) -> dict[int, str]:
    """What is wrong, by offset, with each acknowledged sample that does not match any more."""
    faults: dict[int, str] = {}
    end = os.fstat(fd).st_size
    for entry in entries:
        if entry.offset + entry.length > end:
            faults[entry.offset] = f"the file ends at byte {end}, inside or before it"
            continue
        try:
            fault = sample_fault(read_exact(fd, offset=entry.offset, length=entry.length), entry)
        except SpoolUnreadable as exc:
            raise SpoolUnreadable(
                f"pack {record.name}, sample {entry.sample_id}: {exc.message}",
                hint="check the disk; to go on without this file, move it into the spool's quarantine folder",
            ) from exc
        if fault is not None:
            faults[entry.offset] = fault
    return faults


def _replace_file(place: Place, record: PackRecord, *, fd: int, good: Sequence[SampleEntry], reason: str) -> None:
    """Steps 2 and 3: the new file, then the journal."""
    journal = place.journal
    seq = journal.next_pack_seq(place.writer)
    file = PackFile(writer=place.writer, seq=seq, kind=record.kind)
    copy = _Copy(fd, kind=record.kind, runs=journal.runs())
    identity = publish(place.packs, file.name, chunks=copy.chunks(good))
    digest = copy.hasher.digest()
    facts = SealFacts(
        size_bytes=copy.hasher.size_bytes,
        digest=digest,
        crc64nvme=copy.hasher.crc64nvme(),
        key=pack_key(place.prefix, place.writer, seq=seq, digest=digest, kind=record.kind),
        identity=identity,
    )
    journal.replace_file(  # INV-2: the new file is durable before a row points into it
        record.pack_id, Replacement(file=file, facts=facts, entries=tuple(copy.entries)), reason=reason
    )


class _Copy:
    """The bytes of the new file, made while they are written; hash and new offsets are known afterwards."""

    def __init__(self, fd: int, *, kind: PackKind, runs: dict[Digest, Run]) -> None:
        self._fd = fd
        self._kind = kind
        self._runs = runs
        self.hasher = PackHasher()
        self.entries: list[SampleEntry] = []

    def chunks(self, good: Sequence[SampleEntry]) -> Iterator[bytes]:
        is_tar = self._kind is PackKind.TAR
        if is_tar:
            wanted = dict.fromkeys(entry.run for entry in good)
            yield from (self._hashed(run_member(self._runs[digest])) for digest in wanted if digest in self._runs)
        for entry in good:
            if is_tar:
                yield self._hashed(member_header(entry.sample_id, entry.length))
            data = read_exact(self._fd, offset=entry.offset, length=entry.length)
            if sample_fault(data, entry) is not None:  # it matched a moment ago
                raise SpoolUnreadable(f"sample {entry.sample_id} reads differently each time", hint="check the disk")
            self.entries.append(replace(entry, offset=self.hasher.size_bytes))
            yield self._hashed(data)
            if is_tar:
                yield self._hashed(member_padding(entry.length))
        if is_tar:
            yield self._hashed(TRAILER)

    def _hashed(self, data: bytes) -> bytes:
        self.hasher.update(data)
        return data

"""What the journal says against what the disk holds, at every open.

Duty: bring a spool whose last process ended anywhere to a state in which every acknowledged sample is in a SEALED pack,
is named as missing, or is named as lost. Every repair is one of `salvage`'s or one journal transaction, and all of them
are decided from the files anew: run twice is run once (INV-9). Must never unlink, truncate or append; what is not
understood goes to quarantine.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from durastore.errors import SpoolUnreadable
from durastore.formats.keys import pack_key
from durastore.fsio.identity import identify
from durastore.model import Digest, PackState
from durastore.observe.events import LOGGER
from durastore.spool.journal import PackRecord, SealFacts
from durastore.spool.journal_file import set_aside
from durastore.spool.pack_bytes import hash_file, is_sealed_content, is_well_framed, read_exact, sample_fault, sync_file
from durastore.spool.rebuild import rebuild_journal
from durastore.spool.records import FACT_OLDER, FACT_REBUILD, LostSample, PackFile
from durastore.spool.salvage import Place, salvage_pack

__all__ = ["RecoveryReport", "recover_spool"]

_WITH_FILE = (
    PackState.SEALED,
    PackState.UPLOADED,
    PackState.VERIFIED,
    PackState.MANIFESTED,
    PackState.UNKNOWN,
    PackState.CONFLICT,
)


@dataclass(slots=True, kw_only=True)
class RecoveryReport:
    """What recovery found and did. `missing_files` is a question to the bucket; the rest is settled."""

    sealed: list[str] = field(default_factory=list)
    """Packs that a crash left OPEN and whole: sealed as they are."""
    salvaged: list[str] = field(default_factory=list)
    """Packs whose matching samples were copied into a new file."""
    lost: list[LostSample] = field(default_factory=list)
    """Acknowledged samples whose bytes are nowhere on this disk and were never uploaded."""
    missing_files: list[PackRecord] = field(default_factory=list)
    """Packs whose file is gone or damaged, but which may be in the bucket: to be looked up there."""
    interrupted: list[str] = field(default_factory=list)
    """Packs that were about to be reclaimed and are still here: UPLOADED again, to be proven anew."""
    restored: list[str] = field(default_factory=list)
    """LOST packs whose whole file is back: SEALED again, in a new file with another key."""
    rehashed: list[str] = field(default_factory=list)
    """Files with other numbers than recorded (reboot, copy, touch) and the right bytes."""
    set_aside: list[str] = field(default_factory=list)
    """Files moved to quarantine."""
    left_alone: list[str] = field(default_factory=list)
    """Names in the packs folder that are no regular files."""
    rebuilt: list[str] = field(default_factory=list)
    """Pack files read into a journal that had been lost, or was older than they are."""
    is_older: bool = False
    """The journal did not know the writer of a file: it was restored from a copy, and no state in it can be trusted."""
    journal_replaced: str | None = None
    """Name of the failed journal that was followed by a new file."""

    def lines(self) -> Iterator[str]:
        """One line for people per kind of finding; none if everything was as recorded."""
        if self.journal_replaced is not None:
            yield f"journal {self.journal_replaced} had failed and was followed by a new file"
        for what, names in (
            ("packs read back into a journal that did not know them", self.rebuilt),
            ("open packs sealed as they were", self.sealed),
            ("packs salvaged into new files", self.salvaged),
            ("packs that were about to be reclaimed", self.interrupted),
            ("lost packs found again", self.restored),
            ("packs hashed again", self.rehashed),
            ("files set aside in quarantine", self.set_aside),
            ("odd names left alone", self.left_alone),
            ("packs without a good file", [record.name for record in self.missing_files]),
            ("samples LOST", [f"{sample.sample_id} ({sample.reason})" for sample in self.lost]),
        ):
            if names:
                shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
                yield f"{len(names)} {what}: {shown}"


def recover_spool(place: Place) -> RecoveryReport:
    """Run it all. `SpoolUnreadable` if a file cannot be read, `DiskFailed` if a copy cannot be written. Repeatable."""
    report = RecoveryReport(journal_replaced=place.journal.replaced)
    try:
        _recover(place, report)
    except Exception:
        for line in report.lines():  # a repetition finds it settled, and would not say it again
            LOGGER.error("recovery of %s was cut short; up to there: %s", place.packs.path.parent, line)
        raise
    return report


def _recover(place: Place, report: RecoveryReport) -> None:
    journal = place.journal
    journal.drop_reclaimed()
    journal.announce_writer()
    if journal.get_fact(FACT_REBUILD) is not None:
        report.rebuilt = rebuild_journal(place.packs, journal, names=place.packs.names())
        journal.set_fact(FACT_REBUILD, None)
    _recover_all_open(place, report)
    for record in journal.packs(PackState.LOST):
        _restore_lost(place, record, report=report)
    for record in journal.packs(*_WITH_FILE):
        _recover_sealed(place, record, report=report)
    _settle_untracked(place, report)
    report.is_older = journal.get_fact(FACT_OLDER) is not None


def _recover_all_open(place: Place, report: RecoveryReport) -> None:
    for record in place.journal.packs(PackState.OPEN):
        _recover_open(place, record, report=report)


def _recover_open(place: Place, record: PackRecord, *, report: RecoveryReport) -> None:
    """An OPEN pack gets no more samples: sealed if nothing but acknowledged samples is in it, else salvaged."""
    if record.sample_count and place.packs.has(record.name):
        facts = _facts_if_whole(place, record)
        if facts is not None:
            place.journal.seal(record.pack_id, facts)
            report.sealed.append(record.name)
            return
    _salvage(place, record, reason="torn by a crash", report=report)


def _facts_if_whole(place: Place, record: PackRecord) -> SealFacts | None:
    """The seal of a file that has exactly the acknowledged length and samples; None if anything differs.

    Every byte up to that length was synced before it was recorded; it is synced again for a spool that was copied here.
    """
    fd = place.packs.open_read(record.name)
    try:
        identity = identify(fd)
        if identity.size_bytes != record.size_bytes:
            return None
        entries = place.journal.entries(record.pack_id)
        for entry in entries:
            if entry.offset + entry.length > identity.size_bytes:
                return None
            if sample_fault(read_exact(fd, offset=entry.offset, length=entry.length), entry) is not None:
                return None
        if not is_well_framed(fd, record, entries=entries):
            return None
        hasher = hash_file(fd)
        if identify(fd) != identity:
            raise SpoolUnreadable(f"pack {record.name} changes while it is read", hint="stop what writes to the spool")
        sync_file(fd, record.name)
    finally:
        os.close(fd)
    digest = hasher.digest()
    return SealFacts(
        size_bytes=hasher.size_bytes,
        digest=digest,
        crc64nvme=hasher.crc64nvme(),
        key=pack_key(place.prefix, record.writer, seq=record.seq, digest=digest, kind=record.kind),
        identity=identity,
    )


def _salvage(place: Place, record: PackRecord, *, reason: str, report: RecoveryReport) -> None:
    outcome = salvage_pack(place, record, reason=reason)
    if outcome.saved and record.state is not PackState.LOST:
        report.salvaged.append(record.name)
    report.lost.extend(outcome.lost)
    if outcome.quarantined is not None:
        report.set_aside.append(outcome.quarantined)
    if outcome.left is not None:
        raise outcome.left


def _restore_lost(place: Place, record: PackRecord, *, report: RecoveryReport) -> None:
    if record.digest is None or record.key is None or not place.packs.has(record.name):
        return
    if _is_intact(place, record):
        # never under the old key again: its rows may have been taken out of the view, and that is for ever
        _salvage(place, record, reason="its file is back", report=report)
        report.restored.append(record.name)


def _recover_sealed(place: Place, record: PackRecord, *, report: RecoveryReport) -> None:
    """A sealed pack whose file is not as recorded: hashed again, salvaged, or a question to the bucket."""
    journal = place.journal
    if not place.packs.has(record.name):
        _report_missing(place, record, report=report)
        return
    if record.intent is not None:
        # the receipt may have been spent or not; the file is here, so it is proven again (DESIGN 7)
        journal.move_back(record.pack_id, PackState.UPLOADED, reason="reclaim was interrupted")
        report.interrupted.append(record.name)
    identity = place.packs.identity(record.name)
    if identity == record.identity:
        return
    if _is_intact(place, record):
        journal.record_identity(record.pack_id, place.packs.identity(record.name))
        report.rehashed.append(record.name)
    elif record.state is PackState.SEALED and record.write_id is None:
        _salvage(place, record, reason="damaged after it was sealed", report=report)
    else:
        # the bucket may hold it whole; the file stays within reach of `salvage_pack`, should the bucket not
        report.set_aside.append(set_aside(place.packs, record.name, quarantine=place.quarantine))
        _report_missing(place, record, report=report)


def _report_missing(place: Place, record: PackRecord, *, report: RecoveryReport) -> None:
    if record.state is PackState.SEALED and record.write_id is None:
        _salvage(place, record, reason="its file is gone and was never uploaded", report=report)
        return
    if record.state is PackState.SEALED:
        # an upload had begun: whether the object exists is for the bucket to say
        place.journal.move_back(record.pack_id, PackState.UNKNOWN, reason="its file is gone, its upload had begun")
    report.missing_files.append(place.journal.pack(record.pack_id))


def _is_intact(place: Place, record: PackRecord) -> bool:
    fd = place.packs.open_read(record.name)
    try:
        if not is_sealed_content(fd, record):
            return False
        sync_file(fd, record.name)
        return True
    finally:
        os.close(fd)


def _settle_untracked(place: Place, report: RecoveryReport) -> None:
    """Files that no living pack names: younger than the journal, never acknowledged, replaced, or put there by someone
    else. Last of all, when everything that the journal knows has its place.
    """
    untracked = []
    for name in _untracked(place):
        try:
            place.packs.identity(name)
        except SpoolUnreadable:
            report.left_alone.append(name)
            continue
        untracked.append(name)
    _read_back_younger(place, untracked, report=report)
    for name in _untracked(place):
        if name in untracked:
            report.set_aside.append(set_aside(place.packs, name, quarantine=place.quarantine))


def _untracked(place: Place) -> list[str]:
    tracked = {record.name for record in place.journal.packs(*_WITH_FILE)}
    return [name for name in place.packs.names() if name not in tracked]


def _read_back_younger(place: Place, names: Sequence[str], *, report: RecoveryReport) -> None:
    """Files with higher numbers than the journal knows: it was restored from a copy, and the samples may have been
    acknowledged. Or a crash came between a file and its row: then they may not, but they are whole, and only copies of
    what is held already have to stay out (a salvage that was cut short), or a superseded one would live again.
    """
    journal = place.journal
    known = {writer: last_pack_seq for writer, last_pack_seq, _ in journal.writers()}
    files = [(name, file) for name in names if (file := PackFile.parse(name)) is not None]
    younger = [(name, file) for name, file in files if file.seq > known.get(file.writer, -1)]
    if not younger:
        return
    if any(file.writer not in known for _, file in younger):
        # no crash leaves this: each open announces its writer first. Noted before the file's row makes the writer known
        journal.set_fact(FACT_OLDER, "found")
    names = [name for name, _ in younger]
    report.rebuilt.extend(rebuild_journal(place.packs, journal, names=names, held=_held_digests(place), is_lost=False))
    _recover_all_open(place, report)


def _held_digests(place: Place) -> set[Digest]:
    """Samples of living packs that have their file, be it set aside."""
    return {
        entry.header_digest
        for record in place.journal.packs(*_WITH_FILE)
        if place.packs.has(record.name) or place.quarantine.has(record.name)
        for entry in place.journal.entries(record.pack_id)
    }

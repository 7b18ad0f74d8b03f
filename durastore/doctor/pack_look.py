"""Every pack of one spool against its journal, byte for byte.

Duty: read the journal from outside and the files under the spool's lock, so that nobody begins to work there
meanwhile. Changes nothing. Must never call a pack whole that was not read, but for one that was read in this boot and
is unchanged.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field

from durastore.adopt.zero_tails import find_zero_tail
from durastore.clock import Clock
from durastore.doctor.hashed import HashedPacks
from durastore.doctor.request import LocalSample
from durastore.errors import FormatUnsupported, IntegrityError, SpoolUnreadable
from durastore.formats.spool_root import LOCK_NAME, PACKS_NAME, QUARANTINE_NAME
from durastore.fsio.folder import Folder
from durastore.fsio.identity import FileIdentity, identify
from durastore.fsio.lock import FlockedFile, holders
from durastore.fsio.rate import RateLimit
from durastore.model import PackState
from durastore.reconcile.hashing import hash_files
from durastore.spool.journal_db import connect, failed_marker, is_empty
from durastore.spool.journal_errors import SQLITE_ERRORS
from durastore.spool.journal_file import newest_journal
from durastore.spool.journal_rows import load_entries, load_packs
from durastore.spool.pack_bytes import read_exact, sample_fault
from durastore.spool.records import FACT_STORE_ID, UNMANIFESTED, PackRecord

__all__ = ["PackFault", "SpoolExam", "examine_spool"]

_GONE = "its file is gone"
_WITH_FILE = (*UNMANIFESTED, PackState.MANIFESTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackFault:
    """One pack that is not what its journal says."""

    pack: str
    """`w-NN/<file>`."""
    reason: str
    samples: int
    """Acknowledged in it."""
    is_only_copy: bool
    """Never sent: what no longer matches is in no bucket."""

    def __str__(self) -> str:
        where = "never sent" if self.is_only_copy else "the bucket is asked for it"
        return f"{self.pack}: {self.reason} ({self.samples} samples; {where})"


@dataclass(slots=True, kw_only=True)
class SpoolExam:
    """One spool as it was found."""

    name: str
    held_by: tuple[int, ...] | None = None
    """Live processes that work in it; then nothing else was looked at."""
    problem: str | None = None
    """Why its journal could not be read."""
    packs: int = 0
    size_bytes: int = 0
    hashed: int = 0
    """Packs read in full now; the others were, in this boot, and are unchanged."""
    faults: list[PackFault] = field(default_factory=list)
    questions: list[str] = field(default_factory=list)
    """Packs without a file here that the bucket may hold: the next opening asks it, and salvages what was set aside."""
    strangers: list[str] = field(default_factory=list)
    """Files that no pack on record names."""
    quarantined: int = 0
    store_id: str | None = None
    only_local: dict[str, set[LocalSample]] = field(default_factory=dict)


def examine_spool(root: Folder, name: str, *, notes: HashedPacks, clock: Clock) -> SpoolExam:
    """Look at one spool. `SpoolUnreadable`, OSError where its folders do not answer."""
    exam = SpoolExam(name=name)
    with root.child(name) as folder:
        lock = FlockedFile.try_lock(folder, LOCK_NAME) if folder.has(LOCK_NAME) else None
        if lock is None and folder.has(LOCK_NAME):
            exam.held_by = _holders(folder)
            return exam
        try:
            _Examiner(folder, exam, notes=notes, clock=clock).run()
        finally:
            if lock is not None:
                lock.close()
    return exam


def _holders(folder: Folder) -> tuple[int, ...]:
    try:
        return tuple(holders(folder.path / LOCK_NAME))
    except OSError:
        return ()


class _Examiner:
    """One idle spool, its lock held by this process."""

    def __init__(self, folder: Folder, exam: SpoolExam, *, notes: HashedPacks, clock: Clock) -> None:
        self._folder = folder
        self._exam = exam
        self._notes = notes
        self._limit = RateLimit(0, clock=clock)

    def run(self) -> None:
        """Fill in the exam. A journal that cannot be read is its problem; OSError where the folders cannot be."""
        exam = self._exam
        exam.quarantined = len(_names(self._folder, QUARANTINE_NAME))
        try:
            with _opened_journal(self._folder) as conn:
                if conn is None or is_empty(conn):
                    exam.strangers = _names(self._folder, PACKS_NAME)
                    return
                facts = dict(conn.execute("SELECT name, value FROM facts").fetchall())
                exam.store_id = facts.get(FACT_STORE_ID)
                self._examine(conn)
        except (SpoolUnreadable, IntegrityError, FormatUnsupported) as exc:
            exam.problem = exc.message

    def _examine(self, conn: sqlite3.Connection) -> None:
        exam = self._exam
        records = load_packs(conn, _WITH_FILE)
        exam.packs = len(records)
        known = {record.name for record in records}
        exam.strangers = [name for name in _names(self._folder, PACKS_NAME) if name not in known]
        with self._folder.child(PACKS_NAME) as packs:  # made with the journal
            reasons = self._reasons(packs, records, conn=conn)
        for record in records:
            if record.name in reasons:
                fault = _fault(exam.name, record, reason=reasons[record.name])
                if fault.reason is _GONE and not fault.is_only_copy:
                    exam.questions.append(fault.pack)
                else:
                    exam.faults.append(fault)
            elif record.state is not PackState.MANIFESTED:
                for entry in load_entries(conn, record.pack_id):
                    digest = entry.input_digest.hex if entry.input_digest is not None else ""
                    exam.only_local.setdefault(entry.run.hex, set()).add((entry.sample_id.text, digest))

    def _reasons(self, packs: Folder, records: list[PackRecord], *, conn: sqlite3.Connection) -> dict[str, str]:
        """What is wrong, by file name."""
        found: dict[str, str] = {}
        to_hash: dict[str, PackRecord] = {}
        for record in records:
            try:
                identity = packs.identity(record.name)
            except FileNotFoundError:
                found[record.name] = _GONE
                continue
            self._exam.size_bytes += identity.size_bytes
            reason = _size_fault(record, identity.size_bytes)
            if reason is not None:
                found[record.name] = reason
            elif record.state is PackState.OPEN:
                reason = _open_fault(packs, record, conn=conn)
                if reason is not None:
                    found[record.name] = reason
            elif not self._is_known(record, identity):
                to_hash[record.name] = record
        found.update(self._hash(packs, to_hash))
        return found

    def _is_known(self, record: PackRecord, identity: FileIdentity) -> bool:
        assert record.digest is not None
        return self._notes.has(f"{self._exam.name}/{record.name}", identity, digest=record.digest.hex)

    def _hash(self, packs: Folder, wanted: dict[str, PackRecord]) -> Iterator[tuple[str, str]]:
        whole: list[tuple[str, FileIdentity, str]] = []
        for seen in hash_files(packs, wanted, limit=self._limit):
            digest = wanted[seen.path].digest
            assert digest is not None
            self._exam.hashed += 1
            if seen.unreadable is not None or seen.digest is None:
                yield seen.path, f"cannot be read: {seen.unreadable}"
            elif seen.digest.hex() != digest.hex:
                yield seen.path, _content_fault(packs, seen.path)
            elif seen.identity is None:
                yield seen.path, "changes while it is read: something writes to the spool"
            else:
                whole.append((f"{self._exam.name}/{seen.path}", seen.identity, digest.hex))
        self._notes.note(whole)


@contextmanager
def _opened_journal(folder: Folder) -> Iterator[sqlite3.Connection | None]:
    """For reading; None where there is none. The spool is locked, so SQLite may make the index of a log that came here
    without one, as by `durastore migrate`. `SpoolUnreadable`.
    """
    name = newest_journal(folder)
    if name is None:
        yield None
        return
    if folder.has(failed_marker(name)):
        raise SpoolUnreadable(f"{name} failed: the next opening goes on in a new file")
    try:
        with closing(connect(folder, name, is_read_only=True)) as conn:
            conn.execute("BEGIN")
            yield conn
    except SQLITE_ERRORS as exc:
        raise SpoolUnreadable(f"{name} cannot be read: {exc}") from exc


def _fault(spool: str, record: PackRecord, *, reason: str) -> PackFault:
    is_only_copy = record.state is PackState.OPEN or (record.state is PackState.SEALED and record.write_id is None)
    name = f"{spool}/{record.name}"
    return PackFault(pack=name, reason=reason, samples=record.sample_count, is_only_copy=is_only_copy)


def _size_fault(record: PackRecord, size_bytes: int) -> str | None:
    """An open pack may be longer than what was acknowledged of it: a group that was cut off."""
    expected = record.size_bytes or 0
    if size_bytes < expected:
        return f"truncated: ends after {size_bytes} of {expected} bytes"
    if size_bytes > expected and record.state is not PackState.OPEN:
        return f"has {size_bytes} bytes, {expected} were sealed"
    return None


def _open_fault(packs: Folder, record: PackRecord, *, conn: sqlite3.Connection) -> str | None:
    """Whether every sample that was acknowledged in an open pack is there, byte for byte."""
    fd = packs.open_read(record.name)
    try:
        entries = load_entries(conn, record.pack_id)
        faults = {}
        for entry in entries:
            try:
                fault = sample_fault(read_exact(fd, offset=entry.offset, length=entry.length), entry)
            except IntegrityError as exc:
                fault = exc.message
            if fault is not None:
                faults[entry.sample_id.text] = fault
    finally:
        os.close(fd)
    if not faults:
        return None
    name, reason = next(iter(faults.items()))
    tail = _content_fault(packs, record.name)
    return f"{tail}; {len(faults)} of {len(entries)} samples do not match, the first is {name}: {reason}"


def _content_fault(packs: Folder, name: str) -> str:
    """Bytes that are wrong at the right length, in words: what a full disk or a power cut leaves is told apart."""
    fd = packs.open_read(name)
    try:
        size_bytes = identify(fd).size_bytes
        tail = find_zero_tail(fd, size_bytes)
    finally:
        os.close(fd)
    if tail is not None:
        return f"zero-tailed: its last {size_bytes - tail.start} bytes are zeros that were never written"
    return "its bytes are not those that were written"


def _names(folder: Folder, name: str) -> list[str]:
    if not folder.has(name):
        return []
    with folder.child(name) as below:
        return below.names()

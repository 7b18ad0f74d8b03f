"""A look at a spool root from outside, while anybody may be working there.

Duty: what the journals say and what lies in the folders, for people. Takes no lock, waits for none, and writes nothing:
a journal is opened so that SQLite cannot even touch its shared-memory file. Whether a process holds a spool is told by
the kernel (/proc/locks), which does not tell of other PID namespaces. Nothing may ever be decided by a glance.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from durastore.errors import FormatUnsupported, IntegrityError, SpoolUnreadable
from durastore.formats.spool_root import LOCK_NAME, QUARANTINE_NAME, parse_spool_name
from durastore.formats.stop import StopRecord
from durastore.fsio.folder import Folder
from durastore.fsio.lock import holders
from durastore.fsio.space import free_bytes
from durastore.model import PackState
from durastore.objectstore.probe.result import ProbeResult
from durastore.objectstore.probe.saved import load_probes, newest_of
from durastore.spool.journal_db import failed_marker, has_tables, is_empty
from durastore.spool.journal_errors import SQLITE_ERRORS
from durastore.spool.journal_file import newest_journal
from durastore.spool.journal_log import with_log
from durastore.spool.journal_rows import load_packs
from durastore.spool.opened import opened_root
from durastore.spool.records import FACT_URL, SIDE_STATES, UNMANIFESTED, WITHOUT_FILE, PackRecord
from durastore.spool.root import is_surely_copied, read_moved
from durastore.spool.stops import FACT_STOPPED, stops_in_force

__all__ = ["JournalGlance", "PackTotals", "RootGlance", "SpoolGlance", "look_at_root", "opened_journal"]

_BUSY_S = 2.0
_MOST_COPIED_BYTES = 1 << 30
"""Of a journal and of its log, where they are read into memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackTotals:
    """The packs in one state."""

    packs: int
    samples: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalGlance:
    """What a spool's journal says."""

    states: dict[PackState, PackTotals]
    only_local_samples: int
    """Acknowledged, and in no manifest segment yet."""
    oldest_only_local_ns: int | None
    """When the oldest of them was put, Unix nanoseconds."""
    bucket_url: str | None
    stop: StopRecord | None
    troubles: tuple[tuple[str, str], ...]
    """Name and reason of packs that are LOST, QUARANTINED, in CONFLICT or UNKNOWN."""

    @property
    def local_bytes(self) -> int:
        """Of the pack files on record."""
        return sum(totals.size_bytes for state, totals in self.states.items() if state not in WITHOUT_FILE)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolGlance:
    """One spool of the root."""

    name: str
    holders: tuple[int, ...] | None
    """Ids of the processes that hold it; None where the kernel does not tell."""
    journal: JournalGlance | None
    problem: str | None
    """Why the journal could not be read."""
    quarantined_files: int
    quarantined_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RootGlance:
    """A spool root as it was a moment ago."""

    path: Path
    spools: tuple[SpoolGlance, ...]
    free_bytes: int
    stops: tuple[StopRecord, ...]
    """Stops of reclaiming that nobody lifted."""
    probes: tuple[ProbeResult, ...]
    """The newest result of each place."""
    moved_to: str | None
    """Where the contents of this root went: it is not used any more."""
    is_copy: bool
    """The marker was written in another directory or file system: no process opens this root."""


def look_at_root(path: Path, *, is_wanted: Callable[[str], bool] = lambda name: True) -> RootGlance:
    """Look at the root and the spools in it whose names are wanted; safe beside live processes, and changes nothing.

    `StoreMissing` where `path` is no spool root, `SpoolUnreadable` where it cannot be read. A journal that cannot be
    read is a `problem` of its spool.
    """
    with opened_root(path) as root:
        try:
            names = [name for name in root.names() if parse_spool_name(name) is not None and is_wanted(name)]
            spools = tuple(_look_at_spool(root, name) for name in names)
            found = [spool.journal.stop for spool in spools if spool.journal is not None]
            return RootGlance(
                path=path,
                spools=spools,
                free_bytes=free_bytes(path),
                stops=tuple(stops_in_force(root, also=[stop for stop in found if stop is not None])),
                probes=_probes(root),
                moved_to=read_moved(root),
                is_copy=is_surely_copied(root),
            )
        except OSError as exc:
            raise SpoolUnreadable(f"spool root {path}: {exc.strerror or exc}", errno=exc.errno) from exc


def _look_at_spool(root: Folder, name: str) -> SpoolGlance:
    with root.child(name) as folder:
        files, size_bytes = _quarantine_of(folder)
        journal, problem = None, None
        try:
            journal = _look_at_journal(folder)
        except (SpoolUnreadable, IntegrityError, FormatUnsupported) as exc:
            problem = exc.message
        return SpoolGlance(
            name=name,
            holders=_holders(folder.path / LOCK_NAME),
            journal=journal,
            problem=problem,
            quarantined_files=files,
            quarantined_bytes=size_bytes,
        )


def _holders(lock: Path) -> tuple[int, ...] | None:
    try:
        return tuple(holders(lock))
    except OSError:
        return None


def _quarantine_of(folder: Folder) -> tuple[int, int]:
    files = size_bytes = 0
    try:
        with folder.child(QUARANTINE_NAME) as quarantine:
            for name in quarantine.names():
                try:
                    size_bytes += quarantine.identity(name).size_bytes
                except (FileNotFoundError, SpoolUnreadable):  # taken out in this moment, or an operator's folder
                    continue
                files += 1
    except FileNotFoundError:
        pass
    return files, size_bytes


def _probes(root: Folder) -> tuple[ProbeResult, ...]:
    """The newest readable result about each place."""
    found: dict[str, list[ProbeResult]] = {}
    for result in load_probes(root):
        found.setdefault(result.target, []).append(result)
    newest = [newest_of(results) for results in found.values()]
    return tuple(result for result in newest if result is not None)


# --- the journal ---------------------------------------------------------------------------------------------------


def _look_at_journal(folder: Folder) -> JournalGlance | None:
    """None where the spool has none yet."""
    with opened_journal(folder) as conn:
        if conn is None or is_empty(conn):
            return None
        if not has_tables(conn):
            raise IntegrityError("the journal lacks a table or a column")
        records = load_packs(conn, ())
        marks = ", ".join("?" * len(UNMANIFESTED))
        sql = f"SELECT count(*), min(time_ns) FROM samples JOIN packs USING (pack_id) WHERE state IN ({marks})"  # noqa: S608 - question marks
        count, oldest = conn.execute(sql, [state.value for state in UNMANIFESTED]).fetchone()
        facts = dict(conn.execute("SELECT name, value FROM facts").fetchall())
    stop = facts.get(FACT_STOPPED)
    return JournalGlance(
        states=_totals(records),
        only_local_samples=int(count),
        oldest_only_local_ns=oldest if isinstance(oldest, int) else None,
        bucket_url=facts.get(FACT_URL),
        stop=StopRecord.of_text(stop) if isinstance(stop, str) else None,
        troubles=tuple((r.name, r.reason or r.state.value) for r in records if r.state in SIDE_STATES),
    )


def _totals(records: list[PackRecord]) -> dict[PackState, PackTotals]:
    found: dict[PackState, PackTotals] = {}
    for record in records:
        old = found.get(record.state, PackTotals(packs=0, samples=0, size_bytes=0))
        found[record.state] = PackTotals(
            packs=old.packs + 1,
            samples=old.samples + record.sample_count,
            size_bytes=old.size_bytes + (record.size_bytes or 0),
        )
    return found


@contextmanager
def opened_journal(folder: Folder) -> Iterator[sqlite3.Connection | None]:
    """The spool's journal for reading only; None where there is none. `SpoolUnreadable` where it cannot be read.

    With `readonly_shm` SQLite maps the index of the log as it is: a look by another user, or at a spool on a full disk,
    leaves no file behind. Where the log came without its index, as by `durastore migrate`, nobody has it open, and
    SQLite would have to write one: the log is read by us. A journal without a log is read as one that nobody changes.
    """
    name = newest_journal(folder)
    if name is None:
        yield None
        return
    if folder.has(failed_marker(name)):
        raise SpoolUnreadable(f"journal {name} failed: the next open of the spool goes on in a new file")
    # the index of a log in use is there; without index and log the file is all there is
    is_indexed = folder.has(f"{name}-shm") or folder.has(f"{name}-journal")
    try:
        is_alone = not is_indexed and _has_log(folder, name)
        with closing(_of_log(folder, name) if is_alone else _of_file(folder, name, is_indexed=is_indexed)) as conn:
            conn.execute("BEGIN")  # one moment for all that is read
            yield conn
    except SQLITE_ERRORS as exc:
        raise SpoolUnreadable(f"journal {name} cannot be read from outside: {exc}") from exc


def _of_file(folder: Folder, name: str, *, is_indexed: bool) -> sqlite3.Connection:
    how = "readonly_shm=1" if is_indexed else "immutable=1"
    uri = f"file:{quote(str(folder.path / name))}?mode=ro&{how}"
    return sqlite3.connect(uri, uri=True, timeout=_BUSY_S, isolation_level=None)


def _of_log(folder: Folder, name: str) -> sqlite3.Connection:
    """A copy in memory. Nobody has the log open, or its index would be there: closing a descriptor drops no lock."""
    # in this order: who opens it in between and ends well takes the log away, and who does not leaves its index
    data = with_log(
        folder.read_bytes(name, limit_bytes=_MOST_COPIED_BYTES),
        folder.read_bytes(f"{name}-wal", limit_bytes=_MOST_COPIED_BYTES),
    )
    if folder.has(f"{name}-shm"):
        raise SpoolUnreadable(f"journal {name} is being opened", hint="look again")
    conn = sqlite3.connect(":memory:", isolation_level=None)
    if data:
        conn.deserialize(data)
    return conn


def _has_log(folder: Folder, name: str) -> bool:
    try:
        return folder.identity(f"{name}-wal").size_bytes > 0
    except FileNotFoundError:
        return False

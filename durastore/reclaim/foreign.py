"""Reclaiming files that durastore did not write: moved into a private folder first, unlinked only there.

Order for each file (DESIGN 7): lease -> durable intent -> moved into the private folder, synced -> hashed there and
proven against its object -> durable receipt -> spend it, unlink the private name. The lease says that nobody writes to
the file meanwhile; the move, that nobody's new file of that name can be meant. Whatever fails is moved back. A crash
leaves the file in the private folder, and `restore_moved` takes it back. Nothing here is redone from a record.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field

from durastore.errors import DiskFailed, DurastoreError, IntegrityError, NotVerified, ObjectAbsent, SpoolUnreadable
from durastore.fsio.folder import Folder
from durastore.fsio.identity import identify
from durastore.fsio.lease import NotLeased, check_leased, leased
from durastore.fsio.paths import open_parent
from durastore.fsio.relocate import relocate_shared
from durastore.model import parse_json, render_json
from durastore.observe.events import LOGGER, Observer
from durastore.reclaim._unlink import unlink_proven
from durastore.reclaim.aside import is_file, move_back
from durastore.spool.journal import Journal
from durastore.spool.journal_file import set_aside
from durastore.spool.records import PackRecord
from durastore.verify.verifier import ProofBatch, Verifier

__all__ = ["ForeignPlace", "ForeignReclaimer", "ForeignReport", "restore_moved"]

_BATCH_FILES = 64
_BATCH_BYTES = 8 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignPlace:
    """Where the files are, and where those about to go are put. All on one file system."""

    folder: Folder
    """The operator's folder, held."""
    going: Folder
    """The private folder; nobody else puts a name there."""
    quarantine: Folder
    journal: Journal
    """Keeps the intents, as facts."""
    check: Callable[[], None]
    """Raises if the folder, the private one or the lock is no longer what was opened."""


@dataclass(slots=True)
class ForeignReport:
    """What was freed, and what stayed and why."""

    files: int = 0
    bytes_freed: int = 0
    freed: list[str] = field(default_factory=list)
    kept: dict[str, str] = field(default_factory=dict)
    """Path -> why its file stayed where it was."""


def restore_moved(place: ForeignPlace) -> list[str]:
    """Take back what an interrupted reclaim had moved into the private folder; returns the paths. Safe to repeat.

    A file whose old name is taken by now, or whose path nobody noted, goes to quarantine. What is no file stays where
    it has no way back.
    """
    taken_back = [_restore(place, name) for name in place.going.names()]
    return [path for path in taken_back if path is not None]


class ForeignReclaimer:
    """Frees files of one folder. The folder's lock must be held by this process."""

    def __init__(self, place: ForeignPlace, verifier: Verifier, *, observer: Observer) -> None:
        self._place = place
        self._verifier = verifier
        self._observer = observer

    def execute(self, records: Sequence[PackRecord]) -> ForeignReport:
        """Prove and free each file, in batches. What cannot be proven stays and is named in the report.

        `RootMismatch`, `SpoolLocked` or `NotVerified` if what a whole batch rests on does not hold; network errors
        pass. In all these cases the remaining files are untouched. Safe to repeat.
        """
        report = ForeignReport()
        for batch_records in _batches(records):
            self._place.check()
            with self._verifier.open_batch(batch_records) as batch:
                for record in batch_records:
                    self._place.check()  # the disk may have been unmounted or replaced between two files (case B20)
                    self._reclaim_one(batch, record, report=report)
        return report

    def _reclaim_one(self, batch: ProofBatch, record: PackRecord, *, report: ForeignReport) -> None:
        try:
            parent, name = open_parent(self._place.folder, record.name)
        except OSError as exc:
            report.kept[record.name] = f"its folder cannot be opened: {exc.strerror}"
            return
        with closing(parent):
            try:
                freed = self._free(batch, record, parent=parent, name=name)
            except (NotVerified, ObjectAbsent, IntegrityError, NotLeased, SpoolUnreadable, OSError) as exc:
                report.kept[record.name] = str(exc)
                self._observer.emit("reclaim.kept", pack=record.name, reason=str(exc))
                LOGGER.warning("kept %s: %s", record.name, exc)
                return
        report.files += 1
        report.bytes_freed += freed
        report.freed.append(record.name)
        self._observer.emit("reclaim.freed", pack=record.name, bytes=freed)

    def _free(self, batch: ProofBatch, record: PackRecord, *, parent: Folder, name: str) -> int:
        fd = parent.open_read(name)
        try:
            with leased(fd):
                if identify(fd).dev != os.fstat(self._place.going.fd).st_dev:
                    raise NotVerified(f"{record.name}: it lies on another file system than its folder")
                if identify(fd) != record.identity:
                    raise NotVerified(f"{record.name}: it changed since it was looked at")
                with self._moved(parent, name, record=record, fd=fd) as private:
                    return self._unlink(batch, record, private=private, fd=fd)
        finally:
            os.close(fd)

    @contextmanager
    def _moved(self, parent: Folder, name: str, *, record: PackRecord, fd: int) -> Iterator[str]:
        """The file under a private name; back under its own if the block does not end well."""
        place, private = self._place, secrets.token_hex(16)
        intent = render_json({"path": record.name, "key": str(record.key), "digest": str(record.digest)})
        place.journal.set_fact(_fact(private), intent)  # before the move: it alone says where the file belongs
        try:
            _move(place, parent, name=name, private=private)
            if not place.going.identity(private).is_same_inode(identify(fd)):
                raise NotVerified(f"{record.name}: another file came under its name")
            yield private
        except BaseException:
            if place.going.has(private):
                _restore(place, private)
            raise

    def _unlink(self, batch: ProofBatch, record: PackRecord, *, private: str, fd: int) -> int:
        """The moved file's change time is another now, so proving hashes every byte of it."""
        place = self._place
        receipt = batch.prove(record, fd)
        check_leased(fd)
        place.journal.set_fact(_fact(private), render_json({"path": record.name, "receipt": receipt.render()}))
        freed = unlink_proven(place.going, private, receipt=receipt)
        place.journal.set_fact(_fact(private), None)
        return freed


def _move(place: ForeignPlace, parent: Folder, *, name: str, private: str) -> None:
    try:
        relocate_shared(parent, name, target=place.going, new_name=private)
    except DiskFailed as exc:  # read-only, immutable: this file stays, others may go
        if not place.going.has(private):
            place.journal.set_fact(_fact(private), None)  # it never left; each run would leave another one for it
        raise NotVerified(f"{name} cannot be moved: {exc.message}") from exc


def _batches(records: Sequence[PackRecord]) -> Iterator[list[PackRecord]]:
    batch: list[PackRecord] = []
    size_bytes = 0
    for record in records:
        if batch and (len(batch) >= _BATCH_FILES or size_bytes + (record.size_bytes or 0) > _BATCH_BYTES):
            yield batch
            batch, size_bytes = [], 0
        batch.append(record)
        size_bytes += record.size_bytes or 0
    if batch:
        yield batch


def _restore(place: ForeignPlace, private: str) -> str | None:
    """Back under the path that was noted, which is returned; to quarantine where that cannot be. What is no file and
    has no way back stays, and None is returned.
    """
    text = place.journal.get_fact(_fact(private))
    path = _path_in(text) if text is not None else None
    if path is not None:
        try:
            move_back(place.going, private, folder=place.folder, path=path)
        except (OSError, ValueError, DiskFailed) as exc:  # FileExistsError: somebody made a new file of that name
            LOGGER.error("%s cannot be moved back: %s", path, exc)
        else:
            place.journal.set_fact(_fact(private), None)
            return path
    if not is_file(place.going, private):
        return None
    kept = set_aside(place.going, private, quarantine=place.quarantine)
    LOGGER.error("%s, moved for reclaiming and not proven, is in quarantine as %s", path or "a file", kept)
    place.journal.set_fact(_fact(private), None)
    return path or kept


def _path_in(text: str) -> str | None:
    try:
        path = parse_json(text, what="intent")["path"]
    except (DurastoreError, KeyError, TypeError):
        return None
    return path if isinstance(path, str) else None


def _fact(private: str) -> str:
    return f"going {private}"

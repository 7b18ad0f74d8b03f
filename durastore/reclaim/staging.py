"""The staging door: files that a model server wrote for us, freed one by one (DESIGN 7, ADR 0014).

Order for each file: lock and lease, which say that nobody writes to it -> unchanged since it was parsed -> moved into
the private folder -> its sample is durable (asked now), or its request is dead -> receipt -> spend it, unlink the
private name. Whatever fails is moved back. Must never act in a folder without the marker, nor free a file for its age.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from durastore.clock import Clock
from durastore.errors import ConfigError, DiskFailed, IntegrityError, NotVerified, SpoolUnreadable
from durastore.formats.spool_root import ROOT_MARKER_NAME
from durastore.formats.staging import (
    GOING_NAME,
    LOCK_SUFFIX,
    STAGING_MARKER_NAME,
    StagingRecord,
    new_session,
    parse_staging,
    render_session_file,
    render_staging,
)
from durastore.fsio.folder import Folder
from durastore.fsio.identity import identify
from durastore.fsio.lease import NotLeased, check_leased, leased
from durastore.fsio.lock import FlockedFile
from durastore.fsio.paths import open_folder, open_local, open_parent
from durastore.fsio.publish import publish
from durastore.fsio.relocate import relocate_shared
from durastore.fsio.space import free_bytes
from durastore.model import Digest
from durastore.observe.events import LOGGER
from durastore.reclaim._unlink import drop_empty_folder, unlink_proven
from durastore.reclaim.aside import move_back
from durastore.verify.receipt import StagingReceipt
from durastore.verify.staged import StagedFile, guard_unchanged, verify_dead, verify_ingested

__all__ = ["MARKER_LIMIT_BYTES", "StagedFile", "StagingFolder", "has_ended"]

MARKER_LIMIT_BYTES = 4096
_OWN = (STAGING_MARKER_NAME, GOING_NAME, ".durastore-")
_HINT = "give model server and durastore an empty folder of their own, a fresh one for each start of the server"
_NOT_NOW = (NotVerified, NotLeased, SpoolUnreadable, DiskFailed, OSError)


class StagingFolder:
    """One marked folder, held, and this process's session in it. Thread-safe: each call works on one file."""

    def __init__(self, folder: Folder, going: Folder, *, session: tuple[str, FlockedFile], clock: Clock) -> None:
        self.folder = folder
        self._going = going
        self.session, self._alive = session
        """The name that this process's requests carry."""
        self._clock = clock

    @classmethod
    def open(cls, path: Path, *, served: Digest, clock: Clock) -> StagingFolder:
        """Make `path` a staging folder, if it is new or empty, and join it. `served`: of model, layers and dtype.

        `ConfigError` where it holds something and is none, was made for another `served`, or lies in a spool root.
        """
        _refuse_spool(path)
        try:
            folder = Folder.create(path)
        except OSError as exc:
            raise ConfigError(f"staging folder {path}: {exc.strerror}", hint=_HINT) from exc
        with ExitStack() as undo:
            undo.callback(folder.close)
            _ensure_marker(folder, StagingRecord(served=served))
            going = folder.ensure_child(GOING_NAME)
            undo.callback(going.close)
            session = new_session()
            alive = FlockedFile.try_lock(folder, render_session_file(session))
            if alive is None:
                raise ConfigError(f"session {session} in {path} is another process's")
            undo.pop_all()
        return cls(folder, going, session=(session, alive), clock=clock)

    @property
    def path(self) -> Path:
        return self.folder.path

    def close(self) -> None:
        """Leave: from now on this session's files are those of an ended one. Safe to repeat."""
        self._alive.close()
        self._going.close()
        self.folder.close()

    def names(self) -> list[str]:
        """What lies in it, without our own files. OSError if it cannot be read."""
        return [name for name in self.folder.names() if not name.startswith(_OWN)]

    def free_bytes(self) -> int:
        """Of its file system. `DiskFailed` if that cannot be told."""
        return free_bytes(self.folder.fd)

    def open_read(self, path: str) -> int:
        """A descriptor of a file in it, links refused. OSError, `SpoolUnreadable`."""
        return open_local(self.folder, path)

    def is_ended(self, session: str) -> bool:
        return has_ended(self.folder, session)

    def free(self, staged: StagedFile, *, holds: Callable[[], bool]) -> int | None:
        """Free the file whose sample the store holds, with its lock file; the bytes, or None if it stays.

        `holds` is asked when the file is out of everybody's reach. Safe to repeat.
        """
        try:
            if not holds():  # also before anything is moved
                raise NotVerified(f"{staged.path}: the store does not hold its sample")
            return self._free(
                staged.path,
                look=lambda fd: guard_unchanged(staged, fd=fd),
                prove=lambda fd: verify_ingested(staged, fd=fd, holds=holds, clock=self._clock),
            )
        except _NOT_NOW as exc:
            LOGGER.debug("kept in staging: %s", exc)
            return None

    def reap(self, path: str, *, is_dead: Callable[[], bool]) -> int | None:
        """Free a file of a request that can never be ingested, with its lock file; the bytes, or None if it stays."""
        try:
            if not is_dead():
                return None
            return self._free(
                path,
                look=lambda fd: None,
                prove=lambda fd: verify_dead(path, fd=fd, is_dead=is_dead, clock=self._clock),
            )
        except _NOT_NOW as exc:
            LOGGER.debug("not reaped: %s", exc)
            return None

    def reap_moved(self) -> int:
        """Free what ended sessions had moved aside to free it, and were killed before; the bytes."""
        freed = 0
        for name in self._going.names():
            session = name.partition("-")[0]
            if not self.is_ended(session):
                continue
            fd = self._going.open_read(name)
            try:
                receipt = verify_dead(name, fd=fd, is_dead=lambda s=session: self.is_ended(s), clock=self._clock)  # type: ignore[misc]
            finally:
                os.close(fd)
            freed += unlink_proven(self._going, name, receipt=receipt)
        return freed

    def drop_entry(self, name: str) -> bool:
        """Drop an entry's folder if nothing is left in it."""
        return drop_empty_folder(self.folder, name)

    def files_of(self, name: str) -> list[str]:
        """Paths of the files right in the entry `name`, or its own name if it is a file. OSError if it is neither."""
        kind = os.stat(name, dir_fd=self.folder.fd, follow_symlinks=False).st_mode
        if stat.S_ISREG(kind):
            return [name]
        with open_folder(self.folder, name) as entry:
            return [f"{name}/{each}" for each in entry.names()]

    def _free(self, path: str, *, look: Callable[[int], None], prove: Callable[[int], StagingReceipt]) -> int:
        if path.startswith(_OWN):  # without the marker nobody could go on here, without its file a session never ends
            raise NotVerified(f"{path} is no file of a server")
        with ExitStack() as held:
            parent, name = open_parent(self.folder, path)
            held.callback(parent.close)
            fd = parent.open_read(name)
            held.callback(os.close, fd)
            lock = _locked(parent, name)
            if lock is not None:
                held.callback(lock.close)
            held.enter_context(leased(fd))
            look(fd)
            with self._moved(parent, name, path=path, fd=fd) as private:
                receipt = prove(fd)
                check_leased(fd)
                freed = unlink_proven(self._going, private, receipt=receipt)
        if lock is not None and name != _lock_name(name):
            self._free_lock(f"{path}{LOCK_SUFFIX}", is_gone=lambda: not self._has(path))
        return freed

    def _free_lock(self, path: str, *, is_gone: Callable[[], bool]) -> None:
        """The lock file of a file that went; it holds nothing, and nobody may hold it."""
        try:
            self._free(
                path,
                look=_guard_empty,
                prove=lambda fd: verify_dead(path, fd=fd, is_dead=is_gone, clock=self._clock),
            )
        except _NOT_NOW as exc:
            LOGGER.debug("lock file left: %s", exc)

    def _has(self, path: str) -> bool:
        parent, name = open_parent(self.folder, path)
        with closing(parent):
            return parent.has(name)

    @contextmanager
    def _moved(self, parent: Folder, name: str, *, path: str, fd: int) -> Iterator[str]:
        """The file under a private name; back under its own if the block does not end well."""
        private = f"{self.session}-{secrets.token_hex(8)}"
        try:
            relocate_shared(parent, name, target=self._going, new_name=private)
            if not self._going.identity(private).is_same_inode(identify(fd)):
                raise NotVerified(f"{path}: another file came under its name")
            yield private
        except BaseException:
            if self._going.has(private):
                self._take_back(private, path)
            raise

    def _take_back(self, private: str, path: str) -> None:
        try:
            move_back(self._going, private, folder=self.folder, path=path)
        except (OSError, ValueError, DiskFailed) as exc:  # FileExistsError: the server wrote another of that name
            LOGGER.error("%s cannot be moved back and lies in %s: %s", path, self._going.path / private, exc)


def has_ended(folder: Folder, session: str) -> bool:
    """True only if the kernel says that the session's process is gone; one that was never here is not known."""
    try:
        # shared: several may ask at one time, and none of them is to be taken for the session's process
        lock = FlockedFile.try_lock_existing(folder, render_session_file(session), is_shared=True)
    except (OSError, DiskFailed):
        return False
    if lock is None:
        return False
    lock.close()
    return True


def _lock_name(name: str) -> str:
    return name if name.endswith(LOCK_SUFFIX) else f"{name}{LOCK_SUFFIX}"


def _locked(parent: Folder, name: str) -> FlockedFile | None:
    """The flock that a server would hold while it writes; None where there is no lock file. `NotVerified` if held."""
    try:
        lock = FlockedFile.try_lock_existing(parent, _lock_name(name))
    except FileNotFoundError:
        return None
    if lock is None:
        raise NotVerified(f"{parent.path / name}: its lock is held")
    return lock


def _guard_empty(fd: int) -> None:
    if os.fstat(fd).st_size:
        raise NotVerified("a lock file that holds something")


def _refuse_spool(path: Path) -> None:
    real = path.resolve()
    for folder in (real, *real.parents):
        if os.path.lexists(folder / ROOT_MARKER_NAME):
            raise ConfigError(f"staging folder {path} lies in the spool root {folder}", hint=_HINT)


def _ensure_marker(folder: Folder, record: StagingRecord) -> None:
    if not folder.has(STAGING_MARKER_NAME):
        names = folder.names()
        if names and STAGING_MARKER_NAME not in names:  # else another process was faster
            raise ConfigError(f"{folder.path} holds {len(names)} files and is no staging folder", hint=_HINT)
        try:
            publish(folder, STAGING_MARKER_NAME, chunks=[render_staging(record)])
        except FileExistsError:
            pass  # another process of the same command was first; what it wrote is looked at now
    try:
        found = parse_staging(folder.read_bytes(STAGING_MARKER_NAME, limit_bytes=MARKER_LIMIT_BYTES))
    except IntegrityError as exc:
        raise ConfigError(f"{folder.path / STAGING_MARKER_NAME}: {exc.message}", hint=_HINT) from exc
    if found != record:
        raise ConfigError(f"{folder.path} was made for another model, other layers or another dtype", hint=_HINT)

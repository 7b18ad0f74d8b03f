"""Copies of files: written without a name, synced, read back from the device, compared, and only then named.

Duty: one batch of small files or one large file at a time, several at once (`docs/design/migrate.md`, order 4). Must
never overwrite or drop a name in DST: what is there under the name of a file is compared with it.
"""

from __future__ import annotations

import errno
import os
import resource
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from durastore.errors import NO_ROOM, DiskFailed, RootMismatch, SpoolUnreadable
from durastore.fsio.cache import drop_cached, read_ahead
from durastore.fsio.folder import Folder
from durastore.fsio.identity import identify
from durastore.fsio.paths import open_folder
from durastore.fsio.publish import TempFile, write_all
from durastore.fsio.rate import RateStopped
from durastore.fsio.sys import SYS
from durastore.migrate.existing import settle_existing
from durastore.migrate.metadata import set_file_meta
from durastore.migrate.outcome import Item, Outcome, StopCopying, cut_units
from durastore.migrate.reading import SourceChanged, SourceRead, read_copy, read_source
from durastore.migrate.record import Proven
from durastore.migrate.scan import parent_of
from durastore.migrate.tools import CopyTools, judged, sync_file
from durastore.verify.copied import CopiedFile

__all__ = ["LARGE_BYTES", "copy_files"]

LARGE_BYTES = 2 << 20
_BATCH_FILES = 128
_BATCH_BYTES = 32 << 20
_BATCH_FOLDERS = 16
_SPARE_FILES = 128


class TargetFailed(Exception):
    """Writing failed; the cause is an OSError of the target's side."""


@contextmanager
def _of_target() -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise TargetFailed(str(exc)) from exc


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """A copy without a name."""

    item: Item
    temp: TempFile
    read: SourceRead


def copy_files(tools: CopyTools, items: Sequence[Item], *, outcome: Outcome) -> None:
    """Copy and prove all of them, as far as they can be. What failed, and what stopped it, is in `outcome`.

    Names made by this are durable when it returns without `outcome.stopped`.
    """
    copier = _Copier(tools, outcome)
    units = cut_units(items, large_bytes=LARGE_BYTES, limits=_limits(tools.jobs))
    with ThreadPoolExecutor(tools.jobs, thread_name_prefix="durastore-migrate") as pool:
        try:
            list(pool.map(copier.work, units))
        except BaseException:
            outcome.stop("interrupted")  # Ctrl-C: the pool waits for its threads, which would go on to the end
            raise
    if not outcome.is_stopped:
        copier.finish()


def _limits(jobs: int) -> tuple[int, int, int]:
    """So many descriptors as the process may have are shared by its threads."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = (allowed - _SPARE_FILES) // jobs - 2 * _BATCH_FOLDERS
    return max(4, min(_BATCH_FILES, files)), _BATCH_BYTES, _BATCH_FOLDERS


class _Copier:
    """Thread-safe: each thread works on a unit of its own."""

    def __init__(self, tools: CopyTools, outcome: Outcome) -> None:
        self._tools = tools
        self._outcome = outcome
        self._lock = threading.Lock()
        self._named: list[Proven] = []
        """Have their names, which are not known to be durable."""
        self._has_syncfs = True

    def work(self, unit: list[Item]) -> None:
        """One unit. Nothing once it was stopped."""
        if self._outcome.is_stopped:
            return
        try:
            self._tools.target.check()  # before anything is written under a path that may lead elsewhere (case B20)
            with ExitStack() as held:
                _Unit(self, self._tools, outcome=self._outcome, held=held).copy(unit)
        except RateStopped:
            return  # another thread has said why
        except StopCopying as exc:
            self._outcome.stop(str(exc))
        except RootMismatch as exc:
            self._outcome.stop(exc.message)
        except DiskFailed as exc:
            self._outcome.stop(str(StopCopying.of(exc)))
        except BaseException:
            self._outcome.stop("interrupted")  # what nobody foresaw ends all of it
            raise

    def finish(self) -> None:
        """The last names are durable, and on record."""
        try:
            self.sync([])
            if not self._has_syncfs:
                self._sync_folders()
            self._tools.log.close()
        except (StopCopying, DiskFailed) as exc:
            self._outcome.stop(str(exc))

    def sync(self, written: Sequence[_Written]) -> None:
        """The bytes of these are durable, and every name that was given before. `StopCopying` if that fails."""
        with self._lock:
            named, self._named = self._named, []
        try:
            if self._has_syncfs:
                SYS.syncfs(self._tools.target.folder.fd)  # one for all: a batch of fsyncs is a batch of disk flushes
        except OSError as exc:
            if exc.errno != errno.ENOSYS:
                raise StopCopying.of(exc) from exc
            self._has_syncfs = False
        if self._has_syncfs:
            self._tools.log.add(named)  # M4: after the sync
            return
        with self._lock:
            self._named = [*named, *self._named]
        for each in written:
            sync_file(each.temp.fd)

    def _sync_folders(self) -> None:
        for path in sorted({parent_of(each.copied.path) for each in self._named}):
            with open_folder(self._tools.target.folder, path) as folder:
                sync_file(folder.fd)
        self._tools.log.add(self._named)

    def note(self, proven: Proven) -> None:
        """It has its name."""
        with self._lock:
            self._named.append(proven)
        self._outcome.copy(proven)

    def record(self, proven: Proven, folder: Folder) -> None:
        """It has its name: made durable, and on record, at once."""
        sync_file(folder.fd)
        self._tools.log.add([proven])
        self._outcome.copy(proven)


class _Unit:
    """One unit of work, in one thread, with the folders it holds."""

    def __init__(self, copier: _Copier, tools: CopyTools, *, outcome: Outcome, held: ExitStack) -> None:
        self._copier = copier
        self._tools = tools
        self._outcome = outcome
        self._held = held
        self._folders: dict[tuple[bool, str], Folder] = {}

    def copy(self, unit: list[Item]) -> None:
        missing = [item for item in unit if not self._is_there(item)]
        fresh = [item for item in missing if item.may_copy]
        for item in missing:
            if not item.may_copy:
                self._outcome.skip(item.file.path)
        if len(fresh) == 1 and fresh[0].file.identity.size_bytes >= LARGE_BYTES:
            self._copy_large(fresh[0])
        else:
            self._copy_batch(fresh)

    def _copy_batch(self, items: list[Item]) -> None:
        written = [each for item in items if (each := self._written(item)) is not None]
        if not written:
            return
        self._copier.sync(written)
        for each in written:  # all of them dropped, then all asked for: the device sorts its reads
            drop_cached(each.temp.fd)
        for each in written:
            read_ahead(each.temp.fd)
        for each in written:
            proven = self._named(each)
            if proven is not None:
                self._copier.note(proven)

    def _copy_large(self, item: Item) -> None:
        each = self._written(item)
        if each is None:
            return
        sync_file(each.temp.fd)
        proven = self._named(each)
        if proven is not None:
            self._copier.record(proven, self._folder(item, is_target=True))

    def _written(self, item: Item) -> _Written | None:
        """The copy, written and unnamed; None if the file failed. `StopCopying` if no other can do better."""
        path = item.file.path
        try:
            target = self._folder(item, is_target=True)
        except OSError as exc:
            self._outcome.fail(path, f"its folder in the destination: {exc.strerror or exc}")  # case B13
            return None
        try:
            temp = self._held.enter_context(TempFile.open(target, temps=self._tools.target.temps))
        except DiskFailed as exc:
            if exc.is_full:
                raise StopCopying.of(exc) from exc  # case B115
            self._outcome.fail(path, exc.message)
            return None
        try:
            read = self._read_into(temp, item)
        except TargetFailed as exc:
            cause = exc.__cause__
            assert isinstance(cause, OSError)
            if cause.errno in NO_ROOM:
                raise StopCopying.of(cause) from exc  # case B115
            self._outcome.fail(path, f"cannot be written: {cause.strerror or cause}")
        except SourceChanged as exc:
            self._outcome.fail(path, str(exc))
        except (OSError, SpoolUnreadable) as exc:
            self._outcome.fail(path, f"cannot be read: {getattr(exc, 'strerror', None) or exc}")
        else:
            return _Written(item=item, temp=temp, read=read)
        return None

    def _read_into(self, temp: TempFile, item: Item) -> SourceRead:
        """Bytes, mode and times; `TargetFailed` where it is not the source that fails."""

        def take(block: memoryview) -> None:
            with _of_target():
                write_all(temp.fd, [block])

        source = self._folder(item, is_target=False)
        name = item.file.path.rpartition("/")[2]
        read = read_source(
            source, name, expect=item.file.identity, formats=self._tools.formats, sink=(take, self._tools.rate)
        )
        with _of_target():
            set_file_meta(temp.fd, item.file.meta)
        return read

    def _named(self, each: _Written) -> Proven | None:
        """Read back, compared, named (M1); None if the file failed."""
        path, fd = each.item.file.path, each.temp.fd
        try:
            digest = read_copy(fd, each.item.file.identity.size_bytes)
        except OSError as exc:
            self._outcome.fail(path, f"the copy cannot be read back: {exc.strerror or exc}", is_mismatch=True)
            return None
        if digest != each.read.digest:
            # cases B116, B79: whatever the file system reported, these are not the bytes that were read
            self._outcome.fail(path, "the copy was read back with other bytes", is_mismatch=True)
            return None
        folder = self._folder(each.item, is_target=True)
        try:
            each.temp.give_name(folder, path.rpartition("/")[2])
        except FileExistsError:
            self._outcome.fail(path, "a file of this name came up in the destination meanwhile")
            return None
        except OSError as exc:
            if exc.errno in NO_ROOM:
                raise StopCopying.of(exc) from exc
            self._outcome.fail(path, f"cannot be named: {exc.strerror or exc}")  # case B12
            return None
        copied = CopiedFile(
            path=path,
            source=each.item.file.identity,
            target=identify(fd),
            digest=digest,
            is_quiet=each.read.is_quiet,
            is_read_back=True,
        )
        return judged(copied, each.read, item=each.item)

    def _is_there(self, item: Item) -> bool:
        """True if DST has the name and the file is settled, one way or the other."""
        folder, _, name = item.file.path.rpartition("/")
        if name not in self._tools.names.get(folder, frozenset()):
            return False
        try:
            source, target = self._folder(item, is_target=False), self._folder(item, is_target=True)
            return settle_existing(self._tools, item, folders=(source, target), outcome=self._outcome)
        except (OSError, SpoolUnreadable) as exc:
            self._outcome.fail(item.file.path, f"cannot be compared: {getattr(exc, 'strerror', None) or exc}")
            return True

    def _folder(self, item: Item, *, is_target: bool) -> Folder:
        path = parent_of(item.file.path)
        known = self._folders.get((is_target, path))
        if known is not None:
            return known
        target = self._tools.target
        folder = self._held.enter_context(open_folder(target.folder if is_target else target.trees.source, path))
        if is_target and os.fstat(folder.fd).st_dev != target.device:
            raise OSError(errno.EXDEV, "another file system is mounted there")
        self._folders[is_target, path] = folder
        return folder

"""Copies of files: written without a name, synced, read back from the device, compared, and only then named.

Duty: one batch of small files or one large file at a time, several at once (`docs/design/migrate.md`, order 4). Must
never overwrite or drop a name in DST: what is there under the name of a file is compared with it.
"""

from __future__ import annotations

import errno
import os
import resource
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass

from durastore.errors import NO_ROOM, DiskFailed, RootMismatch, SpoolUnreadable
from durastore.fsio.cache import drop_cached, read_ahead
from durastore.fsio.folder import Folder
from durastore.fsio.identity import identify
from durastore.fsio.past_cache import writing_past_cache
from durastore.fsio.paths import open_folder
from durastore.fsio.publish import TempFile, write_all
from durastore.fsio.rate import RateStopped
from durastore.migrate.durable import DurableNames
from durastore.migrate.existing import settle_existing
from durastore.migrate.metadata import NO_ATIME, set_file_meta
from durastore.migrate.outcome import Item, Outcome, StopCopying, cut_units
from durastore.migrate.reading import Sink, SourceChanged, SourceRead, read_copy, read_dropped
from durastore.migrate.record import Proven
from durastore.migrate.scan import parent_of
from durastore.migrate.tools import CopyTools, judged, sync_file
from durastore.verify.copied import CopiedFile

__all__ = ["LARGE_BYTES", "copy_files"]

LARGE_BYTES = 2 << 20
_BATCH_FILES = 512
_BATCH_BYTES = 32 << 20
_BATCH_FOLDERS = 16
_AHEAD_FILES = 32
"""Sources that are open, and asked for, before their turn: the device sorts its reads, and nobody waits for one."""
_SPARE_FILES = 128
_LEAST_SHARE = 24


class TargetFailed(Exception):
    """Writing failed; the cause is an OSError of the target's side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """A copy without a name."""

    item: Item
    temp: TempFile
    read: SourceRead


def copy_files(tools: CopyTools, items: Sequence[Item], *, outcome: Outcome) -> None:
    """Copy and prove all of them, as far as they can be. What failed, and what stopped it, is in `outcome`.

    Names made by this are durable when it returns, or their files are in doubt.
    """
    share = _Share.of(tools.jobs)
    copier = _Copier(tools, outcome, ahead=share.ahead if tools.reader.is_unlimited else 0)
    units = cut_units(items, large_bytes=LARGE_BYTES, limits=(share.files, _BATCH_BYTES, share.folders))
    with ThreadPoolExecutor(share.jobs, thread_name_prefix="durastore-migrate") as pool:
        try:
            list(pool.map(copier.work, units))
        except BaseException:
            outcome.stop("interrupted")  # Ctrl-C: the pool waits for its threads, which would go on to the end
            raise
    copier.finish()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Share:
    """What each of so many threads may have open: the process may have so many descriptors, and no more."""

    jobs: int
    files: int
    """Copies of one batch."""
    folders: int
    """On each side."""
    ahead: int
    """Sources before their turn."""

    @classmethod
    def of(cls, jobs: int) -> _Share:
        allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        free = max(allowed - _open_files() - _SPARE_FILES, _LEAST_SHARE)
        jobs = min(jobs, free // _LEAST_SHARE)
        share = free // jobs
        ahead, folders = min(_AHEAD_FILES, share // 8), min(_BATCH_FOLDERS, share // 8)
        files = min(_BATCH_FILES, share - ahead - 2 * folders - 2)
        return cls(jobs=jobs, files=files, folders=folders, ahead=ahead)


def _open_files() -> int:
    """What this process has open already: a program of the caller's may have more than we open in all."""
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 0  # not Linux: what is spare has to do


class _Copier:
    """Thread-safe: each thread works on a unit of its own."""

    def __init__(self, tools: CopyTools, outcome: Outcome, *, ahead: int) -> None:
        self._tools = tools
        self._outcome = outcome
        self.ahead = ahead
        self.names = DurableNames(tools.target, tools.log)

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
        """The last names are durable, and on record; also of a run that was stopped, whose report calls them proven."""
        try:
            self.names.finish()
        except (StopCopying, DiskFailed, OSError) as exc:
            self._outcome.stop(str(exc))
            for path in self.names.undurable():
                self._outcome.doubt(path, "it was copied, and its name could not be made durable")

    def note(self, copies: Sequence[Proven]) -> None:
        """They have their names."""
        self._outcome.copy(copies)
        self.names.note(copies)


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
        with closing(self._sources(items)) as sources:
            written = [each for item, source in sources if (each := self._written(item, source)) is not None]
        if not written:
            return
        self._copier.names.sync([each.temp.fd for each in written])
        for each in written:  # all of them dropped, then all asked for: the device sorts its reads
            drop_cached(each.temp.fd)
        for each in written:
            read_ahead(each.temp.fd)
        named: list[Proven] = []
        try:
            for each in written:
                proven = self._named(each)
                if proven is not None:
                    named.append(proven)
        finally:
            self._copier.note(named)
        self._copier.names.sync_due()

    def _copy_large(self, item: Item) -> None:
        with closing(self._sources([item])) as sources:
            (each,) = (self._written(item, source) for _, source in sources)
        if each is None:
            return
        sync_file(each.temp.fd)
        proven = self._named(each)
        if proven is not None:
            self._copier.note([proven])
            self._copier.names.sync_due()

    def _sources(self, items: list[Item]) -> Generator[tuple[Item, int | Exception], None, None]:
        """Each with its open source, or why it cannot be opened. Small ones are asked for some files ahead."""
        files_ahead = self._copier.ahead if len(items) > 1 else 0
        ahead: deque[tuple[Item, int | Exception]] = deque()
        left = iter(items)
        try:
            while True:
                while len(ahead) <= files_ahead and (item := next(left, None)) is not None:
                    ahead.append((item, self._opened(item, is_ahead=files_ahead > 0)))
                if not ahead:
                    return
                yield ahead[0]
                _close(ahead.popleft()[1])
        finally:
            for _, source in ahead:
                _close(source)

    def _opened(self, item: Item, *, is_ahead: bool) -> int | Exception:
        try:
            fd = self._folder(item, is_target=False).open_read(item.file.path.rpartition("/")[2])
        except (OSError, SpoolUnreadable) as exc:
            return exc
        if is_ahead:
            read_ahead(fd)
        return fd

    def _written(self, item: Item, source: int | Exception) -> _Written | None:
        """The copy, written and unnamed; None if the file failed. `StopCopying` if no other can do better."""
        path = item.file.path
        try:
            target = self._folder(item, is_target=True)
        except OSError as exc:
            self._outcome.fail(path, f"its folder in the destination: {exc.strerror or exc}")  # case B13
            return None
        try:
            temp = TempFile.open(target, temps=self._tools.target.temps, flags=NO_ATIME)
        except DiskFailed as exc:
            if exc.is_full:
                raise StopCopying.of(exc) from exc  # case B115
            self._outcome.fail(path, exc.message)
            return None
        self._held.enter_context(temp)
        try:
            if isinstance(source, Exception):
                raise source
            return _Written(item=item, temp=temp, read=self._read_into(temp, item, source=source))
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
        return None

    def _read_into(self, temp: TempFile, item: Item, *, source: int) -> SourceRead:
        """Bytes, mode and times; `TargetFailed` where it is not the source that fails."""
        fd = temp.fd
        if item.file.identity.size_bytes >= LARGE_BYTES:
            with writing_past_cache(fd) as write:
                read = self._tools.reader.read(source, item.file, take=_to_target(write))
        else:
            read = self._tools.reader.read(source, item.file, take=_to_target(lambda block: write_all(fd, [block])))
        try:
            set_file_meta(fd, item.file.meta)
        except OSError as exc:
            raise TargetFailed(str(exc)) from exc
        return read

    def _named(self, each: _Written) -> Proven | None:
        """Read back, compared, named (M1); None if the file failed."""
        path, fd = each.item.file.path, each.temp.fd
        size_bytes = each.item.file.identity.size_bytes
        try:
            digest = (read_copy if size_bytes >= LARGE_BYTES else read_dropped)(fd, size_bytes)
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
        return judged(copied, each.read, item=each.item, tools=self._tools)

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


def _to_target(write: Callable[[memoryview], object]) -> Sink:
    def take(block: memoryview) -> None:
        try:
            write(block)
        except OSError as exc:
            raise TargetFailed(str(exc)) from exc

    return take


def _close(source: int | Exception) -> None:
    if isinstance(source, int):
        os.close(source)

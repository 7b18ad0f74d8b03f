"""One process's place on disk: its lock, packs, quarantine and journal.

Duty: claim a spool by the kernel's lock and hold everything in it open, so that no path is trusted twice. Each open
mints a new writer id, so that no name or number of an earlier process can be used again. Must never break a lock, and
never unlink.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable
from contextlib import ExitStack, suppress

from durastore.clock import Clock
from durastore.errors import (
    ConfigError,
    DiskFailed,
    DurastoreError,
    RootMismatch,
    SpoolLocked,
    SpoolUnreadable,
    UnsupportedFilesystem,
)
from durastore.formats.spool_root import (
    BALLAST_NAME,
    LOCK_NAME,
    PACKS_NAME,
    QUARANTINE_NAME,
    parse_spool_name,
    render_spool_name,
)
from durastore.formats.status import SLOT_BYTES
from durastore.fsio.ballast import Ballast
from durastore.fsio.folder import Folder
from durastore.fsio.lock import FlockedFile
from durastore.fsio.publish import publish
from durastore.fsio.space import disk_bytes, free_bytes
from durastore.fsio.status_file import StatusFile
from durastore.model import Evidence, PackState, WriterId
from durastore.spool.journal import Journal, PackRecord
from durastore.spool.journal_file import set_aside
from durastore.spool.pack_bytes import is_sealed_content
from durastore.spool.records import FACT_PREFIX, FACT_URL, WITHOUT_FILE
from durastore.spool.recovery import RecoveryReport, recover_spool
from durastore.spool.root import SpoolRoot
from durastore.spool.salvage import Place, SalvageReport, salvage_pack

__all__ = ["Spool", "claim_idle_siblings", "find_locked", "how_to_empty", "spool_numbers"]

_BALLAST_BYTES = 32 << 20


class Spool:
    """A claimed spool. Close it to let another process have it; what is in it stays."""

    def __init__(self, root: SpoolRoot, folder: Folder, *, lock: FlockedFile, clock: Clock) -> None:
        """Open what is in the locked `folder`; `claim` is the way to get one. `JournalFailed`, `FormatUnsupported`."""
        self.root = root
        self.path = folder.path
        self.writer = WriterId.mint()
        self._folder = folder
        self._lock = lock
        self._lock_identity = folder.identity(LOCK_NAME)
        self._prefix: str | None = None
        with ExitStack() as opened:
            self.packs_folder = opened.enter_context(folder.ensure_child(PACKS_NAME))
            self.quarantine_folder = opened.enter_context(folder.ensure_child(QUARANTINE_NAME))
            for made in (root.folder, folder, self.packs_folder, self.quarantine_folder):
                made.sync()  # names that an earlier process made and could not sync any more
            self.ballast = Ballast(folder, BALLAST_NAME, size_bytes=_BALLAST_BYTES)
            # a spool on a full disk must open, or nothing could ever be drained from it
            self.ballast.release_if_scarce()
            self.journal = Journal(
                folder,
                self.quarantine_folder,
                writer=self.writer,
                is_wal=root.filesystem.is_local_disk,  # WAL needs shared memory that network file systems do not have
                has_packs=bool(self.packs_folder.names()),
            )
            opened.pop_all()
        self.journal.rest_on(self.ballast)
        self.ballast.ensure()
        with suppress(OSError):
            lock.note(f"{clock.now_ns()} pid {os.getpid()} writer {self.writer}\n")

    @classmethod
    def claim(cls, root: SpoolRoot, *, clock: Clock) -> Spool:
        """The unlocked spool of the lowest number, or a new one. Two processes never get the same.

        `UnsupportedFilesystem` where locks do not exclude; errors of the journal pass through.
        """
        numbers = spool_numbers(root)
        following = max(numbers, default=-1) + 1
        for number in [*numbers, *range(following, following + 10_000)]:
            spool = _try_claim(root, number, clock=clock)
            if spool is not None:
                return spool
        raise SpoolLocked(f"no spool of {root.path} can be claimed")

    @classmethod
    def claim_first(cls, root: SpoolRoot, *, clock: Clock) -> Spool:
        """The first spool of a root that has only this one; `SpoolLocked` where another process works in it."""
        spool = _try_claim(root, 0, clock=clock)
        if spool is None:
            raise SpoolLocked(f"another process works in {root.path}", hint="wait for it, or stop it")
        return spool

    @property
    def prefix(self) -> str:
        """The bucket prefix that the keys of this spool's packs begin with."""
        if self._prefix is None:
            raise DurastoreError(f"spool {self.path} is not bound to a bucket prefix yet")
        return self._prefix

    def bind(self, prefix: str) -> None:
        """Tell which bucket prefix the packs are for; to be done before `recover`. Safe to repeat.

        `ConfigError` if the spool still holds packs for another prefix: their keys would change.
        """
        known = self.journal.get_fact(FACT_PREFIX)
        if known is not None and known != prefix:
            left = [record for record in self.journal.packs() if record.state is not PackState.RECLAIMED]
            if left:
                raise ConfigError(
                    f"spool {self.path} still holds {len(left)} packs for prefix {known!r}, not {prefix!r}",
                    hint=how_to_empty(self.root.path, url=self.journal.get_fact(FACT_URL)),
                )
        if known != prefix:
            self.journal.set_fact(FACT_PREFIX, prefix)
        self._prefix = prefix

    def recover(self) -> RecoveryReport:
        """Settle what the last process left (see `recovery`). Before any pack writer; safe to repeat."""
        return recover_spool(self._place())

    def salvage(self, pack_id: int, *, reason: str) -> SalvageReport:
        """Copy what still matches of a pack into a new sealed file under the same pack id; see `salvage_pack`."""
        return salvage_pack(self._place(), self.journal.pack(pack_id), reason=reason)

    def record_lost(self, pack_id: int, *, reason: str) -> SalvageReport:
        """The bucket has no copy either: what a file set aside still holds is salvaged, the rest is LOST."""
        return self.salvage(pack_id, reason=reason)

    def settle_without_file(self, pack_id: int, evidence: Evidence) -> None:
        """A pack whose file is gone or damaged, and whose object gave every byte back: VERIFIED; what is left of the
        file is set aside first, so that a crash in between leaves a question to the bucket and not a loss.
        """
        record = self.journal.pack(pack_id)
        if record.state is PackState.SEALED:
            self.journal.move_back(pack_id, PackState.UNKNOWN, reason="its file is not what was sealed")
        if self.packs_folder.has(record.name):
            set_aside(self.packs_folder, record.name, quarantine=self.quarantine_folder)
        self.journal.record_verified_without_file(pack_id, evidence)

    def bring_back(self, pack_id: int, chunks: Iterable[bytes]) -> SalvageReport:
        """A LOST pack from the bytes of its object: under a new name and key, like one whose file is back.

        `FileExistsError`, `DiskFailed`, or what ends `chunks`: nothing changed then. A crash in between leaves the file
        under the LOST pack's name, where recovery finds it.
        """
        record = self.journal.pack(pack_id)
        publish(self.packs_folder, record.name, chunks=chunks, expect_size=record.size_bytes)
        return self.salvage(pack_id, reason="its object is back, its rows are not")

    def quarantine(self, pack_id: int, *, reason: str) -> None:
        """Put a pack's doubtful file aside; the pack is QUARANTINED. Safe to repeat."""
        record = self.journal.pack(pack_id)
        if record.state is not PackState.QUARANTINED:
            # the record first: a crash in between leaves a doubted pack, not one whose file seems lost
            self.journal.move_back(pack_id, PackState.QUARANTINED, reason=reason)
        if self.packs_folder.has(record.name):
            set_aside(self.packs_folder, record.name, quarantine=self.quarantine_folder)

    def is_intact(self, record: PackRecord) -> bool:
        """True if the local file holds exactly the sealed bytes, hashed now. `SpoolUnreadable` if it cannot be read."""
        try:
            fd = self.packs_folder.open_read(record.name)
        except FileNotFoundError:
            return False
        try:
            return is_sealed_content(fd, record)
        finally:
            os.close(fd)

    def status_file(self, name: str) -> StatusFile:
        """A file of this spool for people to look at. Close it before the spool."""
        return StatusFile(self._folder, name, slot_bytes=SLOT_BYTES)

    def used_bytes(self) -> int:
        """Bytes of the pack files on record; cheap enough for every put."""
        return self.journal.used_bytes()

    def free_bytes(self) -> int:
        """Bytes that may still be written on the spool's file system."""
        return free_bytes(self.path)

    def disk_bytes(self) -> int:
        """Size of the spool's file system."""
        return disk_bytes(self.path)

    def quarantined_bytes(self) -> int:
        """Bytes of the files in quarantine."""
        total = 0
        for name in self.quarantine_folder.names():
            with suppress(
                SpoolUnreadable, FileNotFoundError
            ):  # a folder, or just taken out: both by an operator's hand
                total += self.quarantine_folder.identity(name).size_bytes
        return total

    def check_held(self) -> None:
        """Pass if this is still our spool: lock held, root, folder and lock file the ones we opened.

        `SpoolLocked` if the lock is not this process's, `RootMismatch` if a path leads elsewhere by now.
        """
        if not self._lock.is_held:
            raise SpoolLocked(f"the lock of spool {self.path} is not held by this process")
        self.root.check()
        try:
            with self.root.folder.child(self.path.name) as folder, folder.child(PACKS_NAME) as packs:
                lock = folder.identity(LOCK_NAME)
                is_same = _is_same(packs, self.packs_folder) and lock.is_same_inode(self._lock_identity)
        except OSError as exc:
            raise RootMismatch(f"spool {self.path} is not there any more: {exc.strerror}") from exc
        if not is_same:
            raise RootMismatch(f"spool {self.path} is another directory than the one opened")

    def close(self) -> None:
        """Close the journal, then let the lock go. Safe to repeat. The root stays open."""
        try:
            self.journal.close()
        finally:
            self.packs_folder.close()
            self.quarantine_folder.close()
            self._folder.close()
            self._lock.close()

    def _place(self) -> Place:
        return Place(
            packs=self.packs_folder,
            quarantine=self.quarantine_folder,
            journal=self.journal,
            writer=self.writer,
            prefix=self.prefix,
        )


def how_to_empty(root: str | os.PathLike[str], *, url: str | None) -> str:
    """What to type before a spool root can be used for another bucket or prefix than `url`, its own."""
    words = ["durastore", "drain", "--local", os.fspath(root), *(["--bucket", url] if url is not None else [])]
    command = shlex.join([*words, "--reclaim", "eager"])
    return f"use another --local; or bring these to their own bucket and free them first: {command}"


def claim_idle_siblings(root: SpoolRoot, *, clock: Clock) -> list[Spool]:
    """Every unlocked spool of the root that still has packs: its process is gone, so somebody else has to drain it."""
    claimed: list[Spool] = []
    with ExitStack() as held:  # if one cannot be opened, those before it must not stay locked by this process
        for number in spool_numbers(root):
            spool = _try_claim(root, number, clock=clock)
            if spool is None:
                continue
            held.callback(spool.close)
            if spool.packs_folder.names() or spool.journal.count_by_state().keys() - WITHOUT_FILE:
                claimed.append(spool)
            else:
                spool.close()
        held.pop_all()
    return claimed


def find_locked(root: SpoolRoot, *, held: Iterable[Spool]) -> list[str]:
    """Names of the spools that another process holds at this moment; `held` are this process's own."""
    own = {spool.path.name for spool in held}
    locked: list[str] = []
    for number in spool_numbers(root):
        name = render_spool_name(number)
        if name in own:
            continue
        with root.folder.child(name) as folder:
            lock = FlockedFile.try_lock(folder, LOCK_NAME)
            if lock is None:
                locked.append(name)
            else:
                lock.close()
    return locked


def spool_numbers(root: SpoolRoot) -> list[int]:
    """The numbers of all spools that were ever made in the root, sorted."""
    numbers = map(parse_spool_name, root.folder.names())
    return sorted(number for number in numbers if number is not None)


def _try_claim(root: SpoolRoot, number: int, *, clock: Clock) -> Spool | None:
    try:
        return _claimed(root, number, clock=clock)
    except OSError as exc:
        error = DiskFailed(f"opening spool {root.path / render_spool_name(number)}: {exc.strerror}", errno=exc.errno)
        if error.is_full:
            error.hint = "free some space on this disk, or use another --local"
        raise error from exc


def _claimed(root: SpoolRoot, number: int, *, clock: Clock) -> Spool | None:
    with ExitStack() as opened:
        folder = opened.enter_context(root.folder.ensure_child(render_spool_name(number)))
        lock = FlockedFile.try_lock(folder, LOCK_NAME)
        if lock is None:
            return None
        opened.callback(lock.close)
        if FlockedFile.try_lock(folder, LOCK_NAME) is not None:
            # a file system that emulates locks per process grants it twice (case B125)
            raise UnsupportedFilesystem(f"locks on {folder.path} do not exclude", hint="use a local disk for the spool")
        root.check()  # with the lock in hand: a migrate that marks the root after this sees the spool
        spool = Spool(root, folder, lock=lock, clock=clock)
        opened.pop_all()
        return spool


def _is_same(one: Folder, other: Folder) -> bool:
    first, second = os.fstat(one.fd), os.fstat(other.fd)
    return (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino)

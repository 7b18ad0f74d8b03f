"""Writing samples into packs: nobody is told that a sample is durable before it is.

Order of a group (INV-1, INV-2); what a crash leaves after each step, and what recovery makes of it:
1. an empty file is created and its folder synced         → an untracked empty file: set aside
2. the journal gets the OPEN pack                         → an OPEN pack without samples: forgotten
3. run member and samples are appended                    → the file is longer than recorded: nothing of it was
4. fdatasync                                                acknowledged; earlier samples are copied to a new pack
5. one journal transaction: rows and the new length       → the samples are durable, whether or not the caller heard it
6. `append` returns
Sealing: trailer → fdatasync → close → one journal transaction. A crash in between leaves an OPEN pack, which recovery
seals as it is or copies. A sample that is a pack of its own: whole file published → one transaction (pack, row, seal).
After a failed write or sync the file is abandoned: never written or synced again; the samples acknowledged from it are
read back, checked and copied into a new sealed pack under the same pack id; all waiters of the group get the error.
Must never hand out a row before step 5, and never unlink.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

from durastore.clock import Clock
from durastore.codec.encode import EncodedSample
from durastore.errors import DiskFailed, DurastoreError, JournalFailed, SpoolUnreadable, StoreClosed
from durastore.formats.keys import pack_key
from durastore.formats.pack import TRAILER, member_header, member_padding, run_member
from durastore.fsio.append import DurableFile
from durastore.fsio.identity import FileIdentity
from durastore.fsio.past_cache import write_past_cache
from durastore.fsio.publish import publish
from durastore.model import Digest, PackKind, PackState, Run, SampleEntry, Tombstone
from durastore.spool.journal import PackRecord, SealFacts
from durastore.spool.journal_file import set_aside
from durastore.spool.pack_bytes import PackHasher
from durastore.spool.records import LostSample, PackFile
from durastore.spool.spool import Spool

__all__ = ["PackLimits", "PackWriter", "WriterListener"]

Placed = tuple[int, SampleEntry]
Buffer = bytes | bytearray | memoryview
_SAVE_EVERY_S = 5.0
_SMALL_BYTES = 128 << 10
_MAX_UNRECORDED = 4
_HASH_BYTES = 256 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class PackLimits:
    """`target_bytes`: a tar is sealed once it holds this much. `single_bytes`: a sample from this size on is a pack of
    its own, and has to carry its run's text (`SampleContext.embed_run_above_bytes` has the same value).
    """

    target_bytes: int = 64 << 20
    single_bytes: int = 16 << 20


class WriterListener(Protocol):
    """Hears, under the writer's lock, what became durable and what turned out to be lost."""

    def on_durable(self, pack_id: int, entries: Sequence[SampleEntry]) -> None: ...

    def on_lost(self, lost: Sequence[LostSample]) -> None: ...


class _OpenPack:
    """The tar being written: its file, its pack id and the hash of all that was appended."""

    __slots__ = ("file", "hasher", "opened_at", "pack_id", "place")

    def __init__(self, place: PackFile, file: DurableFile, *, pack_id: int, opened_at: float) -> None:
        self.place = place
        self.file = file
        self.pack_id = pack_id
        self.opened_at = opened_at
        self.hasher = PackHasher()


class PackWriter:
    """The one writer of a spool's packs. Thread-safe: one group at a time."""

    def __init__(
        self, spool: Spool, run: Run, *, limits: PackLimits, clock: Clock, listener: WriterListener | None = None
    ) -> None:
        """The spool must be bound to its prefix, and recovered."""
        self._listener = listener
        self._spool = spool
        self._journal = spool.journal
        self._prefix = spool.prefix
        self._run = run
        self._limits = limits
        self._clock = clock
        self._lock = threading.Lock()
        self._open: _OpenPack | None = None
        self._abandoned: dict[int, str] = {}
        self._unrecorded: dict[tuple[Digest, int], tuple[PackFile, SealFacts]] = {}
        self._save_at = 0.0
        self._lost: list[LostSample] = []
        self._failure: DurastoreError | None = None
        self._journal.add_run(run)

    def append(self, samples: Sequence[EncodedSample], supersedes: Sequence[Tombstone] = ()) -> list[Placed]:
        """Make a group of samples durable; returns pack id and entry of each, in order, once all of them are (INV-1).

        `supersedes`: the manifest rows that these samples take the place of; recorded together with their own rows.
        `DiskFailed` if a write or sync failed, `JournalFailed` if the journal did: then no sample of the group counts
        as acknowledged, although some may turn out to be durable. Not to be repeated after `JournalFailed`.
        """
        with self._using():
            for sample in samples:
                if sample.run.hex != self._run.digest.hex:
                    raise DurastoreError(f"sample {sample.sample_id} belongs to another run than this writer's")
            placed: dict[int, Placed] = {}
            for batch in self._batches(samples):
                if samples[batch[0]].length >= self._limits.single_bytes:
                    placed[batch[0]] = self._publish_single(samples[batch[0]], supersedes)
                else:
                    batch_samples = [samples[i] for i in batch]
                    placed.update(zip(batch, self._append_batch(batch_samples, supersedes), strict=True))
            return [placed[i] for i in range(len(samples))]

    def seal_open(self) -> PackRecord | None:
        """Seal the open tar, if it holds a sample; also saves what an earlier failure left to be saved.

        `DiskFailed` if that is not possible now, or if acknowledged samples turned out to be unreadable (once, naming
        them; the journal keeps them as LOST). A copy that waits for room does not keep the open tar from being sealed:
        the error comes after that. Safe to repeat.
        """
        with self._using():
            waiting = self._save_abandoned()
            # sealed all the same: only what is sealed is sent, and freed, which makes the room that is waited for
            record = self._seal(self._open) if self._open is not None else None
            if self._lost:
                lost, self._lost = self._lost, []
                names = ", ".join(sample.sample_id.text for sample in lost[:10])
                raise SpoolUnreadable(f"{len(lost)} acknowledged samples cannot be read back: {names}")
            if waiting is not None:
                raise waiting
            return record

    def open_age_s(self) -> float | None:
        """Seconds since the open tar was begun; None without one. Infinite while `seal_open` has something to save or
        to tell (while saving fails: every few seconds).
        """
        with self._lock:
            now = self._clock.monotonic()
            if self._lost or (self._abandoned and now >= self._save_at):
                return float("inf")
            return now - self._open.opened_at if self._open is not None else None

    def close(self) -> None:
        """Release the file without sealing it: the next open seals it. Safe to repeat."""
        with self._lock:
            pack, self._open = self._open, None
            self._failure = self._failure or StoreClosed("the pack writer is closed")
            while self._unrecorded:
                self._set_aside_unrecorded()
            if pack is not None:
                pack.file.close()

    # --- groups ----------------------------------------------------------------------------------------------------

    def _batches(self, samples: Sequence[EncodedSample]) -> list[list[int]]:
        """Indices in groups that each go to one file: tars of about the target size, and large samples one by one."""
        batches: list[list[int]] = []
        batch: list[int] = []
        size = self._open.file.size if self._open is not None else 0
        for index, sample in enumerate(samples):
            if sample.length >= self._limits.single_bytes:
                batches.append([index])
                continue
            batch.append(index)
            size += sample.length
            if size >= self._limits.target_bytes:
                batches.append(batch)
                batch, size = [], 0
        return [*batches, batch] if batch else batches

    def _append_batch(self, samples: Sequence[EncodedSample], supersedes: Sequence[Tombstone]) -> list[Placed]:
        pack = self._open if self._open is not None else self._begin()
        with self._abandoning(pack):
            chunks, entries = self._frame(pack, samples)
            pack.file.append(chunks)
            pack.file.sync()
            # INV-2: the bytes are durable, now the rows may say so
            stones = _stones_of(samples, supersedes)
            self._journal.append_samples(pack.pack_id, entries, size_bytes=pack.file.size, tombstones=stones)
            self._tell_durable(pack.pack_id, entries)
        if pack.file.size >= self._limits.target_bytes:
            self._seal(pack)
        return [(pack.pack_id, entry) for entry in entries]

    def _begin(self) -> _OpenPack:
        place = self._next_file(PackKind.TAR)
        file = DurableFile.create(self._spool.packs_folder, place.name)
        try:
            record = self._journal.add_open_pack(place)
        except BaseException:
            file.close()  # an empty file that no pack names: the next open sets it aside
            raise
        self._open = _OpenPack(place, file, pack_id=record.pack_id, opened_at=self._clock.monotonic())
        return self._open

    def _next_file(self, kind: PackKind) -> PackFile:
        return PackFile(writer=self._spool.writer, seq=self._journal.next_pack_seq(self._spool.writer), kind=kind)

    def _frame(self, pack: _OpenPack, samples: Sequence[EncodedSample]) -> tuple[list[Buffer], list[SampleEntry]]:
        """The bytes to append for a group, hashed as they will stand in the file, and the entries they will have."""
        chunks: list[Buffer] = []
        entries: list[SampleEntry] = []
        now_ns = self._clock.now_ns()
        between = run_member(self._run) if pack.hasher.size_bytes == 0 else b""
        size = pack.hasher.size_bytes
        for sample in samples:
            between += member_header(sample.sample_id, sample.length)
            entries.append(sample.entry(offset=size + len(between), time_ns=now_ns))
            chunks += between, sample.header, *sample.payload
            size += len(between) + sample.length
            between = member_padding(sample.length)
        chunks.append(between)
        size += len(between)
        if size - pack.hasher.size_bytes < len(samples) * _SMALL_BYTES:
            chunks = [b"".join(chunks)]  # a copy costs less than a call for each of many small pieces
        for chunk in chunks:
            pack.hasher.update(chunk)
        if pack.hasher.size_bytes != size:
            raise DurastoreError(f"a sample is longer or shorter than it says ({pack.hasher.size_bytes}, not {size})")
        return chunks, entries

    def _publish_single(self, sample: EncodedSample, supersedes: Sequence[Tombstone]) -> Placed:
        key = (sample.header_digest, sample.length)
        place, facts = self._published_before(key) or self._publish(sample)
        entry = sample.entry(offset=0, time_ns=self._clock.now_ns())
        stones = _stones_of([sample], supersedes)
        try:
            record = self._journal.add_sealed_pack(place, facts=facts, entries=[entry], tombstones=stones)
        except DiskFailed as exc:
            if not isinstance(exc, JournalFailed):  # that one leaves open whether there is a row
                self._keep_unrecorded(key, (place, facts))
            raise
        self._tell_durable(record.pack_id, [entry])
        return record.pack_id, entry

    def _publish(self, sample: EncodedSample) -> tuple[PackFile, SealFacts]:
        place, hasher = self._next_file(PackKind.SAFETENSORS), PackHasher()
        identity = publish(
            self._spool.packs_folder,
            place.name,
            chunks=_hashed(sample.chunks(), hasher),
            expect_size=sample.length,
            write=write_past_cache,
        )
        return place, self._facts(place, hasher, identity=identity)

    def _published_before(self, key: tuple[Digest, int]) -> tuple[PackFile, SealFacts] | None:
        published = self._unrecorded.pop(key, None)
        if published is None:
            return None
        place, facts = published
        with suppress(DiskFailed, OSError):
            if self._spool.packs_folder.identity(place.name) == facts.identity:
                return published
        return None  # not what was published: no row may say that it is (INV-2)

    def _keep_unrecorded(self, key: tuple[Digest, int], published: tuple[PackFile, SealFacts]) -> None:
        """The disk had room for the file and none for its row: the put that tries again must not fill it with copies.
        A header's digest covers id and content. What nobody asks for again is set aside: it was never acknowledged.
        """
        self._unrecorded[key] = published
        while len(self._unrecorded) > _MAX_UNRECORDED:
            self._set_aside_unrecorded()

    def _set_aside_unrecorded(self) -> None:
        """The oldest of them; where that fails, the next open does it."""
        place, _ = self._unrecorded.pop(next(iter(self._unrecorded)))
        with suppress(DiskFailed, OSError):
            set_aside(self._spool.packs_folder, place.name, quarantine=self._spool.quarantine_folder)

    def _tell_durable(self, pack_id: int, entries: Sequence[SampleEntry]) -> None:
        """At once, and not when `append` returns: a later batch of the group may fail, and these rows are durable."""
        if self._listener is not None:
            self._listener.on_durable(pack_id, entries)

    # --- sealing ---------------------------------------------------------------------------------------------------

    def _seal(self, pack: _OpenPack) -> PackRecord:
        # a full disk that refused the trailer would cost a copy of the whole pack, and only sealed packs make room
        self._spool.ballast.release_if_scarce()
        with self._abandoning(pack):
            pack.hasher.update(TRAILER)
            pack.file.append([TRAILER])
            pack.file.sync()
            identity = pack.file.identity()
            pack.file.close()  # an error reported only now (quota, network disk) still counts (case B111)
            record = self._journal.seal(pack.pack_id, self._facts(pack.place, pack.hasher, identity=identity))
            self._open = None
        return record

    def _facts(self, place: PackFile, hasher: PackHasher, *, identity: FileIdentity) -> SealFacts:
        digest = hasher.digest()
        if identity.size_bytes != hasher.size_bytes:
            raise DiskFailed(f"{place.name} has {identity.size_bytes} bytes instead of {hasher.size_bytes}")
        return SealFacts(
            size_bytes=hasher.size_bytes,
            digest=digest,
            crc64nvme=hasher.crc64nvme(),
            key=pack_key(self._prefix, place.writer, seq=place.seq, digest=digest, kind=place.kind),
            identity=identity,
        )

    # --- failures --------------------------------------------------------------------------------------------------

    @contextmanager
    def _using(self) -> Iterator[None]:
        with self._lock:
            if self._failure is not None:
                raise StoreClosed(f"the pack writer stopped: {self._failure.message}") from self._failure
            try:
                yield
            except JournalFailed as exc:
                self._failure = exc  # no row can be written any more, so no sample may be taken
                raise

    @contextmanager
    def _abandoning(self, pack: _OpenPack) -> Iterator[None]:
        """Whatever ends the block early (a disk error, Ctrl-C), the file of `pack` is never written or synced again:
        nobody can tell what of the last group is in it, in the page cache or on the disk.
        """
        try:
            yield
        except BaseException as exc:
            self._open = None
            self._abandoned[pack.pack_id] = f"abandoned after: {exc!r}"
            with suppress(DiskFailed):  # the error that counts is already on its way
                pack.file.close()
            if isinstance(exc, DiskFailed) and not isinstance(exc, JournalFailed):
                with suppress(DiskFailed):  # a full disk refuses the copy too: `seal_open` tries again, and raises
                    self._save_abandoned()
            raise

    def _save_abandoned(self) -> DiskFailed | None:
        """Copy what was acknowledged from abandoned files into new sealed packs. Returns why the first of those that
        found no room has to wait; the others are saved all the same.
        """
        self._save_at = self._clock.monotonic() + _SAVE_EVERY_S
        waiting: DiskFailed | None = None
        for pack_id, reason in list(self._abandoned.items()):
            try:
                self._save(pack_id, reason=reason)
            except DiskFailed as exc:
                if not exc.is_full:
                    raise
                waiting = waiting or exc
        return waiting

    def _save(self, pack_id: int, *, reason: str) -> None:
        record = self._journal.pack(pack_id)
        if record.state is not PackState.OPEN:
            # sealed before whoever sealed it was interrupted: a whole file, on its way, and not the writer's any more
            del self._abandoned[pack_id]
            return
        self._require_room_for_copy(record)
        report = self._spool.salvage(pack_id, reason=reason)
        del self._abandoned[pack_id]  # it is on record: whatever follows, it is not copied once more
        self._lost.extend(report.lost)
        if report.lost and self._listener is not None:
            self._listener.on_lost(report.lost)  # before any caller: who puts one of them again gets it stored
        report.raise_unless_full()

    def _require_room_for_copy(self, record: PackRecord) -> None:
        """A copy that cannot end well would take, for a moment, the last space that the journal's records need."""
        wanted = (record.size_bytes or 0) if record.sample_count else 0
        if wanted > self._spool.free_bytes():
            raise DiskFailed(f"no room to copy the {wanted} bytes of abandoned pack {record.name}", errno=errno.ENOSPC)


def _hashed(chunks: Iterable[Buffer], hasher: PackHasher) -> Iterator[Buffer]:
    """The bytes in pieces that the processor's cache still holds when they are copied a moment later."""
    for chunk in chunks:
        view = memoryview(chunk)
        for start in range(0, len(view), _HASH_BYTES):
            piece = view[start : start + _HASH_BYTES]
            hasher.update(piece)
            yield piece


def _stones_of(samples: Sequence[EncodedSample], supersedes: Sequence[Tombstone]) -> list[Tombstone]:
    ids = {sample.sample_id for sample in samples} if supersedes else ()
    return [stone for stone in supersedes if stone.sample_id in ids]

"""Sending files as they are: hashed, uploaded, read back in full, listed in a manifest segment that was read back.

Order for each batch (INV-2, INV-5): hash -> upload -> read the object back -> one segment with the rows of all that
were read back. A crash in between leaves objects without rows, which the next run reads and lists. Must never list a
file whose object was not read back, and never send one that somebody is writing to.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TypeVar

from durastore.adopt.inspect import find_fault
from durastore.adopt.ledger import LAST_SEGMENT
from durastore.adopt.side_by_side import Work, run_side_by_side
from durastore.adopt.verbatim import EMPTY_RUN, HashedFile, as_listed, as_pack, as_row
from durastore.clock import SYSTEM_CLOCK, Clock
from durastore.errors import (
    BucketMissing,
    CredentialsRefused,
    DurastoreError,
    EndpointUnreachable,
    InvalidInput,
    NotVerified,
    SpoolUnreadable,
    StoreClosed,
)
from durastore.formats.file_keys import first_file_key
from durastore.formats.segment import SegmentContent, render_segment
from durastore.fsio.folder import Folder
from durastore.fsio.identity import identify
from durastore.fsio.lease import NotLeased, check_leased, leased
from durastore.fsio.paths import open_local
from durastore.fsio.traces import Traces
from durastore.manifest.segments import publish_segment
from durastore.model import Digest, Evidence, ManifestRow, ObjectKey, SampleId
from durastore.objectstore.port import ObjectReader, ObjectStore
from durastore.observe.events import Observer
from durastore.spool.journal import Journal
from durastore.spool.pack_bytes import PackHasher, hash_file
from durastore.spool.records import PackRecord
from durastore.spool.spool import Spool
from durastore.upload.engine import Uploader
from durastore.upload.job import UploadJob, UploadReply
from durastore.verify.remote import read_back

__all__ = ["RowPublisher", "SendReport", "Sender", "hash_local", "leased_where_it_can_be", "open_local"]

_BATCH_FILES = 2_000
_THREADS = 6
_BODY_BYTES = 1 << 20
_LEAST_PART_BYTES = 5 << 20
_STOPPING = (EndpointUnreachable, CredentialsRefused, BucketMissing, StoreClosed)
"""What no other file would fare better with."""


@dataclass(slots=True)
class SendReport:
    """What reached the manifest, and what did not and why."""

    observer: Observer
    """Hears `adopt.file` once a file was proven, or was not."""
    is_for_reclaim: bool
    """Whether files may be freed for what was seen of their objects."""
    listed: list[PackRecord] = field(default_factory=list)
    kept: dict[str, str] = field(default_factory=dict)
    """Path -> why it was not sent, or not proven."""
    unleased: set[str] = field(default_factory=set)
    """Paths that were hashed without a lease, or whose times would not show a change of this moment, or a mapped one:
    what their bytes were is not to be put on record.
    """
    sent_bytes: int = 0

    def paths(self) -> Iterator[str]:
        return (pack.name for pack in self.listed)


def hash_local(folder: Folder, path: SampleId, *, is_kept: bool = False) -> HashedFile:
    """The file as it is now. `NotVerified` where it is damaged, being written or changes; `SpoolUnreadable`.

    `is_kept`: of a small file the bytes come with it, the very ones that were hashed.
    """
    try:
        fd = open_local(folder, path.text)
    except OSError as exc:
        raise SpoolUnreadable(f"{path}: {exc.strerror}", errno=exc.errno) from exc
    try:
        with leased_where_it_can_be(fd, path.text) as is_leased:
            before = identify(fd)
            fault = find_fault(fd, path.text)
            if fault is not None and not fault.is_suspect:  # whether zeros at an end are taken for data, the plan says
                raise NotVerified(f"{path} {fault.reason}")
            is_in_memory = is_kept and before.size_bytes <= _BODY_BYTES
            hasher, body = _hash_small(fd, before.size_bytes) if is_in_memory else (hash_file(fd), None)
            if is_leased:
                check_leased(fd)
            is_settled = before.would_show_change(SYSTEM_CLOCK.now_ns())  # nobody could write until now
            if identify(fd) != before or hasher.size_bytes != before.size_bytes:
                raise NotVerified(f"{path} changes while it is read")
    except NotLeased as exc:
        raise NotVerified(f"{path}: {exc}") from exc
    except OSError as exc:
        raise SpoolUnreadable(f"{path}: {exc.strerror}", errno=exc.errno) from exc
    finally:
        os.close(fd)
    return HashedFile(
        path=path,
        identity=before,
        digest=hasher.digest(),
        crc64nvme=hasher.crc64nvme(),
        is_leased=is_leased and is_settled,
        body=body,
    )


def _hash_small(fd: int, size_bytes: int) -> tuple[PackHasher, bytes]:
    """One read, of one byte more than the file had: a file that grew since is found too long."""
    body, hasher = os.pread(fd, size_bytes + 1, 0), PackHasher()
    hasher.update(body)
    return hasher, body


@contextmanager
def leased_where_it_can_be(fd: int, path: str) -> Iterator[bool]:
    """`NotVerified` where somebody writes to the file; False where nobody can tell (no leases, another user's file)."""
    with ExitStack() as stack:
        is_leased = True
        try:
            stack.enter_context(leased(fd))
        except NotLeased as exc:
            if exc.is_writer:
                raise NotVerified(f"{path} is open for writing") from exc
            is_leased = False
        yield is_leased


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A file whose bytes are hashed and on their way."""

    path: SampleId
    pack: PackRecord
    future: Future[UploadReply]


class RowPublisher:
    """Writes segments of the private spool's writer, numbered on. One at a time."""

    def __init__(self, objects: ObjectStore, prefix: str, *, spool: Spool, check_bucket: Callable[[], None]) -> None:
        self._objects = objects
        self._prefix = prefix
        self._journal = spool.journal
        self._check_bucket = check_bucket
        self.writer = spool.writer
        self._next_seq = 1 + max(
            (w.last_segment_seq for w in self._journal.writers() if w.writer == spool.writer), default=0
        )

    def publish(self, content: SegmentContent) -> ObjectKey:
        """One segment, read back. After an error the number is used again, so that the sequence has no gap."""
        data = render_segment(content)
        self._journal.record_segment_started(self._next_seq, ())
        key = publish_segment(self._objects, data, prefix=self._prefix, writer=self.writer, seq=self._next_seq)
        self._next_seq += 1
        self._journal.set_fact(LAST_SEGMENT, key.text)
        self._check_bucket()  # what was proven before the bucket was made anew is not in it (case B164)
        return key

    def publish_rows(self, rows: Iterable[ManifestRow]) -> ObjectKey:
        """Rows of files."""
        return self.publish(SegmentContent(rows=tuple(rows), runs=(EMPTY_RUN,)))


class Sender:
    """Sends files of one held folder to one prefix."""

    def __init__(
        self,
        folder: Folder,
        objects: ObjectStore,
        *,
        prefix: str,
        uploader: Uploader,
        clock: Clock,
    ) -> None:
        self._folder = folder
        self._objects = objects
        self._prefix = prefix
        self._uploader = uploader
        self._clock = clock
        self._traces = Traces()

    def send(
        self,
        files: Mapping[SampleId, Sequence[ObjectKey]],
        *,
        publisher: RowPublisher,
        journal: Journal,
        observer: Observer,
        is_for_reclaim: bool = True,
    ) -> SendReport:
        """Send, prove and list them all; `files` has each path with the keys that its bytes may have in the bucket. A
        file that cannot be is in the report; an endpoint that is gone is raised, after what was read back has been
        listed. Safe to repeat: equal bytes have one key (INV-4).

        Not `is_for_reclaim`: no file is freed later for what is seen of its object now, which then costs less.
        """
        report = SendReport(observer=observer, is_for_reclaim=is_for_reclaim)
        with ThreadPoolExecutor(max_workers=_THREADS, thread_name_prefix="durastore-send") as pool:
            for batch in _batches(files.items()):
                self._send_batch(batch, pool, publisher=publisher, journal=journal, report=report)
        return report

    def _send_batch(
        self,
        files: list[tuple[SampleId, Sequence[ObjectKey]]],
        pool: ThreadPoolExecutor,
        *,
        publisher: RowPublisher,
        journal: Journal,
        report: SendReport,
    ) -> None:
        with closing(self._objects.fresh_reader()) as reader:  # not the uploader's connections
            turn = _Turn(self, reader=reader, journal=journal, report=report)
            work = Work(begin=turn.begin, end=turn.end, size_bytes=lambda begun: begun.pack.size_bytes or 0)
            run_side_by_side(files, work, pool=pool, threads=_THREADS)
        if turn.proven:
            at, now_ns = self._clock.stamp(), self._clock.now_ns()
            seen = [turn.proven[path] for path, _ in files if path in turn.proven]
            rows = [as_row(pack, evidence, writer=publisher.writer, time_ns=now_ns) for pack, evidence in seen]
            segment = publisher.publish_rows(rows)
            report.listed += [as_listed(pack, evidence, segment=segment, seen_at=at) for pack, evidence in seen]
            report.sent_bytes += sum(pack.size_bytes or 0 for pack, _ in seen)
        if turn.stopping:
            raise turn.stopping[0]

    def begin(self, path: SampleId, known: Sequence[ObjectKey], *, journal: Journal, report: SendReport) -> Begun:
        """Hash one file and hand it to the uploader."""
        file = hash_local(self._folder, path, is_kept=True)
        pack = as_pack(file, self._prefix, known=known)
        if not (file.is_leased and self._traces.are_left(file.identity.dev)):
            report.unleased.add(path.text)
        self._give_up_stale(file, pack, journal=journal)
        return Begun(path=path, pack=pack, future=self._upload(pack, file.body, journal=journal))

    def end(self, begun: Begun, *, reader: ObjectReader, journal: Journal, report: SendReport) -> Evidence:
        """Wait for its upload and read the object back."""
        begun.future.result()
        pack = begun.pack
        if (pack.size_bytes or 0) > _LEAST_PART_BYTES:
            journal.set_fact(_session_fact(pack.key), None)
        return read_back(reader, pack, clock=self._clock, is_for_reclaim=report.is_for_reclaim)

    def _give_up_stale(self, file: HashedFile, pack: PackRecord, *, journal: Journal) -> None:
        """An upload in parts that an ended process began: its parts cost money until it is aborted. It may have been
        one of an earlier version, to the key that this file had there.
        """
        if (pack.size_bytes or 0) <= _LEAST_PART_BYTES:
            return
        for key in {pack.key, first_file_key(self._prefix, file.path, digest=file.digest)}:
            text = journal.get_fact(_session_fact(key))
            if text is not None:
                assert key is not None
                self._objects.abort_upload(key, text)
                journal.set_fact(_session_fact(key), None)

    def _upload(self, pack: PackRecord, body: bytes | None, *, journal: Journal) -> Future[UploadReply]:
        assert pack.key is not None
        assert pack.digest is not None
        return self._uploader.submit(
            UploadJob(
                open_source=partial(open_local, self._folder, pack.name),
                key=pack.key,
                size_bytes=pack.size_bytes or 0,
                digest=pack.digest,
                crc64nvme=pack.crc64nvme or "",
                # the same at every attempt, of any process: the key names content and path
                write_id=Digest.of(pack.key.text.encode()).hex,
                session=None,
                on_session=lambda session: journal.set_fact(
                    _session_fact(pack.key), session.upload_id if session is not None else None
                ),
                on_part=lambda part: None,
                body=body,
            )
        )


class _Turn:
    """One batch on its way: what became of each file."""

    def __init__(self, sender: Sender, *, reader: ObjectReader, journal: Journal, report: SendReport) -> None:
        self._sender = sender
        self._reader = reader
        self._journal = journal
        self._report = report
        self.proven: dict[SampleId, tuple[PackRecord, Evidence]] = {}
        self.stopping: list[DurastoreError] = []

    def begin(self, wanted: tuple[SampleId, Sequence[ObjectKey]]) -> Begun | None:
        path, known = wanted
        try:
            self._heed_stop(path)
            return self._sender.begin(path, known, journal=self._journal, report=self._report)
        except (DurastoreError, OSError) as exc:
            self._keep(path, exc)
            return None

    def end(self, begun: Begun) -> None:
        try:
            self._heed_stop(begun.path)  # each would wait in vain for as long as the first did
            evidence = self._sender.end(begun, reader=self._reader, journal=self._journal, report=self._report)
        except (DurastoreError, OSError) as exc:
            self._keep(begun.path, exc)
            return
        self.proven[begun.path] = begun.pack, evidence
        self._report.observer.emit("adopt.file", is_proven=True)

    def _heed_stop(self, path: SampleId) -> None:
        if self.stopping:
            raise StoreClosed(f"{path} was not proven: {self.stopping[0].message}")

    def _keep(self, path: SampleId, exc: DurastoreError | OSError) -> None:
        if isinstance(exc, _STOPPING):
            self.stopping.append(exc)
        self._report.kept[path.text] = f"{path}: {exc.message}" if isinstance(exc, InvalidInput) else str(exc)
        self._report.observer.emit("adopt.file", is_proven=False)


def _session_fact(key: ObjectKey | None) -> str:
    return f"upload {key}"


T = TypeVar("T")


def _batches(files: Iterable[T]) -> Iterator[list[T]]:
    left = iter(files)
    while batch := list(islice(left, _BATCH_FILES)):
        yield batch

"""One sample out of the bucket into one file of the user's: whole, checked and durable under its name, or not there.

Order: look at what is there -> fetch -> check every byte against its digest (INV-7) -> fsync -> link to the final name,
which never overwrites -> fsync the folder. A large sample goes through a `.part` file beside the final name, called
after the sample's digest and that name: a run that was killed goes on with the chunks of it that still match, and
fetches the rest by range. Must never write outside the folder it was given, never through a link in it, and never over
a file.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import xxhash

from durastore.codec.encode import EncodedSample
from durastore.codec.header import SampleHeader, parse_header
from durastore.codec.selection import ChunkRead, plan_rows
from durastore.errors import (
    BucketMissing,
    CredentialsRefused,
    DiskFailed,
    DurastoreError,
    EndpointUnreachable,
    IntegrityError,
    InvalidInput,
)
from durastore.formats.pack import member_name
from durastore.fsio.folder import Folder
from durastore.fsio.lock import FlockedFile
from durastore.fsio.publish import publish, write_all
from durastore.fsio.relocate import relocate
from durastore.fsio.sys import SYS
from durastore.model import VERBATIM_SCHEMA, Digest, SampleEntry
from durastore.read.pinned import PinnedObject

__all__ = ["FOR_ALL", "FailedSample", "Landed", "Landing", "OpenedPlace", "is_verbatim", "require_same"]

FOR_ALL = (EndpointUnreachable, CredentialsRefused, BucketMissing, DiskFailed)
"""What no other sample would fare better with."""
_RANGE_BYTES = 32 << 20
_READ_BYTES = 8 << 20
_MAX_NAME_BYTES = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class Landed:
    """A sample that is on disk now; `is_new` False where a file of the same content was there before."""

    size_bytes: int
    is_new: bool
    fetched_bytes: int
    """What came from the bucket for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedSample:
    """A sample (or a file that is kept as one) that could not be had, and why."""

    id: str
    error: DurastoreError


class Landing:
    """Where samples go: a folder, in which each gets the name it has in a pack, or one file. Thread-safe."""

    def __init__(self, out: Path, *, is_file: bool) -> None:
        self._out = out
        self._is_file = is_file

    def path_of(self, entry: SampleEntry) -> Path:
        """`<id>.safetensors` below the folder, dots of the last segment as %2E (as members of a pack are called); a
        file that is kept as it was goes to the path that is its id.
        """
        if self._is_file:
            return self._out
        return self._out / (entry.sample_id.text if is_verbatim(entry) else member_name(entry.sample_id))

    def find(self, entry: SampleEntry) -> Landed | None:
        """The sample's file if it is there and whole: every byte of it is read. None if no file has its name.

        `InvalidInput` where another file has it, or the name cannot be one.
        """
        with self._opened(entry) as (folder, name):
            if not folder.has(name):
                return None
            require_same(folder, name, is_same=_is_stored_sample(folder, name, entry=entry))
        return Landed(size_bytes=entry.length, is_new=False, fetched_bytes=0)

    def land_bytes(self, entry: SampleEntry, data: bytes | memoryview) -> Landed:
        """Stored bytes that the caller has checked. Raises as `land_large`."""
        is_new = True
        with self._opened(entry) as (folder, name):
            try:
                publish(folder, name, chunks=[data], expect_size=entry.length)
            except FileExistsError:
                require_same(folder, name, is_same=_is_stored_sample(folder, name, entry=entry))
                is_new = False
        return Landed(size_bytes=entry.length, is_new=is_new, fetched_bytes=entry.length)

    def land_encoded(self, sample: EncodedSample) -> Landed:
        """A sample in another form than the stored one. Raises as `land_large`."""
        entry = sample.entry(offset=0, time_ns=0)
        with self._opened(entry) as (folder, name):
            is_new = not folder.has(name)
            if is_new:
                try:
                    publish(folder, name, chunks=sample.chunks(), expect_size=sample.length)
                except FileExistsError:  # made in this moment
                    is_new = False
            if not is_new:
                require_same(folder, name, is_same=_holds(folder, name, sample=sample))
        return Landed(size_bytes=sample.length, is_new=is_new, fetched_bytes=sample.length)

    def land_large(self, source: PinnedObject, entry: SampleEntry) -> Landed:
        """The stored bytes of a sample of any size, a few MiB in memory at a time. Safe to repeat: goes on.

        Raises `InvalidInput` where the name cannot be a file or is taken by other content, `IntegrityError` where the
        object's bytes do not match, `DiskFailed`.
        """
        found = self.find(entry)
        if found is not None:
            return found
        is_new = True
        with self._opened(entry) as (folder, name):
            # named by the final name as well: files of one content in one folder are fetched at the same time
            part = _part_name(entry, name)
            fetched = _fill(folder, part, source=source, entry=entry)
            try:
                relocate(folder, part, target=folder, new_name=name)
            except FileExistsError:  # made in this moment
                require_same(folder, name, is_same=_is_stored_sample(folder, name, entry=entry))
                is_new = False
        return Landed(size_bytes=entry.length, is_new=is_new, fetched_bytes=fetched)

    def _opened(self, entry: SampleEntry) -> OpenedPlace:
        path = self.path_of(entry)
        segments = [] if self._is_file else list(path.relative_to(self._out).parts[:-1])
        root = self._out.parent if self._is_file else self._out
        return OpenedPlace(root, segments, name=path.name)


class OpenedPlace:
    """The folder of one file, made where it lacks, walked without following a link below the root."""

    def __init__(self, root: Path, segments: Sequence[str], *, name: str) -> None:
        self._root = root
        self._segments = segments
        self._name = name
        self._folder: Folder | None = None

    def __enter__(self) -> tuple[Folder, str]:
        for text in (*self._segments, self._name):
            if len(os.fsencode(text)) > _MAX_NAME_BYTES:
                raise InvalidInput(f"{text[:40]!r}... has more than {_MAX_NAME_BYTES} bytes and cannot name a file")
        try:
            folder = Folder.create(self._root)
            for segment in self._segments:
                with folder as parent:
                    folder = parent.ensure_child(segment)
        except OSError as exc:
            where = self._root.joinpath(*self._segments)
            if exc.errno in (errno.ENOTDIR, errno.ELOOP):
                raise InvalidInput(f"{where} leads through something that is not a folder of its own") from exc
            raise DiskFailed(f"making {where}: {exc.strerror or exc}", errno=exc.errno) from exc
        self._folder = folder
        return folder, self._name

    def __exit__(self, *_: object) -> None:
        if self._folder is not None:
            self._folder.close()


def require_same(folder: Folder, name: str, *, is_same: bool) -> None:
    """`InvalidInput` where the file that has the name is another one."""
    if not is_same:
        raise InvalidInput(
            f"{folder.path / name} is there and is another file; it was left as it is", hint="give another --out"
        )


# --- what is on disk -----------------------------------------------------------------------------------------------


def _is_stored_sample(folder: Folder, name: str, *, entry: SampleEntry) -> bool:
    """Whether the file holds exactly the stored bytes of `entry`: every byte of it is read and checked."""
    try:
        fd = folder.open_read(name)
    except (OSError, DiskFailed):
        return False
    try:
        if os.fstat(fd).st_size != entry.length:
            return False
        if is_verbatim(entry):
            return _hashed(fd, entry.length).hexdigest() == entry.header_digest.hex
        head = _pread(fd, 0, length=entry.header_length)
        if Digest.of(head) != entry.header_digest:
            return False
        header = parse_header(head, total_length=entry.length)
        return not any(not _matches(fd, read) for read in plan_rows(header, None, rows=None))
    except (OSError, IntegrityError):
        return False
    finally:
        os.close(fd)


def _holds(folder: Folder, name: str, *, sample: EncodedSample) -> bool:
    wanted = xxhash.xxh3_128()
    for chunk in sample.chunks():
        wanted.update(chunk)
    try:
        fd = folder.open_read(name)
    except (OSError, DiskFailed):
        return False
    try:
        if os.fstat(fd).st_size != sample.length:
            return False
        return _hashed(fd, sample.length).digest() == wanted.digest()
    except (OSError, IntegrityError):
        return False
    finally:
        os.close(fd)


def is_verbatim(entry: SampleEntry) -> bool:
    """Whether the row is of a file that is kept as it was: its digest is of the whole, it has no header."""
    return entry.schema == VERBATIM_SCHEMA


def _hashed(fd: int, length: int) -> xxhash.xxh3_128:
    """Running hash of the first `length` bytes."""
    hasher, at = xxhash.xxh3_128(), 0
    while at < length:
        block = os.pread(fd, min(_READ_BYTES, length - at), at)
        if not block:
            raise IntegrityError(f"the file ends at byte {at}")
        hasher.update(block)
        at += len(block)
    return hasher


def _pread(fd: int, offset: int, *, length: int) -> bytes:
    """Up to `length` bytes: fewer where the file ends."""
    pieces: list[bytes] = []
    while length and (piece := os.pread(fd, min(length, _READ_BYTES), offset)):
        pieces.append(piece)
        offset, length = offset + len(piece), length - len(piece)
    return b"".join(pieces)


def _matches(fd: int, read: ChunkRead) -> bool:
    data = _pread(fd, read.offset, length=read.length)
    return len(data) == read.length and xxhash.xxh3_128_hexdigest(data) == read.digest


# --- the part file -------------------------------------------------------------------------------------------------


def _part_name(entry: SampleEntry, name: str) -> str:
    return f".{entry.header_digest.hex}-{Digest.of(os.fsencode(name)).short}.part"


def _fill(folder: Folder, part: str, *, source: PinnedObject, entry: SampleEntry) -> int:
    """Bring every byte of the sample into the part file, durably; returns how many bytes were fetched for it."""
    try:
        lock = FlockedFile.try_lock(folder, part)
        if lock is None:
            raise DurastoreError(f"another process is fetching into {folder.path / part}", hint="wait for it to end")
        try:
            fill = _fetch_rest if is_verbatim(entry) else _fetch_missing
            fetched = fill(lock.fd, source=source, entry=entry)
            if os.fstat(lock.fd).st_size != entry.length:
                raise InvalidInput(
                    f"{folder.path / part} is no part file of durastore's", hint="move it out of the way"
                )
            SYS.fsync(lock.fd)
        finally:
            lock.close()
    except OSError as exc:
        raise DiskFailed(f"writing {folder.path / part}: {exc.strerror or exc}", errno=exc.errno) from exc
    return fetched


def _fetch_missing(fd: int, *, source: PinnedObject, entry: SampleEntry) -> int:
    header, raw = _checked_header(source, entry)
    missing = [read for read in plan_rows(header, None, rows=None) if not _matches(fd, read)]
    fetched = len(raw)
    for group in _groups(missing):
        start, end = group[0].offset, group[-1].offset + group[-1].length
        os.lseek(fd, start, os.SEEK_SET)
        write_all(fd, [_checked_range(source, group, entry=entry)])
        fetched += end - start
    os.lseek(fd, 0, os.SEEK_SET)
    write_all(fd, [raw])  # last: a part file with its header is one that had every chunk once
    return fetched


def _fetch_rest(fd: int, *, source: PinnedObject, entry: SampleEntry) -> int:
    """A file has one digest, of the whole: what is there is hashed and gone on from. Where that does not come out, the
    beginning was damaged (case B101), or a transfer: everything is fetched once more.
    """
    fetched = 0
    for begin in (min(os.fstat(fd).st_size, entry.length), 0):
        hasher, at = _hashed(fd, begin), begin
        os.lseek(fd, at, os.SEEK_SET)
        while at < entry.length:
            data = source.fetch(at, min(_RANGE_BYTES, entry.length - at))
            hasher.update(data)
            write_all(fd, [data])
            at += len(data)
        fetched += entry.length - begin
        if hasher.hexdigest() == entry.header_digest.hex:
            return fetched
    raise IntegrityError(f"file {entry.sample_id.text!r} does not match its digest in the manifest")


def _checked_header(source: PinnedObject, entry: SampleEntry) -> tuple[SampleHeader, bytes]:
    for _ in range(2):  # a transfer may be damaged, not the object
        raw = source.fetch(0, entry.header_length)
        if Digest.of(raw) == entry.header_digest:
            return parse_header(raw, total_length=entry.length), raw
    raise IntegrityError(f"sample {entry.sample_id.text!r}: the header does not match its digest in the manifest")


def _checked_range(source: PinnedObject, group: Sequence[ChunkRead], *, entry: SampleEntry) -> memoryview:
    start, end = group[0].offset, group[-1].offset + group[-1].length
    wrong: ChunkRead | None = None
    for _ in range(2):
        data = memoryview(source.fetch(start, end - start))
        wrong = next((r for r in group if _digest(data, r, start=start) != r.digest), None)
        if wrong is None:
            return data
    assert wrong is not None
    raise IntegrityError(
        f"sample {entry.sample_id.text!r}, tensor {wrong.tensor!r}, chunk {wrong.chunk} does not match its digest"
    )


def _digest(data: memoryview, read: ChunkRead, *, start: int) -> str:
    return xxhash.xxh3_128_hexdigest(data[read.offset - start : read.offset - start + read.length])


def _groups(reads: Sequence[ChunkRead]) -> Iterator[list[ChunkRead]]:
    """Neighbouring chunks together, so that they take one request."""
    group: list[ChunkRead] = []
    for read in sorted(reads, key=lambda each: each.offset):
        if group:
            is_next = read.offset == group[-1].offset + group[-1].length
            if not is_next or read.offset + read.length - group[0].offset > _RANGE_BYTES:
                yield group
                group = []
        group.append(read)
    if group:
        yield group

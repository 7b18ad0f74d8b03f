"""Looking into many files at once: hashes and signs of damage, in parallel and not faster than told.

Duty: run one small look at each file in a few threads, with a limit of bytes a second. Must never stop at a file that
cannot be read: that is an answer about this file.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, islice
from operator import itemgetter
from typing import TypeAlias

import xxhash

from durastore.adopt.inspect import find_fault
from durastore.clock import SYSTEM_CLOCK
from durastore.errors import SpoolUnreadable
from durastore.fsio.folder import Folder
from durastore.fsio.identity import FileIdentity, identify
from durastore.fsio.lease import NotLeased, check_leased, has_writer, leased, writers_among
from durastore.fsio.paths import open_folder, open_parent
from durastore.fsio.rate import RateLimit
from durastore.fsio.traces import Traces

__all__ = ["FileLook", "find_written", "hash_files", "look_into"]

_THREADS = 4
_BLOCK_BYTES = 4 << 20
_PIECE_FILES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLook:
    """What one look at one file told."""

    path: str
    digest: bytes | None = None
    """XXH3-128 of all bytes, where they were hashed."""
    identity: FileIdentity | None = None
    """Which file that was; None also where it changed meanwhile."""
    is_settled: bool = False
    """A change after it was hashed shows in its times: they may be put on record."""
    damage: str | None = None
    """It cannot be whole."""
    oddity: str | None = None
    """It is not what its suffix says, and may be whole."""
    suspicion: str | None = None
    """It ends in zeros, and nothing tells whether they are data."""
    is_busy: bool = False
    """Open for writing by somebody."""
    unreadable: str | None = None


_Look: TypeAlias = Callable[[int, str], FileLook]
"""What is done with an open file and its path."""


def look_into(folder: Folder, paths: Iterable[str]) -> Iterator[FileLook]:
    """For each file whether it is damaged or being written. In the order given."""
    return _in_parallel(_inspect, folder, paths=paths)


def hash_files(
    folder: Folder,
    paths: Iterable[str],
    *,
    limit: RateLimit,
    is_leased: bool = False,
    heed: Callable[[], None] = lambda: None,
) -> Generator[FileLook]:
    """The digest of each file. In the order given; closed early, it hashes no more than was begun. `is_leased`: only
    under a lease, which says that nobody has the file open or mapped for writing; a page that is dirty already is
    written without a new time. Else it `is_busy`. `heed` is asked before each file; what it raises ends the hashing.
    """
    look = partial(_hash, limit=limit, is_leased=is_leased, traces=Traces())
    return _in_parallel(look, folder, paths=paths, heed=heed)


def find_written(folder: Folder, paths: Iterable[str]) -> frozenset[str]:
    """Those that somebody has open or mapped for writing now. A file that cannot be opened is not among them.

    A directory is opened once for all that lies next to each other in `paths`. In one thread: no fork may happen while
    a lease is held, which only one thread at a time can see to.
    """
    cut = (path.rpartition("/") for path in paths)  # of a hundred thousand paths, without a call of ours for each
    groups = ((above, [name for _, _, name in group]) for above, group in groupby(cut, itemgetter(0)))
    return frozenset(path for group in groups for path in _written(folder, group))


def _lead_of(path: str) -> str:
    return path[: path.rfind("/") + 1]


def _written(folder: Folder, group: tuple[str, list[str]]) -> list[str]:
    above, names = group
    try:
        parent = open_folder(folder, above)
    except OSError:
        return []
    with parent:
        return [f"{above}/{name}" if above else name for name in writers_among(parent, names)]


def _in_parallel(
    look: _Look, folder: Folder, *, paths: Iterable[str], heed: Callable[[], None] = lambda: None
) -> Generator[FileLook]:
    """A few files that lie next to each other are one piece of work: its directory is opened once."""
    stop = threading.Event()

    def go_on() -> bool:
        heed()
        return not stop.is_set()

    work = partial(_look_at_piece, look=look, folder=folder, go_on=go_on)
    with ThreadPoolExecutor(max_workers=_THREADS, thread_name_prefix="durastore-read") as pool:
        try:
            for looks in pool.map(work, _pieces(paths)):
                yield from looks
        finally:
            stop.set()


def _pieces(paths: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    for lead, group in groupby(paths, _lead_of):
        while piece := list(islice(group, _PIECE_FILES)):
            yield lead, piece


def _look_at_piece(
    piece: tuple[str, list[str]], *, look: _Look, folder: Folder, go_on: Callable[[], bool]
) -> list[FileLook]:
    paths = piece[1]
    try:
        parent, _ = open_parent(folder, paths[0])
    except OSError as exc:
        return [FileLook(path=path, unreadable=str(exc)) for path in paths]
    looks = []
    with parent:
        for path in paths:
            if not go_on():
                break  # nobody asks for the rest
            looks.append(_look_at(look, parent, path=path))
    return looks


def _look_at(look: _Look, parent: Folder, *, path: str) -> FileLook:
    try:
        fd = parent.open_read(path[path.rfind("/") + 1 :])
        try:
            return look(fd, path)
        finally:
            os.close(fd)
    except NotLeased:
        return FileLook(path=path, is_busy=True)
    except (OSError, SpoolUnreadable) as exc:
        return FileLook(path=path, unreadable=str(exc))


def _inspect(fd: int, path: str) -> FileLook:
    if has_writer(fd):
        return FileLook(path=path, is_busy=True)
    fault = find_fault(fd, path)
    if fault is None or fault.is_damage:
        return FileLook(path=path, damage=fault.reason if fault is not None else None)
    if fault.is_suspect:
        return FileLook(path=path, suspicion=fault.reason)
    return FileLook(path=path, oddity=fault.reason)


def _hash(fd: int, path: str, *, limit: RateLimit, is_leased: bool, traces: Traces) -> FileLook:
    with leased(fd) if is_leased else nullcontext():
        look = _hash_open(fd, path, limit=limit, is_leased=is_leased)
    if look.is_settled and look.identity is not None and not traces.are_left(look.identity.dev):
        return replace(look, is_settled=False)
    return look


def _hash_open(fd: int, path: str, *, limit: RateLimit, is_leased: bool) -> FileLook:
    hasher = xxhash.xxh3_128()
    offset, before = 0, identify(fd)
    while block := os.pread(fd, min(_BLOCK_BYTES, max(1, before.size_bytes - offset)), offset):
        limit.spend(len(block))
        hasher.update(block)
        offset += len(block)
        if is_leased:
            check_leased(fd)  # who wants to write waits for us: give way
    identity = before if identify(fd) == before and offset == before.size_bytes else None
    is_settled = before.would_show_change(SYSTEM_CLOCK.now_ns())  # under a lease nobody could write until now
    return FileLook(path=path, digest=hasher.digest(), identity=identity, is_settled=is_settled)

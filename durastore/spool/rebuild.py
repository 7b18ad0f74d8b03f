"""Pack files read back into a journal that was lost or is too old: each sample carries all that the journal knew of it
(INV-11).

Duty: make an OPEN pack of every given pack file that the journal does not know, with the samples that check out byte
for byte. Recovery then treats them like packs of a crash: sealed if whole, salvaged if not. Upload, proof and manifest
state are not recovered: all is uploaded and proven again, under the same keys for equal bytes (case B121). Must never
be run on files that this journal knew once: what it replaced, or never acknowledged, is not a sample.
"""

from __future__ import annotations

import os
from collections.abc import Container, Iterable

from durastore.codec.decode import scan_sample
from durastore.errors import IntegrityError
from durastore.formats.pack import RUN_MEMBER, TRAILER, PackMember, iter_pack
from durastore.formats.runs import parse_run
from durastore.fsio.folder import Folder
from durastore.fsio.identity import identify
from durastore.model import MAX_RUN_BYTES, Digest, PackKind, SampleEntry
from durastore.spool.journal import Journal
from durastore.spool.pack_bytes import read_exact, reader_of, sync_file
from durastore.spool.records import PackFile

__all__ = ["rebuild_journal"]


def rebuild_journal(
    packs: Folder,
    journal: Journal,
    *,
    names: Iterable[str],
    held: Container[Digest] = frozenset(),
    is_lost: bool = True,
) -> list[str]:
    """Journal every unknown pack file of `names`; returns those that gave samples. Samples whose header digest is in
    `held` are left out. `is_lost`: the journal was lost; else what is in the files is in doubt
    (`Journal.doubtful_packs`). Safe to repeat. `SpoolUnreadable` if a file cannot be read.
    """
    known = {record.name for record in journal.packs()}
    rebuilt: list[str] = []
    for name in names:
        file = PackFile.parse(name)
        if file is None or name in known:
            continue
        fd = packs.open_read(name)
        try:
            entries, end = _scan(fd, file, journal=journal)
            sync_file(fd, name)  # nothing vouches that it ever was
        finally:
            os.close(fd)
        fresh = [entry for entry in entries if entry.header_digest not in held]
        if fresh:
            journal.read_back(file, entries=fresh, size_bytes=end, is_doubtful=not is_lost)
            rebuilt.append(name)
    return rebuilt


def _scan(fd: int, file: PackFile, *, journal: Journal) -> tuple[list[SampleEntry], int]:
    """The samples that check out, and up to where the file is in order (its whole length, if all of it is)."""
    identity = identify(fd)
    size_bytes = identity.size_bytes
    if file.kind is PackKind.SAFETENSORS:
        members = [PackMember(name=file.name, offset=0, length=size_bytes)]
        is_whole = True
    else:
        members, is_whole = _members(fd, size_bytes)
    entries: list[SampleEntry] = []
    end = 0
    for member in members:
        try:
            data = read_exact(fd, offset=member.offset, length=member.length)
            if member.name == RUN_MEMBER and member.length <= MAX_RUN_BYTES:
                journal.add_run(parse_run(data))
                continue
            header = scan_sample(data)
            if header.run_text is not None:
                journal.add_run(parse_run(header.run_text))
        except IntegrityError:
            is_whole = False
            continue
        entries.append(header.entry(offset=member.offset, time_ns=identity.mtime_ns))
        end = member.offset + member.length
    # short of the file's length: recovery then copies what checked out instead of sealing a file with damage in it
    return entries, size_bytes if is_whole else min(end, size_bytes - len(TRAILER) // 2)


def _members(fd: int, size_bytes: int) -> tuple[list[PackMember], bool]:
    """The members of a tar up to the first damage, and whether there was none."""
    members: list[PackMember] = []
    rest = size_bytes % 512  # a torn tar ends inside a block; the walker wants whole ones
    try:
        for member in iter_pack(reader_of(fd), size_bytes - rest):
            members.append(member)  # noqa: PERF402 - those before the damage count
    except IntegrityError:
        return members, False
    return members, rest == 0

"""The doubtful files of a spool root: what they are, what of them is still good, and how one is taken out.

Duty: list and, on a person's word, move a file out to a folder of theirs. Must never unlink, never overwrite, and never
move anything back among the packs: what is good in a doubtful file was copied out of it when it was set aside.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from durastore.codec.decode import scan_sample
from durastore.errors import (
    ConfigError,
    DiskFailed,
    FormatUnsupported,
    IntegrityError,
    InvalidInput,
    NotVerified,
    SpoolUnreadable,
)
from durastore.formats.pack import RUN_MEMBER, PackMember, iter_pack
from durastore.formats.spool_root import QUARANTINE_NAME, parse_spool_name
from durastore.fsio.folder import Folder
from durastore.fsio.relocate import relocate
from durastore.model import PackKind, PackState
from durastore.spool.glance import opened_journal
from durastore.spool.journal_rows import load_packs
from durastore.spool.opened import opened_root
from durastore.spool.pack_bytes import read_exact, reader_of
from durastore.spool.records import PackFile

__all__ = ["QuarantinedFile", "ReleasedFile", "find_quarantined", "release_quarantined"]

_NUMBERED = re.compile(r"(.+)\.[0-9]{1,4}")
_FINISHED = (PackState.RECLAIMED, PackState.LOST, PackState.QUARANTINED)
"""The object gave every byte back, what was good in the file has been saved, or it is a person's to judge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantinedFile:
    """One file in quarantine."""

    spool: str
    name: str
    size_bytes: int
    mtime_ns: int
    reason: str
    """Of the journal's record of the pack; else what can be told of the file."""
    samples: tuple[str, ...]
    """Ids of the samples in it that still verify, byte for byte."""
    damaged: int
    """Members of it that do not, and what is no member at all."""

    @property
    def place(self) -> str:
        """How `release_quarantined` is told of it."""
        return f"{self.spool}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasedFile:
    """A file that was moved out."""

    place: str
    path: Path


def find_quarantined(local: Path) -> list[QuarantinedFile]:
    """Every file in the quarantine of every spool, read in full. Takes no lock; changes nothing; safe at any time.

    `StoreMissing` where `local` is no spool root, `SpoolUnreadable` where a file cannot be read.
    """
    found: list[QuarantinedFile] = []
    with opened_root(local) as root:
        for spool, folder, quarantine in _quarantines(root):
            reasons = _reasons(folder)
            for name in quarantine.names():
                with suppress(FileNotFoundError):  # released in this moment
                    found.append(_look(quarantine, name, spool=spool, reasons=reasons))
    return found


def release_quarantined(local: Path, name: str, *, to: Path) -> ReleasedFile:
    """Move one file out of quarantine into the folder `to`, under its own name. The file is never without a name.

    `name`: `w-NN/<file>`, or the file's name where only one spool has it. `InvalidInput` where there is no such file or
    `to` has one of that name, `NotVerified` where the journal still needs the file, `ConfigError` where `to` lies
    inside the root or on another file system. Safe to repeat after a crash.
    """
    with opened_root(local) as root:
        matches = [
            (spool, quarantine.path)
            for spool, _, quarantine in _quarantines(root)
            for each in quarantine.names()
            if name in (each, f"{spool}/{each}")
        ]
        if len(matches) != 1:
            hint = "`durastore quarantine list` shows what there is"
            if matches:
                hint = f"say which: {', '.join(f'{spool}/{name}' for spool, _ in matches)}"
            raise InvalidInput(
                f"{'more than one' if matches else 'no'} file in quarantine is called {name!r}", hint=hint
            )
        spool = matches[0][0]
        file_name = name.removeprefix(f"{spool}/")
        real, real_root = Path(os.path.realpath(to)), Path(os.path.realpath(local))
        if real == real_root or real_root in real.parents:
            raise ConfigError(f"{to} lies inside the spool root", hint="give a folder outside of it")
        with root.child(spool) as folder, folder.child(QUARANTINE_NAME) as quarantine:
            _refuse_needed(folder, file_name)
            _move(quarantine, file_name, to=real)
    return ReleasedFile(place=f"{spool}/{file_name}", path=real / file_name)


def _refuse_needed(folder: Folder, name: str) -> None:
    """While the bucket was not asked for a pack, what is good in its file may be the only copy, and the journal looks
    for it here under this name. Where the journal cannot be read, nobody knows (INV-6).
    """
    if PackFile.parse(name) is None:
        return
    try:
        with opened_journal(folder) as conn:
            records = load_packs(conn, ()) if conn is not None else []
    except (SpoolUnreadable, IntegrityError, FormatUnsupported) as exc:
        raise NotVerified(
            f"{name} may be the only copy of samples: {exc.message}; nothing was moved",
            hint="open the store (`durastore drain`) once, then try again",
        ) from exc
    needed = [each for each in records if each.name == name and each.state not in _FINISHED and each.sample_count]
    if needed:
        raise NotVerified(
            f"{name} may be the only copy of samples: its pack is {needed[0].state.value} and the bucket was not asked"
            " for it yet; nothing was moved",
            hint="`durastore drain` asks the bucket and saves what is good in the file; then try again",
        )


def _move(quarantine: Folder, name: str, *, to: Path) -> None:
    try:
        with Folder.create(to) as target:
            relocate(quarantine, name, target=target, new_name=name)
    except FileExistsError as exc:
        raise InvalidInput(f"{to / name} is there and is another file; nothing was moved") from exc
    except DiskFailed as exc:
        if exc.facts.get("errno") != errno.EXDEV:
            raise
        raise ConfigError(
            f"{to} is on another file system; nothing was moved",
            hint=f"give a folder on the file system of {quarantine.path}, or copy the file by hand: it stays here",
        ) from exc
    except OSError as exc:
        raise DiskFailed(f"opening {to}: {exc.strerror or exc}", errno=exc.errno) from exc


def _quarantines(root: Folder) -> Iterator[tuple[str, Folder, Folder]]:
    """Each spool's name, folder and quarantine folder, open while it is looked at."""
    for spool in root.names():
        if parse_spool_name(spool) is not None:
            with suppress(FileNotFoundError), root.child(spool) as folder, folder.child(QUARANTINE_NAME) as quarantine:
                yield spool, folder, quarantine


def _reasons(folder: Folder) -> dict[str, str]:
    """Why the journal set packs aside, by file name; empty where it cannot be read from outside."""
    doubted = (PackState.QUARANTINED, PackState.LOST)
    try:
        with opened_journal(folder) as conn:
            records = load_packs(conn, doubted) if conn is not None else []
    except (SpoolUnreadable, IntegrityError, FormatUnsupported):
        return {}
    return {record.name: f"{record.state.value}: {record.reason}" for record in records if record.reason}


def _look(quarantine: Folder, name: str, *, spool: str, reasons: dict[str, str]) -> QuarantinedFile:
    identity = quarantine.identity(name)
    numbered = _NUMBERED.fullmatch(name)
    plain = numbered[1] if numbered is not None and PackFile.parse(name) is None else name
    pack = PackFile.parse(plain)
    samples: tuple[str, ...] = ()
    damaged = 0
    reason = reasons.get(plain, "")
    if pack is not None:
        samples, damaged, fault = _scan(quarantine, name, kind=pack.kind, size_bytes=identity.size_bytes)
        reason = reason or fault or "set aside; the journal has no reason on record"
    return QuarantinedFile(
        spool=spool,
        name=name,
        size_bytes=identity.size_bytes,
        mtime_ns=identity.mtime_ns,
        reason=reason or ("a journal that was followed by a new one" if name.startswith("journal-") else "no pack"),
        samples=samples,
        damaged=damaged,
    )


def _scan(folder: Folder, name: str, *, kind: PackKind, size_bytes: int) -> tuple[tuple[str, ...], int, str | None]:
    """Samples that verify, members that do not, and the first fault."""
    samples: list[str] = []
    faults: list[str] = []
    fd = folder.open_read(name)
    try:
        for member in _members(fd, kind, size_bytes=size_bytes, faults=faults):
            if member.name == RUN_MEMBER:
                continue
            try:
                data = read_exact(fd, offset=member.offset, length=member.length)
                samples.append(scan_sample(data).sample_id.text)
            except (IntegrityError, FormatUnsupported) as exc:
                faults.append(exc.message)
    finally:
        os.close(fd)
    return tuple(samples), len(faults), faults[0] if faults else None


def _members(fd: int, kind: PackKind, *, size_bytes: int, faults: list[str]) -> Iterator[PackMember]:
    if kind is PackKind.SAFETENSORS:
        yield PackMember(name="", offset=0, length=size_bytes)
        return
    try:
        yield from iter_pack(reader_of(fd), size_bytes - size_bytes % 512)  # a torn tar ends inside a block
    except IntegrityError as exc:
        faults.append(exc.message)

"""One entry of a dump folder: a file `req_<id>.<suffix>`, or a folder `req_<id>` of such files.

Duty: find an entry by its request, read all of its files while nobody writes to them, and make of them the tensors of
one row. Must never put together what does not belong together: each file is the same before and after the reading, and
all of them are still there, unchanged, when the last was read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from durastore.adopt.foreign_formats.containers import is_foreign, parse_foreign, stem_of
from durastore.adopt.foreign_formats.contents import Array, ForeignContents, Unparsed
from durastore.adopt.foreign_formats.layouts import recognise
from durastore.extract.conversion import Mismatch, RunShape, convert
from durastore.extract.json_server import AskAgain, Unusable
from durastore.extract.rows import TokenRow
from durastore.extract.staged_files import StagedFiles
from durastore.reclaim.staging import StagedFile, StagingFolder

__all__ = [
    "ENTRY_PREFIX",
    "DumpedEntry",
    "NotWhole",
    "entry_of",
    "find_marker",
    "read_done_entry",
    "read_entry",
    "tensors_of",
]

ENTRY_PREFIX = "req_"
DONE_NAMES = ("done", ".done", "DONE", "_SUCCESS")
DONE_SUFFIX = ".done"
UNVERIFIED = "unverified"


class NotWhole(Exception):
    """The entry is not there, or not in full. The message is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpedEntry:
    """All of an entry, read."""

    name: str
    folder: str | None
    """Its name, if it is a folder."""
    files: tuple[StagedFile, ...]
    """Markers first: what points at data goes before them."""
    contents: ForeignContents
    oldest_ns: int
    """When the file that was written first was written last."""


def entry_of(request: str, folder: StagingFolder) -> str:
    """The name of a request's entry. `NotWhole` if there is none, or more than one."""
    try:
        names = folder.names()
    except OSError as exc:
        raise NotWhole(f"the staging folder cannot be read: {exc}") from exc
    wanted = {request, f"{ENTRY_PREFIX}{request}"}
    found = [name for name in names if name in wanted or (is_foreign(name) and stem_of(name) in wanted)]
    if len(found) != 1:
        raise NotWhole(f"the server dumped {len(found)} entries for request {request}")
    return found[0]


def read_entry(name: str, files: StagedFiles) -> DumpedEntry:
    """Read every file of an entry. `NotWhole` if one is being written, is cut, or holds what another holds, too."""
    try:
        paths = files.folder.files_of(name)
        read = [(path, *files.read(path, is_quiet=True)) for path in paths]
    except (OSError, AskAgain) as exc:
        raise NotWhole(f"the entry {name} cannot be read: {exc}") from exc
    arrays: dict[str, Array] = {}
    values: dict[str, Any] = {}
    data: list[StagedFile] = []
    for path, content, file in read:
        if not is_foreign(path):
            continue
        data.append(file)
        try:
            part = parse_foreign(content, path=path)
        except Unparsed as exc:
            raise NotWhole(f"its file {path} {exc}") from exc
        _join(arrays, part.arrays, path=path)
        _join(values, part.values, path=path)
    if not data:
        raise NotWhole(f"the entry {name} holds no file of tensors")
    _refuse_changed(data, files)
    markers = [file for _, _, file in read if file not in data]
    return DumpedEntry(
        name=name,
        folder=name if paths != [name] else None,
        files=(*markers, *data),
        contents=ForeignContents(arrays=arrays, values=values),
        oldest_ns=min(file.identity.mtime_ns for file in data),
    )


def _refuse_changed(read: Sequence[StagedFile], files: StagedFiles) -> None:
    """A name that is used again while its files are read would give half of one sample and half of another."""
    for file in read:
        if not files.has_still(file):
            raise NotWhole(f"its file {file.path} was written to while the others were read")


def find_marker(name: str, folder: StagingFolder) -> str | None:
    """The path of the marker that says that an entry is done; None if there is none."""
    try:
        paths = folder.files_of(name)
        if paths != [name]:
            return next((path for path in paths if path.rpartition("/")[2] in DONE_NAMES), None)
        if not is_foreign(name):  # a marker itself
            return None
        beside = (f"{name}{DONE_SUFFIX}", f"{stem_of(name)}{DONE_SUFFIX}")
        return next((each for each in beside if folder.folder.has(each)), None)
    except OSError:
        return None


def read_done_entry(name: str, marker: str, *, files: StagedFiles) -> DumpedEntry:
    """Read an entry that has a done-marker. `NotWhole` also if one of its files is newer than the marker: then the name
    was used again, and the marker is of what was there before.
    """
    entry = read_entry(name, files)
    try:
        _, mark = files.read(marker)
    except AskAgain as exc:
        raise NotWhole(f"the marker of {name} cannot be read: {exc}") from exc
    data = [file for file in entry.files if file.path != marker]
    newest_ns = max(file.identity.mtime_ns for file in data)
    if newest_ns > mark.identity.mtime_ns:
        raise NotWhole(f"the entry {name} was written to after its marker")
    _refuse_changed(data, files)  # else the marker may be of files that were written since, beside one that was read
    return replace(entry, files=(mark, *data))


def tensors_of(
    entry: DumpedEntry, row: TokenRow, *, shape: RunShape, is_unverified_taken: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The tensors of the row, and what its meta says of them. `AskAgain` where the entry is another's; `Unusable` where
    it does not say which tokens it is of and that was not asked for.
    """
    try:
        sample = recognise(entry.contents, path=entry.files[-1].path)
        if sample.tokens is None and not is_unverified_taken:
            raise Unusable(
                "its dump does not say which tokens it is of (--unverified-input takes it, and records that)"
            )
        if sample.tokens is not None and len(sample.tokens) != len(row.input_ids):
            raise AskAgain(f"its dump has {len(sample.tokens)} tokens, and the sample {len(row.input_ids)}")
        converted = convert(sample, row, shape=shape)
    except (Unparsed, Mismatch) as exc:
        raise AskAgain(f"its dump: {exc}") from exc
    return dict(converted.tensors), {} if sample.tokens is not None else {"input": UNVERIFIED}


def _join(into: dict[str, Any], part: Mapping[str, Any], *, path: str) -> None:
    twice = sorted(into.keys() & part.keys())
    if twice:
        raise NotWhole(f"its file {path} holds {twice[0]!r}, as another file of the entry does")
    into.update(part)

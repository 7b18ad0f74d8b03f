"""Snapshots out of the bucket: which there are, and their files below a folder of this machine.

Duty: each file whole, checked and durable under its name, or not there (as `durastore get` does, by the same code).
What is there already is compared, never written over. Must never write outside the folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

from durastore.adopt.verbatim import NO_WRITER, file_row
from durastore.artifacts.lists import fetch_list, find_list, list_snapshots
from durastore.errors import DurastoreError, InvalidInput, ObjectAbsent
from durastore.formats.artifact_list import ArtifactFile, ArtifactList, ArtifactName, ListRef, area_of
from durastore.model import ManifestRow, ObjectFacts
from durastore.objectstore.port import ObjectStore
from durastore.read.landing import FOR_ALL, FailedSample, Landed, Landing
from durastore.read.pinned import PinnedObject

__all__ = ["PullReport", "PullRequest", "Snapshot", "pull", "snapshots"]

_THREADS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One snapshot, as `ls` shows it. `content` None: its list could not be read, for `fault`."""

    ref: ListRef
    content: ArtifactList | None
    fault: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PullRequest:
    """What is wanted of which snapshot: all, or the paths that one of the patterns fits."""

    out: Path
    name: str | None = None
    snapshot: str | None = None
    """The first digits of an id; None: the newest of the name."""
    patterns: tuple[str, ...] = ()
    on_progress: Callable[[int, int], None] = lambda done, of: None


@dataclass(slots=True, kw_only=True)
class PullReport:
    """What became of the files that were asked for: brought, there already, or failed, each with its error."""

    snapshot: ListRef
    written: int = 0
    present: int = 0
    bytes_written: int = 0
    failed: list[FailedSample] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """0, or 3 where some files failed."""
        return 3 if self.failed else 0


def snapshots(store: ObjectStore, prefix: str, *, name: str | None = None) -> Iterator[Snapshot]:
    """All snapshots, by name and age, one after the other. Network errors pass."""
    area = area_of(prefix)
    for ref in list_snapshots(store, area, name=ArtifactName(name) if name is not None else None):
        try:
            yield Snapshot(ref=ref, content=fetch_list(store, ref, area=area))
        except FOR_ALL:
            raise
        except DurastoreError as exc:
            yield Snapshot(ref=ref, content=None, fault=exc.message)


def pull(store: ObjectStore, prefix: str, *, request: PullRequest) -> PullReport:
    """Write the files of a snapshot below `out`. Safe to repeat: goes on, inside of a large file too.

    `StoreMissing` where there is no such snapshot, `InvalidInput` where no path fits; network, credential and disk
    errors end it. All else is in the report.
    """
    area = area_of(prefix)
    ref = find_list(store, area, name=request.name, snapshot=request.snapshot)
    files = _wanted(fetch_list(store, ref, area=area).files, request.patterns)
    report = PullReport(snapshot=ref)
    landing = Landing(request.out, is_file=False)
    with ThreadPoolExecutor(_THREADS, "durastore-pull") as pool:
        for outcome in pool.map(partial(_bring, store=store, landing=landing), files):
            if isinstance(outcome, FailedSample):
                report.failed.append(outcome)
            else:
                report.written += outcome.is_new
                report.present += not outcome.is_new
                report.bytes_written += outcome.size_bytes if outcome.is_new else 0
            request.on_progress(report.written + report.present + len(report.failed), len(files))
    return report


def _wanted(files: Sequence[ArtifactFile], patterns: Sequence[str]) -> list[ArtifactFile]:
    if not patterns:
        return list(files)
    found = [file for file in files if any(_fits(file.path.text, pattern) for pattern in patterns)]
    if not found:
        raise InvalidInput(
            f"no file of the snapshot fits {', '.join(patterns)}", hint="`durastore artifacts ls --files` names them"
        )
    return found


def _fits(path: str, pattern: str) -> bool:
    """A path, a pattern of paths, or a folder with all that is in it."""
    return fnmatchcase(path, pattern) or path.startswith(pattern.rstrip("/") + "/")


def _bring(file: ArtifactFile, *, store: ObjectStore, landing: Landing) -> Landed | FailedSample:
    row = _row_of(file)
    try:
        return landing.land_large(PinnedObject(store, row), row.entry)
    except FOR_ALL:
        raise
    except ObjectAbsent:
        error: DurastoreError = ObjectAbsent(f"file {file.path}: its object {file.key} is not in the bucket")
    except DurastoreError as exc:
        error = exc
    return FailedSample(id=file.path.text, error=error)


def _row_of(file: ArtifactFile) -> ManifestRow:
    """As the manifest has it; the digest alone decides about its bytes."""
    facts = ObjectFacts(
        key=file.key,
        size_bytes=file.size_bytes,
        digest=file.digest,
        crc64nvme="",
        etag="",
        version_id=None,
        writer=NO_WRITER,
    )
    return file_row(file.path, facts, time_ns=0)

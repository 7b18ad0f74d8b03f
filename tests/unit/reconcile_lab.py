"""A folder and a bucket in memory, reconciled on a clock that a test moves.

Duty: make states, run, and ask the two oracles: every byte that was put into the folder is somewhere, and what left the
folder is in the bucket.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from durastore.adopt.place import PRIVATE_NAME
from durastore.clock import ManualClock
from durastore.config import StoreOptions
from durastore.formats.file_keys import parse_file_key
from durastore.model import ObjectKey
from durastore.objectstore.location import BucketUrl
from durastore.objectstore.memory import MemoryStore
from durastore.objectstore.port import ObjectStore
from durastore.reconcile.findings import FindingSet
from durastore.reconcile.report import ReconcileReport
from durastore.reconcile.run import reconcile
from durastore.reconcile.session import ReconcileRequest
from durastore.testing.faulty import FaultyStore

__all__ = ["FolderLab", "by_kind", "npy", "path_of"]

PREFIX = "lab/set"


def npy(number: int, *, rows: int = 40) -> bytes:
    """A whole .npy file with content of its own."""
    from io import BytesIO

    target = BytesIO()
    np.save(target, np.random.default_rng(number).standard_normal(rows))
    return target.getvalue()


def path_of(key: str) -> str:
    """The path of the file whose object this is."""
    parts = parse_file_key(PREFIX, ObjectKey(key))
    assert parts is not None
    return parts.path.text


def by_kind(findings: tuple[FindingSet, ...]) -> dict[tuple[str, str], set[str]]:
    """(kind, side) -> names."""
    found: dict[tuple[str, str], set[str]] = {}
    for finding in findings:
        found.setdefault((finding.kind.value, finding.side.value), set()).update(finding.names)
    return found


class FolderLab:
    """One folder, one bucket."""

    def __init__(self, folder: Path, objects: ObjectStore | None = None) -> None:
        self.folder = folder
        self.clock = ManualClock()
        self.memory = MemoryStore(clock=self.clock)
        self.objects: ObjectStore = objects if objects is not None else FaultyStore(self.memory)
        self.written: dict[str, list[bytes]] = {}
        folder.mkdir(exist_ok=True)

    @property
    def faulty(self) -> FaultyStore:
        assert isinstance(self.objects, FaultyStore)
        return self.objects

    def write(self, path: str, data: bytes) -> Path:
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        self.written.setdefault(path, []).append(data)
        return target

    def run(self, **asked: Any) -> ReconcileReport:
        settle_s = asked.pop("settle_s", 0.0)
        request = ReconcileRequest(
            local=self.folder,
            bucket=BucketUrl(kind="memory", bucket="lab", prefix=PREFIX),
            options=asked.pop("options", StoreOptions()),
            settle_s=settle_s,
            **asked,
        )
        return reconcile(request, objects=self.objects, clock=self.clock)

    def apply(self, **asked: Any) -> ReconcileReport:
        return self.run(is_applied=True, **asked)

    def clear(self, **asked: Any) -> ReconcileReport:
        return self.run(is_applied=True, is_reclaiming=True, **asked)

    def files(self) -> dict[str, bytes]:
        """What is in the folder, but for its private one."""
        return {
            str(path.relative_to(self.folder)): path.read_bytes()
            for path in sorted(self.folder.rglob("*"))
            if path.is_file() and not path.is_symlink() and path.relative_to(self.folder).parts[0] != PRIVATE_NAME
        }

    def keys(self, folder: str = "files") -> list[str]:
        return [stat.key.text for page in self.memory.list(f"{PREFIX}/{folder}/") for stat in page]

    def bucket_files(self) -> dict[str, set[bytes]]:
        """Path -> contents that the bucket really holds."""
        found: dict[str, set[bytes]] = {}
        for key in self.keys():
            found.setdefault(path_of(key), set()).add(self.memory.fetch(ObjectKey(key)))
        return found

    def aside(self) -> set[bytes]:
        """Contents of quarantine and of what is about to go."""
        private = self.folder / PRIVATE_NAME
        places = [*private.glob("w-*/quarantine/*"), *private.glob("going/*")]
        return {path.read_bytes() for path in places if not path.name.startswith("journal-")}

    def check_nothing_lost(self) -> None:
        """The last content written under each path is in the folder, aside, or in the bucket."""
        here, there, aside = self.files(), self.bucket_files(), self.aside()
        for path, contents in self.written.items():
            last = contents[-1]
            assert here.get(path) == last or last in there.get(path, set()) or last in aside, path

    @contextmanager
    def held_open_for_writing(self, path: str) -> Iterator[int]:
        fd = os.open(self.folder / path, os.O_WRONLY | os.O_APPEND)
        try:
            yield fd
        finally:
            os.close(fd)

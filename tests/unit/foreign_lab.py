"""A folder of files that durastore did not write, their private folder, and a bucket that holds each of them proven.

Duty: bring files to the point where the reclaimer may free them, without looking or planning, so that a test can make
one fact wrong and see what becomes of the bytes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from durastore.adopt.place import PRIVATE_NAME, opened_place
from durastore.adopt.sending import hash_local
from durastore.adopt.verbatim import as_listed, as_pack
from durastore.clock import ManualClock
from durastore.formats.keys import marker_key
from durastore.formats.marker import MARKER_FORMAT, Marker
from durastore.fsio.folder import Folder
from durastore.manifest.segments import publish_segment
from durastore.model import Run, SampleId, WriterId
from durastore.objectstore.memory import MemoryStore
from durastore.observe.events import Counting
from durastore.reclaim.foreign import ForeignPlace, ForeignReclaimer, ForeignReport
from durastore.spool.records import PackRecord
from durastore.testing.faulty import FaultyStore
from durastore.verify.remote import read_back
from durastore.verify.verifier import BucketIdentity, Verifier
from tests.unit.verify_lab import policy

__all__ = ["ForeignLab", "foreign_lab"]

PREFIX = "lab/foreign"
_STORE_ID = "cd" * 16
_SETTLE_S = 600.0


@dataclass
class ForeignLab:
    """One folder and one bucket; the clock moves only when told."""

    place: ForeignPlace
    objects: FaultyStore
    clock: ManualClock
    observer: Counting = field(default_factory=Counting)

    def __post_init__(self) -> None:
        marker = Marker(store_id=_STORE_ID, format=MARKER_FORMAT, run=Run.of({}), created_ns=self.clock.now_ns())
        self.objects.put(marker_key(PREFIX), marker.render(), crc64nvme=None, metadata={})
        self.segment = publish_segment(
            self.objects, b"rows of all files", prefix=PREFIX, writer=WriterId("00112233445566aa"), seq=1
        )
        bucket = BucketIdentity(prefix=PREFIX, store_id=_STORE_ID)
        self.verifier = Verifier(
            self.objects, bucket=bucket, policy=policy(settle_s=_SETTLE_S), clock=self.clock, observer=self.observer
        )

    def proven(self, files: dict[str, bytes]) -> list[PackRecord]:
        """The files, written, sent, read back and settled: with nothing wrong they go."""
        for path, data in files.items():
            target = self.path(path)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        return self.proven_again(files)

    def proven_again(self, files: dict[str, bytes]) -> list[PackRecord]:
        """The files as they are by now."""
        records = []
        for path, data in files.items():
            pack = as_pack(hash_local(self.place.folder, SampleId(path)), PREFIX)
            assert pack.key is not None
            self.objects.put(pack.key, data, crc64nvme=pack.crc64nvme, metadata={})
            with closing(self.objects.fresh_reader()) as reader:
                evidence = read_back(reader, pack, clock=self.clock)
            records.append(as_listed(pack, evidence, segment=self.segment, seen_at=self.clock.stamp()))
        self.clock.advance(_SETTLE_S)
        return records

    def execute(self, *records: PackRecord) -> ForeignReport:
        return ForeignReclaimer(self.place, self.verifier, observer=self.observer).execute(records)

    def path(self, path: str) -> Path:
        return self.place.folder.path / path

    def going(self) -> list[str]:
        return self.place.going.names()

    def aside(self) -> dict[str, bytes]:
        """What is in quarantine."""
        folder = self.place.quarantine.path
        return {name: (folder / name).read_bytes() for name in sorted(os.listdir(folder))}

    def intent(self, private: str) -> str | None:
        """What is on record of a file in the private folder; the name of the fact outlives a version of durastore."""
        return self.place.journal.get_fact(f"going {private}")

    def moved(self, private: str, data: bytes, *, intent: str | None) -> None:
        """A file as an interrupted reclaim leaves it, or whoever else."""
        (self.place.going.path / private).write_bytes(data)
        self.place.journal.set_fact(f"going {private}", intent)


@contextmanager
def foreign_lab(path: Path) -> Iterator[ForeignLab]:
    """A lab in the new folder `path`."""
    path.mkdir()
    clock = ManualClock()
    with (
        Folder.open(path) as folder,
        opened_place(folder, clock=clock, is_any_filesystem_allowed=True) as place,
    ):
        place.spool.journal._db._connection.execute("PRAGMA synchronous=OFF")  # no power is cut here
        yield ForeignLab(place.foreign(), FaultyStore(MemoryStore(clock=clock)), clock)
        assert folder.has(PRIVATE_NAME)

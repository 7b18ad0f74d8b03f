"""A folder, a bucket in memory, a clock that a test moves: artifacts pushed and pulled as often as wanted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from durastore.adopt.place import PRIVATE_NAME
from durastore.artifacts.lists import fetch_list, list_snapshots
from durastore.artifacts.pulling import PullReport, PullRequest, pull
from durastore.artifacts.pushing import push
from durastore.artifacts.request import PushReport, PushRequest
from durastore.clock import ManualClock
from durastore.formats.artifact_list import ArtifactList, area_of
from durastore.objectstore.location import BucketUrl
from durastore.objectstore.memory import MemoryStore
from durastore.testing.faulty import FaultyStore

__all__ = ["PREFIX", "ArtifactLab"]

PREFIX = "lab/run"


class ArtifactLab:
    """One folder, one bucket."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.folder.mkdir(exist_ok=True)
        self.clock = ManualClock()
        self.memory = MemoryStore(clock=self.clock)
        self.objects = FaultyStore(self.memory)

    def write(self, path: str, data: bytes) -> Path:
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        return target

    def push(self, **asked: Any) -> PushReport:
        request = PushRequest(
            folder=asked.pop("folder", self.folder),
            bucket=BucketUrl(kind="memory", bucket="lab", prefix=PREFIX),
            settle_s=asked.pop("settle_s", 0.0),
            **asked,
        )
        return push(request, objects=self.objects, clock=self.clock)

    def pull(self, out: Path, **asked: Any) -> PullReport:
        return pull(self.objects, PREFIX, request=PullRequest(out=out, **asked))

    def lists(self) -> list[ArtifactList]:
        area = area_of(PREFIX)
        return [fetch_list(self.memory, ref, area=area) for ref in list_snapshots(self.memory, area)]

    def bucket_keys(self, folder: str = "files") -> list[str]:
        return [stat.key.text for page in self.memory.list(f"{PREFIX}/artifacts/{folder}/") for stat in page]

    def files(self, folder: Path | None = None) -> dict[str, bytes]:
        top = folder if folder is not None else self.folder
        return {
            str(path.relative_to(top)): path.read_bytes()
            for path in sorted(top.rglob("*"))
            if path.is_file() and not path.is_symlink() and path.relative_to(top).parts[0] != PRIVATE_NAME
        }

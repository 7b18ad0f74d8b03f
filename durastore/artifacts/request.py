"""What a push is asked for, and what became of it.

Pure values; what cannot be is refused when they are made.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path

from durastore.config import StoreOptions
from durastore.errors import ConfigError
from durastore.formats.artifact_list import ArtifactName, ListRef, area_of
from durastore.objectstore.location import BucketUrl
from durastore.reconcile.session import ReconcileRequest

__all__ = ["PushReport", "PushRequest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PushRequest:
    """What is pushed, and where to."""

    folder: Path
    bucket: BucketUrl
    """The store's bucket; artifacts lie below `artifacts/` in it."""
    name: str | None = None
    """Of the snapshots; None: that of the folder."""
    exclude: tuple[str, ...] = ()
    quiet_s: float = 0.0
    """No file may have been written to for so long."""
    keep_last: int | None = None
    """Of each kind of numbered sub-folders so many stay here; the files of the others are freed after their proof."""
    settle_s: float | None = None
    options: StoreOptions = field(default_factory=StoreOptions)

    def __post_init__(self) -> None:
        if self.keep_last is not None and self.keep_last < 1:
            raise ConfigError(f"keep_last is {self.keep_last}", hint="at least the newest one stays")
        if not self.quiet_s >= 0:
            raise ConfigError(f"the quiet time is {self.quiet_s} s", hint="give 0 or more")

    @property
    def artifact(self) -> ArtifactName:
        return ArtifactName(self.name if self.name is not None else Path(os.path.realpath(self.folder)).name)

    def reconcile_request(self) -> ReconcileRequest:
        """The same as the layers below take it: the area of artifacts as a bucket of its own."""
        bucket, prefix = self.bucket, self.bucket.prefix
        return ReconcileRequest(
            local=self.folder,
            bucket=replace(bucket, prefix=area_of(prefix)),
            options=self.options,
            is_applied=True,
            is_adopting=True,
            is_reclaiming=self.keep_last is not None,
            settle_s=self.settle_s,
        )


@dataclass(slots=True, kw_only=True)
class PushReport:
    """What became of a push. Counts are of files, sizes in bytes; `troubles` and `kept` map a path to the reason."""

    name: str
    snapshot: ListRef | None = None
    """None: there is none, for the `troubles`."""
    is_new: bool = False
    """False: the newest snapshot holds this very content already."""
    files: int = 0
    size_bytes: int = 0
    sent: int = 0
    sent_bytes: int = 0
    carried: int = 0
    """Files of the snapshot that were freed here earlier."""
    left_out: tuple[str, ...] = ()
    troubles: dict[str, str] = field(default_factory=dict)
    freed: int = 0
    freed_bytes: int = 0
    kept: dict[str, str] = field(default_factory=dict)
    """Files that were to be freed, and why they were not."""

    @property
    def exit_code(self) -> int:
        """0; 3: no snapshot could be taken; 13: a file that was to be freed was not proven."""
        if self.snapshot is None:
            return 3
        return 13 if self.kept else 0

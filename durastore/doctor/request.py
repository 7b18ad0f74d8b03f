"""What a doctor is asked, and what its stages hand on to each other.

Duty: the two values. No stage reads what a later one fills in.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from durastore.clock import Clock
from durastore.config import StoreOptions
from durastore.extract.starts import Start
from durastore.model import Run
from durastore.objectstore.location import BucketUrl
from durastore.objectstore.port import ObjectStore
from durastore.spool.root import SpoolRoot
from durastore.texts import checked_address

__all__ = ["DoctorRequest", "Examination", "LocalSample"]

LocalSample = tuple[str, str]
"""Sample id and input digest (empty where there is none)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorRequest:
    """What to look at."""

    local: Path
    bucket: BucketUrl
    options: StoreOptions = field(default_factory=StoreOptions)
    data: Path | None = None
    """The input; by default that of the last start."""
    server: str | None = None
    """URL of an extraction server."""
    staging: Path | None = None
    """Where that server puts its files."""
    is_applied: bool = False
    objects: ObjectStore | None = None
    """The caller's own adapter, for what `bucket` names."""

    def __post_init__(self) -> None:
        if self.server is not None:  # before a stage, or the log of one, could quote it
            checked_address(self.server, name="--server")


@dataclass(slots=True, kw_only=True)
class Examination:
    """One run of the doctor: what was asked, and what was seen so far. Used by one thread."""

    request: DoctorRequest
    clock: Clock
    resources: ExitStack
    """Whatever a stage opened for later ones; closed at the end."""
    starts: list[Start] = field(default_factory=list)
    """On record, the newest first."""
    root: SpoolRoot | None = None
    """From the disk stage on."""
    only_local: dict[str, set[LocalSample]] = field(default_factory=dict)
    """Run digest -> samples that are in packs of this root and in no manifest yet; from the packs stage on."""
    store_ids: dict[str, str] = field(default_factory=dict)
    """Spool -> id of the store that it was filled for."""
    objects: ObjectStore | None = None
    """From the bucket stage on."""
    run: Run | None = None
    """The bucket's run; from the bucket stage on."""
    probe_ids: npt.NDArray[np.int64] | None = None
    """Token ids of a sample of the input; from the inventory stage on."""
    left: int | None = None
    """Samples that are not done; from the inventory stage on."""
    server_started_s: float | None = None
    """When the server that answers began, Unix seconds; from the server stage on."""

    @property
    def last(self) -> Start | None:
        """The last start on record."""
        return self.starts[0] if self.starts else None

    def held_root(self) -> SpoolRoot:
        """The root, in stages that need the disk stage."""
        assert self.root is not None
        return self.root

    def described_run(self) -> dict[str, Any]:
        """The bucket's run as a mapping; empty where it is not known."""
        import json

        return dict(json.loads(self.run.text)) if self.run is not None else {}

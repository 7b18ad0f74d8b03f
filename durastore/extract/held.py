"""What the manifest holds of a run, asked without a spool: for a look ahead that writes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from durastore.clock import SYSTEM_CLOCK
from durastore.config import StoreOptions, resolve_options
from durastore.manifest.index import IdIndex
from durastore.manifest.marker_store import check_run, fetch_marker
from durastore.manifest.snapshot import fetch_snapshot
from durastore.manifest.view import fetch_view
from durastore.model import Run
from durastore.objectstore.location import BucketUrl, S3Options, open_object_store
from durastore.objectstore.port import ObjectStore
from durastore.objectstore.retrying import RetryingStore, RetryPolicy

__all__ = ["fetch_held", "plain_options"]

_OBJECTS = ("clock", "observer", "objects")
_PATIENCE_S = 30.0


def plain_options(overrides: Mapping[str, Any]) -> StoreOptions:
    """The options without the caller's own objects. `ConfigError` where one cannot be."""
    return resolve_options({name: value for name, value in overrides.items() if name not in _OBJECTS})


def fetch_held(bucket: str, overrides: Mapping[str, Any], *, run: Run) -> IdIndex | None:
    """What the manifest holds of this run; None where there is no store yet. `RunMismatch`, network errors."""
    place = BucketUrl.parse(bucket)
    with ExitStack() as stack:
        bare: ObjectStore | None = overrides.get("objects")
        if bare is None:
            bare = open_object_store(place, s3=S3Options.of(plain_options(overrides)))
            stack.callback(bare.close)
        objects = RetryingStore(bare, RetryPolicy(budget_s=_PATIENCE_S), clock=SYSTEM_CLOCK)
        objects.check_bucket()
        marker = fetch_marker(objects, place.prefix)
        if marker is None:
            return None
        check_run(marker, run, prefix=place.prefix)
        return fetch_view(objects, fetch_snapshot(objects, place.prefix)).index(run.digest)

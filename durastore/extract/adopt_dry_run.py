"""What an adoption would do, without a spool and without writing anything.

Duty: answer which samples the manifest holds, and take what would be put. Must never write.
"""

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
from durastore.model import Digest, Run, SampleId
from durastore.objectstore.location import BucketUrl, S3Options, open_object_store
from durastore.objectstore.port import ObjectStore
from durastore.objectstore.retrying import RetryingStore, RetryPolicy

__all__ = ["DryRun", "fetch_held", "plain_options"]

_OBJECTS = ("clock", "observer", "objects")


class DryRun:
    """Knows what the manifest holds, and what would have been put."""

    def __init__(self, index: IdIndex | None) -> None:
        self._index = index
        self._put: dict[str, str | None] = {}

    def contains(self, sample_id: str, *, input_digest: str | None = None) -> bool:
        if sample_id in self._put:
            return self._put[sample_id] == input_digest
        digest = Digest(input_digest) if input_digest is not None else None
        return self._index is not None and self._index.contains(SampleId(sample_id), digest)

    def put_many(
        self,
        samples: Mapping[str, Mapping[str, Any]],
        *,
        meta: Mapping[str, Mapping[str, Any]] | None = None,
        input_digests: Mapping[str, str] | None = None,
        provenance: str = "computed",
    ) -> None:
        del meta, provenance
        self._put |= {name: (input_digests or {}).get(name) for name in samples}


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
        objects = RetryingStore(bare, RetryPolicy(budget_s=30.0), clock=SYSTEM_CLOCK)
        objects.check_bucket()
        marker = fetch_marker(objects, place.prefix)
        if marker is None:
            return None
        check_run(marker, run, prefix=place.prefix)
        return fetch_view(objects, fetch_snapshot(objects, place.prefix)).index(run.digest)

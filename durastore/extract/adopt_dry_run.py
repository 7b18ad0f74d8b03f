"""What an adoption would do, without a spool and without writing anything.

Duty: answer whether a sample is held, and take what would be put. Must never write.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from durastore.manifest.index import IdIndex
from durastore.model import Digest, SampleId

__all__ = ["DryRun"]


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

"""The part of the store's public face that an extraction uses.

Duty: protocols, so that the runner can be tested with a store in memory and can reach nothing else of the real one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

__all__ = ["SampleStore", "Standing"]


class Standing(Protocol):
    """What is still only on this machine."""

    @property
    def local_bytes(self) -> int: ...

    @property
    def only_local_ids(self) -> Sequence[str]: ...


class SampleStore(Protocol):
    """Where samples go. `put_many` returns when all of its samples are durable on this machine; on an error none counts
    as stored.
    """

    def put_many(
        self,
        samples: Mapping[str, Mapping[str, Any]],
        *,
        meta: Mapping[str, Mapping[str, Any]] | None = None,
        input_digests: Mapping[str, str] | None = None,
    ) -> object: ...

    def contains(self, sample_id: str, *, input_digest: str | None = None) -> bool: ...

    def flush(self, timeout_s: float | None = None) -> None: ...

    def status(self) -> Standing: ...

    def abandon(self) -> None: ...

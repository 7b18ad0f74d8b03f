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
    """Where samples go. `put` returns when the sample is durable on this machine."""

    def put(
        self,
        sample_id: str,
        tensors: Mapping[str, Any],
        *,
        meta: Mapping[str, Any] | None = None,
        input_digest: str | None = None,
    ) -> object: ...

    def contains(self, sample_id: str, *, input_digest: str | None = None) -> bool: ...

    def flush(self, timeout_s: float | None = None) -> None: ...

    def status(self) -> Standing: ...

    def abandon(self) -> None: ...

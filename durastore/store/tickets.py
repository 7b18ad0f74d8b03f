"""What `put` hands back: the sample is durable here already, and this waits until it is proven there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from durastore.model import Evidence

__all__ = ["Ticket"]


@dataclass(frozen=True, slots=True)
class Ticket:
    """One put sample. `sample_id` survives power loss of this machine from the moment the ticket exists (INV-1)."""

    sample_id: str
    is_new: bool
    """False if the store held this very content before."""
    _wait: Callable[[str, float | None], Evidence] = field(repr=False)

    def wait(self, timeout_s: float | None = None) -> Evidence:
        """Block until the sample's pack is MANIFESTED and return the evidence of its object.

        Raises `PackFailed` if the pack cannot get there in this session, `StoreClosed` after `close`, `TimeoutError`
        after `timeout_s` seconds (the sample stays safe; waiting again is fine).
        """
        return self._wait(self.sample_id, timeout_s)

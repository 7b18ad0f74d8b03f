"""Which of several training processes this one is.

Duty: find rank and world size: as given, else from an initialised torch.distributed, else from torchrun's environment,
else one process. Must never guess: half an answer is refused, for it would train some samples twice or never.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from durastore.errors import ConfigError

__all__ = ["Share", "find_share"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Rank `rank` of `world_size` processes that read one epoch between them."""

    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise ConfigError(f"rank {self.rank} of {self.world_size} processes", hint="ranks count from 0")


def find_share(rank: int | None, world_size: int | None, *, environ: Mapping[str, str] | None = None) -> Share:
    """The share of this process. Raises `ConfigError` where only one of the two numbers is known."""
    if rank is not None or world_size is not None:
        if rank is None or world_size is None:
            raise ConfigError("rank and world_size go together", hint="give both, or neither")
        return Share(rank=rank, world_size=world_size)
    distributed = sys.modules.get("torch.distributed")  # who did not import it has not initialised it
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return Share(rank=distributed.get_rank(), world_size=distributed.get_world_size())
    environ = os.environ if environ is None else environ
    texts = (environ.get("RANK"), environ.get("WORLD_SIZE"))
    if texts == (None, None):
        return Share()
    try:
        return Share(rank=int(texts[0] or ""), world_size=int(texts[1] or ""))
    except ValueError as exc:
        raise ConfigError(
            f"the environment has RANK={texts[0]} and WORLD_SIZE={texts[1]}",
            hint="both have to be numbers, as torchrun sets them; or give rank= and world_size=",
        ) from exc

"""Which part of the input this process does, where several hosts or ranks share it without talking.

Duty: `--shard i/n` or the launcher's variables -> a `Shard`, by a hash of the sample id. Must never go by the order of
rows: a row that is added or left out would move all others to other ranks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from durastore.errors import ConfigError
from durastore.model import SampleId

__all__ = ["WHOLE", "Shard", "parse_shard", "shard_of_environment"]

_TEXT = re.compile(r"([0-9]{1,6})/([0-9]{1,6})", re.ASCII)
_LAUNCHERS = (
    ("torchrun", "RANK", "WORLD_SIZE"),
    # Of a step, not of a job: a batch script that is not started by srun has the job's numbers, and is alone.
    ("Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """Part `index` of `count`. The parts of all indices are the whole input, each sample once."""

    index: int = 0
    count: int = 1

    def has(self, sample_id: SampleId | None) -> bool:
        """Rows without an id, which are only counted as failed, belong to part 0."""
        if sample_id is None:
            return self.index == 0
        return int(sample_id.digest().hex[:16], 16) % self.count == self.index

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


WHOLE = Shard()


def parse_shard(text: str) -> Shard:
    """`i/n` with 0 <= i < n. `ConfigError` for anything else."""
    match = _TEXT.fullmatch(text)
    if match is None or int(match[1]) >= int(match[2]):
        raise ConfigError(f"shard {text!r} is not i/n with i from 0 to n-1")
    return Shard(index=int(match[1]), count=int(match[2]))


def shard_of_environment(environ: Mapping[str, str]) -> Shard:
    """The launcher's rank and number of ranks, the whole where there is none. `ConfigError` if they make no sense."""
    for name, rank, size in _LAUNCHERS:
        if environ.get(rank) and environ.get(size):
            try:
                return parse_shard(f"{environ[rank]}/{environ[size]}")
            except ConfigError as exc:
                message = f"{name}'s {rank}={environ[rank]} and {size}={environ[size]} are no shard"
                raise ConfigError(message, hint="give --shard i/n; --shard 0/1 is the whole input") from exc
    return WHOLE

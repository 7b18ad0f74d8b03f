"""Workers on other machines, as the command that hands out leases sees them.

Duty: the port that `cluster_crew` is written against; `integrations/ray_cluster.py` is its adapter. A worker is asked
one thing at a time; an answer that never comes is `Lost`. Must never say that a worker is gone where it only may be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from durastore.extract.job import ExtractRequest
from durastore.extract.lease_line import Given, Told
from durastore.extract.leased_work import WorkerOrder
from durastore.extract.remote_worker import Drained

__all__ = ["Actor", "Answer", "Begun", "Cluster", "Hello", "Lost", "Refused"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """Where a worker is, and what it runs."""

    version: str
    """Of durastore."""
    host: str
    node: str
    """The cluster's name for the machine."""
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """It works."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """No answer came."""

    reason: str
    is_gone: bool
    """The cluster says that the worker's process has ended; else it may live, and may be asked the same again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The worker could not even be made, and no other would be: what it needs is not there."""

    reason: str


Answer = Hello | Begun | Told | Drained | Lost | Refused


class Actor(Protocol):
    """One worker. Each method sends a question; `Cluster.answers` gives the answer, before the next may be sent."""

    def hello(self) -> None: ...

    def begin(self, order: WorkerOrder, number: int) -> None: ...

    def exchange(self, given: Given) -> None: ...

    def drain(self, request: ExtractRequest, *, timeout_s: float) -> None: ...


class Cluster(Protocol):
    """Where workers are started."""

    def start(self, *, near: str | None = None) -> Actor:
        """A new worker with what was asked for each, on the machine of this name while there is one. Does not wait."""
        ...

    def visit(self, node: str) -> Actor:
        """A worker without a GPU or a core of its own, on exactly this machine, to drain its spools."""
        ...

    def answers(self, actors: Sequence[Actor], timeout_s: float) -> Sequence[tuple[Actor, Answer]]:
        """The answers that are there, each once; waits at most so long for the first. Each was asked something."""
        ...

    def release(self, actor: Actor) -> None:
        """Its process may end, whatever it does. Safe to repeat."""
        ...

    def describe(self) -> str:
        """What is asked for each worker, and what the cluster has."""
        ...

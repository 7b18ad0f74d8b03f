"""Workers as actors of a Ray cluster. The only module that imports Ray, and only when it is asked for.

Duty: connect, or start Ray on this machine alone; start, ask and release actors; turn what Ray says into answers. Ray
itself restarts no actor: whoever hands out the leases has to know that one is gone, and where the next one is. Must
never start a dashboard, send usage statistics, or listen on more than loopback where Ray was started for one command.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import durastore
from durastore.errors import ConfigError, EndpointUnreachable
from durastore.extract.cluster import Actor, Answer, Begun, Hello, Lost, Refused
from durastore.extract.job import ExtractRequest
from durastore.extract.lease_line import Given
from durastore.extract.leased_work import WorkerOrder
from durastore.extract.remote_worker import RemoteWorker

__all__ = ["LOCAL", "Needs", "RayActor", "RayCluster", "connected"]

LOCAL, AUTO = "local", "auto"
_CONNECT_S = 10.0
_OBJECT_STORE_BYTES = 80 << 20
"""Messages are small: leased rows one way, names and counts the other."""
_INSTALL = "pip install 'durastore[ray]'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Resources of each worker. None: found out from the cluster."""

    workers: int | None = None
    num_gpus: float | None = None
    num_cpus: float = 1.0
    wants_gpu: bool = True
    """Whether a GPU is of any use to a worker."""


class _RayWorker(RemoteWorker):
    """What runs in the actor's process."""

    def hello(self) -> dict[str, Any]:
        node = str(_ray().get_runtime_context().get_node_id())
        return {**super().hello(), "durastore": durastore.__version__, "node": node}


class RayActor:
    """One actor, and the question that it was asked last."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.question: Any = None
        self._is_begin = False

    def hello(self) -> None:
        self._ask(self.handle.hello.remote())

    def begin(self, order: WorkerOrder, number: int) -> None:
        self._ask(self.handle.begin.remote(order, number), is_begin=True)

    def exchange(self, given: Given) -> None:
        self._ask(self.handle.exchange.remote(given))

    def drain(self, request: ExtractRequest, *, timeout_s: float) -> None:
        self._ask(self.handle.drain.remote(request, timeout_s=timeout_s))

    def _ask(self, question: Any, *, is_begin: bool = False) -> None:
        self.question, self._is_begin = question, is_begin

    def answer(self) -> Answer:
        """What came of the last question, which is ready."""
        try:
            value = _ray().get(self.question)
        except _ray().exceptions.RayError as exc:
            return _no_answer(exc)
        if self._is_begin:
            return Begun()
        if isinstance(value, dict):
            return Hello(
                version=str(value["durastore"]),
                host=str(value["host"]),
                node=str(value["node"]),
                pid=int(value["pid"]),
            )
        answer: Answer = value
        return answer


class RayCluster:
    """A `Cluster`. Used by one thread."""

    def __init__(self, needs: Needs) -> None:
        """`ConfigError` where no machine of the cluster has what one worker needs."""
        self._resources = [node["Resources"] for node in _ray().nodes() if node["Alive"]]
        gpus = sum(each.get("GPU", 0.0) for each in self._resources)
        found = 1.0 if gpus and needs.wants_gpu else 0.0
        self._num_gpus = needs.num_gpus if needs.num_gpus is not None else found
        self._num_cpus = needs.num_cpus
        fitting = [sum(1 for _ in self._places(each)) for each in self._resources]
        if not sum(fitting):
            raise ConfigError(
                f"no machine of the cluster has what a worker needs: {self.describe()}",
                hint="ask for less with --num-gpus and --num-cpus, or start such machines first",
            )
        self.workers = needs.workers or (sum(fitting) if self._num_gpus else sum(each > 0 for each in fitting))
        self._class = _ray().remote(max_restarts=0, max_task_retries=0)(_RayWorker)

    def _places(self, resources: dict[str, float]) -> Iterator[int]:
        """Workers that this machine has room for when it is idle."""
        cpus, gpus, number = resources.get("CPU", 0.0), resources.get("GPU", 0.0), 0
        while cpus >= self._num_cpus and gpus >= self._num_gpus and number < 1024:
            yield number
            cpus, gpus, number = cpus - self._num_cpus, gpus - self._num_gpus, number + 1

    def start(self, *, near: str | None = None) -> Actor:
        strategy: Any = "SPREAD"
        if near is not None:
            strategy = _ray().util.scheduling_strategies.NodeAffinitySchedulingStrategy(near, soft=True)
        made = self._class.options(
            num_gpus=self._num_gpus, num_cpus=self._num_cpus, scheduling_strategy=strategy
        ).remote()
        return RayActor(made)

    def visit(self, node: str) -> Actor:
        strategy = _ray().util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)
        return RayActor(self._class.options(num_gpus=0, num_cpus=0, scheduling_strategy=strategy).remote())

    def answers(self, actors: Sequence[Actor], timeout_s: float) -> Sequence[tuple[Actor, Answer]]:
        by_question = {actor.question: actor for actor in actors if isinstance(actor, RayActor)}
        questions = list(by_question)
        ready, _ = _ray().wait(questions, num_returns=1, timeout=timeout_s)
        if ready:
            ready, _ = _ray().wait(questions, num_returns=len(questions), timeout=0)
        return [(by_question[question], by_question[question].answer()) for question in ready]

    def release(self, actor: Actor) -> None:
        if isinstance(actor, RayActor):
            _ray().kill(actor.handle, no_restart=True)

    def describe(self) -> str:
        asked = _counted({"GPU": self._num_gpus, "CPU": self._num_cpus})
        has, free = _counted(_ray().cluster_resources()), _counted(_ray().available_resources())
        return f"{asked} for each; the cluster has {has}, free {free}"


@contextmanager
def connected(address: str, needs: Needs) -> Iterator[RayCluster]:
    """The cluster at `address`, for as long as the block runs; `local`: Ray is started on this machine, and ended.

    Enter it before signal handlers are installed: Ray installs its own. `ConfigError` where Ray is not installed or is
    another version, `EndpointUnreachable` where there is no cluster.
    """
    if address.startswith("ray://"):
        raise ConfigError(
            "a Ray client connection cannot hand out leases", hint="run the command on a machine of the cluster"
        )
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address == LOCAL:
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # Ray's switch for loopback only
    ray = _ray()
    is_ours = not ray.is_initialized()
    if is_ours:
        _connect(address, needs)
    try:
        yield RayCluster(needs)
    finally:
        if is_ours:
            ray.shutdown()


def _connect(address: str, needs: Needs) -> None:
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}  # stdout is for results
    if address == LOCAL:
        wanted = (needs.workers or 1) * needs.num_cpus
        own = {
            "num_cpus": max(os.cpu_count() or 1, int(wanted + 1)),  # whoever asks for so many here gets them
            "include_dashboard": False,
            "object_store_memory": _OBJECT_STORE_BYTES,
        }
        try:
            _ray().init(address=LOCAL, **own, **quiet)
        except (OSError, ValueError, RuntimeError) as exc:
            hint = "RAY_TMPDIR names the folder it starts in: a short path with some space"
            raise ConfigError(f"Ray cannot be started on this machine: {_first_line(exc)}", hint=hint) from exc
        return
    try:
        _check_port(address)
        _ray().init(address=address, **quiet)
    except (OSError, ValueError, TimeoutError) as exc:
        raise EndpointUnreachable(
            f"no Ray cluster answers at {address}: {_first_line(exc)}",
            hint="run the command on a machine of the cluster; `ray status` tells whether it is one",
        ) from exc
    except RuntimeError as exc:  # other versions of Ray or Python, among others
        raise ConfigError(f"the Ray cluster at {address} cannot be joined: {' '.join(str(exc).split())}") from exc


def _check_port(address: str) -> None:
    """Ray itself tries for minutes where nobody listens. OSError."""
    if address == AUTO:
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigError(f"{address!r} is no address of a Ray cluster", hint="use local, auto or host:port")
    socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()


def _ray() -> Any:
    try:
        import ray
        import ray.exceptions
        import ray.util.scheduling_strategies
    except ImportError as exc:
        raise ConfigError("Ray is not installed", hint=_INSTALL) from exc
    return ray


def _no_answer(exc: BaseException) -> Lost | Refused:
    """What one of Ray's errors says of the actor that was asked."""
    errors = _ray().exceptions
    # The answer was too large for a message, and is gone with the place where it lay: the actor itself may live.
    if isinstance(exc, errors.ActorUnavailableError | errors.ObjectLostError):
        return Lost(reason=_first_line(exc), is_gone=False)
    if isinstance(exc, errors.RayTaskError) or getattr(exc, "actor_init_failed", False):
        return Refused(reason=_last_line(exc))
    # Ray's memory monitor ends actors, too, where the machine has none left.
    gone = errors.RayActorError | errors.WorkerCrashedError | errors.NodeDiedError | errors.OutOfMemoryError
    return Lost(reason=_first_line(exc), is_gone=True) if isinstance(exc, gone) else Refused(reason=_first_line(exc))


def _counted(resources: dict[str, float]) -> str:
    return ", ".join(f"{resources.get(name, 0.0):g} {name}" for name in ("GPU", "CPU"))


def _first_line(exc: BaseException) -> str:
    return next((line.strip() for line in str(exc).splitlines() if line.strip()), type(exc).__name__)[:500]


def _last_line(exc: BaseException) -> str:
    """Of a traceback: the exception."""
    return next((line.strip() for line in reversed(str(exc).splitlines()) if line.strip()), type(exc).__name__)[:500]

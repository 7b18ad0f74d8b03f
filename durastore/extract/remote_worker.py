"""A worker of a shared extraction on a machine of its own, as whoever asks it sees it.

Duty: do the work in a thread, answer questions meanwhile, and bring what ended workers left on this machine to the
bucket when asked to. Must never go on for long without being asked, nor outlive its grace time by more.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from dataclasses import dataclass, replace
from signal import SIGTERM
from typing import Any

from durastore.clock import SYSTEM_CLOCK, Clock
from durastore.config import resolve_options
from durastore.errors import ConfigError, DurastoreError, SpoolLocked, StoreClosed, StoreMissing
from durastore.extract.job import ExtractRequest, plan_run
from durastore.extract.lease_line import Given, LeaseLine, Told
from durastore.extract.leased_work import WorkerEnd, WorkerOrder, work_off_leases
from durastore.extract.switch import StopSwitch
from durastore.model import Run
from durastore.objectstore.location import BucketUrl
from durastore.observe.events import LOGGER
from durastore.store.draining import DrainedSpool, drain_root
from durastore.store.opening import open_store

__all__ = ["Drained", "RemoteWorker"]

_POLL_S = 0.1
_ANSWER_S = 1.0
_LAST_WORDS_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    """What of the bucket's is still in spools of this machine's root after a drain."""

    left: tuple[str, ...] = ()
    """Paths of spools with samples that are not proven."""
    locked: tuple[str, ...] = ()
    """Paths of those that live processes hold, which bring it to the bucket themselves."""
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """What was begun."""

    order: WorkerOrder
    line: LeaseLine
    switch: StopSwitch


class RemoteWorker:
    """Every method but the worker's own thread runs on the main thread, one at a time."""

    def __init__(self, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._line: LeaseLine | None = None

    def hello(self) -> dict[str, Any]:
        """Who this is, in plain values: other versions have to understand it. The adapter adds version and node."""
        return {"host": socket.gethostname(), "pid": os.getpid()}

    def begin(self, order: WorkerOrder, number: int) -> None:
        """Start to work. Signals ask for a stop from now on: whoever takes the machine away sends SIGTERM first.

        Safe to repeat: whoever heard no answer asks again.
        """
        if self._line is not None:
            return
        switch = StopSwitch(grace_s=order.request.grace_s, clock=self._clock)
        if threading.current_thread() is threading.main_thread():
            switch.installed().__enter__()  # for the rest of the process's life
        self._line = LeaseLine(number=number, switch=switch, clock=self._clock)
        work = _Work(order=order, line=self._line, switch=switch)
        thread = threading.Thread(target=self._work, args=(work,), name="durastore-extract-worker", daemon=True)
        thread.start()
        threading.Thread(target=self._watch, args=(work, thread), name="durastore-extract-watch", daemon=True).start()

    def exchange(self, given: Given) -> Told:
        """See `LeaseLine.exchange`."""
        assert self._line is not None
        return self._line.exchange(given, wait_s=_ANSWER_S)

    def drain(self, request: ExtractRequest, *, timeout_s: float) -> Drained:
        """Bring what idle spools of the root hold for this bucket there. Raises nothing of ours. Safe to repeat."""
        url = BucketUrl.parse(request.bucket).render()
        options = resolve_options(dict(request.options))
        try:
            report = drain_root(request.local, options=options, bucket=url, timeout_s=timeout_s)
        except (StoreMissing, SpoolLocked) as exc:  # a root that is gone, unmounted perhaps, was not looked into
            return Drained(error=str(exc))
        except DurastoreError as exc:
            return Drained(error=str(exc), left=(str(request.local),))
        return Drained(
            left=tuple(str(request.local / spool.name) for spool in report.spools if _is_left(spool, url)),
            locked=tuple(str(request.local / name) for name in report.locked),
            error="; ".join(str(spool.error) for spool in report.spools if spool.error and _is_left(spool, url)),
        )

    def _work(self, work: _Work) -> None:
        line, switch = work.line, work.switch
        heard = _Heard(line)
        LOGGER.addHandler(heard)
        try:
            end = self._run(work)
        except DurastoreError as exc:
            end = WorkerEnd(number=line.number, signal=switch.signal, error=exc)
        # A library's panic is no `Exception`. Told to whoever started the work, who else would be answered for ever.
        except BaseException as exc:  # noqa: BLE001
            error = DurastoreError(f"{type(exc).__name__}: {exc}")
            end = WorkerEnd(number=line.number, signal=switch.signal, error=error)
        LOGGER.removeHandler(heard)
        line.end(end)

    def _run(self, work: _Work) -> WorkerEnd:
        order, request = work.order, work.order.request
        plan = plan_run(request)
        if Run.of(plan.run).digest.hex != order.run:
            raise ConfigError(
                f"{request.model} is another model (or tokeniser) here than where the command runs",
                hint="put the same files on every machine",
            )
        store = open_store(request.bucket, local=request.local, run=plan.run, **request.options)
        try:
            work.line.opened(str(store.spool_path))
            settings = replace(request.settings, slot=0, sharers=1)  # it sees its own GPUs and cores only
            bookkeeping = (work.switch, self._clock)
            return work_off_leases(work.line, order, opened=(plan, store), bookkeeping=bookkeeping, settings=settings)
        finally:
            try:
                store.abandon()
            except StoreClosed as exc:
                LOGGER.warning("%s", exc)

    def _watch(self, work: _Work, thread: threading.Thread) -> None:
        """Stop when nobody asks any more, and leave for good when a stop takes longer than its grace time."""
        while not work.switch.is_expired:
            thread.join(_POLL_S)
            if not thread.is_alive():
                return
            if self._clock.monotonic() - work.line.asked_s > work.order.request.lease_s:
                work.switch.request(SIGTERM)  # its samples are others' by now; what it stored comes to the bucket
        self._clock.sleep(_LAST_WORDS_S)
        if thread.is_alive():
            os._exit(128 + SIGTERM)  # a pass that never ends must not keep the machine; its samples are leased again


class _Heard(logging.Handler):
    """What the library warns of on this machine, for the log of the command."""

    def __init__(self, line: LeaseLine) -> None:
        super().__init__(logging.WARNING)
        self._line = line

    def emit(self, record: logging.LogRecord) -> None:
        self._line.note(f"{record.levelname} {record.getMessage()}")


def _is_left(spool: DrainedSpool, url: str) -> bool:
    """Whether something of this bucket's is not proven. Spools of other buckets are not this command's."""
    return (spool.bucket is None or spool.bucket == url) and bool(spool.left or spool.error)

"""One worker process of a shared extraction.

Duty: a store with a spool of its own, a seat at the queue of this machine, and the work. Must never outlive its grace
time, or the process that started it, by more.
"""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from signal import SIGTERM

from durastore.clock import SYSTEM_CLOCK, Clock
from durastore.errors import DurastoreError, StoreClosed
from durastore.extract.job import plan_run
from durastore.extract.leased_work import WorkerEnd, WorkerOrder, work_off_leases
from durastore.extract.seat import LocalSeat
from durastore.extract.switch import StopSwitch
from durastore.model import Run
from durastore.observe.events import LOGGER
from durastore.store.opening import open_store

__all__ = ["work"]

_POLL_S = 0.1
_LAST_WORDS_S = 5.0
"""After the grace time a worker has so long to leave by itself."""


def work(order: WorkerOrder, answer: Connection) -> None:
    """The main function of the process. Its end goes to `answer`; no answer means that it was killed."""
    switch = StopSwitch(grace_s=order.request.grace_s, clock=SYSTEM_CLOCK)
    with switch.installed():
        threading.Thread(target=_watch, args=(switch,), name="durastore-extract-watch", daemon=True).start()
        try:
            end = _run(order, switch=switch, clock=SYSTEM_CLOCK)
        except DurastoreError as exc:
            end = WorkerEnd(number=0, signal=switch.signal, error=exc)
        answer.send(end)
        answer.close()
        if end.is_abandoned:
            os._exit(128 + SIGTERM)  # threads still wait for the network; everything put is durable (INV-1)


def _watch(switch: StopSwitch) -> None:
    """Stop when the parent is gone, and leave for good when a stop takes longer than its grace time."""
    parent = parent_process()
    sentinels = [parent.sentinel] if parent is not None else []
    while not switch.is_expired:
        if wait(sentinels, _POLL_S):
            switch.request(SIGTERM)
            sentinels = []
        if not sentinels:
            SYSTEM_CLOCK.sleep(_POLL_S)
    SYSTEM_CLOCK.sleep(_LAST_WORDS_S)
    os._exit(128 + SIGTERM)  # a pass that never ends must not keep the machine; its samples are leased again


def _run(order: WorkerOrder, *, switch: StopSwitch, clock: Clock) -> WorkerEnd:
    """Work until nothing is left, or a stop. Raises `DurastoreError` for what kept it from beginning."""
    request = order.request
    plan = plan_run(request)
    seat = LocalSeat.join(request, names=(order.job, Run.of(plan.run).digest.hex), clock=clock)
    try:
        store = open_store(request.bucket, local=request.local, run=plan.run, **request.options)
        ledger = seat.records.ledger
        try:
            ledger.note("WORKER-START", number=seat.number, pid=os.getpid())
            settings = replace(request.settings, slot=order.slot, sharers=request.workers or 1)
            with ledger.hearing(LOGGER):
                end = work_off_leases(seat, order, opened=(plan, store), bookkeeping=(switch, clock), settings=settings)
            ledger.note("WORKER-END", number=seat.number, ok=end.ok, handed_back=end.handed_back)
        finally:
            try:
                store.abandon()
            except StoreClosed as exc:
                LOGGER.warning("%s", exc)
    finally:
        seat.close()
    return end

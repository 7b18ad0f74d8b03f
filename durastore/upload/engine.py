"""The upload engine: one event loop in one daemon thread, fed from any thread.

Duty: `Uploader`. Every future handed out ends in exactly one terminal state: the reply, the error, or `StoreClosed`,
whatever happens to the loop. Must never block the loop, and never end a multipart upload because it was closed: what
is under way stays recorded and is gone on with later.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from concurrent.futures import Future, InvalidStateError

from durastore.clock import SYSTEM_CLOCK, Clock
from durastore.errors import DurastoreError, ForkedStore, StoreClosed
from durastore.objectstore.retrying import RetryPolicy
from durastore.observe.events import Observer, Silent
from durastore.upload.allowance import Allowance, RequestGate
from durastore.upload.calls import Calls
from durastore.upload.context import CreateOnly, Offload, UploadContext
from durastore.upload.job import UploadJob, UploadLimits, UploadReply
from durastore.upload.machine import MachineShare
from durastore.upload.multipart import send_multipart
from durastore.upload.port import TransportFactory
from durastore.upload.single import send_single
from durastore.upload.source import PackSource

__all__ = ["Uploader"]

_JOIN_S = 10.0  # what a cancelled engine gets for leaving its callbacks and connections in order


class _Ticket:
    """A job and the future that answers for it."""

    __slots__ = ("future", "job")

    def __init__(self, job: UploadJob) -> None:
        self.job = job
        self.future: Future[UploadReply] = Future()

    def end(self, outcome: UploadReply | BaseException) -> None:
        """The first call decides; a future that already ended, or that its holder cancelled, stays as it is."""
        try:
            if isinstance(outcome, UploadReply):
                self.future.set_result(outcome)
            else:
                self.future.set_exception(outcome)
        except InvalidStateError:
            return


class Uploader:
    """Sends packs to one bucket. Thread-safe. Starts its thread at the first `submit`, or before it by `start`."""

    def __init__(
        self,
        transport: TransportFactory,
        *,
        limits: UploadLimits,
        policy: RetryPolicy,
        clock: Clock = SYSTEM_CLOCK,
        observer: Observer | None = None,
    ) -> None:
        self._factory = transport
        self._limits = limits
        self._policy = policy
        self._clock = clock
        self._observer: Observer = observer if observer is not None else Silent()
        self._changed = threading.Condition()
        self._waiting: deque[_Ticket] = deque()
        self._open: set[_Ticket] = set()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: asyncio.Event | None = None
        self._main: asyncio.Task[None] | None = None
        self._is_closing = False
        self._end: BaseException | None = None
        self._pid = os.getpid()

    # --- any thread ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Open the transport now, beside what the caller does before its first job. Raises nothing of it: `submit`
        does. Safe to repeat.
        """
        self._check_process()
        with self._changed:
            if not self._is_closing and self._end is None:
                self._start()

    def submit(self, job: UploadJob) -> Future[UploadReply]:
        """Takes the job; blocks while `max_queued` jobs are under way.

        The future ends with the reply or with a `DurastoreError`: `EndpointUnreachable`, `OverloadedEndpoint`,
        `UnknownAnswer` and `AmbiguousWrite` once the retry budget is spent (submit again with the session as recorded),
        `IntegrityError`, `RequestRefused`, `CredentialsRefused` and `SpoolUnreadable` at once, `StoreClosed` when the
        engine ended first. Its done-callbacks run on the engine's loop and have to be quick. `cancel()` works only
        before the job begins. Raises `StoreClosed` after `close`, `ForkedStore` in a forked child, and the error
        that ended the engine.
        """
        self._check_process()
        ticket = _Ticket(job)
        with self._changed:
            while len(self._open) >= self._limits.max_queued and not self._is_closing and self._end is None:
                self._clock.wait(self._changed, 1.0)
            self._check_alive()
            self._open.add(ticket)
            self._waiting.append(ticket)
            self._start()
            self._wake_loop()
        return ticket.future

    def _start(self) -> None:
        """Under the lock."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._live, name="durastore-upload", daemon=True)
            self._thread.start()

    def close(self, timeout_s: float = 30.0) -> None:
        """Takes no more jobs, gives those under way `timeout_s` to end, then cancels the rest (`StoreClosed`).

        A multipart upload that is cut off so stays recorded. When this returns no callback of a job is running any
        more, unless the loop itself is stuck. Safe to repeat; does nothing in a forked child.
        """
        if os.getpid() != self._pid:
            return
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
            self._wake_loop()
            thread = self._thread
        if thread is None or thread is threading.current_thread():
            return
        thread.join(max(0.0, timeout_s))
        if thread.is_alive():
            with self._changed:
                if self._loop is not None and self._main is not None:
                    self._loop.call_soon_threadsafe(self._main.cancel)
            thread.join(_JOIN_S)
        self._end_all(StoreClosed("the upload engine was closed"))

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedStore("this upload engine belongs to the parent process")

    def _check_alive(self) -> None:
        if isinstance(self._end, DurastoreError):
            raise self._end
        if self._end is not None or self._is_closing:
            raise StoreClosed("the upload engine takes no more packs") from self._end

    def _wake_loop(self) -> None:
        """Under the lock, under which `_serve` also lets go of its loop: it cannot be closed meanwhile."""
        if self._loop is not None and self._wake is not None:
            self._loop.call_soon_threadsafe(self._wake.set)

    def _end_all(self, cause: BaseException) -> None:
        """The last word on every future: none stays open once the loop is gone."""
        with self._changed:
            if self._end is None:
                self._end = cause
            tickets, self._open = self._open, set()
            self._waiting.clear()
            self._changed.notify_all()
        for ticket in tickets:
            ticket.end(_told(cause, ticket.job))

    # --- the engine's thread ---------------------------------------------------------------------------------------

    def _live(self) -> None:
        cause: BaseException = StoreClosed("the upload engine was closed")
        try:
            asyncio.run(self._serve())
        except asyncio.CancelledError:
            pass  # cancelled by close()
        except BaseException as exc:  # noqa: BLE001 -- a future left open would wait for ever, whatever ended the loop
            cause = exc
        finally:
            self._end_all(cause)

    async def _serve(self) -> None:
        offload = Offload(self._limits.io_threads)
        cap = self._limits.machine_requests
        machine = MachineShare(cap, clock=self._clock) if cap is not None else None
        with self._changed:
            self._loop, self._wake = asyncio.get_running_loop(), asyncio.Event()
            self._main = asyncio.current_task()
        try:
            if machine is not None:
                await offload.run(machine.limit)  # the first look may make a folder, and is no work for the loop
            async with self._factory() as transport:
                share = machine.limit if machine is not None else None
                gate = RequestGate(self._limits.max_requests, clock=self._clock, share=share)
                calls = Calls(
                    gate=gate, policy=self._policy, limits=self._limits, clock=self._clock, observer=self._observer
                )
                context = UploadContext(
                    transport=transport,
                    calls=calls,
                    budget=Allowance(self._limits.budget_bytes),
                    offload=offload,
                    limits=self._limits,
                    observer=self._observer,
                    create_only=CreateOnly(is_wanted=self._limits.is_create_only),
                )
                await self._work(context)
        finally:
            with self._changed:
                self._loop = self._wake = self._main = None
            if machine is not None:
                machine.close()
            # Blocks the loop on purpose, now that nothing else runs on it: callbacks still at work in the pool belong
            # to records that the caller may close as soon as we are gone.
            offload.close()

    async def _work(self, context: UploadContext) -> None:
        places = Allowance(self._limits.max_jobs)
        async with asyncio.TaskGroup() as group:
            while True:
                await places.acquire(1)
                ticket = await self._next()
                if ticket is None:
                    return
                task = group.create_task(self._carry_out(ticket, context))
                task.add_done_callback(lambda _: places.release(1))

    async def _next(self) -> _Ticket | None:
        """The job that has waited longest; None once the engine is closing and none is left."""
        while True:
            with self._changed:
                wake = self._wake
                if self._waiting:
                    return self._waiting.popleft()
                if self._is_closing or wake is None:
                    return None
                wake.clear()
            await wake.wait()

    async def _carry_out(self, ticket: _Ticket, context: UploadContext) -> None:
        try:
            if ticket.future.set_running_or_notify_cancel():
                ticket.end(await _send(ticket.job, context))
        except asyncio.CancelledError:
            ticket.end(StoreClosed(f"the upload of {ticket.job.key} was interrupted and can be gone on with"))
            raise
        except Exception as exc:  # noqa: BLE001 -- whatever a callback raised belongs to its own job only
            context.observer.emit("upload.failed", error=getattr(exc, "code", type(exc).__name__))
            ticket.end(_told(exc, ticket.job))
        finally:
            if ticket.future.done():
                with self._changed:
                    self._open.discard(ticket)
                    self._changed.notify_all()


async def _send(job: UploadJob, context: UploadContext) -> UploadReply:
    # A recorded session is gone on with even if the limit was raised since: its parts are there already.
    is_single = job.size_bytes == 0 or (job.session is None and job.size_bytes <= context.limits.multipart_above)
    if is_single and job.body is not None:
        return await send_single(job, None, context=context)
    source = PackSource(job)
    try:
        if is_single:
            return await send_single(job, source, context=context)
        return await send_multipart(job, source, context=context)
    finally:
        context.offload.later(source.close)


def _told(error: BaseException, job: UploadJob) -> DurastoreError:
    """The error as the job's holder sees it: always a `DurastoreError`, with anything else as its cause."""
    if isinstance(error, DurastoreError):
        return error
    told = DurastoreError(f"the upload of {job.key} failed: {type(error).__name__}: {error}")
    told.__cause__ = error
    return told

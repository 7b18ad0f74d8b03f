"""The pipeline of one spool: each pack from SEALED to RECLAIMED, one recorded step at a time.

Duty: decide what is due, hand the slow work to the uploader and the pool, record what came of it. Past OPEN a running
store moves a pack only on this thread, or in the one segment task and the one reclaim task that it started.
Must never drop an outcome: every started piece of work comes back through `_finished`.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from durastore.errors import DiskFailed, DurastoreError, IntegrityError, ObjectAbsent, PackFailed, StoreClosed
from durastore.model import Evidence, EvidenceLevel, PackState, SampleEntry
from durastore.observe.events import LOGGER
from durastore.reclaim.engine import Reclaimer, ReclaimReport
from durastore.reclaim.plan import plan_reclaim
from durastore.spool.journal import PackRecord
from durastore.spool.pack_writer import PackWriter
from durastore.spool.records import LostSample
from durastore.spool.spool import Spool
from durastore.store.backoff import Backoff
from durastore.store.membership import Membership
from durastore.store.segmenter import Segmenter
from durastore.store.sending import upload_job
from durastore.store.services import Services
from durastore.store.troubles import Trouble, judge_upload, judge_verification
from durastore.upload.job import UploadReply

__all__ = ["Lane"]

_TICK_S = 0.25
_RECLAIM_EVERY_S = 1.0
_UPLOAD_PACKS = 32  # packs handed out at once; the uploader bounds bytes and requests itself
Outcome = tuple[str, PackRecord | None, "Future[Any]"]


class Lane:
    """Works one spool until told to stop. Hears from the spool's writer (`WriterListener`)."""

    def __init__(self, number: int, spool: Spool, *, services: Services, membership: Membership) -> None:
        self.number = number
        self.spool = spool
        self.writer: PackWriter | None = None
        self._services = services
        self._membership = membership
        self._segmenter = Segmenter(spool, services=services, membership=membership, lane=number)
        self._reclaimer = Reclaimer(spool, services.verifier, observer=services.observer, listener=self)
        self._backoff = Backoff(services.clock)
        self._busy: set[int] = set()
        self._begun_early: set[int] = set()
        """Packs whose last try began before the endpoint's probe had ended."""
        self._failed: dict[int, DurastoreError] = {}
        self._finished: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        self._handlers: dict[str, Callable[[PackRecord | None, Future[Any]], bool]] = {
            "upload": self._after_upload,
            "verify": self._after_verification,
            "rescue": self._after_rescue,
            "segment": self._after_segment,
            "reclaim": self._after_reclaim,
        }
        self._loss_numbers = itertools.count(-1, -1)  # asked by several threads
        self._is_segmenting = False
        self._is_reclaiming = False
        self._reclaim_at = 0.0
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name=f"durastore-lane-{number}", daemon=True)

    def start(self, writer: PackWriter | None) -> None:
        """Begin; `writer` None for an idle sibling that is only drained."""
        self.writer = writer
        self._thread.start()

    # --- asked by the store ----------------------------------------------------------------------------------------

    def failure_of(self, pack_id: int) -> DurastoreError | None:
        """Why this pack cannot get on in this session, or None."""
        return self._failed.get(pack_id)

    def failures(self) -> list[DurastoreError]:
        return list(self._failed.values())

    def unmanifested(self) -> list[PackRecord]:
        """Packs whose samples are only local, or not yet listed in the bucket's manifest."""
        states = (PackState.OPEN, PackState.SEALED, PackState.UPLOADED, PackState.VERIFIED, PackState.UNKNOWN)
        packs = self.spool.journal.packs(*states)
        # an OPEN one without samples is about to get some; of another one all are superseded, and it is to be freed
        return [r for r in packs if r.sample_count or r.state is not PackState.OPEN]

    def unreclaimed(self) -> list[PackRecord]:
        """Packs that may still be freed in this session."""
        return [r for r in self.spool.journal.packs(PackState.MANIFESTED) if r.pack_id not in self._failed]

    @property
    def last_trouble(self) -> str | None:
        return self._backoff.last_trouble

    def stop(self, timeout_s: float) -> bool:
        """End the thread after the step it is in; True if it ended in time. Safe to repeat."""
        self._is_stopping = True
        self._services.board.wake()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # --- the loop --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        board = self._services.board
        try:
            while not self._is_stopping:
                if not self._step_if_room():
                    with board.changed:
                        if not self._is_stopping and self._finished.empty():
                            self._services.clock.wait(board.changed, _TICK_S)
        except DurastoreError as exc:
            board.fail(exc)
        except BaseException as exc:  # noqa: BLE001 - a dead pipeline must stop `put`; a library's panic is no `Exception`
            LOGGER.exception("lane %d stopped", self.number)
            error = StoreClosed(
                f"the upload pipeline stopped: {exc!r}", hint="local files are kept; open the store again"
            )
            error.__cause__ = exc
            board.fail(error)

    def _step_if_room(self) -> bool:
        """A full disk ends nothing: what a step could not record was undone, and a later round does it again."""
        try:
            return self._step()
        except DiskFailed as exc:
            self._note_full(exc)
            return False

    def _note_full(self, error: DiskFailed) -> None:
        """Give the ballast up, for the records that make room; any other error of the disk is raised."""
        if not error.is_full:
            raise error
        self.spool.ballast.release()
        self._backoff.tell(f"the disk is full: {error}; {self._waiting_text()}")

    def _step(self) -> bool:
        """One round; True if something moved, so that the next round comes at once."""
        moved = self._take_outcomes()
        self._seal_when_due()
        self._start_uploads()
        self._start_verifications()
        self._start_segment()
        self._start_reclaim()
        if moved:
            self._services.board.note_progress()
        return moved

    def _take_outcomes(self) -> bool:
        moved = False
        while True:
            try:
                kind, record, future = self._finished.get_nowait()
            except queue.Empty:
                return moved
            if record is not None:
                self._busy.discard(record.pack_id)
            moved = self._handlers[kind](record, future) or moved

    def _watch(self, kind: str, record: PackRecord | None, *, future: Future[Any]) -> None:
        def done(ended: Future[Any]) -> None:
            self._finished.put((kind, record, ended))
            self._services.board.wake()

        if record is not None:
            self._busy.add(record.pack_id)
            if self._services.board.is_probing:
                self._begun_early.add(record.pack_id)
            else:
                self._begun_early.discard(record.pack_id)
        future.add_done_callback(done)

    def _seal_when_due(self) -> None:
        if self.writer is None:
            return
        age_s = self.writer.open_age_s()
        if age_s is not None and (self._services.board.is_hurried or age_s >= self._services.options.seal_age_s):
            try:
                self.writer.seal_open()
            except DiskFailed as exc:
                if exc.is_full:
                    self._note_full(exc)
                else:
                    self._services.board.fail(exc)

    def on_durable(self, pack_id: int, entries: Sequence[SampleEntry]) -> None:
        """Called by the writer at each journal commit (`WriterListener`)."""
        self._membership.add_pending(entries, lane=self.number, pack_id=pack_id)

    def on_lost(self, lost: Sequence[LostSample]) -> None:
        """Called by the writer, by reclaim, or after a rescue: these acknowledged samples cannot be read any more."""
        self._membership.forget_lost(lost, lane=self.number)
        names = ", ".join(sample.sample_id.text for sample in lost[:10])
        # told under a number that no pack has: what was saved of the pack goes on under the pack's own
        failure = self._failed[next(self._loss_numbers)] = PackFailed(
            f"pack {lost[0].pack_name} was damaged on disk; {len(lost)} samples are LOST: {names}",
            hint="look at the disk; the next run makes these samples again",
        )
        LOGGER.error("%s", failure.message)

    def on_unexplained(self, pack_id: int, reason: str) -> None:
        """Called by reclaim: neither side gives this pack back (`ReclaimListener`)."""
        self._failed[pack_id] = PackFailed(
            f"pack {pack_id} has no local file, and the bucket does not give it back: {reason}",
            hint="open the store again: it looks twice, and names what is lost",
        )

    def _due(self, *states: PackState) -> list[PackRecord]:
        return [
            record
            for record in self.spool.journal.packs(*states)
            if record.pack_id not in self._busy
            and record.pack_id not in self._failed
            and self._backoff.is_due(record.pack_id)
        ]

    # --- upload ----------------------------------------------------------------------------------------------------

    def _start_uploads(self) -> None:
        room = _UPLOAD_PACKS - len(self._busy)
        for record in self._due(PackState.SEALED, PackState.UNKNOWN)[: max(room, 0)]:
            job = upload_job(self.spool, record, is_overwriting=self._backoff.is_rewriting(record.pack_id))
            self._watch("upload", record, future=self._services.uploader.submit(job))

    def _after_upload(self, record: PackRecord | None, future: Future[UploadReply]) -> bool:
        assert record is not None
        if future.cancelled():
            return False
        error = future.exception()
        if error is not None:
            self._settle_trouble(record, judge_upload(error), error=error)
            return False
        self.spool.journal.record_uploaded(record.pack_id, reply=future.result(), at=self._services.clock.stamp())
        self._backoff.clear(record.pack_id)
        self._services.board.recover()
        self._services.tell("upload.done", record)
        return True

    # --- verify ----------------------------------------------------------------------------------------------------

    def _start_verifications(self) -> None:
        for record in self._due(PackState.UPLOADED):
            look = partial(self._services.verifier.verify_remote_copy, record, open_local=self._opener(record))
            self._watch("verify", record, future=self._services.pool.submit(look))

    def _opener(self, record: PackRecord) -> Callable[[], int] | None:
        """How to open the local side; None where it is gone and the object has to be read back in full."""
        folder = self.spool.packs_folder
        return partial(folder.open_read, record.name) if folder.has(record.name) else None

    def _after_verification(self, record: PackRecord | None, future: Future[Evidence]) -> bool:
        assert record is not None
        error = future.exception()
        if error is not None:
            self._settle_trouble(record, judge_verification(error), error=error)
            return False
        self.spool.journal.record_verified(record.pack_id, future.result())
        self._services.tell("pack.verified", record)
        self._backoff.clear(record.pack_id)
        return True

    def _settle_trouble(self, record: PackRecord, trouble: Trouble, *, error: BaseException) -> None:
        """Do what was judged right after a failure: wait, go back, put aside, or stop; the bytes stay in each case."""
        services = self._services
        if trouble.moves_back_to is not None and record.state is not trouble.moves_back_to:
            self.spool.journal.move_back(record.pack_id, trouble.moves_back_to, reason=str(error))
        if trouble.is_local_suspect:
            self._check_local(record, error)
        elif trouble.is_final:
            self._failed[record.pack_id] = trouble.failure(record, error)
        else:
            # what was sent before the probe had ended may have been refused for headers that are not sent any more
            is_early = services.board.is_probing or record.pack_id in self._begun_early
            self._backoff.postpone(record.pack_id, is_rewriting=trouble.needs_rewrite, is_counted=not is_early)
            if not is_early and self._backoff.attempts(record.pack_id) >= trouble.max_attempts:
                self._failed[record.pack_id] = trouble.failure(record, error)
        if trouble.stops_puts and isinstance(error, DurastoreError):
            services.board.fail(error)
        services.observer.emit("pack.trouble", pack=record.name, error=type(error).__name__)
        self._backoff.tell(f"pack {record.name}: {error}; {self._waiting_text()}")
        services.board.wake()

    def _check_local(self, record: PackRecord, error: BaseException) -> None:
        """The upload found other bytes than were sealed, or none. An earlier try may have got through with its answer
        lost: the bucket is asked before anything is said to be lost.
        """
        if self.spool.is_intact(record):
            self._backoff.postpone(record.pack_id)
            return
        LOGGER.warning("pack %s: %s; the bucket is asked for it", record.name, error)
        self._watch("rescue", record, future=self._services.pool.submit(self._services.verifier.look_twice, record))

    def _after_rescue(self, record: PackRecord | None, future: Future[Evidence]) -> bool:
        """The bucket has every byte, or what still matches is salvaged into a new file under the same pack id, which
        then goes on, and what does not is named. No answer: asked again later.
        """
        assert record is not None
        error = future.exception()
        if error is None:
            self.spool.settle_without_file(record.pack_id, future.result())
            self._backoff.clear(record.pack_id)
            return True
        if not isinstance(error, ObjectAbsent | IntegrityError):
            self._settle_trouble(record, judge_verification(error), error=error)
            return False
        report = self.spool.salvage(record.pack_id, reason=str(error))
        if report.lost:
            self.on_lost(report.lost)
        report.raise_unless_full()
        return True

    def _waiting_text(self) -> str:
        waiting = self.unmanifested()
        size_mb = sum(r.size_bytes or 0 for r in waiting) / 1e6
        return f"{len(waiting)} packs ({size_mb:.1f} MB) wait in {self.spool.path}"

    # --- manifest --------------------------------------------------------------------------------------------------

    def _start_segment(self) -> None:
        if self._is_segmenting or not self._backoff.is_due(-1):
            return
        verified = self._believable()
        more_to_come = bool(self._busy) or bool(self.spool.journal.packs(PackState.SEALED, PackState.UPLOADED))
        if self._segmenter.is_due(verified, is_hurried=self._services.board.is_hurried, more_to_come=more_to_come):
            self._is_segmenting = True
            self._watch("segment", None, future=self._services.pool.submit(self._segmenter.publish, verified))

    def _believable(self) -> list[PackRecord]:
        """Verified packs. Once a copy was found wrong, all that were only attested are read in full, manifested or not:
        what such an endpoint does not hold has to be sent again.
        """
        verified = self.spool.journal.packs(PackState.VERIFIED)
        if self._services.verifier.distrust is None or self._segmenter.is_under_way:
            return verified
        proven = self.spool.journal.packs(PackState.VERIFIED, PackState.MANIFESTED)
        doubtful = [r for r in proven if r.evidence is None or r.evidence.level < EvidenceLevel.READ_BACK]
        for record in doubtful:
            reason = "attested by an endpoint that was caught lying"
            self.spool.journal.move_back(record.pack_id, PackState.UPLOADED, reason=reason)
        doubted = {record.pack_id for record in doubtful}
        return [record for record in verified if record.pack_id not in doubted]

    def _after_segment(self, _: PackRecord | None, future: Future[None]) -> bool:
        self._is_segmenting = False
        error = future.exception()
        if error is not None:
            if isinstance(error, DiskFailed):
                self._note_full(error)
            elif not isinstance(error, DurastoreError):
                raise error
            self._backoff.postpone(-1)
            self._backoff.tell(f"manifest segment: {error}")
            return False
        self._backoff.clear(-1)
        return True

    # --- reclaim ---------------------------------------------------------------------------------------------------

    def _start_reclaim(self) -> None:
        services = self._services
        now = services.clock.monotonic()
        if self._is_reclaiming or now < self._reclaim_at or not services.verifier.may_reclaim:
            return
        self._reclaim_at = now + _RECLAIM_EVERY_S
        used = self.spool.used_bytes()
        records = [r for r in self.spool.journal.packs(PackState.MANIFESTED) if r.pack_id not in self._failed]
        plan = plan_reclaim(records, policy=services.reclaim_policy(used), used_bytes=used, now=services.clock.stamp())
        for record in plan.stale:
            self.spool.journal.move_back(record.pack_id, PackState.UPLOADED, reason="evidence expired")
        if plan.packs:
            self._is_reclaiming = True
            self._watch("reclaim", None, future=services.pool.submit(self._reclaimer.execute, plan))

    def _after_reclaim(self, _: PackRecord | None, future: Future[ReclaimReport]) -> bool:
        self._is_reclaiming = False
        error = future.exception()
        if error is None:
            report = future.result()
            if not report.packs:
                self._reclaim_at = self._services.clock.monotonic() + 30 * _RECLAIM_EVERY_S
            return bool(report.packs)
        if isinstance(error, DiskFailed):
            self._note_full(error)
            return False
        if not isinstance(error, DurastoreError):
            raise error
        LOGGER.warning("nothing was reclaimed: %s", error)
        self._services.observer.emit("reclaim.refused", error=type(error).__name__)
        self._reclaim_at = self._services.clock.monotonic() + 30 * _RECLAIM_EVERY_S
        return False

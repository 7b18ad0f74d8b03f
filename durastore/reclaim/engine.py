"""Carrying out a reclaim plan, one pack after the other.

Order for each pack (INV-3): prove -> durable intent -> spend the receipt -> unlink one name -> sync the folder ->
RECLAIMED. A crash after the intent leaves a question that recovery answers by looking, never by unlinking again.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from durastore.errors import DurastoreError, IntegrityError, NotVerified, ObjectAbsent
from durastore.model import PackState
from durastore.observe.events import LOGGER, Observer
from durastore.reclaim._unlink import unlink_proven
from durastore.reclaim.plan import ReclaimPlan
from durastore.spool.journal import PackRecord
from durastore.spool.records import LostSample
from durastore.spool.spool import Spool
from durastore.verify.verifier import ProofBatch, Verifier

__all__ = ["ReclaimListener", "ReclaimReport", "Reclaimer"]


@dataclass(slots=True)
class ReclaimReport:
    """What one batch did."""

    packs: int = 0
    bytes_freed: int = 0
    kept: dict[str, str] = field(default_factory=dict)
    """Pack name -> why its file stayed."""
    lost: list[LostSample] = field(default_factory=list)
    """Samples that were damaged on disk and whose object is gone or damaged as well."""
    unexplained: dict[int, str] = field(default_factory=dict)
    """Pack id -> why neither its file nor its object could be read; the next opening settles it."""
    missing: list[str] = field(default_factory=list)
    """Names of packs whose object the bucket no longer holds: they went back to SEALED."""


class ReclaimListener(Protocol):
    """Hears at once, in the thread of the batch, what is gone on both sides: an error later in the batch, which takes
    the report with it, must not take this along.
    """

    def on_lost(self, lost: Sequence[LostSample]) -> None: ...

    def on_unexplained(self, pack_id: int, reason: str) -> None: ...


class Reclaimer:
    """Frees local packs of one spool. One batch at a time; the spool's lock must be held by this process."""

    def __init__(
        self, spool: Spool, verifier: Verifier, *, observer: Observer, listener: ReclaimListener | None = None
    ) -> None:
        self._spool = spool
        self._verifier = verifier
        self._observer = observer
        self._listener = listener

    def execute(self, plan: ReclaimPlan) -> ReclaimReport:
        """Prove and free each pack of the plan. What cannot be proven stays and is named in the report.

        `RootMismatch` or `NotVerified` if what the whole batch rests on does not hold; network errors pass through;
        in all these cases the remaining files are untouched. Safe to repeat.
        """
        report = ReclaimReport()
        if not plan.packs:
            return report
        self._spool.check_held()
        with self._open_batch(plan) as batch:
            for planned in plan.packs:
                self._spool.check_held()  # the disk may have been unmounted or replaced between two files (case B20)
                self._reclaim_one(batch, planned, report=report)
        return report

    def _open_batch(self, plan: ReclaimPlan) -> ProofBatch:
        """The batch; where its canary fails, every pack of it is in doubt and goes back to be read in full, so that
        what the bucket lost is sent again although nothing is freed any more (case B62). Where a manifest segment is
        gone, its packs go back to be listed in another one.
        """
        was_trusted = self._verifier.heed() is None
        try:
            return self._verifier.open_batch(plan.packs)
        except NotVerified as exc:
            if was_trusted and self._verifier.distrust is not None:
                for planned in plan.packs:
                    if self._spool.journal.pack(planned.pack_id).state is PackState.MANIFESTED:
                        self._spool.journal.move_back(planned.pack_id, PackState.UPLOADED, reason=exc.message)
            self._list_again(exc)
            raise

    def _list_again(self, exc: DurastoreError) -> None:
        journal = self._spool.journal
        for record in journal.packs(PackState.MANIFESTED):
            if record.manifested_in is not None and record.manifested_in.text == exc.facts.get("segment"):
                journal.move_back(record.pack_id, PackState.VERIFIED, reason=exc.message)

    def _reclaim_one(self, batch: ProofBatch, planned: PackRecord, *, report: ReclaimReport) -> None:
        journal = self._spool.journal
        record = journal.pack(planned.pack_id)  # the plan may be old: decide on what is recorded now
        if record.state is not PackState.MANIFESTED:
            report.kept[record.name] = f"now {record.state.value}"
            return
        try:
            fd = self._spool.packs_folder.open_read(record.name)
        except FileNotFoundError:
            self._settle_missing(batch, record, report=report)
            return
        try:
            receipt = batch.prove(record, fd)
        except ObjectAbsent:
            journal.move_back(record.pack_id, PackState.SEALED, reason="the bucket no longer holds the object")
            self._observer.emit("reclaim.object_gone", pack=record.name)
            LOGGER.error("object %s is gone from the bucket; pack %s will be uploaded again", record.key, record.name)
            report.missing.append(record.name)
            return
        except NotVerified as exc:
            self._keep(batch, record, exc=exc, report=report)
            return
        finally:
            os.close(fd)
        journal.record_intent(record.pack_id, receipt.render())
        freed = unlink_proven(self._spool.packs_folder, record.name, receipt=receipt)
        journal.record_reclaimed(record.pack_id)
        report.packs += 1
        report.bytes_freed += freed
        self._observer.emit("reclaim.freed", pack=record.name, bytes=freed, samples=record.sample_count)

    def _settle_missing(self, batch: ProofBatch, record: PackRecord, *, report: ReclaimReport) -> None:
        """Somebody else took the file, or a crash came between unlink and record: the bucket has to give every byte."""
        try:
            evidence = batch.read_back(record)
        except (NotVerified, ObjectAbsent, IntegrityError) as exc:
            # not said to be lost after one look: the next opening looks twice, and buries the rows if it has to
            report.kept[record.name] = f"no local file, and the bucket does not give it back: {exc.message}"
            report.unexplained[record.pack_id] = exc.message
            if self._listener is not None:
                self._listener.on_unexplained(record.pack_id, exc.message)
            LOGGER.error("pack %s has no local file and cannot be read back: %s", record.name, exc)
            return
        self._spool.journal.record_found_remote(record.pack_id, evidence)

    def _settle_damaged(
        self, batch: ProofBatch, record: PackRecord, *, exc: DurastoreError, report: ReclaimReport
    ) -> None:
        """The local file is not what was sealed: put aside if the bucket has every byte, else salvaged."""
        try:
            batch.read_back(record)
        except (ObjectAbsent, IntegrityError):
            self._salvage_if_gone(record, exc=exc, report=report)
        except NotVerified:
            pass  # not knowing: the next batch asks again
        else:
            self._spool.quarantine(record.pack_id, reason=exc.message)

    def _salvage_if_gone(self, record: PackRecord, *, exc: DurastoreError, report: ReclaimReport) -> None:
        try:
            self._verifier.look_twice(record)
        except (ObjectAbsent, IntegrityError):
            salvaged = self._spool.salvage(record.pack_id, reason=exc.message)
            report.lost.extend(salvaged.lost)
            if salvaged.lost and self._listener is not None:
                self._listener.on_lost(salvaged.lost)
            salvaged.raise_unless_full()

    def _keep(self, batch: ProofBatch, record: PackRecord, *, exc: DurastoreError, report: ReclaimReport) -> None:
        report.kept[record.name] = exc.message
        if exc.facts.get("is_local_damaged"):
            self._settle_damaged(batch, record, exc=exc, report=report)
        elif record.evidence is not None:
            # doubt moves back: the copy is looked at in full before it is considered again
            self._spool.journal.move_back(record.pack_id, PackState.UPLOADED, reason=exc.message)
        self._observer.emit("reclaim.kept", pack=record.name, reason=exc.message)
        LOGGER.warning("kept %s: %s", record.name, exc.message)

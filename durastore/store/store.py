"""`Store`: the one object an extractor talks to.

Duty: take samples (`put`), answer what is held (`in`, `get`), and wait (`flush`, `drain`, `close`). Thread-safe. Must
never acknowledge what is not durable, and never lose what it acknowledged: closing or crashing leaves it in the spool.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from durastore.codec.encode import EncodedSample, SampleContext, encode_sample
from durastore.errors import DurastoreError, ForkedStore, PackFailed, SampleAbsent, SampleExists, StoreClosed
from durastore.model import Digest, Evidence, ManifestRow, Run, Sample, SampleId, Tombstone
from durastore.observe.events import Counting
from durastore.store.barrier import Barrier
from durastore.store.catalog import Catalog
from durastore.store.equal import find_equal
from durastore.store.intake import Intake
from durastore.store.lane import Lane
from durastore.store.membership import Decision, Membership
from durastore.store.room import Room
from durastore.store.services import Services
from durastore.store.status import StoreStatus
from durastore.store.tickets import Ticket
from durastore.store.waiting import PipelineWords

__all__ = ["STOP_TIMEOUT_S", "Store", "StoreParts"]

Tensors = Mapping[str, Any]
STOP_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreParts:
    """What `opening` puts together. `lanes[0]` is the own spool; the rest are idle siblings being drained."""

    services: Services
    lanes: tuple[Lane, ...]
    intake: Intake
    membership: Membership
    catalog: Catalog
    room: Room
    pipeline: PipelineWords
    counters: Counting
    resources: ExitStack
    """Closed last, in reverse order: connections, journals, locks."""


class Store:
    """An open store. Use it as a context manager, or call `close`. Make one with `durastore.open`."""

    def __init__(self, parts: StoreParts) -> None:
        self._parts = parts
        self._pid = os.getpid()
        self._is_closed = False
        self._barrier = Barrier(parts.services, parts.lanes, membership=parts.membership)

    def __repr__(self) -> str:
        state = ", closed" if self._is_closed else ""
        return f"<durastore.Store of run {self.run.digest.hex[:8]} at {self.spool_path}{state}>"

    @property
    def run(self) -> Run:
        """The run that this store's samples belong to."""
        return self._parts.services.run

    # --- writing ---------------------------------------------------------------------------------------------------

    def put(
        self,
        sample_id: str,
        tensors: Tensors,
        *,
        meta: Mapping[str, Any] | None = None,
        input_digest: str | None = None,
    ) -> Ticket:
        """Store one sample; when this returns it survives kill -9 and power loss of this machine.

        `tensors`: name -> torch tensor (any device, dtype and stride) or numpy array of 0 to 32 dimensions, 1 to 4,096
        of them; shape and elements are kept as they are. Copied before the return: the caller may use them again.
        `meta`: a small JSON mapping. `input_digest`: 32 hex digits (XXH3-128) of what the sample was made from; a put
        with another input digest supersedes the old row.

        Raises `InvalidInput` (nothing written), `SampleExists`, `SpoolFull`, `CredentialsRefused`, `DiskFailed`. Safe
        to repeat: the same content again changes nothing.
        """
        metas = None if meta is None else {sample_id: meta}
        inputs = None if input_digest is None else {sample_id: input_digest}
        return self.put_many({sample_id: tensors}, meta=metas, input_digests=inputs)[sample_id]

    def put_many(
        self,
        samples: Mapping[str, Tensors],
        *,
        meta: Mapping[str, Mapping[str, Any]] | None = None,
        input_digests: Mapping[str, str] | None = None,
        provenance: str = "computed",
    ) -> dict[str, Ticket]:
        """Store several samples as one durable group: one fsync for all. Raises as `put`; on an error none is lost that
        was acknowledged before, and none of this group is acknowledged. `provenance`: `asserted` for adopted data.
        """
        self._check_usable()
        base = replace(self._context("", None, inputs=None), provenance=provenance)
        is_plain = not meta and not input_digests
        encoded = []
        for name, tensors in samples.items():
            own = base if is_plain else replace(self._context(name, meta, inputs=input_digests), provenance=provenance)
            encoded.append(encode_sample(SampleId(name), tensors, context=own))
        encoded.sort(key=lambda sample: sample.sample_id.text)
        needed_bytes = sum([sample.length for sample in encoded])
        tried: set[str] = set()
        counters, room, pipeline = self._parts.counters, self._parts.room, self._parts.pipeline
        counters.emit("encoded", samples=len(encoded), bytes=needed_bytes)
        try:
            return room.admit(needed_bytes, lambda: self._place(encoded, tried), pipeline=pipeline)
        finally:
            counters.emit("settled", samples=len(encoded), bytes=needed_bytes)

    def _context(
        self, name: str, meta: Mapping[str, Mapping[str, Any]] | None, *, inputs: Mapping[str, str] | None
    ) -> SampleContext:
        input_digest = inputs.get(name) if inputs else None
        return SampleContext(
            run=self.run,
            meta=meta.get(name) if meta else None,
            input_digest=Digest(input_digest) if input_digest is not None else None,
            embed_run_above_bytes=self._parts.services.options.single_pack_bytes,
            compress=self._parts.services.options.compress,
        )

    def _place(self, encoded: Sequence[EncodedSample], tried: set[str]) -> dict[str, Ticket]:
        """Reserve the ids (sorted: two groups cannot wait for each other), write what is new, hand out tickets.

        `tried`: what an earlier attempt of the same put, which met a full disk, may have made durable; added to.
        """
        membership = self._parts.membership
        ids = [sample.sample_id.text for sample in encoded]
        if ids and membership.reserve_new(ids):  # as nearly always
            try:
                tried.update(ids)
                return self._write(encoded, ())
            finally:
                membership.release(ids)
        tickets: dict[str, Ticket] = {}
        new: list[tuple[EncodedSample, Decision]] = []
        try:
            for sample in encoded:
                decision = self._decide(sample)
                if decision.is_new:
                    new.append((sample, decision))
                    tried.add(sample.sample_id.text)
                else:
                    tickets[sample.sample_id.text] = self._known_ticket(sample, decision, tried=tried)
            if new:
                supersedes = [stone for _, decision in new for stone in decision.supersedes]
                tickets.update(self._write([sample for sample, _ in new], supersedes))
        finally:
            membership.release([sample.sample_id.text for sample, _ in new])
        return tickets

    def _decide(self, sample: EncodedSample) -> Decision:
        digest = sample.header_digest
        while True:
            try:
                decision = self._parts.membership.reserve(
                    sample.sample_id, header_digest=digest, input_digest=sample.input_digest
                )
            except SampleExists:
                stored = find_equal(sample, self.get, run=self.run)
                if stored is None or stored == digest:
                    raise
                digest = stored
                continue
            if not decision.is_after_flush:
                return decision
            self.flush()

    def _write(self, new: Sequence[EncodedSample], supersedes: Sequence[Tombstone]) -> dict[str, Ticket]:
        placed = self._parts.intake.put(new, supersedes)
        lane = self._parts.lanes[0]
        waits = {pack_id: self._waiter(lane, pack_id=pack_id) for pack_id in {pack_id for pack_id, _ in placed}}
        self._parts.counters.emit("put", samples=len(new), bytes=sum([sample.length for sample in new]))
        names = [sample.sample_id.text for sample in new]
        return {name: Ticket(name, True, waits[pack_id]) for name, (pack_id, _) in zip(names, placed, strict=True)}

    def _known_ticket(self, sample: EncodedSample, decision: Decision, *, tried: set[str]) -> Ticket:
        sample_id, pending, row = sample.sample_id, decision.pending, decision.manifested
        is_new = sample_id.text in tried
        if is_new:
            self._parts.counters.emit("put", samples=1, bytes=sample.length)
        if pending is not None:
            wait = self._waiter(self._parts.lanes[pending.lane], pack_id=pending.pack_id)
            return Ticket(sample_id.text, is_new, wait)
        if row is None:
            raise AssertionError("content that is known is pending or manifested")
        return Ticket(sample_id.text, is_new, lambda *_: self._parts.catalog.listed_evidence(row))

    def _waiter(self, lane: Lane, *, pack_id: int) -> Callable[[str, float | None], Evidence]:
        """What the tickets of one pack wait with."""

        def wait(name: str, timeout_s: float | None) -> Evidence:
            self._check_usable(allow_fatal=True)
            return self._barrier.evidence_of(lane, SampleId(name), pack_id=pack_id, timeout_s=timeout_s)

        return wait

    # --- waiting ---------------------------------------------------------------------------------------------------

    def flush(self, timeout_s: float | None = None) -> None:
        """Block until everything put so far is MANIFESTED. Raises `PackFailed` for packs that cannot get there,
        `CredentialsRefused`, `TimeoutError` after `timeout_s` seconds; an outage is waited out. Safe to repeat.
        """
        self._check_usable(allow_fatal=True)
        self._barrier.flush(timeout_s)
        self._raise_failures()

    def drain(self, timeout_s: float | None = None) -> None:
        """`flush`, then block until every local pack that may go has been reclaimed (`settle_s` after its upload).

        With `reclaim="never"` it only flushes. Raises as `flush`; `timeout_s` holds for each of the two waits.
        """
        self.flush(timeout_s)
        self._barrier.drain(timeout_s)
        self._raise_failures()

    # --- reading ---------------------------------------------------------------------------------------------------

    def __contains__(self, sample_id: object) -> bool:
        return isinstance(sample_id, str) and self.contains(sample_id)

    def contains(self, sample_id: str, *, input_digest: str | None = None) -> bool:
        """True if this run holds the sample durably (spool or manifest); with `input_digest` (32 hex digits), only if
        it was made from exactly that input (INV-8). Answers from memory, as of the opening plus this store's own puts.
        """
        self._check_usable(allow_fatal=True)
        digest = Digest(input_digest) if input_digest is not None else None
        return self._parts.membership.contains(SampleId(sample_id), digest)

    def get(self, sample_id: str, *, tensors: Sequence[str] | None = None, rows: slice | None = None) -> Sample:
        """Read one sample, from the spool if it is still there, else from the bucket. Only bytes whose digests match.

        `tensors`: names to read (default all); `rows`: slice of the first dimension of each of them, only those chunks
        are fetched. Raises `SampleAbsent`, `IntegrityError`, or a network error.
        """
        self._check_usable(allow_fatal=True)
        name, catalog = SampleId(sample_id), self._parts.catalog
        current = self._parts.membership.current(name)
        for lane in self._parts.lanes:
            for record, entry in reversed(lane.spool.journal.find_sample(name)):
                if catalog.is_superseded(entry, current=current):
                    continue  # its file may outlive that of the sample which took its place
                sample = catalog.read_pack(lane.spool, record, entry=entry, tensors=tensors, rows=rows)
                if sample is not None:
                    return sample
        row = catalog.row(name, current=current)
        if row is None:
            raise SampleAbsent(f"no sample {name}", hint="`durastore manifest show` tells what the bucket holds")
        return catalog.fetch_current(row, tensors=tensors, rows=rows)

    def rows_of(self, sample_id: str) -> list[ManifestRow]:
        """All live manifest rows of this id, after a fresh look at the manifest's listing."""
        return self._parts.catalog.rows_of(SampleId(sample_id))

    @property
    def spool_path(self) -> Path:
        """The folder of this store's own spool, for what its process tells of itself."""
        return self._parts.lanes[0].spool.path

    # --- state -----------------------------------------------------------------------------------------------------

    def status(self) -> StoreStatus:
        """Counts as of now; cheap enough for every progress tick. Raises `StoreClosed`, `ForkedStore`."""
        self._check_usable(allow_fatal=True)
        parts = self._parts
        states: dict[str, int] = {}
        for lane in parts.lanes:
            for state, count in lane.spool.journal.count_by_state().items():
                states[state.value] = states.get(state.value, 0) + count
        return StoreStatus(
            local_bytes=sum(lane.spool.used_bytes() for lane in parts.lanes),
            packs_by_state=states,
            samples_known=len(parts.membership),
            samples_put=parts.counters.count("put.samples"),
            bytes_put=parts.counters.count("put.bytes"),
            bytes_uploaded=parts.counters.count("upload.done.bytes"),
            bytes_freed=parts.counters.count("reclaim.freed.bytes"),
            only_local_ids=tuple(parts.membership.pending_ids()),
            failures=tuple(str(error) for error in self._failures()),
            quarantined_bytes=sum(lane.spool.quarantined_bytes() for lane in parts.lanes),
        )

    def _failures(self) -> list[DurastoreError]:
        return [error for lane in self._parts.lanes for error in lane.failures()]

    def _raise_failures(self) -> None:
        failures = self._failures()
        if self._parts.services.board.fatal is not None:
            raise self._parts.services.board.fatal
        if len(failures) == 1:
            raise failures[0]
        if failures:
            raise PackFailed(
                f"{len(failures)} packs did not reach the bucket; first: {failures[0].message}", hint=failures[0].hint
            )

    def _check_usable(self, *, allow_fatal: bool = False) -> None:
        if os.getpid() != self._pid:
            raise ForkedStore("this store was opened in the parent process", hint="call durastore.open in this process")
        if self._is_closed:
            raise StoreClosed("the store is closed")
        fatal = self._parts.services.board.fatal
        if fatal is not None and not allow_fatal:
            raise fatal

    # --- closing ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """`flush`, then stop and release the spool. Raises what `flush` raises, after everything was released; what is
        not in the bucket stays in the spool and goes on at the next open. Safe to repeat.
        """
        if os.getpid() != self._pid:
            return  # a forked child must not touch the parent's journal, lock or connections
        if self._is_closed:
            return
        try:
            self.flush()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Stop at once, without waiting for the network. Everything put stays in the spool. Safe to repeat."""
        if self._is_closed or os.getpid() != self._pid:
            return
        self._is_closed = True
        self._barrier.close()
        stopped = [lane.stop(STOP_TIMEOUT_S) for lane in self._parts.lanes]
        self._parts.resources.close()
        if not all(stopped):
            raise StoreClosed("a pipeline thread did not stop in time", hint="local files are kept; end this process")

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if exc is None:
            self.close()
        else:
            self.abandon()  # what was acknowledged is durable already; the error in hand is the one to report

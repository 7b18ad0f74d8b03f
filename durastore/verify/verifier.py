"""From evidence to receipt: the one issuer.

Duty: verify an upload (`verify_remote_copy`), open a proof batch (bucket marker, segments, canary), and prove one file
against its object. Must never mint for what it did not look at on both sides within the receipt's lifetime.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from durastore.clock import Clock
from durastore.errors import IntegrityError, NotVerified, ObjectAbsent
from durastore.fsio.identity import FileIdentity, identify
from durastore.manifest.marker_store import fetch_marker
from durastore.model import Evidence, ObjectKey
from durastore.objectstore.port import ObjectReader, ObjectStore
from durastore.objectstore.probe.result import WritePath
from durastore.observe.events import Observer
from durastore.spool.records import PackRecord
from durastore.verify.attest import attest, compare_spots
from durastore.verify.guards import (
    guard_evidence,
    guard_freshness,
    guard_head,
    guard_recorded,
    guard_server_clock,
    guard_settled,
)
from durastore.verify.local import digest_of
from durastore.verify.policy import ProofPolicy
from durastore.verify.receipt import Receipt, mint
from durastore.verify.remote import check_segment, read_back

__all__ = ["BucketIdentity", "ProofBatch", "Verifier"]

_SECOND_LOOK_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketIdentity:
    """Which bucket prefix we wrote to, as recorded when the store was opened."""

    prefix: str
    store_id: str


class Verifier:
    """Looks at the bucket through connections of its own, never through the uploader's."""

    def __init__(
        self, store: ObjectStore, *, bucket: BucketIdentity, policy: ProofPolicy, clock: Clock, observer: Observer
    ) -> None:
        self._store = store
        self._bucket = bucket
        self._policy = policy
        self._clock = clock
        self._observer = observer
        self._distrust: str | None = None
        self._earned: set[tuple[str | None, WritePath]] = set()
        self._is_probe_awaited = False
        self._tell_distrust: Callable[[str], None] = _nobody
        self._tell_again: Callable[[str], None] = _nobody
        self._look_for_stop: Callable[[], str | None] = lambda: None

    @property
    def distrust(self) -> str | None:
        """Why nothing may be reclaimed: a copy was found wrong, or the endpoint takes objects away by itself."""
        for probe in (self._policy.probe, self._policy.block):
            if self._distrust is None and probe is not None and probe.is_blocking:
                return "; ".join(probe.blocking) or f"lifecycle rule {probe.expiring_rule} expires this prefix"
        return self._distrust

    @property
    def may_reclaim(self) -> bool:
        """False while nothing may be reclaimed: for a reason (`distrust`), or because the probe has not ended yet."""
        return self.distrust is None and not self._is_probe_awaited

    def stop_reclaiming(self, reason: str) -> None:
        """Throw the stop switch (DESIGN 6). There is no way back within a session."""
        if self._distrust is None:
            self._distrust = reason
            self._tell_distrust(reason)
        else:
            self._tell_again(reason)

    def on_distrust(
        self,
        tell: Callable[[str], None],
        *,
        again: Callable[[str], None] | None = None,
        look: Callable[[], str | None] | None = None,
    ) -> None:
        """`tell` records the reason durably, so that the next session starts stopped as well; `again` hears of every
        wrong copy after that. `look` finds out why another store at the same root stopped.
        """
        self._tell_distrust = tell
        self._tell_again = again or _nobody
        self._look_for_stop = look or (lambda: None)

    def heed(self) -> str | None:
        """Look whether another store at this root threw the switch; returns `distrust`.

        `SpoolUnreadable` if that cannot be told: then nothing goes.
        """
        reason = self._look_for_stop()
        if reason is not None and self._distrust is None:
            self._distrust = reason
        return self.distrust

    def await_probe(self) -> None:
        """No receipt until `use`: the probe may find, a second from now, that the endpoint takes objects away."""
        self._is_probe_awaited = True

    def use(self, policy: ProofPolicy) -> None:
        """Take another policy, after the endpoint was probed, or could not be."""
        self._policy = policy
        self._is_probe_awaited = False

    def verify_remote_copy(self, record: PackRecord, *, open_local: Callable[[], int] | None = None) -> Evidence:
        """Look at the object on a new connection: attested where this endpoint and write path allow it, else read back.

        A random share is read back in any case (the audit), and so is a pack without a local file (`open_local` None).
        Raises `IntegrityError` on a mismatch (which stops all reclaiming), `ObjectAbsent`, `NotVerified`, network
        errors. Safe to repeat.
        """
        policy = self._policy
        reader = self._store.fresh_reader()
        try:
            if open_local is None or self._is_read_in_full(record, policy):
                evidence = self._read_back(reader, record)
                paths = policy.paths_of(record)
                if len(paths) == 1:  # a copy of which nobody knows how it went speaks for neither path
                    self._earned.add((policy.probe_id, paths[0]))
                return evidence
            return self._attest(reader, record, policy=policy, open_local=open_local)
        except IntegrityError as exc:
            # the server holds other bytes than it acknowledged; until someone looks, nothing is freed
            self.stop_reclaiming(exc.message)
            self._observer.emit("verify.mismatch", pack=record.name)
            raise
        finally:
            reader.close()

    def look_twice(self, record: PackRecord) -> Evidence:
        """Before a pack without a good file is said to be LOST: every byte read on a new connection, and after a while
        once more on another, because one answer can be stale or damaged.

        Raises `ObjectAbsent` or `IntegrityError` if the bucket proves not to have it, network errors if it is silent.
        """
        try:
            return self.verify_remote_copy(record)
        except (ObjectAbsent, IntegrityError):
            self._clock.sleep(_SECOND_LOOK_S)
            return self.verify_remote_copy(record)

    def _is_read_in_full(self, record: PackRecord, policy: ProofPolicy) -> bool:
        """Whether no checksum counts for this copy: by policy, by chance (the audit), because a copy was found wrong or
        because none of its write path was read in full yet: an endpoint may guard what a probe sends and nothing after.
        """
        if policy.checksum_for(record) is None or self._distrust is not None:
            return True
        if any((policy.probe_id, path) not in self._earned for path in policy.paths_of(record)):
            return True
        return random.SystemRandom().random() < policy.audit_share

    def _read_back(self, reader: ObjectReader, record: PackRecord) -> Evidence:
        evidence = read_back(reader, record, clock=self._clock)
        self._observer.emit("verify.read_back", pack=record.name, bytes=evidence.size_bytes)
        return evidence

    def _attest(
        self, reader: ObjectReader, record: PackRecord, *, policy: ProofPolicy, open_local: Callable[[], int]
    ) -> Evidence:
        fd = open_local()
        try:
            evidence = attest(reader, record, fd=fd, policy=policy, clock=self._clock)
        except NotVerified:
            return self._read_back(reader, record)  # what cannot be attested is read, never waved through
        finally:
            os.close(fd)
        self._observer.emit("verify.attested", pack=record.name, bytes=evidence.size_bytes)
        return evidence

    def open_batch(self, records: Sequence[PackRecord]) -> ProofBatch:
        """Check what a whole batch rests on: the bucket is the one we wrote to, its manifest segments hold, and one
        pack chosen at random is still there byte for byte (the canary). `NotVerified` or a network error if not.
        """
        self._refuse_if_stopped()
        if not records:
            raise NotVerified("an empty batch proves nothing")
        reader = self._store.fresh_reader()
        try:
            self._check_bucket(reader)
            segments = {r.manifested_in for r in records if r.manifested_in is not None}
            for segment in sorted(segments):
                check_segment(reader, segment)
            canary = random.SystemRandom().choice(list(records))
            evidence = self._read_canary(reader, canary)
        except BaseException:
            reader.close()
            raise
        return ProofBatch(self, reader, segments=segments, canary={canary.pack_id: evidence})

    def _refuse_if_stopped(self) -> None:
        self.heed()
        if self.distrust is not None:
            raise NotVerified(
                f"reclaiming is stopped: {self.distrust}",
                hint="look at the endpoint, run `durastore probe --bucket URL --local ROOT`, and open the store again",
            )
        if self._is_probe_awaited:
            raise NotVerified("the probe of the endpoint has not ended yet", hint="it goes on by itself")

    def _check_bucket(self, reader: ObjectReader) -> None:
        marker = fetch_marker(reader, self._bucket.prefix)
        if marker is None or marker.store_id != self._bucket.store_id:
            raise NotVerified(
                "the bucket's marker is gone or is another store's: every proof is void",
                hint="check that the bucket was not re-created; local files are kept",
            )

    def _read_canary(self, reader: ObjectReader, record: PackRecord) -> Evidence:
        try:
            return read_back(reader, record, clock=self._clock)
        except (IntegrityError, ObjectAbsent) as exc:
            self.stop_reclaiming(exc.message)
            self._observer.emit("verify.canary_failed", pack=record.name)
            raise NotVerified(f"canary {record.name}: {exc.message}") from exc

    def holds_segment(self, key: ObjectKey) -> bool:
        """Whether the bucket gives a manifest segment back as it was written. Network errors pass. Safe to repeat."""
        reader = self._store.fresh_reader()
        try:
            check_segment(reader, key)
        except NotVerified:
            return False
        finally:
            reader.close()
        return True

    def check_bucket(self) -> None:
        """`NotVerified` unless a new connection still sees the bucket that was written to. Safe to repeat."""
        reader = self._store.fresh_reader()
        try:
            self._check_bucket(reader)
        finally:
            reader.close()

    def _prove(self, reader: ObjectReader, record: PackRecord, *, fd: int, evidence: Evidence | None) -> Receipt:
        self._refuse_if_stopped()  # another look may have found a wrong copy since the batch was opened
        digest, _ = guard_recorded(record)
        identity = _unchanged(record, fd, digest_hex=digest.hex)
        proof = guard_evidence(record, evidence or record.evidence, policy=self._policy)
        # by the pack's own evidence: the canary's was taken a moment ago and would never be settled after a reboot
        guard_settled(record, record.evidence or proof, now=self._clock.stamp(), policy=self._policy)
        guard_freshness(record, proof, now=self._clock.stamp(), policy=self._policy)
        # the look comes after settle_s and on the batch's own new connection (DESIGN 7)
        stat = reader.head(proof.key)
        guard_head(record, stat, evidence=proof)
        guard_server_clock(record, stat, evidence=proof, now=self._clock.stamp())
        self._look_at_data(reader, record, fd=fd)
        return mint(
            pack_id=record.pack_id,
            identity=identity,
            evidence=proof,
            clock=self._clock,
            ttl_s=self._policy.receipt_ttl_s,
        )

    def _look_at_data(self, reader: ObjectReader, record: PackRecord, *, fd: int) -> None:
        """A random block of each part, read now: an index entry whose data went after the proof still answers HEAD
        (case B61). The etag was compared already, and is not asked for: the bytes decide. Where they differ, all of
        them do: an endpoint may know no ranges.
        """
        try:
            try:
                compare_spots(reader, record, fd=fd, policy=self._policy, if_match=None)
            except IntegrityError:
                self._read_back(reader, record)
        except IntegrityError as exc:
            self.stop_reclaiming(exc.message)
            self._observer.emit("verify.spot_mismatch", pack=record.name)
            raise NotVerified(f"pack {record.name}: {exc.message}") from exc


def _nobody(reason: str) -> None:
    """Told where nobody listens."""
    del reason


def _unchanged(record: PackRecord, fd: int, *, digest_hex: str) -> FileIdentity:
    """The open file is the one that was sealed; where its numbers differ (touch, reboot, copy), its bytes decide."""
    identity = identify(fd)
    if identity == record.identity:
        return identity
    digest = digest_of(fd)
    if digest.hex != digest_hex or identity.size_bytes != record.size_bytes:
        raise NotVerified(f"pack {record.name}: the local file is not what was sealed", is_local_damaged=True)
    if identify(fd) != identity:
        raise NotVerified(f"pack {record.name}: the local file changes while it is read")
    return identity


class ProofBatch:
    """One reclaim batch: holds the connection on which everything was looked at. Close it, or use `with`."""

    def __init__(
        self, verifier: Verifier, reader: ObjectReader, *, segments: set[ObjectKey], canary: dict[int, Evidence]
    ) -> None:
        self._verifier = verifier
        self._reader = reader
        self._segments = segments
        self._canary = canary

    def prove(self, record: PackRecord, fd: int) -> Receipt:
        """A receipt for the open file `fd` of this pack, after every guard of DESIGN 7 looked and agreed.

        `NotVerified` with the reason, `ObjectAbsent`, or a network error otherwise; the file stays in every such case.
        """
        self._check_segment(record)
        return self._verifier._prove(self._reader, record, fd=fd, evidence=self._canary.get(record.pack_id))

    def read_back(self, record: PackRecord) -> Evidence:
        """Every byte of this pack's object, read now, and the segment that names it. Raises as `remote.read_back`."""
        self._check_segment(record)
        return read_back(self._reader, record, clock=self._verifier._clock)

    def _check_segment(self, record: PackRecord) -> None:
        if record.manifested_in is not None and record.manifested_in not in self._segments:
            check_segment(self._reader, record.manifested_in)  # manifested anew since the batch was planned
            self._segments.add(record.manifested_in)

    def close(self) -> None:
        self._reader.close()

    def __enter__(self) -> ProofBatch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

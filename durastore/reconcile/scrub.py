"""Whether the bucket still holds what its manifest says: `durastore verify`.

Duty: from the manifest alone: sizes by LIST, objects that it lacks or tells other sizes of by two looks on connections
of their own, and a share of the objects (or all) read in full. Only looks. A listing is a pre-filter: it never calls an
object missing, and never one sound whose bytes were to be read. What could not be looked at is told apart from what was
found wrong.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash

from durastore.clock import Clock
from durastore.errors import (
    DurastoreError,
    InvalidInput,
    ObjectAbsent,
)
from durastore.formats.keys import held_listing_prefixes, marker_key, segment_listing_prefix
from durastore.fsio.rate import RateLimit
from durastore.manifest.fetching import SegmentPart
from durastore.manifest.marker_store import fetch_marker
from durastore.manifest.presence import check_present
from durastore.manifest.snapshot import ManifestListing, fetch_listing
from durastore.manifest.view import fetch_partial_view
from durastore.model import ObjectKey
from durastore.objectstore.columns import UNKNOWN_SIZE, list_columns
from durastore.objectstore.port import ObjectStat, ObjectStore
from durastore.reconcile.findings import Finding, FindingKind
from durastore.reconcile.held import HELD_COLUMNS, HeldObject, HeldObjects
from durastore.reconcile.missing import UNCLEAR
from durastore.reconcile.object_check import check_object
from durastore.reconcile.scrub_state import ScrubState

__all__ = ["ScrubReport", "ScrubRequest", "UnverifiedObject", "scrub"]

_SECOND_LOOK_S = 1.0
_LOOKS_AT_ONCE = 8
_READS_AT_ONCE = 4
_NOT_SEEN = UNKNOWN_SIZE - 1
_HASH_RANGE = float(1 << 64)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubRequest:
    """How deep to look. `share` 0: sizes only; 1: every byte of every object."""

    share: float = 0.0
    bytes_per_s: int | None = None
    """Bound on what is read, all connections together; None: none."""
    state: Path | None = None
    """Where progress is kept, for a scrub that may be interrupted."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.share <= 1.0:
            raise InvalidInput(f"a share is from 0 to 1, not {self.share}")
        if self.bytes_per_s is not None and self.bytes_per_s < 1:
            raise InvalidInput("a rate is at least one byte a second")


@dataclass(frozen=True, slots=True, kw_only=True)
class UnverifiedObject:
    """An object that could not be looked at, and why."""

    key: ObjectKey
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubReport:
    """What a scrub saw."""

    snapshot_id: str
    samples: int
    objects: int
    bytes_recorded: int
    """Sum of the sizes that the manifest has of the objects."""
    listed: int
    """Objects that the listing told the right size of."""
    unlisted: int
    """Objects that the listing lacks and a look of its own found: the endpoint's listing is not whole."""
    objects_read: int
    bytes_read: int
    objects_read_before: int
    """By earlier runs of this scrub."""
    bad_transfers: int
    """Objects that only the second look found sound."""
    findings: tuple[Finding, ...]
    unverified: tuple[UnverifiedObject, ...]

    @property
    def exit_code(self) -> int:
        """12 with findings, else 13 where something could not be looked at, else 0."""
        return 12 if self.findings else 13 if self.unverified else 0


def scrub(
    store: ObjectStore,
    prefix: str,
    *,
    request: ScrubRequest,
    clock: Clock,
    on_progress: Callable[[int, int], None] | None = None,
) -> ScrubReport:
    """Look at what the manifest names, as deep as `request` says. Writes nothing to the bucket; safe to repeat.

    `on_progress(bytes read, bytes to read)`. Raises `StoreMissing`, `InventoryIncomplete` where the bucket cannot be
    listed, `EndpointUnreachable`, `CredentialsRefused`; with a state file the same call then goes on.
    """
    listing = fetch_listing(store, prefix)
    if not listing.segments:
        check_present(store, prefix)
    state = ScrubState.open(request.state, place=f"{store.url}/{prefix}", share=request.share)
    with closing(state):
        view, damaged = fetch_partial_view(store, listing, part=SegmentPart(columns=HELD_COLUMNS))
        held = HeldObjects(view, prefix)
        run = _Scrub(store, held, clock=clock)
        run.findings += _manifest_findings(store, listing, prefix=prefix)
        run.findings += [
            Finding(kind=FindingKind.DIVERGENT, key=segment.key, detail=f"the manifest segment {segment.reason}")
            for segment in damaged
        ]
        run.findings += held.contradictions()
        if not listing.segments:
            run.note_nothing_listed(prefix)
        run.look_at_sizes(prefix)
        run.read_share(request, state, on_progress=on_progress)
        run.end(state)
    return run.report(snapshot_id=view.snapshot_id.hex, samples=len(view))


def _manifest_findings(store: ObjectStore, listing: ManifestListing, *, prefix: str) -> Iterator[Finding]:
    if fetch_marker(store, prefix) is None:
        detail = "the bucket's marker is gone: writers cannot tell that this is their store"
        yield Finding(kind=FindingKind.DANGLING, key=marker_key(prefix), detail=detail)
    for gap in listing.gaps:
        shown = ", ".join(map(str, gap.missing[:10])) + (", ..." if gap.missing_count > 10 else "")
        detail = f"of the {gap.last_seq} manifest segments of this writer {gap.missing_count} are missing: {shown}"
        folder = segment_listing_prefix(prefix, gap.writer).removesuffix("/")
        yield Finding(kind=FindingKind.DANGLING, key=ObjectKey(folder), detail=detail)
    for key in listing.foreign:
        detail = "it lies among the manifest's segments, but durastore gives no object such a name"
        yield Finding(kind=FindingKind.UNTRACKED, key=key, detail=detail)


class _Scrub:
    """One scrub under way."""

    def __init__(self, store: ObjectStore, held: HeldObjects, *, clock: Clock) -> None:
        self._store = store
        self._held = held
        self._clock = clock
        self.findings: list[Finding] = []
        self._unverified: list[UnverifiedObject] = []
        self._missing: set[int] = set()
        self._listed = self._unlisted = 0
        self._objects_read = self._bytes_read = self._read_before = self._bad_transfers = 0

    def report(self, *, snapshot_id: str, samples: int) -> ScrubReport:
        return ScrubReport(
            snapshot_id=snapshot_id,
            samples=samples,
            objects=len(self._held),
            bytes_recorded=int(self._held.sizes.sum()),
            listed=self._listed,
            unlisted=self._unlisted,
            objects_read=self._objects_read,
            bytes_read=self._bytes_read,
            objects_read_before=self._read_before,
            bad_transfers=self._bad_transfers,
            findings=tuple(self.findings),
            unverified=tuple(self._unverified),
        )

    def note_nothing_listed(self, prefix: str) -> None:
        """Nothing to look at must not read like everything in order: a listing that answers empty looks the same."""
        reason = "the store is there and its manifest lists no segment: it is new, or the listing is not whole"
        self._unverified.append(UnverifiedObject(key=marker_key(prefix), reason=reason))

    def end(self, state: ScrubState) -> None:
        """Everything was looked at, unless something could not be: then the same scrub goes on another time."""
        if not self._unverified:
            state.note_end(findings=len(self.findings))

    # --- sizes -----------------------------------------------------------------------------------------------------

    def look_at_sizes(self, prefix: str) -> None:
        """LIST first; whatever it does not say the right size of is asked for by itself, twice where need be."""
        held = self._held
        seen = np.full(len(held), _NOT_SEEN, dtype=np.int64)
        for folder in held_listing_prefixes(prefix):
            for page in list_columns(self._store, folder):
                for number, size_bytes in zip(held.find(page.keys), page.sizes, strict=True):
                    if number >= 0:
                        seen[number] = size_bytes
        is_right = seen == held.sizes
        self._listed = int(np.count_nonzero(is_right))
        suspects = [int(n) for n in np.flatnonzero(~is_right) if int(n) not in held.astray]
        outcomes = self._look_twice(suspects)
        for number, outcome in zip(suspects, outcomes, strict=True):
            if outcome is None:
                self._unlisted += bool(seen[number] == _NOT_SEEN)
            elif isinstance(outcome, Finding):
                self.findings.append(outcome)
                self._missing.add(number)
            else:
                self._unverified.append(outcome)

    def _look_twice(self, numbers: list[int]) -> list[Finding | UnverifiedObject | None]:
        """One answer can be stale: an object is wrong only where a second connection says so too (case B141)."""
        with ThreadPoolExecutor(max_workers=_LOOKS_AT_ONCE, thread_name_prefix="durastore-scrub") as pool:
            found = dict(zip(numbers, pool.map(self._look, numbers), strict=True))
            doubtful = [number for number in numbers if found[number] is not None]
            if doubtful:
                self._clock.sleep(_SECOND_LOOK_S)  # once for all of them: a bucket that was lost ends in good time
                found.update(zip(doubtful, pool.map(self._look, doubtful), strict=True))
        return [found[number] for number in numbers]

    def _look(self, number: int) -> Finding | UnverifiedObject | None:
        held = self._held.object_at(number)
        with closing(self._store.fresh_reader()) as reader:
            try:
                return _size_finding(held, reader.head(held.key))
            except ObjectAbsent as exc:
                return _absence(held, is_hidden=bool(exc.facts.get("is_delete_marker")))
            except UNCLEAR as exc:
                return UnverifiedObject(key=held.key, reason=exc.message)

    # --- bytes -----------------------------------------------------------------------------------------------------

    def read_share(
        self, request: ScrubRequest, state: ScrubState, *, on_progress: Callable[[int, int], None] | None
    ) -> None:
        """Read the chosen objects in full; each that is sound is noted at once."""
        unread = self._missing | self._held.astray
        numbers = [n for n in _chosen(self._held, request.share, seed=state.seed) if n not in unread]
        left = [n for n in numbers if self._held.key_text(n) not in state.done]
        self._read_before = len(numbers) - len(left)
        total = int(self._held.sizes[left].sum()) if left else 0
        over = threading.Event()  # who is interrupted does not wait for the objects that are being read
        limit = RateLimit(request.bytes_per_s or 0, clock=self._clock, is_over=over.is_set)
        for number, (outcome, size_bytes, is_second) in self._read_all(left, limit, over=over):
            self._bytes_read += size_bytes
            self._bad_transfers += is_second and outcome is None
            if outcome is None:
                self._objects_read += 1
                state.note_sound(self._held.key_text(number))
            elif isinstance(outcome, Finding):
                self._objects_read += 1
                self.findings.append(outcome)
            else:
                self._unverified.append(outcome)
            if on_progress is not None:
                on_progress(self._bytes_read, total)

    def _read_all(self, numbers: list[int], limit: RateLimit, *, over: threading.Event) -> Iterator[tuple[int, _Read]]:
        pool = ThreadPoolExecutor(max_workers=_READS_AT_ONCE, thread_name_prefix="durastore-scrub")
        waiting: deque[tuple[int, Future[_Read]]] = deque()
        try:
            for number in numbers:
                waiting.append((number, pool.submit(self._read_twice, number, limit)))
                if len(waiting) > 2 * _READS_AT_ONCE:
                    first, future = waiting.popleft()
                    yield first, future.result()
            while waiting:
                first, future = waiting.popleft()
                yield first, future.result()
        finally:
            over.set()
            pool.shutdown(wait=True, cancel_futures=True)

    def _read_twice(self, number: int, limit: RateLimit) -> _Read:
        """A transfer may be damaged, and a server may err once: the second look is on a new connection."""
        held, rows = self._held.object_at(number), self._held.rows_at(number)
        outcome: Finding | UnverifiedObject | None = None
        total = 0
        for look in range(2):
            with closing(self._store.fresh_reader()) as reader:
                try:
                    outcome, size_bytes = check_object(reader, held, rows=rows, throttle=limit.spend)
                    total += size_bytes
                except UNCLEAR as exc:
                    outcome = UnverifiedObject(key=held.key, reason=_reason(exc))
            if outcome is None:
                return None, total, bool(look)
        return outcome, total, True


_Read = tuple[Finding | UnverifiedObject | None, int, bool]
"""What is wrong, bytes read, and whether it took a second look."""


def _reason(exc: DurastoreError) -> str:
    if exc.facts.get("server_code") == "InvalidObjectState":
        return "it is archived: restore it, then verify again"
    return exc.message


def _size_finding(held: HeldObject, stat: ObjectStat) -> Finding | UnverifiedObject | None:
    if stat.size_bytes is None:
        return UnverifiedObject(key=held.key, reason="the endpoint does not tell its size")  # case B64
    if stat.size_bytes == held.size_bytes:
        return None
    kind = FindingKind.TRUNCATED if stat.size_bytes < held.size_bytes else FindingKind.DIVERGENT
    detail = f"it has {stat.size_bytes} bytes instead of {held.size_bytes}"
    return Finding(kind=kind, key=held.key, detail=detail, size_bytes=stat.size_bytes)


def _absence(held: HeldObject, *, is_hidden: bool) -> Finding:
    detail = "the manifest names it, and it is not in the bucket"
    if is_hidden:
        detail = "a delete marker hides it; its version may still be there (`durastore get` asks for that)"
    return Finding(kind=FindingKind.DANGLING, key=held.key, detail=detail)


def _chosen(held: HeldObjects, share: float, *, seed: str) -> list[int]:
    """The objects of a random share, at least one; the same ones for the same seed."""
    if share <= 0 or not len(held):
        return []
    if share >= 1:
        return list(range(len(held)))
    ranks = [xxhash.xxh3_64_intdigest(f"{seed} {held.key_text(n)}".encode()) / _HASH_RANGE for n in range(len(held))]
    chosen = [number for number, rank in enumerate(ranks) if rank < share]
    return chosen or [int(np.argmin(ranks))]

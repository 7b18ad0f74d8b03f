"""Which samples this run already holds, on disk or in the bucket, and what a new `put` of one means.

Duty: answer `in`, and settle each id once while puts race: new, the same again, superseding, or refused. Rests on the
journal and the manifest's resolved view (INV-8), never on a file's existence.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from durastore.errors import SampleExists
from durastore.formats.entry_columns import EntryColumns
from durastore.manifest.index import IdIndex
from durastore.model import Digest, ManifestRow, SampleEntry, SampleId, Tombstone
from durastore.spool.records import LostSample

__all__ = ["Decision", "Membership", "Pending"]

_SETTLED_AT_ONCE = 512


class Pending(NamedTuple):
    """A sample that is durable locally and not yet in a manifest segment."""

    header_hex: str
    """Digits of the header's digest."""
    input_hex: str | None
    lane: int
    pack_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a put of one id comes to."""

    is_new: bool
    pending: Pending | None = None
    """Where the same content already is, if it is not manifested yet."""
    manifested: ManifestRow | None = None
    """The row that already holds the same content."""
    is_after_flush: bool = False
    """The id is pending with another input: its row has no key yet, so it must be manifested before that."""
    supersedes: tuple[Tombstone, ...] = field(default=())
    """Rows of this id with another input, to be taken out of the view together with the new row."""


class Membership:
    """Thread-safe. `rows_of` finds the live manifest rows of an id, `is_held` asks whether the bucket still has a row's
    object (both rarely called; they go to the network).
    """

    def __init__(
        self,
        index: IdIndex,
        *,
        run: Digest,
        rows_of: Callable[[SampleId], list[ManifestRow]],
        is_held: Callable[[ManifestRow], bool],
    ) -> None:
        self._index = index
        self._run = run
        self._rows_of = rows_of
        self._is_held = is_held
        self._changed = threading.Condition()
        self._pending: dict[str, tuple[str, str | None, int, int]] = {}
        """As `Pending`. There may be very many, and the garbage collector has nothing to do with plain tuples of texts
        and numbers."""
        self._reserved: set[str] = set()
        self._superseding: dict[str, tuple[str, str | None]] = {}
        """Header and input digest (hex) of the last put of ids that the index, which only grows, also holds with an
        input that counts no more."""
        self._settled: set[tuple[int, int]] = set()
        self._lost: set[str] = set()
        """Ids found lost in this session and not put again since."""
        self._lost_puts: set[tuple[int, int, str]] = set()
        """Lane, pack and id of each lost put."""

    def __len__(self) -> int:
        """Samples known: manifested rows of the run plus pending ones."""
        with self._changed:
            return len(self._index) + len(self._pending)

    def contains(self, sample_id: SampleId, input_digest: Digest | None) -> bool:
        """True if this run holds the id; with an input digest, only if it holds it for exactly that input.

        The last put counts: a row that it supersedes may still be in the manifest, but is done for no input (INV-8).
        """
        with self._changed:
            pending = self._known(sample_id)
            if pending is not None:
                return input_digest is None or pending.input_hex == input_digest.hex
            if sample_id.text in self._lost:
                return False
            if input_digest is not None and sample_id.text in self._superseding:
                return self._superseding[sample_id.text][1] == input_digest.hex
        return self._index.contains(sample_id, input_digest)

    def current(self, sample_id: SampleId) -> Digest | None:
        """Header digest of the content that counts, where other contents of this id may still be about; else None."""
        with self._changed:
            pending = self._known(sample_id)
            if pending is not None:
                return Digest(pending.header_hex)
            last = self._superseding.get(sample_id.text)
            return Digest(last[0]) if last is not None else None

    def pending(self, sample_id: SampleId) -> Pending | None:
        with self._changed:
            return self._known(sample_id)

    def _known(self, sample_id: SampleId) -> Pending | None:
        known = self._pending.get(sample_id.text)
        return None if known is None else Pending._make(known)

    def pending_ids(self) -> list[str]:
        """Ids that are only local so far, sorted."""
        with self._changed:
            return sorted(self._pending)

    def add_pending(self, entries: Iterable[SampleEntry], *, lane: int, pack_id: int) -> None:
        """Samples that are durable in a spool."""
        with self._changed:
            is_settled = (lane, pack_id) in self._settled  # a fast lane may have manifested the pack already
            for entry in entries:
                name, digest = entry.sample_id.text, entry.input_digest
                self._lost.discard(name)
                if not is_settled:
                    input_hex = None if digest is None else digest.hex
                    self._pending[name] = entry.header_digest.hex, input_hex, lane, pack_id

    def settle(self, entries: EntryColumns, *, lane: int, pack_id: int) -> None:
        """Their rows are in a segment that was read back."""
        with self._changed:
            self._settled.add((lane, pack_id))
        rows = zip(entries.sample_id, entries.header_digest, entries.input_digest, entries.run, strict=True)
        while some := list(islice(rows, _SETTLED_AT_ONCE)):  # puts ask meanwhile
            with self._changed:
                self._settle(some, place=(lane, pack_id))

    def _settle(self, rows: Sequence[tuple[str, str, str | None, str]], *, place: tuple[int, int]) -> None:
        last_puts = set()
        for name, _, _, _ in rows:
            known = self._pending.get(name)
            if known is not None and known[2:] == place:
                del self._pending[name]
                last_puts.add(name)
        of_run = [row for row in rows if row[3] == self._run.hex]
        were_held = self._index.add_many([row[0] for row in of_run], [row[2] for row in of_run])
        for (name, header_hex, input_hex, _), was_held in zip(of_run, were_held, strict=True):
            if was_held and name in last_puts:
                self._superseding[name] = header_hex, input_hex

    def drop_pending(self, sample_id: SampleId, *, lane: int, pack_id: int) -> None:
        """The pack will not be listed with it: another put, whose row is in the manifest, counts."""
        with self._changed:
            known = self._known(sample_id)
            if known is not None and (known.lane, known.pack_id) == (lane, pack_id):
                del self._pending[sample_id.text]

    def forget_lost(self, lost: Iterable[LostSample], *, lane: int) -> None:
        """They were found lost: not held any more, whatever the index says, until they are put again.

        Where a later put counts, what was lost is a content that nobody asks for: the id stays held.
        """
        with self._changed:
            for sample in lost:
                name = sample.sample_id.text
                self._lost_puts.add((lane, sample.pack_id, name))
                if self._is_counted(sample, lane=lane):
                    self._pending.pop(name, None)
                    self._lost.add(name)

    def _is_counted(self, lost: LostSample, *, lane: int) -> bool:
        """Whether this content of its id is the one that counts, as far as is known here."""
        pending = self._known(lost.sample_id)
        if pending is not None:
            return (pending.lane, pending.pack_id) == (lane, lost.pack_id)
        last = self._superseding.get(lost.sample_id.text)
        if last is not None:
            return last[0] == lost.entry.header_digest.hex
        held = self._index.find(lost.sample_id)
        return held is None or lost.entry.input_digest in held.input_digests

    def is_lost(self, sample_id: SampleId, *, lane: int, pack_id: int) -> bool:
        """Whether what this put stored was found lost in this session."""
        with self._changed:
            return (lane, pack_id, sample_id.text) in self._lost_puts

    def reserve_new(self, ids: Sequence[str]) -> bool:
        """Reserve all of these ids, as `reserve` does, if none of them is known or being put; else none, and False."""
        with self._changed:
            if not (self._reserved.isdisjoint(ids) and self._pending.keys().isdisjoint(ids)):
                return False
            self._reserved.update(ids)
        is_new = False
        try:
            is_new = not self._index.holds_any(ids)
        finally:
            if not is_new:
                self.release(ids)
        return is_new

    def reserve(self, sample_id: SampleId, *, header_digest: Digest, input_digest: Digest | None) -> Decision:
        """Settle what a put of this id means; a new one stays reserved for the caller until `release`.

        Waits while another thread puts the same id, so callers reserve several ids in sorted order.
        `SampleExists` if the run holds other content for the same input.
        """
        with self._changed:
            while sample_id.text in self._reserved:
                self._changed.wait()
            pending = self._known(sample_id)
            if pending is not None and pending.header_hex == header_digest.hex:
                return Decision(is_new=False, pending=pending)
            if pending is not None and pending.input_hex == (None if input_digest is None else input_digest.hex):
                raise _exists(sample_id)
            if pending is not None:
                return Decision(is_new=False, is_after_flush=True)
            self._reserved.add(sample_id.text)
        try:
            decision = self._against_manifest(sample_id, header_digest, input_digest=input_digest)
        except BaseException:
            self.release([sample_id.text])
            raise
        if not decision.is_new:
            self.release([sample_id.text])
        return decision

    def _against_manifest(self, sample_id: SampleId, header_digest: Digest, *, input_digest: Digest | None) -> Decision:
        if self._index.find(sample_id) is None:
            return Decision(is_new=True)
        superseded = []
        for row in self._rows_of(sample_id):
            if row.entry.run != self._run:
                continue
            if row.entry.header_digest == header_digest:
                # a manifest is no proof of its objects: the caller is about to let go of the only other copy (case B69)
                if self._is_held(row):
                    return Decision(is_new=False, manifested=row)
            elif row.entry.input_digest == input_digest:
                raise _exists(sample_id)
            superseded.append(Tombstone(sample_id=sample_id, key=row.object.key, offset=row.entry.offset))
        return Decision(is_new=True, supersedes=tuple(superseded))

    def release(self, ids: Iterable[str]) -> None:
        """End reservations, whatever came of them."""
        with self._changed:
            self._reserved.difference_update(ids)
            self._changed.notify_all()


def _exists(sample_id: SampleId) -> SampleExists:
    return SampleExists(
        f"sample {sample_id} already holds other content for the same input",
        hint="use another id, or give each input its own input_digest",
        sample_id=sample_id.text,
    )

"""A snapshot: the fixed list of manifest segments a reader works from.

Duty: LIST the segments of a prefix, find gaps in the writers' sequences, and name the list by one digest. Must never
guess at a missing segment, and never read one (which segments a compaction covers is told by the segments themselves:
`view.py` skips those).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from durastore.errors import FormatUnsupported, IntegrityError, InvalidInput, ManifestIncomplete
from durastore.formats.keys import parse_segment_key, segment_listing_prefix
from durastore.model import Digest, ObjectKey, WriterId, parse_json
from durastore.objectstore.port import ObjectLister

__all__ = [
    "ManifestListing",
    "SegmentGap",
    "SegmentRef",
    "Snapshot",
    "fetch_listing",
    "fetch_snapshot",
    "find_gaps",
    "find_snapshot",
    "segments_id",
    "snapshot_of",
]

_TEXT_VERSION = 1
_MODULUS = 1 << 128
_MAX_HOLES = 10_000
_MAX_ITEMS = 1 << 26  # the text is the user's own, and lists every segment


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRef:
    """One segment object of the bucket."""

    key: ObjectKey
    size_bytes: int | None
    last_modified_s: float | None = None
    """The server's time of the object, as listed; only orders segments, never proves anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentGap:
    """A writer whose segments are not 1, 2, 3 ... without a hole."""

    writer: WriterId
    missing: tuple[int, ...]
    """The missing numbers, ascending; at most the first 10,000 of them."""
    missing_count: int
    last_seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestListing:
    """What lies below `manifest/`, gaps and strangers included. Not a base for reading: see `Snapshot`."""

    prefix: str
    segments: tuple[SegmentRef, ...]
    gaps: tuple[SegmentGap, ...]
    foreign: tuple[ObjectKey, ...]
    """Objects that are no segments of ours: reported, never read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Segments in byte order of their keys, and the digest of that list. Immutable and picklable.

    Keys carry the digest of the segment's bytes and nothing is ever removed, so the same id means the same rows.
    """

    prefix: str
    id: Digest
    segments: tuple[SegmentRef, ...]

    def render(self) -> str:
        """The snapshot as JSON text, to be kept beside an experiment; `Snapshot.parse` is the inverse."""
        rows = [[ref.key.text, ref.size_bytes, ref.last_modified_s] for ref in self.segments]
        facts = {"durastore.snapshot": _TEXT_VERSION, "prefix": self.prefix, "id": self.id.hex, "segments": rows}
        return json.dumps(facts)

    @classmethod
    def parse(cls, text: str) -> Snapshot:
        """Inverse of `render`. `InvalidInput` where the text is damaged, `FormatUnsupported` where it is newer."""
        try:
            value: Any = parse_json(text, what="snapshot", max_items=_MAX_ITEMS)
            version = value["durastore.snapshot"]
            if isinstance(version, int) and version > _TEXT_VERSION:
                raise FormatUnsupported(f"snapshot text of newer version {version}", hint="upgrade durastore")
            refs = [_ref_of(row) for row in value["segments"]]
            if not isinstance(value["prefix"], str):
                raise TypeError("the prefix is no text")
            snapshot = snapshot_of(value["prefix"], refs)
            fits = snapshot.id.hex == value["id"]
        except (IntegrityError, LookupError, TypeError, ValueError) as exc:
            raise InvalidInput("not the text of a snapshot") from exc
        if not fits:
            raise InvalidInput("the text of this snapshot was changed: its id does not fit its segments")
        return snapshot


def _ref_of(row: list[Any]) -> SegmentRef:
    key, size_bytes, last_modified_s = row
    is_sound = isinstance(key, str) and type(size_bytes) in (int, type(None))
    if not is_sound or type(last_modified_s) not in (int, float, type(None)):
        raise TypeError("a segment is not key, size and time")
    return SegmentRef(key=ObjectKey(key), size_bytes=size_bytes, last_modified_s=last_modified_s)


def fetch_listing(store: ObjectLister, prefix: str) -> ManifestListing:
    """List the manifest of `prefix` as it is, gaps and all. Errors of the listing pass through. Safe to repeat."""
    refs: list[SegmentRef] = []
    foreign: list[ObjectKey] = []
    for page in store.list(segment_listing_prefix(prefix)):
        for stat in page:
            if parse_segment_key(prefix, stat.key) is None:
                foreign.append(stat.key)
            else:
                refs.append(SegmentRef(key=stat.key, size_bytes=stat.size_bytes, last_modified_s=stat.last_modified_s))
    return ManifestListing(prefix=prefix, segments=tuple(refs), gaps=find_gaps(prefix, refs), foreign=tuple(foreign))


def fetch_snapshot(store: ObjectLister, prefix: str, *, known: Snapshot | None = None) -> Snapshot:
    """The manifest of `prefix` as it is listed now. Safe to repeat.

    Raises `ManifestIncomplete` on a gap, or where a segment of an earlier `known` snapshot is no longer listed: nothing
    is ever removed from a manifest, so such a listing cannot be whole. Errors of the listing itself pass through.
    """
    listing = fetch_listing(store, prefix)
    if known is not None:
        lost = {ref.key for ref in known.segments} - {ref.key for ref in listing.segments}
        if lost:
            raise ManifestIncomplete(
                f"the listing lacks {len(lost)} segments that were there before, e.g. {min(lost)}",
                hint="the endpoint's listing is stale, or someone removed objects",
            )
    return snapshot_of(prefix, listing.segments)


def snapshot_of(prefix: str, refs: Iterable[SegmentRef]) -> Snapshot:
    """The snapshot of exactly these segments; `ManifestIncomplete` where a writer's sequence has a gap."""
    segments = tuple(sorted({ref.key: ref for ref in refs}.values(), key=lambda ref: ref.key.text.encode()))
    gaps = find_gaps(prefix, segments)
    if gaps:
        missing, gap = sum(g.missing_count for g in gaps), gaps[0]
        raise ManifestIncomplete(
            f"the manifest lacks {missing} segments of {len(gaps)} writers, "
            f"e.g. segment {gap.missing[0]} of {gap.last_seq} of writer {gap.writer}",
            hint="rows may be missing: list again, then rebuild the manifest from the packs",
            writer=gap.writer.hex,
            first_missing=gap.missing[0],
        )
    return Snapshot(prefix=prefix, id=segments_id(segments), segments=segments)


def segments_id(segments: Sequence[SegmentRef]) -> Digest:
    """The id of a list of distinct segments, in whatever order."""
    return _id_of(len(segments), sum(_weight(ref.key) for ref in segments) % _MODULUS)


def find_gaps(prefix: str, refs: Iterable[SegmentRef]) -> tuple[SegmentGap, ...]:
    """The holes in the writers' sequences, which begin at 1. Two segments under one number are no hole."""
    seqs: dict[WriterId, set[int]] = {}
    for ref in refs:
        parts = parse_segment_key(prefix, ref.key)
        if parts is None:
            raise InvalidInput(f"{ref.key} is no manifest segment below {prefix!r}")
        seqs.setdefault(parts.writer, set()).add(parts.seq)
    gaps = []
    for writer, found in sorted(seqs.items()):
        last = max(found)
        missing = last - len(found - {0})
        if missing:
            holes = tuple(islice((seq for seq in range(1, last) if seq not in found), min(missing, _MAX_HOLES)))
            gaps.append(SegmentGap(writer=writer, missing=holes, missing_count=missing, last_seq=last))
    return tuple(gaps)


def find_snapshot(current: Snapshot, wanted: Digest) -> Snapshot:
    """The earlier state of `current` whose id is `wanted`: its segments up to some moment of the server's clock.

    Raises `InvalidInput` where no moment gives that id (listed times can be coarse): use the snapshot's text then.
    """
    ordered = sorted(current.segments, key=lambda ref: (ref.last_modified_s or 0.0, _seq(current.prefix, ref), ref.key))
    total = 0
    for count in range(len(ordered) + 1):
        if _id_of(count, total) == wanted:
            return snapshot_of(current.prefix, ordered[:count])
        if count < len(ordered):
            total = (total + _weight(ordered[count].key)) % _MODULUS
    raise InvalidInput(
        f"no state of this manifest has the snapshot id {wanted}",
        hint="keep the text of Dataset.snapshot.render() and pass that",
    )


def _seq(prefix: str, ref: SegmentRef) -> int:
    parts = parse_segment_key(prefix, ref.key)
    return parts.seq if parts is not None else 0


def _weight(key: ObjectKey) -> int:
    return int(Digest.of(key.text.encode()).hex, 16)


def _id_of(count: int, total: int) -> Digest:
    # A sum of key digests, not a digest of the joined list: all earlier states can then be tried in one pass.
    return Digest.of(f"durastore.snapshot:{count}:{total:032x}".encode())

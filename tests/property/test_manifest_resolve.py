"""Whatever is spread over segments in whatever order: the view equals a plain model of the rules."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from durastore.formats.keys import pack_key, segment_key
from durastore.formats.segment import SegmentContent, render_segment
from durastore.manifest.index import IdIndex
from durastore.manifest.snapshot import fetch_snapshot
from durastore.manifest.view import ResolvedView, fetch_view
from durastore.model import (
    Digest,
    ManifestRow,
    ObjectFacts,
    ObjectKey,
    PackKind,
    SampleEntry,
    SampleId,
    Tombstone,
    WriterId,
)
from durastore.objectstore.memory import MemoryStore

PREFIX = "p"
_IDS = ("a", "a/b", "B", "ä", "𝄞", "z" * 40)


def _row(sample_id: str, pack: int, offset: int, run: int) -> ManifestRow:
    """Everything else follows from these, as it does from the bytes of a pack."""
    digest = Digest.of(f"pack{pack}".encode())
    writer = WriterId(f"{pack:016x}")
    entry = SampleEntry(
        sample_id=SampleId(sample_id),
        offset=offset,
        length=10,
        header_length=8,
        header_digest=Digest.of(f"{sample_id}{pack % 2}".encode()),
        schema="[]",
        meta="{}",
        run=Digest.of(bytes([run])),
        input_digest=Digest.of(bytes([pack])) if pack % 2 else None,
        provenance="computed",
        time_ns=0,
    )
    facts = ObjectFacts(
        key=pack_key(PREFIX, writer, seq=1, digest=digest, kind=PackKind.TAR),
        size_bytes=100_000,
        digest=digest,
        crc64nvme="AAAAAAAAAAA=",
        etag="e",
        version_id=None,
        writer=writer,
    )
    return ManifestRow(entry=entry, object=facts)


rows_strategy = st.builds(
    lambda i, p, o: _row(i, p, o * 512, run=p % 3), st.sampled_from(_IDS), st.integers(0, 4), st.integers(0, 1)
)
tombstones_strategy = rows_strategy.map(
    lambda row: Tombstone(sample_id=row.entry.sample_id, key=row.object.key, offset=row.entry.offset)
)
segments_strategy = st.lists(
    st.tuples(st.lists(rows_strategy, max_size=8), st.lists(tombstones_strategy, max_size=3)), max_size=6
)
Segments = list[tuple[list[ManifestRow], list[Tombstone]]]


def _view(segments: Segments, *, compacted: int = 0) -> ResolvedView:
    """The view of a bucket with these segments; the first `compacted` of them are also covered by one more."""
    store = MemoryStore()
    keys = []
    for at, (rows, tombstones) in enumerate(segments):
        keys.append(_put(store, SegmentContent(rows=tuple(rows), tombstones=tuple(tombstones)), writer=at + 1))
    if compacted:
        content = SegmentContent(
            rows=tuple(row for rows, _ in segments[:compacted] for row in rows),
            tombstones=tuple(t for _, tombstones in segments[:compacted] for t in tombstones),
            covers=tuple(keys[:compacted]),
        )
        _put(store, content, writer=99)
    return fetch_view(store, fetch_snapshot(store, PREFIX), max_requests=2)


def _put(store: MemoryStore, content: SegmentContent, *, writer: int) -> ObjectKey:
    data = render_segment(content)
    key = segment_key(PREFIX, WriterId(f"{writer:016x}"), seq=1, digest=Digest.of(data))
    store.put(key, data, crc64nvme=None, metadata={})
    return key


def _model(segments: Segments) -> dict[str, list[ManifestRow]]:
    """Live rows of each id, the winner first."""
    dead = {(t.sample_id, t.key, t.offset) for _, tombstones in segments for t in tombstones}
    live: dict[str, set[ManifestRow]] = {}
    for rows, _ in segments:
        for row in rows:
            if (row.entry.sample_id, row.object.key, row.entry.offset) not in dead:
                live.setdefault(row.entry.sample_id.text, set()).add(row)
    return {sample_id: sorted(found, key=_rank) for sample_id, found in live.items()}


def _rank(row: ManifestRow) -> tuple[str, str, str, int]:
    return row.entry.run.hex, row.entry.header_digest.hex, row.object.key.text, row.entry.offset


@settings(max_examples=120, deadline=None)
@given(segments_strategy, st.randoms(use_true_random=False))
def test_the_view_follows_the_rules_in_any_order_of_segments(segments: Segments, order: random.Random) -> None:
    expected = _model(segments)
    order.shuffle(segments)
    view = _view(segments)
    assert view.ids() == sorted(expected)
    assert {sample_id: view.rows_of(SampleId(sample_id)) for sample_id in expected} == expected
    assert [view.row_at(at) for at in range(len(view))] == [expected[sample_id][0] for sample_id in sorted(expected)]
    assert list(view.duplicates) == [row for sample_id in sorted(expected) for row in expected[sample_id][1:]]
    assert view.missing(list(_IDS)) == [sample_id for sample_id in _IDS if sample_id not in expected]
    counts: dict[Digest, int] = {}
    for rows in expected.values():
        counts[rows[0].entry.run] = counts.get(rows[0].entry.run, 0) + 1
    assert view.run_counts == counts
    index = view.index()
    for sample_id in _IDS:
        hit = index.find(SampleId(sample_id))
        inputs = {row.entry.input_digest for row in expected.get(sample_id, [])}
        assert (set(hit.input_digests) if hit is not None else set()) == inputs


@settings(max_examples=60, deadline=None)
@given(segments_strategy, st.integers(0, 6))
def test_compaction_changes_nothing_that_is_read(segments: Segments, compacted: int) -> None:
    plain, compact = _view(segments), _view(segments, compacted=min(compacted, len(segments)))
    assert compact.ids() == plain.ids()
    assert [compact.row_at(at) for at in range(len(compact))] == [plain.row_at(at) for at in range(len(plain))]
    assert compact.duplicates == plain.duplicates
    assert compact.tombstones() == plain.tombstones()


@pytest.mark.parametrize("recent_limit", [1, 3, 50])
@settings(max_examples=60, deadline=None)
@given(pairs=st.lists(st.tuples(st.integers(0, 30), st.none() | st.integers(0, 3)), max_size=80))
def test_the_index_is_a_set_of_pairs(recent_limit: int, pairs: list[tuple[int, int | None]]) -> None:
    index = IdIndex(recent_limit=recent_limit)
    model: dict[int, set[int | None]] = {}
    for number, given_input in pairs:
        index.add(SampleId(str(number)), None if given_input is None else Digest(f"{given_input:032x}"))
        model.setdefault(number, set()).add(given_input)
    for number in range(31):
        sample_id = SampleId(str(number))
        assert index.contains(sample_id, None) is (number in model)
        for wanted in range(4):
            assert index.contains(sample_id, Digest(f"{wanted:032x}")) is (wanted in model.get(number, set()))

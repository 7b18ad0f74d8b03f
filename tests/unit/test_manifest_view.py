"""The resolved view over a real bucket: union, tombstones, compaction, duplicates, damage."""

from __future__ import annotations

import io
import pickle
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from durastore.errors import (
    EndpointUnreachable,
    FormatUnsupported,
    IntegrityError,
    InvalidInput,
    ManifestIncomplete,
    ObjectAbsent,
)
from durastore.formats.keys import segment_key
from durastore.formats.segment import SegmentContent, parse_segment_table, render_segment, row_at, rows_at
from durastore.manifest.snapshot import fetch_listing, fetch_snapshot
from durastore.manifest.view import fetch_partial_view, fetch_view
from durastore.model import Digest, ManifestRow, ObjectKey, Run, SampleId, WriterId
from durastore.objectstore.memory import MemoryStore
from tests.unit.manifest_bucket import RUN, Bucket, encode, tombstone_of

A, B = WriterId("a" * 16), WriterId("b" * 16)


def _rank(row: ManifestRow) -> tuple[str, str, str, int]:
    return row.entry.run.hex, row.entry.header_digest.hex, row.object.key.text, row.entry.offset


def test_an_empty_manifest_is_an_empty_view() -> None:
    view = Bucket().view()
    assert len(view) == 0
    assert view.ids() == []
    assert view.duplicates == ()
    assert view.runs == {}
    assert view.run_counts == {}
    assert view.object_keys() == frozenset()
    assert view.row(SampleId("a")) is None
    assert view.rows_of(SampleId("a")) == []
    assert view.missing(["a"]) == ["a"]
    assert len(view.index()) == 0
    with pytest.raises(IndexError):
        view.row_at(0)


def test_rows_of_all_segments_and_writers_come_back_equal_and_sorted() -> None:
    bucket = Bucket()
    first = bucket.add_tar([encode("b/2", 2), encode("a", 1), encode("é", 3)])
    second = [bucket.add_single(encode("b.1", 4)), *bucket.add_tar([encode("𝄞", 5)])]
    bucket.add_segment(first)
    bucket.add_segment(second, writer=A)
    view = bucket.view()
    by_id = {row.entry.sample_id.text: row for row in [*first, *second]}
    assert view.ids() == sorted(by_id) == sorted(by_id, key=str.encode)
    for position, sample_id in enumerate(view.ids()):
        assert view.row_at(position) == by_id[sample_id] == view.row(SampleId(sample_id))
        assert view.position(SampleId(sample_id)) == position
        assert view.id_at(position) == sample_id
        assert view.rows_of(SampleId(sample_id)) == [by_id[sample_id]]
        assert SampleId(sample_id) in view
    assert view.row(SampleId("zz")) is None
    assert SampleId("zz") not in view
    assert view.missing(["zz", "a", "0"]) == ["zz", "0"]
    assert view.object_keys() == {row.object.key for row in by_id.values()}
    assert view.runs == {RUN.digest: RUN}
    assert view.run_counts == {RUN.digest: 5}


def test_many_rows_are_the_rows_one_by_one() -> None:
    bucket = Bucket()
    for start in range(0, 12, 3):
        bucket.add_segment(bucket.add_tar([encode(f"s{i * 5 % 12:02d}", i) for i in range(start, start + 3)]))
    view = bucket.view()
    wanted = [7, 0, 11, 7, 3]
    assert view.rows_at(wanted) == [view.row_at(at) for at in wanted]
    assert view.rows_at([]) == []
    for outside in ([0, 12], [-1]):
        with pytest.raises(IndexError):
            view.rows_at(outside)


def test_rows_of_a_table_in_pieces_and_of_tombstones() -> None:
    bucket = Bucket()
    rows = bucket.add_tar([encode(f"s{i}", i) for i in range(4)])
    content = SegmentContent(rows=tuple(rows), tombstones=(tombstone_of(rows[0]),))
    table = parse_segment_table(render_segment(content))
    pieces = pa.concat_tables([table.slice(0, 2), table.slice(2)])
    for one in (table, pieces):
        at = [number for number, kind in enumerate(one.column("kind").to_pylist()) if kind == "row"]
        assert sorted(row.entry.sample_id.text for row in rows_at(one, at[::-1])) == ["s0", "s1", "s2", "s3"]
        assert rows_at(one, at[::-1]) == [row_at(one, number) for number in at[::-1]]
        with pytest.raises(IntegrityError, match="is not a row"):
            rows_at(one, list(range(5)))


def test_positions_outside_are_index_errors() -> None:
    bucket = Bucket()
    bucket.add_segment(bucket.add_tar([encode("a", 1)]))
    view = bucket.view()
    for position in (-1, 1):
        with pytest.raises(IndexError):
            view.row_at(position)
        with pytest.raises(IndexError):
            view.id_at(position)
    with pytest.raises(InvalidInput):
        view.missing(["\ud800"])


@pytest.mark.parametrize("tombstone_first", [True, False])
def test_a_tombstone_takes_out_exactly_its_row_in_either_order(tombstone_first: bool) -> None:
    bucket = Bucket()
    old, new = bucket.add_tar([encode("a", 1)]), bucket.add_tar([encode("a", 2)])
    # segments are resolved in the order of their keys: writer A's before writer B's
    bucket.add_segment(tombstones=[tombstone_of(old[0])], writer=A if tombstone_first else B)
    bucket.add_segment([*old, *new], writer=B if tombstone_first else A)
    view = bucket.view()
    assert view.rows_of(SampleId("a")) == new
    assert view.tombstones() == (tombstone_of(old[0]),)


def test_a_tombstone_of_a_row_not_seen_yet_is_kept_and_harms_nothing() -> None:
    bucket = Bucket()
    rows = bucket.add_tar([encode("a", 1), encode("b", 2)])
    late = bucket.add_tar([encode("a", 3)])
    bucket.add_segment(rows, tombstones=[tombstone_of(late[0])])
    assert bucket.view().ids() == ["a", "b"]
    bucket.add_segment(late)
    assert bucket.view().rows_of(SampleId("a")) == rows[:1]


def test_the_same_row_in_two_segments_is_one_row() -> None:
    bucket = Bucket()
    rows = bucket.add_tar([encode("a", 1), encode("b", 2)])
    bucket.add_segment(rows)
    bucket.add_segment(rows[:1], writer=A)
    view = bucket.view()
    assert len(view) == 2
    assert view.duplicate_count == 0
    assert view.rows_of(SampleId("a")) == rows[:1]
    bucket.add_segment(tombstones=[tombstone_of(rows[0])])
    assert bucket.view().ids() == ["b"]


def test_of_several_live_rows_the_smallest_wins_and_the_rest_are_reported() -> None:
    bucket = Bucket()
    other = Run.of({"model": "z"})
    rows = [
        bucket.add_tar([encode("a", 1)])[0],
        bucket.add_tar([encode("a", 1), encode("b", 1)])[0],
        bucket.add_tar([encode("a", 2)])[0],
        bucket.add_tar([encode("a", 1, run=other)])[0],
    ]
    for row in rows:
        bucket.add_segment([row])
    view = bucket.view()
    ranked = sorted(rows, key=_rank)
    assert view.rows_of(SampleId("a")) == ranked
    assert view.row(SampleId("a")) == ranked[0]
    assert view.duplicates == tuple(ranked[1:])
    assert view.duplicate_count == 3
    assert sum(view.run_counts.values()) == 1
    assert view.object_keys() == {row.object.key for row in rows}


def test_a_compacted_segment_replaces_those_it_covers() -> None:
    bucket = Bucket()
    rows = bucket.add_tar([encode("a", 1), encode("b", 2), encode("c", 3)])
    keys = [bucket.add_segment(rows[:1]), bucket.add_segment(rows[1:2], tombstones=[tombstone_of(rows[0])])]
    bucket.add_segment(rows[2:])
    expected = bucket.view()
    assert expected.ids() == ["b", "c"]
    bucket.add_segment(rows[:2], tombstones=[tombstone_of(rows[0])], covers=keys, writer=A)
    view = bucket.view()
    assert view.covered == set(keys)
    assert view.ids() == expected.ids()
    assert view.tombstones() == expected.tombstones()
    # what is covered is not needed any more, not even readable
    for key in keys:
        bucket.damage(key, at=10)
    assert bucket.view().ids() == expected.ids()


def test_a_covered_segment_that_was_fetched_does_not_count() -> None:
    bucket = Bucket()
    rows = bucket.add_tar([encode(f"s{i}", i) for i in range(200)])
    large = bucket.add_segment(rows)
    bucket.add_segment(rows[:1], covers=[large], writer=A)
    assert bucket.view().ids() == ["s0"]


@pytest.mark.parametrize("at", [0, 40, -1])
def test_a_damaged_segment_is_incomplete_not_skipped(at: int) -> None:
    bucket = Bucket()
    rows = bucket.add_tar([encode("a", 1), encode("b", 2)])
    bucket.add_segment(rows[:1])
    damaged = bucket.add_segment(rows[1:])
    bucket.damage(damaged, at=at)
    with pytest.raises(ManifestIncomplete, match="do not match the digest") as caught:
        bucket.view()
    assert caught.value.facts["keys"] == [damaged.text]
    view, unreadable = fetch_partial_view(bucket.store, fetch_listing(bucket.store, bucket.prefix))
    assert view.ids() == ["a"]
    assert [segment.key for segment in unreadable] == [damaged]


def test_bytes_that_match_their_name_and_are_no_segment_are_incomplete() -> None:
    bucket = Bucket()
    key = segment_key(bucket.prefix, A, seq=1, digest=Digest.of(b"hello"))
    bucket.store.put(key, b"hello", crc64nvme=None, metadata={})
    with pytest.raises(ManifestIncomplete, match="not a manifest segment"):
        bucket.view()


def test_a_damaged_transfer_is_read_once_more() -> None:
    class Flaky(MemoryStore):
        broken = 1

        def fetch(self, key: ObjectKey, **asked: Any) -> bytes:
            data = super().fetch(key, **asked)
            if Flaky.broken and "/manifest/" in key.text:
                Flaky.broken -= 1
                return data[:-1]
            return data

    bucket = Bucket(Flaky())
    Flaky.broken = 0
    bucket.add_segment(bucket.add_tar([encode("a", 1)]))
    Flaky.broken = 1
    assert bucket.view().ids() == ["a"]


@pytest.mark.parametrize(
    "error, expected",
    [(ObjectAbsent("404"), ManifestIncomplete), (EndpointUnreachable("no route"), EndpointUnreachable)],
)
def test_a_listed_segment_that_cannot_be_fetched_stops_the_view(error: Exception, expected: type[Exception]) -> None:
    class Losing(MemoryStore):
        def fetch(self, key: ObjectKey, **asked: Any) -> bytes:
            raise error

    source = Bucket()
    key = source.add_segment()
    losing = Losing()
    losing.put(key, source.store.fetch(key), crc64nvme=None, metadata={})
    with pytest.raises(expected):
        fetch_view(losing, fetch_snapshot(losing, source.prefix))


def _put_table(bucket: Bucket, table: pa.Table, facts: dict[str, str]) -> None:
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, table.schema, store_schema=False) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(facts)
    data = sink.getvalue()
    key = segment_key(bucket.prefix, A, seq=1, digest=Digest.of(data))
    bucket.store.put(key, data, crc64nvme=None, metadata={})


def test_unknown_columns_are_ignored_and_an_unknown_major_is_refused() -> None:
    bucket = Bucket()
    rows = bucket.add_tar([encode("a", 1), encode("b", 2)])
    table = pq.read_table(io.BytesIO(render_segment(SegmentContent(rows=tuple(rows)))))
    extended = table.append_column("mood", pa.array(["good", None])).select(["mood", *reversed(table.schema.names)])
    _put_table(bucket, extended, {"durastore.format": "1"})
    view = bucket.view()
    assert [view.row_at(at) for at in range(2)] == rows
    newer = Bucket()
    _put_table(newer, table, {"durastore.format": "2"})
    with pytest.raises(FormatUnsupported):
        newer.view()


def test_the_index_holds_live_rows_of_the_run_with_their_inputs() -> None:
    bucket = Bucket()
    other = Run.of({"model": "z"})
    inputs = [Digest.of(bytes([number])) for number in range(4)]
    rows = bucket.add_tar(
        [encode("a", 1, input_digest=inputs[0]), encode("b", 2), encode("c", 3, input_digest=inputs[1])]
    )
    rows += bucket.add_tar([encode("a", 5, input_digest=inputs[2]), encode("d", 6, run=other, input_digest=inputs[3])])
    bucket.add_segment(rows, tombstones=[tombstone_of(rows[2])])
    index = bucket.view().index(RUN.digest)
    a, b, c, d = (SampleId(text) for text in "abcd")
    assert index.contains(a, inputs[0])
    assert index.contains(a, inputs[2])
    assert not index.contains(a, inputs[1])
    assert index.contains(b, None)
    assert not index.contains(b, inputs[0])
    assert not index.contains(c, None)
    assert not index.contains(d, None)
    assert bucket.view().index().contains(d, inputs[3])


def test_a_view_survives_pickling() -> None:
    bucket = Bucket()
    rows = bucket.add_tar([encode("a", 1), encode("b", 2)])
    bucket.add_segment(rows)
    bucket.add_segment(bucket.add_tar([encode("a", 9)]), tombstones=[tombstone_of(rows[1])])
    view = bucket.view()
    copy = pickle.loads(pickle.dumps(view))
    assert copy.snapshot_id == view.snapshot_id
    assert copy.ids() == view.ids() == ["a"]
    assert copy.rows_of(SampleId("a")) == view.rows_of(SampleId("a"))
    assert copy.tombstones() == view.tombstones()


def test_many_small_segments_resolve_like_one() -> None:
    bucket = Bucket()
    rows = bucket.add_tar([encode(f"s{i:03d}", i) for i in range(60)])
    for row in reversed(rows):
        bucket.add_segment([row])
    view = bucket.view()
    assert [view.row_at(at) for at in range(60)] == rows

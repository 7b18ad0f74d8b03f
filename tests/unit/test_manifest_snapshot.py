"""Listing a manifest: gaps, strangers, ids of states, the snapshot's text."""

from __future__ import annotations

import json
import pickle

import pytest

from durastore.clock import ManualClock
from durastore.errors import FormatUnsupported, InvalidInput, ManifestIncomplete
from durastore.formats.keys import segment_key
from durastore.manifest.snapshot import (
    SegmentRef,
    Snapshot,
    fetch_listing,
    fetch_snapshot,
    find_gaps,
    find_snapshot,
    snapshot_of,
)
from durastore.model import Digest, ObjectKey, WriterId
from durastore.objectstore.memory import MemoryStore
from tests.unit.manifest_bucket import Bucket, encode

PREFIX = "data/set"
A, B = WriterId("a" * 16), WriterId("b" * 16)


def _ref(writer: WriterId, seq: int, content: str = "") -> SegmentRef:
    digest = Digest.of(f"{writer}{seq}{content}".encode())
    return SegmentRef(key=segment_key(PREFIX, writer, seq=seq, digest=digest), size_bytes=10)


def test_an_empty_prefix_has_an_empty_snapshot() -> None:
    snapshot = fetch_snapshot(MemoryStore(), PREFIX)
    assert snapshot.segments == ()
    assert snapshot.id == snapshot_of(PREFIX, ()).id


@pytest.mark.parametrize("prefix", ["", "data/set"])
def test_segments_of_all_writers_are_listed_and_others_objects_are_not(prefix: str) -> None:
    bucket = Bucket(prefix=prefix)
    rows = bucket.add_tar([encode("a", 1)])
    keys = [bucket.add_segment(rows), bucket.add_segment(), bucket.add_segment(writer=A)]
    stranger = ObjectKey(f"{prefix}/manifest/notes.txt".lstrip("/"))
    bucket.store.put(stranger, b"?", crc64nvme=None, metadata={})
    listing = fetch_listing(bucket.store, prefix)
    assert listing.foreign == (stranger,)
    assert listing.gaps == ()
    snapshot = fetch_snapshot(bucket.store, prefix)
    assert [ref.key for ref in snapshot.segments] == sorted(keys)


@pytest.mark.parametrize(
    "seqs, missing",
    [([2], (1,)), ([1, 3], (2,)), ([1, 2, 5], (3, 4)), ([1, 2, 3], None), ([1, 1], None)],
)
def test_a_hole_in_a_writers_sequence_is_incomplete(seqs: list[int], missing: tuple[int, ...] | None) -> None:
    refs = [_ref(A, seq, str(at)) for at, seq in enumerate(seqs)] + [_ref(B, 1)]
    gaps = find_gaps(PREFIX, refs)
    if missing is None:
        assert gaps == ()
        assert len(snapshot_of(PREFIX, refs).segments) == len(refs)
        return
    assert [(gap.writer, gap.missing) for gap in gaps] == [(A, missing)]
    with pytest.raises(ManifestIncomplete) as caught:
        snapshot_of(PREFIX, refs)
    assert caught.value.facts["writer"] == A.hex
    assert caught.value.facts["first_missing"] == missing[0]


def test_an_absurd_sequence_number_costs_no_memory() -> None:
    gap = find_gaps(PREFIX, [_ref(A, 999_999_999_999)])[0]
    assert gap.missing_count == 999_999_999_998
    assert len(gap.missing) == 10_000


def test_a_listing_that_lost_a_known_segment_is_incomplete() -> None:
    bucket = Bucket()
    bucket.add_segment()
    known = snapshot_of(PREFIX, [*fetch_snapshot(bucket.store, PREFIX).segments, _ref(A, 1)])
    with pytest.raises(ManifestIncomplete, match="lacks 1 segments"):
        fetch_snapshot(bucket.store, PREFIX, known=known)


def test_the_id_depends_on_the_segments_and_not_on_their_order() -> None:
    refs = [_ref(A, 1), _ref(A, 2), _ref(B, 1)]
    assert snapshot_of(PREFIX, refs) == snapshot_of(PREFIX, [*reversed(refs), refs[0]])
    assert len({snapshot_of(PREFIX, refs[:n]).id for n in range(4)}) == 4


def test_the_text_of_a_snapshot_comes_back_equal() -> None:
    snapshot = snapshot_of(PREFIX, [_ref(A, 1), _ref(B, 1)])
    assert Snapshot.parse(snapshot.render()) == snapshot
    assert pickle.loads(pickle.dumps(snapshot)) == snapshot


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"durastore.snapshot":1}', "nonsense", '{"durastore.snapshot":1,"x":NaN}']
)
def test_garbage_is_no_snapshot_text(text: str) -> None:
    with pytest.raises(InvalidInput):
        Snapshot.parse(text)


def test_a_changed_snapshot_text_is_refused() -> None:
    value = json.loads(snapshot_of(PREFIX, [_ref(A, 1), _ref(B, 1)]).render())
    value["segments"].pop()
    with pytest.raises(InvalidInput, match="was changed"):
        Snapshot.parse(json.dumps(value))


def test_a_newer_snapshot_text_is_refused() -> None:
    value = json.loads(snapshot_of(PREFIX, []).render()) | {"durastore.snapshot": 2}
    with pytest.raises(FormatUnsupported):
        Snapshot.parse(json.dumps(value))


def test_every_earlier_state_is_found_by_its_id() -> None:
    clock = ManualClock()
    bucket = Bucket(MemoryStore(clock=clock))
    states = [fetch_snapshot(bucket.store, PREFIX)]
    for writer in (A, B, A, B, B):
        clock.advance(1)
        bucket.add_segment(writer=writer)
        states.append(fetch_snapshot(bucket.store, PREFIX))
    for state in states:
        assert find_snapshot(states[-1], state.id) == state
    with pytest.raises(InvalidInput, match="no state"):
        find_snapshot(states[-1], Digest("0" * 32))

"""Compacting at any moment, any number of times, beside writers that go on: the dataset is the same as without."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from durastore.formats.keys import segment_key
from durastore.formats.segment import SegmentContent, render_segment
from durastore.manifest.compaction import CompactionPlan, execute_compaction, plan_compaction
from durastore.manifest.snapshot import fetch_snapshot
from durastore.manifest.view import ResolvedView, fetch_view
from durastore.model import Digest, ManifestRow, SampleId, Tombstone, WriterId
from durastore.objectstore.memory import MemoryStore
from tests.property.test_manifest_resolve import PREFIX, Segments, segments_strategy

# What happens after each segment: nothing, a plan is made, the oldest plan is carried out (late, as a slow process
# would), or both at once.
steps_strategy = st.lists(st.sampled_from(["", "plan", "execute", "plan execute"]), min_size=6, max_size=6)


def _put(store: MemoryStore, rows: list[ManifestRow], tombstones: list[Tombstone], *, writer: int) -> None:
    data = render_segment(SegmentContent(rows=tuple(rows), tombstones=tuple(tombstones)))
    key = segment_key(PREFIX, WriterId(f"{writer:016x}"), seq=1, digest=Digest.of(data))
    store.put(key, data, crc64nvme=None, metadata={})


def _facts(view: ResolvedView) -> tuple[list[list[ManifestRow]], tuple[Tombstone, ...], frozenset[str]]:
    rows = [view.rows_of(SampleId(name)) for name in view.ids()]
    return rows, view.tombstones(), frozenset(key.text for key in view.object_keys())


@settings(max_examples=40, deadline=None)
@given(segments_strategy, steps_strategy)
def test_the_dataset_is_the_same_with_and_without(segments: Segments, steps: list[str]) -> None:
    _compact_along(segments, steps)


@pytest.mark.exhaustive
@settings(max_examples=1_000, deadline=None)
@given(segments_strategy, steps_strategy)
def test_the_dataset_is_the_same_in_a_thousand_histories(segments: Segments, steps: list[str]) -> None:
    _compact_along(segments, steps)


def _compact_along(segments: Segments, steps: list[str]) -> None:
    plain, compacted = MemoryStore(), MemoryStore()
    waiting: list[CompactionPlan] = []
    for at, (rows, tombstones) in enumerate(segments):
        for store in (plain, compacted):
            _put(store, rows, tombstones, writer=at + 1)
        if "plan" in steps[at]:
            waiting.append(plan_compaction(compacted, PREFIX))
        if "execute" in steps[at] and waiting:
            execute_compaction(compacted, waiting.pop(0))
        views = [fetch_view(store, fetch_snapshot(store, PREFIX)) for store in (plain, compacted)]
        assert _facts(views[0]) == _facts(views[1])
    for plan in waiting:  # those that came last of all
        execute_compaction(compacted, plan)
    execute_compaction(compacted, plan_compaction(compacted, PREFIX))
    last = fetch_view(compacted, fetch_snapshot(compacted, PREFIX))
    assert _facts(last) == _facts(fetch_view(plain, fetch_snapshot(plain, PREFIX)))
    again = plan_compaction(compacted, PREFIX)
    assert not again.is_needed  # run twice is run once
    assert execute_compaction(compacted, again).segment is None

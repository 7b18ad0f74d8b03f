"""What a store knows to be pending, and when it stops being so."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast
from unittest.mock import Mock

from durastore.formats.entry_columns import parse_entry_columns
from durastore.formats.journal import render_entry
from durastore.manifest.index import IdIndex
from durastore.model import Digest, SampleEntry, SampleId
from durastore.spool.records import LostSample
from durastore.store.membership import Membership
from tests.unit.spool_lab import RUN, sample


def test_a_sample_that_is_not_listed_is_dropped_for_its_own_pack_only() -> None:
    membership = Membership(cast(Any, Mock()), run=RUN.digest, rows_of=Mock(), is_held=Mock())
    entry = sample("a").entry(offset=0, time_ns=1)
    membership.add_pending([entry], lane=1, pack_id=7)
    for lane, pack_id in ((0, 7), (1, 8)):
        membership.drop_pending(SampleId("a"), lane=lane, pack_id=pack_id)
        assert membership.pending_ids() == ["a"]
    membership.drop_pending(SampleId("a"), lane=1, pack_id=7)
    assert membership.pending_ids() == []


OLD_INPUT, NEW_INPUT = Digest.of(b"old"), Digest.of(b"new")


def entry_of(seed: int, *, input_digest: Digest) -> SampleEntry:
    return replace(sample("a", seed=seed).entry(offset=0, time_ns=1), input_digest=input_digest)


OLD, NEW = entry_of(1, input_digest=OLD_INPUT), entry_of(2, input_digest=NEW_INPUT)


def lost(entry: SampleEntry, *, pack_id: int) -> LostSample:
    return LostSample(entry=entry, pack_id=pack_id, pack_name=f"{pack_id}.tar", reason="for the test")


def membership_of(*listed: SampleEntry) -> Membership:
    index = IdIndex()
    for entry in listed:
        index.add(entry.sample_id, entry.input_digest)
    return Membership(index, run=RUN.digest, rows_of=Mock(), is_held=Mock())


def test_a_lost_earlier_content_takes_nothing_from_a_later_put() -> None:
    membership = membership_of(OLD)
    membership.add_pending([NEW], lane=0, pack_id=4)
    membership.forget_lost([lost(OLD, pack_id=1)], lane=0)
    assert membership.contains(SampleId("a"), NEW_INPUT)
    assert membership.current(SampleId("a")) == NEW.header_digest
    assert membership.is_lost(SampleId("a"), lane=0, pack_id=1)
    assert not membership.is_lost(SampleId("a"), lane=0, pack_id=4)


def test_a_pack_of_the_same_number_in_another_lane_is_another_one() -> None:
    membership = membership_of()
    membership.add_pending([NEW], lane=0, pack_id=4)
    membership.forget_lost([lost(NEW, pack_id=4)], lane=1)
    assert membership.contains(SampleId("a"), NEW_INPUT)


def test_a_lost_earlier_content_takes_nothing_from_a_listed_later_one() -> None:
    membership = membership_of(OLD)
    membership.add_pending([NEW], lane=0, pack_id=4)
    membership.settle(parse_entry_columns([render_entry(4, NEW)[1:]]), lane=0, pack_id=4)
    membership.forget_lost([lost(OLD, pack_id=1)], lane=0)
    assert membership.contains(SampleId("a"), NEW_INPUT)
    assert not membership.contains(SampleId("a"), OLD_INPUT)
    membership.forget_lost([lost(NEW, pack_id=4)], lane=0)
    assert not membership.contains(SampleId("a"), NEW_INPUT)


def test_a_lost_content_of_an_input_that_is_listed_no_more_leaves_the_id_held() -> None:
    membership = membership_of(NEW)
    membership.forget_lost([lost(OLD, pack_id=1)], lane=0)
    assert membership.contains(SampleId("a"), None)
    membership.forget_lost([lost(NEW, pack_id=2)], lane=0)
    assert not membership.contains(SampleId("a"), None)


def test_the_lost_put_that_counts_is_not_held_until_it_is_put_again() -> None:
    membership = membership_of()
    membership.add_pending([NEW], lane=0, pack_id=4)
    membership.forget_lost([lost(NEW, pack_id=4)], lane=0)
    assert not membership.contains(SampleId("a"), None)
    membership.add_pending([NEW], lane=0, pack_id=5)
    assert membership.contains(SampleId("a"), None)
    assert membership.is_lost(SampleId("a"), lane=0, pack_id=4)
    assert not membership.is_lost(SampleId("a"), lane=0, pack_id=5)


def test_a_group_is_reserved_as_a_whole_or_not_at_all() -> None:
    membership = membership_of(OLD)
    membership.add_pending([sample("pending").entry(offset=0, time_ns=1)], lane=0, pack_id=4)
    assert membership.reserve_new(["b", "c"])
    for known in ("a", "pending", "c"):
        assert not membership.reserve_new(["new", known])
    membership.release(["b", "c"])
    assert membership.reserve_new(["b", "new"])


def test_what_is_settled_is_held_by_its_input_and_pending_no_more() -> None:
    membership = membership_of()
    entries = [sample(f"s/{number}").entry(offset=number, time_ns=1) for number in range(1_200)]
    membership.add_pending(entries, lane=0, pack_id=4)
    membership.add_pending(entries[:1], lane=0, pack_id=5)  # put again: the pack that is settled is not its last one
    membership.settle(parse_entry_columns([render_entry(4, entry)[1:] for entry in entries]), lane=0, pack_id=4)
    assert membership.pending_ids() == ["s/0"]
    assert len(membership) == 1_201
    assert all(membership.contains(entry.sample_id, entry.input_digest) for entry in entries)
    assert not any(membership.contains(entry.sample_id, OLD_INPUT) for entry in entries)

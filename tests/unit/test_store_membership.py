"""What a store knows to be pending, and when it stops being so."""

from __future__ import annotations

from typing import Any, cast
from unittest.mock import Mock

from durastore.model import SampleId
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

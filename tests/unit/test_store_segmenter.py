"""A manifest row rests on evidence, or it is not written (INV-5)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast
from unittest.mock import Mock

import pytest

from durastore.errors import NotVerified
from durastore.formats.keys import marker_key
from durastore.model import EvidenceLevel, ObjectKey, PackState, Tombstone
from durastore.spool.journal_notes import bury_rows
from durastore.store.segmenter import Segmenter
from tests.unit.reclaim_lab import ReclaimLab, lab, services_of
from tests.unit.spool_lab import PREFIX, sample, writer_of

__all__ = ["lab"]


@pytest.mark.parametrize(
    "change", [{"level": EvidenceLevel.LISTED, "digest": None}, {"key": ObjectKey("p/another")}, None]
)
def test_without_evidence_of_this_object_no_row_is_written(lab: ReclaimLab, change: dict[str, Any] | None) -> None:
    record = lab.verify(lab.uploaded("a"))
    assert record.evidence is not None
    doubtful = replace(record, evidence=replace(record.evidence, **change) if change is not None else None)
    segmenter = Segmenter(lab.spool, services=services_of(lab), membership=cast(Any, None), lane=0)
    puts = lab.objects.count("put")
    with pytest.raises(NotVerified, match="INV-5"):
        segmenter.publish([doubtful])
    assert lab.objects.count("put") == puts
    assert lab.state(record) is record.state


def test_a_row_that_was_taken_out_for_good_is_not_listed_again(lab: ReclaimLab) -> None:
    record = lab.verify(lab.uploaded("a"))
    with lab.spool.journal._db.writing() as conn:  # no step leads here: this is the last net
        bury_rows(conn, record.pack_id)
    segmenter = Segmenter(lab.spool, services=services_of(lab), membership=cast(Any, None), lane=0)
    with pytest.raises(NotVerified, match="taken out for good"):
        segmenter.publish([record])
    assert lab.state(record) is PackState.VERIFIED


def test_a_row_that_is_superseded_soon_is_listed_until_then(lab: ReclaimLab) -> None:
    older = lab.verify(lab.uploaded("a"))
    assert older.key is not None
    (entry,) = lab.spool.journal.entries(older.pack_id)
    stone = Tombstone(sample_id=entry.sample_id, key=older.key, offset=entry.offset)
    writer = writer_of(lab.spool)
    writer.append([sample("a", seed=1)], [stone])
    segmenter = Segmenter(lab.spool, services=services_of(lab), membership=cast(Any, Mock()), lane=0)
    segmenter.publish([older])
    assert lab.state(older) is PackState.MANIFESTED


def test_a_bucket_made_anew_since_the_proof_manifests_nothing(lab: ReclaimLab) -> None:  # case B164
    record = lab.verify(lab.uploaded("a"))
    lab.objects.lose(marker_key(PREFIX))
    segmenter = Segmenter(lab.spool, services=services_of(lab), membership=cast(Any, None), lane=0)
    with pytest.raises(NotVerified, match="marker"):
        segmenter.publish([record])
    assert lab.state(record) is record.state
    assert segmenter.is_under_way  # the same bytes under the same number again, so that the sequence has no gap

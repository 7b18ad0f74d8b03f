"""Listings: what the manifest says, in order, in batches."""

from __future__ import annotations

import pytest

from durastore.dataset import listing as listing_module
from durastore.dataset.listing import ListedTensor, fetch_listing_of
from durastore.errors import ManifestIncomplete, StoreMissing
from durastore.objectstore.memory import MemoryStore
from tests.unit.manifest_bucket import Bucket, encode, tombstone_of


def _bucket() -> Bucket:
    bucket = Bucket()
    rows = bucket.add_tar([encode(f"b/{n:02d}", n) for n in range(10)])
    bucket.add_segment(rows)
    bucket.add_segment(bucket.add_tar([encode("a", 20), encode("ä", 21), encode("b", 22)]))
    bucket.add_segment([], tombstones=[tombstone_of(rows[3])])
    return bucket


def test_batches_come_in_byte_order_of_the_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing_module, "_BATCH_ROWS", 5)
    bucket = _bucket()
    listing = fetch_listing_of(bucket.store, bucket.prefix)
    expected = ["a", "b", *(f"b/{n:02d}" for n in range(10) if n != 3), "ä"]
    assert len(listing) == 12
    assert [len(batch) for batch in listing] == [5, 5, 2]
    assert [sample.id for batch in listing for sample in batch] == expected
    assert [sample_id for batch in listing.ids() for sample_id in batch] == expected


def test_a_sample_is_told_as_its_row_tells_it() -> None:
    bucket = _bucket()
    ((sample,),) = fetch_listing_of(bucket.store, bucket.prefix, id_prefix="b/07", with_meta=True)
    encoded = encode("b/07", 7)
    assert (sample.size_bytes, sample.digest) == (encoded.length, encoded.header_digest.hex)
    assert sample.meta == {"number": 7}
    assert sample.tensors[0] == ListedTensor(name="token_ids", dtype="I64", shape=(5,), codec="raw")
    assert sample.key in {key.text for key in bucket.view().object_keys()}


def test_a_prefix_leaves_out_the_rest_and_its_tombstones_still_count() -> None:
    bucket = _bucket()
    listing = fetch_listing_of(bucket.store, bucket.prefix, id_prefix="b/0")
    assert [s.id for batch in listing for s in batch] == [f"b/{n:02d}" for n in range(10) if n != 3]
    assert len(fetch_listing_of(bucket.store, bucket.prefix, id_prefix="c")) == 0
    assert len(fetch_listing_of(bucket.store, bucket.prefix, id_prefix="ä")) == 1


def test_an_absent_store_is_not_an_empty_one() -> None:
    with pytest.raises(StoreMissing):
        fetch_listing_of(MemoryStore(), "nothing/here")
    empty = Bucket()
    empty.mark()
    assert len(fetch_listing_of(empty.store, empty.prefix)) == 0


def test_a_listing_with_a_gap_is_none() -> None:
    bucket = _bucket()
    bucket.skip_segment()
    bucket.add_segment(bucket.add_tar([encode("z", 1)]))
    with pytest.raises(ManifestIncomplete):
        fetch_listing_of(bucket.store, bucket.prefix)

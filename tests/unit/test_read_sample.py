"""Reading a sample from bucket or file: the right bytes, as few as needed, or an error (INV-7)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from durastore.codec.encode import EncodedSample, SampleContext, encode_sample
from durastore.errors import IntegrityError, InvalidInput, ObjectAbsent
from durastore.fsio.folder import Folder
from durastore.model import Digest, ManifestRow, ObjectKey, SampleEntry, SampleId
from durastore.objectstore.memory import MemoryStore
from durastore.read.local import read_local_sample
from durastore.read.remote import SampleSource, fetch_sample, fetch_samples, plan_batch
from durastore.read.requests import RequestPool
from durastore.read.sample import Wanted
from tests.unit.manifest_bucket import RUN, Bucket, assert_tensors, encode, tensors_of


class _Recording(MemoryStore):
    """Remembers ranges, and can spoil the answer to a numbered fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.ranges: list[tuple[int, int | None]] = []
        self.spoil: Callable[[int, bytes], bytes] = lambda _, data: data

    def fetch(
        self,
        key: ObjectKey,
        *,
        offset: int = 0,
        length: int | None = None,
        if_match: str | None = None,
        version_id: str | None = None,
    ) -> bytes:
        self.ranges.append((offset, length))
        return self.spoil(
            len(self.ranges), super().fetch(key, offset=offset, length=length, if_match=if_match, version_id=version_id)
        )


def _flip(data: bytes, at: int) -> bytes:
    changed = bytearray(data)
    changed[at] ^= 1
    return bytes(changed)


def _large(rows: int = 6) -> tuple[EncodedSample, dict[str, Any]]:
    """A sample of `rows` chunks of 2 MiB, and a small tensor after them."""
    tensors = {
        "hidden": np.arange(rows * 524_288, dtype=np.float32).reshape(rows, 524_288),
        "tail": np.arange(7, dtype=np.int16),
    }
    context = SampleContext(run=RUN, meta=None, input_digest=None)
    return encode_sample(SampleId("large"), tensors, context=context), tensors


@pytest.fixture
def store() -> _Recording:
    return _Recording()


def test_a_sample_comes_back_equal_with_one_request(store: _Recording) -> None:
    digest = Digest.of(b"input")
    bucket = Bucket(store)
    rows = bucket.add_tar([encode("a", 1), encode("b/c.d", 2, input_digest=digest)])
    sample = fetch_sample(store, rows[1])
    assert sample.id == "b/c.d"
    assert_tensors(sample.tensors, tensors_of(2))
    assert sample.meta == {"number": 2}
    assert sample.digest == rows[1].entry.header_digest
    assert sample.input_digest == digest
    assert sample.rows is None
    assert store.ranges == [(rows[1].entry.offset, rows[1].entry.length)]


def test_part_of_a_sample_reads_only_the_chunks_needed(store: _Recording) -> None:
    sample, tensors = _large()
    row = Bucket(store).add_single(sample)
    found = fetch_sample(store, row, tensors=["hidden"], rows=slice(2, 4))
    assert_tensors(found.tensors, {"hidden": tensors["hidden"][2:4]})
    assert found.rows == (2, 4)
    start = row.entry.header_length + (4 << 20)
    assert store.ranges == [(0, row.entry.header_length), (start, 4 << 20)]
    assert_tensors(fetch_sample(store, row, tensors=["tail"]).tensors, {"tail": tensors["tail"]})
    assert_tensors(fetch_sample(store, row).tensors, tensors)


def test_distant_chunks_take_a_request_each(store: _Recording) -> None:
    first = np.ones(1 << 19, np.float32)
    tensors = {"a": first, "b": first * 2, "c": first * 3}
    context = SampleContext(run=RUN, meta=None, input_digest=None)
    row = Bucket(store).add_single(encode_sample(SampleId("x"), tensors, context=context))
    found = fetch_sample(store, row, tensors=["a", "c"])
    assert_tensors(found.tensors, {"a": tensors["a"], "c": tensors["c"]})
    head = row.entry.header_length
    assert store.ranges == [(0, head), (head, 2 << 20), (head + (4 << 20), 2 << 20)]


def test_unknown_tensors_and_odd_ranges_are_refused_at_once(store: _Recording) -> None:
    row = Bucket(store).add_tar([encode("a", 1)])[0]
    with pytest.raises(InvalidInput, match="no tensor"):
        fetch_sample(store, row, tensors=["hidden"])
    with pytest.raises(InvalidInput, match="step"):
        fetch_sample(store, row, rows=slice(0, 4, 2))
    assert len(store.ranges) == 2


def test_every_single_changed_byte_is_refused(store: _Recording) -> None:
    row = Bucket(store).add_tar([encode("a", 1, rows=2)])[0]
    for at in range(row.entry.length):
        store.spoil = lambda _, data, at=at: _flip(data, at)  # type: ignore[misc]  # mypy cannot type the default
        with pytest.raises(IntegrityError) as caught:
            fetch_sample(store, row)
        assert caught.value.facts == {"sample_id": "a", "where": f"object {row.object.key}"}
        assert row.object.key.text in caught.value.message


@pytest.mark.parametrize("cut", [1, 8, 500])
def test_a_short_answer_is_refused(store: _Recording, cut: int) -> None:
    row = Bucket(store).add_tar([encode("a", 1)])[0]
    store.spoil = lambda _, data: data[:-cut]
    with pytest.raises(IntegrityError):
        fetch_sample(store, row)


@pytest.mark.parametrize("spoilt", [1, 2, 3])
def test_a_damaged_transfer_is_read_once_more_and_only_once(store: _Recording, spoilt: int) -> None:
    sample, tensors = _large()
    row = Bucket(store).add_single(sample)
    partial = {"tensors": ["hidden"], "rows": slice(0, 1)}
    store.spoil = lambda n, data: _flip(data, len(data) // 2) if n <= spoilt else data
    if spoilt == 1:
        found = fetch_sample(store, row, tensors=["hidden"], rows=slice(0, 1))
        assert_tensors(found.tensors, {"hidden": tensors["hidden"][:1]})
        assert len(store.ranges) == 3
        return
    with pytest.raises(IntegrityError, match="'large'"):
        fetch_sample(store, row, **partial)  # type: ignore[arg-type]  # a dict of mixed values
    assert len(store.ranges) == 2


def test_a_chunk_that_stays_damaged_names_tensor_and_chunk(store: _Recording) -> None:
    sample, _ = _large()
    bucket = Bucket(store)
    row = bucket.add_single(sample)
    bucket.damage(row.object.key, at=row.entry.header_length + (2 << 20) + 5)
    assert fetch_sample(store, row, tensors=["hidden"], rows=slice(0, 1)).rows == (0, 1)
    with pytest.raises(IntegrityError, match="tensor 'hidden', chunk 1"):
        fetch_sample(store, row, tensors=["hidden"], rows=slice(0, 2))


@pytest.mark.parametrize(
    "change",
    [
        {"sample_id": SampleId("other")},
        {"run": Digest.of(b"other")},
        {"input_digest": Digest.of(b"other")},
        {"meta": '{"number":2}'},
        {"schema": "[]"},
        {"provenance": "asserted"},
        {"header_digest": Digest.of(b"other")},
    ],
)
def test_a_row_that_says_other_than_the_header_is_refused(store: _Recording, change: dict[str, Any]) -> None:
    row = Bucket(store).add_tar([encode("a", 1)])[0]
    lying = dataclasses.replace(row, entry=dataclasses.replace(row.entry, **change))
    with pytest.raises(IntegrityError, match=r"disagree on|does not match its digest"):
        fetch_sample(store, lying)


def test_a_row_of_a_neighbours_place_is_refused(store: _Recording) -> None:
    first, second = Bucket(store).add_tar([encode("a", 1), encode("b", 2)])
    moved = dataclasses.replace(first, entry=dataclasses.replace(first.entry, offset=second.entry.offset))
    with pytest.raises(IntegrityError):
        fetch_sample(store, moved)


def test_an_absent_object_names_the_sample(store: _Recording) -> None:
    row = Bucket(store).add_tar([encode("a", 1)])[0]
    with pytest.raises(ObjectAbsent, match="sample 'a'"):
        fetch_sample(MemoryStore(), row)


# --- batches -------------------------------------------------------------------------------------------------------


def _fetch_all(store: MemoryStore, batch: list[ManifestRow], wanted: Wanted | None = None) -> list[Any]:
    with RequestPool(2) as pool:
        return fetch_samples(SampleSource(reader=store, pool=pool), batch, wanted=wanted or Wanted())


def test_a_batch_comes_in_its_order_and_neighbours_share_a_request(store: _Recording) -> None:
    bucket = Bucket(store)
    rows = [*bucket.add_tar([encode(f"s{i}", i) for i in range(6)]), bucket.add_single(encode("x", 7))]
    batch = [rows[5], rows[6], rows[0], rows[1], rows[5]]
    assert [sample.meta["number"] for sample in _fetch_all(store, batch)] == [5, 7, 0, 1, 5]
    assert len(store.ranges) == 2
    assert _fetch_all(store, []) == []


def test_a_batch_of_parts_reads_each_part(store: _Recording) -> None:
    rows = Bucket(store).add_tar([encode("a", 1), encode("b", 2)])
    found = _fetch_all(store, rows, Wanted(tensors=["token_ids"], rows=slice(1, 3)))
    for number, sample in enumerate(found, start=1):
        assert_tensors(sample.tensors, {"token_ids": tensors_of(number)["token_ids"][1:3]})


def test_one_damaged_sample_of_a_batch_is_named(store: _Recording) -> None:
    bucket = Bucket(store)
    rows = bucket.add_tar([encode(f"s{i}", i) for i in range(4)])
    bucket.damage(rows[0].object.key, at=rows[2].entry.offset + 50)
    with pytest.raises(IntegrityError, match="'s2'"):
        _fetch_all(store, rows)
    assert [sample.id for sample in _fetch_all(store, [rows[0], rows[1], rows[3]])] == ["s0", "s1", "s3"]


def test_a_damaged_shared_transfer_is_read_again_sample_by_sample(store: _Recording) -> None:
    rows = Bucket(store).add_tar([encode(f"s{i}", i) for i in range(3)])
    store.spoil = lambda n, data: data[: len(data) // 2] if n == 1 else data
    assert [sample.id for sample in _fetch_all(store, rows)] == ["s0", "s1", "s2"]


def test_ranges_stay_within_16_mib_and_small_gaps(store: _Recording) -> None:
    row = Bucket(store).add_tar([encode("a", 1)])[0]

    def at(offset: int, length: int) -> ManifestRow:
        return dataclasses.replace(row, entry=dataclasses.replace(row.entry, offset=offset, length=length))

    near, far, big = at(70_000, 100), at(200_000, 100), at(200_200, (16 << 20) + 1)
    plan = plan_batch([far, at(5000, 1000), big, near])
    assert [(part.offset, part.length, part.members) for part in plan] == [
        (5000, 65_100, (1, 3)),
        (200_000, 100, (0,)),
        (200_200, (16 << 20) + 1, (2,)),
    ]


# --- spool files ---------------------------------------------------------------------------------------------------


def _local(tmp_path: Path, sample: EncodedSample, *, lead: bytes = b"x" * 512) -> tuple[Folder, SampleEntry, Path]:
    path = tmp_path / "pack.tar"
    path.write_bytes(lead + b"".join(sample.chunks()))
    return Folder.open(tmp_path), sample.entry(offset=len(lead), time_ns=1), path


def test_a_spool_file_gives_the_same_sample(tmp_path: Path) -> None:
    sample, tensors = _large()
    folder, entry, _ = _local(tmp_path, sample)
    with folder:
        assert_tensors(read_local_sample(folder, "pack.tar", entry=entry).tensors, tensors)
        part = read_local_sample(folder, "pack.tar", entry=entry, tensors=["hidden"], rows=slice(-1, None))
        assert_tensors(part.tensors, {"hidden": tensors["hidden"][-1:]})


@pytest.mark.parametrize("keep", [0, 100, 600, -1])
def test_a_torn_spool_file_is_refused(tmp_path: Path, keep: int) -> None:
    folder, entry, path = _local(tmp_path, encode("a", 1))
    path.write_bytes(path.read_bytes()[:keep])
    with folder, pytest.raises(IntegrityError, match=r"sample 'a' in pack pack\.tar"):
        read_local_sample(folder, "pack.tar", entry=entry)


def test_a_reclaimed_spool_file_is_file_not_found(tmp_path: Path) -> None:
    folder, entry, _ = _local(tmp_path, encode("a", 1))
    with folder, pytest.raises(FileNotFoundError):
        read_local_sample(folder, "gone.tar", entry=entry)


def test_a_link_in_place_of_a_spool_file_is_refused(tmp_path: Path) -> None:
    from durastore.errors import SpoolUnreadable

    folder, entry, path = _local(tmp_path, encode("a", 1))
    (tmp_path / "link.tar").symlink_to(path)
    with folder, pytest.raises(SpoolUnreadable):
        read_local_sample(folder, "link.tar", entry=entry)

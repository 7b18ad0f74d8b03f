"""Where the tensors of a batch go: each has a place of its own, and equal ones lie side by side."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest

from durastore.dataset.stacked import stacked
from durastore.errors import IntegrityError
from durastore.model import ManifestRow
from durastore.objectstore.memory import MemoryStore
from durastore.read.remote import SampleSource, fetch_samples
from durastore.read.requests import RequestPool
from durastore.read.rooms import rooms_of
from durastore.read.sample import Wanted
from tests.unit.manifest_bucket import Bucket, assert_tensors, encode, tensors_of

torch = pytest.importorskip("torch")


class _Slabs:
    def __init__(self, limit: int = 1 << 20) -> None:
        self.limit = limit
        self.lent: list[Any] = []

    def slab(self, size_bytes: int) -> Any | None:
        if size_bytes > self.limit:
            return None
        self.lent.append(torch.full((size_bytes,), 255, dtype=torch.uint8))
        return self.lent[-1]


def _fetch(store: MemoryStore, rows: list[ManifestRow], slabs: _Slabs, wanted: Wanted | None = None) -> list[Any]:
    wanted = wanted or Wanted()
    rooms = rooms_of(slabs, [row.entry for row in rows], wanted=wanted)
    with RequestPool(2) as pool:
        return fetch_samples(SampleSource(reader=store, pool=pool), rows, wanted=wanted, rooms=rooms)


def _begin(tensor: Any) -> int:
    return int(tensor.untyped_storage().data_ptr())


@pytest.mark.parametrize("shape", ["even", "uneven"])
def test_a_batch_lies_in_one_piece_of_memory(shape: str) -> None:
    bucket = Bucket()
    sizes = [5] * 6 if shape == "even" else [5, 1, 9, 9, 300, 2]
    rows = bucket.add_tar([encode(f"s{i}", i, rows=size) for i, size in enumerate(sizes)])
    slabs = _Slabs()
    batch = [rows[3], rows[0], rows[5], rows[3]]
    found = _fetch(bucket.store, batch, slabs)
    for sample, number in zip(found, (3, 0, 5, 3), strict=True):
        assert_tensors(sample.tensors, tensors_of(number, rows=sizes[number]))
    assert len(slabs.lent) == 1
    assert {_begin(tensor) for sample in found for tensor in sample.tensors.values()} == {slabs.lent[0].data_ptr()}
    for name in ("hidden_states", "token_ids"):
        tensors = [sample.tensors[name] for sample in found]
        if shape == "even":
            whole = stacked(tensors)
            assert whole.data_ptr() == tensors[0].data_ptr(), "no copy"
            assert np.array_equal(whole.numpy(), torch.stack(tensors).numpy())
        found[0].tensors[name].fill_(0)
    assert_tensors(found[3].tensors, tensors_of(3, rows=sizes[3]))  # the same sample twice has two places


def test_a_part_of_each_sample_is_what_there_is_room_for() -> None:
    bucket = Bucket()
    rows = bucket.add_tar([encode(f"s{i}", i, rows=20) for i in range(3)])
    slabs = _Slabs()
    wanted = Wanted(tensors=["hidden_states"], rows=slice(-4, None))
    found = _fetch(bucket.store, rows, slabs, wanted)
    for number, sample in enumerate(found):
        assert_tensors(sample.tensors, {"hidden_states": tensors_of(number, rows=20)["hidden_states"][16:]})
    assert [len(slab) for slab in slabs.lent] == [3 * 4 * 32]


def test_without_memory_each_tensor_has_its_own() -> None:
    bucket = Bucket()
    rows = bucket.add_tar([encode(f"s{i}", i) for i in range(3)])
    found = _fetch(bucket.store, rows, _Slabs(limit=10))
    for number, sample in enumerate(found):
        assert_tensors(sample.tensors, tensors_of(number))
    assert len({_begin(sample.tensors["hidden_states"]) for sample in found}) == 3


def test_a_damaged_sample_of_a_batch_is_named_and_the_others_come() -> None:
    bucket = Bucket()
    rows = bucket.add_tar([encode(f"s{i}", i, rows=50) for i in range(3)])
    entry = rows[1].entry
    bucket.damage(rows[1].object.key, at=entry.offset + entry.length - 3)
    with pytest.raises(IntegrityError, match="s1"):
        _fetch(bucket.store, rows, _Slabs())
    found = _fetch(bucket.store, [rows[0], rows[2]], _Slabs())
    assert_tensors(found[1].tensors, tensors_of(2, rows=50))


def test_memory_goes_with_its_tensors() -> None:
    bucket = Bucket()
    rows = bucket.add_tar([encode(f"s{i}", i) for i in range(3)])
    entries = [row.entry for row in rows]
    slabs = _Slabs()
    with RequestPool(2) as pool:
        source = SampleSource(reader=bucket.store, pool=pool)
        rooms = rooms_of(slabs, entries, wanted=Wanted())
        found = fetch_samples(source, rows, wanted=Wanted(), rooms=rooms)
    del rooms
    gone: list[int] = []
    for slab in slabs.lent:
        weakref.finalize(slab, gone.append, 1)
    slabs.lent.clear()
    del slab
    assert_tensors(found[2].tensors, tensors_of(2))
    assert gone == [1], "nothing but the tensors holds it"


def test_stacked_is_what_torch_makes_of_it() -> None:
    base = torch.arange(48, dtype=torch.int32).view(4, 3, 4)
    neighbours = [base[i] for i in range(4)]
    others = [
        neighbours[::-1],
        [base[0], base[2]],
        [base[0], base[0]],
        [base[0].clone(), base[1]],
        [base[:, 0, :1], base[:, 0, 1:2]],
        [base[0].T, base[1].T],
        [torch.empty(0), torch.empty(0)],
        [torch.tensor(1.0), torch.tensor(2.0)],
    ]
    assert stacked(neighbours).data_ptr() == base.data_ptr()
    assert stacked(neighbours[1:3]).data_ptr() == base[1].data_ptr()
    for tensors in (neighbours, *others):
        assert torch.equal(stacked(tensors), torch.stack(tensors))
        assert stacked(tensors).dtype == tensors[0].dtype
    for tensors in others:
        if tensors[0].numel():
            assert stacked(tensors).data_ptr() not in {one.data_ptr() for one in tensors}
    for wrong in ([], [base[0], base[0, :2]]):
        with pytest.raises((RuntimeError, ValueError)):
            stacked(wrong)


def test_stacked_keeps_what_a_tensor_says_beside_its_bytes() -> None:
    """Conjugated, negated, with a gradient to come: all three are lost where one tensor is made of the bytes."""
    complex_ones = torch.arange(8, dtype=torch.float32).view(4, 2).to(torch.complex64) * 1j
    real = torch.arange(6, dtype=torch.float32)
    for tensors in (
        [complex_ones[0].conj(), complex_ones[1].conj()],
        [complex_ones[0], complex_ones[1].conj()],
        [real[:3], torch._neg_view(real[3:])],
    ):
        assert torch.equal(stacked(tensors).resolve_conj(), torch.stack(tensors).resolve_conj())
    learned = torch.zeros(3, requires_grad=True)
    assert stacked([real[:3], learned]).requires_grad
    assert stacked([real[:3], real[3:].requires_grad_()]).requires_grad

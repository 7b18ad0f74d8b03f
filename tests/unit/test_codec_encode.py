"""Encoding: one copy, equal bytes for equal content, and refusals that name the tensor."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors import safe_open

from durastore.codec import EncodedSample, SampleContext, encode_sample, parse_header, scan_sample
from durastore.codec.blocks import Blocks
from durastore.codec.dtypes import DTYPES, numpy_dtype, torch_dtype
from durastore.codec.encode import CHUNK_BYTES
from durastore.errors import InvalidInput, UnsupportedTensor
from durastore.model import Digest, Run, SampleId

RUN = Run.of({"model": "m", "layers": [2, 15]})


def encode(tensors: dict[str, Any], *, sample_id: str = "a/b", **context: Any) -> EncodedSample:
    known: dict[str, Any] = {"run": RUN, "meta": None, "input_digest": None, **context}
    return encode_sample(SampleId(sample_id), tensors, context=SampleContext(**known))


def whole(sample: EncodedSample) -> bytes:
    return b"".join(sample.chunks())


def test_sample_is_a_safetensors_file_for_torch_and_numpy(tmp_path: Path) -> None:
    tensors = {
        "hidden_states": torch.randn(7, 4, 16).to(torch.bfloat16),
        "token_ids": torch.arange(7),
        "scalar": torch.tensor(2.5, dtype=torch.float64),
        "empty": torch.empty(0, 3, dtype=torch.float16),
        "mask": torch.tensor([True, False]),
        "phase": torch.randn(3, dtype=torch.complex64),
    }
    path = tmp_path / "s.safetensors"
    path.write_bytes(whole(encode(tensors)))
    with safe_open(path, framework="pt") as opened:
        assert set(opened.keys()) == set(tensors)
        for name, tensor in tensors.items():
            assert torch.equal(opened.get_tensor(name), tensor)
        assert opened.metadata()["durastore.format"] == "1"
    with safe_open(path, framework="np") as opened:
        assert opened.get_tensor("hidden_states").dtype == ml_dtypes.bfloat16
        assert opened.get_tensor("token_ids").tolist() == list(range(7))
        assert opened.get_slice("hidden_states")[2:4].shape == (2, 4, 16)


@pytest.mark.parametrize("name", sorted(DTYPES))
def test_every_dtype_opens_with_safetensors(name: str, tmp_path: Path) -> None:
    raw = np.zeros((4, DTYPES[name].item_bytes), np.uint8)
    raw[:, 0] = [0, 1, 0, 1]
    tensor = torch.from_numpy(raw.reshape(-1)).view(torch_dtype(name))
    path = tmp_path / "s.safetensors"
    path.write_bytes(whole(encode({"x": tensor})))
    with safe_open(path, framework="pt") as opened:
        found = opened.get_tensor("x")
    assert found.dtype == tensor.dtype
    assert bytes(found.view(torch.uint8).numpy()) == raw.tobytes()
    assert whole(encode({"x": raw.reshape(-1).view(numpy_dtype(name))})) == path.read_bytes()


def test_tensors_lie_by_element_size_then_name_and_are_aligned() -> None:
    sample = encode(
        {
            "b": np.zeros(3, np.uint8),
            "a": np.zeros(5, np.int16),
            "d": np.zeros(1, np.int64),
            "c": np.zeros(1, np.float64),
        }
    )
    header = scan_sample(whole(sample))
    assert [t.name for t in header.tensors] == ["c", "d", "a", "b"]
    assert header.header_length % 8 == 0
    assert all(
        at % DTYPES[t.dtype].item_bytes == 0 for t, at in zip(header.tensors, header.tensor_offsets, strict=True)
    )


def test_equal_content_gives_equal_bytes_whatever_holds_it() -> None:
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    forms: list[Any] = [
        base,
        base.astype(">f4"),
        np.asfortranarray(base),
        np.ascontiguousarray(base[::-1])[::-1],
        torch.from_numpy(base),
        torch.from_numpy(base).t().contiguous().t(),
        torch.nn.Parameter(torch.from_numpy(base.copy())),
        torch.from_numpy(-base)._neg_view(),
    ]
    assert len({whole(encode({"x": form}, meta={"b": 1, "a": [1.5, None]})) for form in forms}) == 1
    assert whole(encode({"x": base, "y": base})) == whole(encode({"y": base, "x": base}))


def test_lazy_conjugate_is_stored_conjugated() -> None:
    tensor = torch.tensor([1 + 2j, 3 - 4j], dtype=torch.complex64)
    assert whole(encode({"x": tensor.conj()})) == whole(encode({"x": tensor.conj().resolve_conj()}))
    assert whole(encode({"x": tensor.conj()})) != whole(encode({"x": tensor}))


def test_caller_may_reuse_its_tensors_and_nobody_can_change_the_copy() -> None:
    array, tensor = np.ones(1000, np.float32), torch.ones(1000)
    sample = encode({"a": array, "t": tensor})
    before = whole(sample)
    array[:] = 7
    tensor.fill_(7)
    assert whole(sample) == before
    assert all(memoryview(piece).readonly for piece in sample.payload)
    scan_sample(before)


@pytest.mark.parametrize("is_contiguous", [True, False])
def test_exactly_one_copy_of_a_numpy_tensor(is_contiguous: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []

    class Noted(Blocks):
        """Large blocks are the system's own pages, of which tracemalloc hears nothing."""

        def take(self, size_bytes: int) -> Any:
            taken.append(size_bytes)
            return super().take(size_bytes)

    monkeypatch.setattr("durastore.codec.encode.BLOCKS", Noted(idle_bytes=0))
    array = np.zeros((1024, 1024), np.float32)
    source = array if is_contiguous else array.T
    encode({"x": source[:1]})  # imports and caches
    taken.clear()
    tracemalloc.start()
    try:
        sample = encode({"x": source})
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken == [array.nbytes]
    assert peak < array.nbytes * 0.05
    assert sample.length - len(sample.header) == array.nbytes


@pytest.mark.parametrize("is_contiguous", [True, False])
def test_torch_makes_no_temporary(is_contiguous: bool) -> None:
    tensor = torch.zeros(512, 512, dtype=torch.bfloat16)
    source = tensor if is_contiguous else tensor.t()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        sample = encode({"x": source})
    largest = max(abs(event.self_cpu_memory_usage) for event in profile.key_averages())
    assert largest < tensor.nbytes // 16  # a transposing copy has a small fixed scratch block
    assert sample.length > tensor.nbytes


def test_a_contiguous_tensor_is_copied_without_the_threads_of_torch() -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        encode({"x": torch.zeros(512, 512, dtype=torch.bfloat16)})
    assert "aten::copy_" not in {event.key for event in profile.key_averages()}


def test_a_column_of_a_matrix_that_torch_calls_contiguous_is_copied() -> None:
    column = torch.arange(6, dtype=torch.bfloat16).as_strided((3, 1), (1, 2))
    assert column.is_contiguous()
    assert (
        encode({"x": column}).payload[0].tobytes()
        == torch.arange(3, dtype=torch.bfloat16).view(torch.uint8).numpy().tobytes()
    )


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(2)[::2],
        torch.arange(4, dtype=torch.bfloat16).reshape(1, 4)[:, 1],
        torch.zeros(4, dtype=torch.int16)[4::2],
        torch.zeros(1, dtype=torch.int16).expand(0),
        torch.from_numpy(np.empty(0, np.float32)),
        torch.from_numpy(np.empty((0, 3), np.int64)),
    ],
    ids=lambda tensor: f"{tuple(tensor.shape)} by {tensor.stride()}",
)
def test_one_element_or_none_may_have_any_stride(tensor: torch.Tensor) -> None:
    plain = torch.tensor(tensor.tolist(), dtype=tensor.dtype).reshape(tensor.shape)
    assert whole(encode({"x": tensor})) == whole(encode({"x": plain}))


def test_a_tensor_that_torch_cannot_read_is_refused_by_name() -> None:
    freed = torch.ones(4)
    stepped = freed[::2]
    freed.untyped_storage().resize_(0)  # as sharded training leaves the parameters of other ranks
    for tensor in (freed, stepped):
        with pytest.raises(UnsupportedTensor, match="tensor 'gone' cannot be read") as caught:
            encode({"kept": torch.ones(3), "gone": tensor})
        assert isinstance(caught.value.__cause__, RuntimeError)


def test_chunks_are_up_to_two_mebibytes_of_whole_rows_and_about_equal() -> None:
    tensors = {
        "narrow": np.zeros((140_001, 24), np.uint8),
        "wide": np.zeros((3, 2 * CHUNK_BYTES), np.int8),
        "scalar": np.float32(3),
        "no_rows": np.zeros((0, 5)),
        "no_columns": np.zeros((5, 0)),
    }
    specs = {t.name: t for t in parse_header(encode(tensors).header, total_length=None).tensors}
    assert CHUNK_BYTES == 2 << 20
    assert specs["narrow"].rows_per_chunk == 70_001
    assert specs["narrow"].chunk_sizes == (70_001 * 24, 70_000 * 24)
    assert specs["wide"].chunk_sizes == (2 * CHUNK_BYTES,) * 3
    assert specs["scalar"].chunk_sizes == (4,)
    assert specs["no_rows"].chunk_sizes == specs["no_columns"].chunk_sizes == ()


def test_run_text_is_embedded_only_in_a_sample_that_is_its_own_pack() -> None:
    array = {"x": np.zeros(4096, np.uint8)}
    small = encode(array)
    exact = encode(array, embed_run_above_bytes=small.length)
    assert parse_header(small.header, total_length=small.length).run_text is None
    header = parse_header(exact.header, total_length=exact.length)
    assert (header.run_text, header.run) == (RUN.text, RUN.digest)
    assert (
        parse_header(encode(array, embed_run_above_bytes=small.length + 1).header, total_length=None).run_text is None
    )


def test_entry_says_what_the_header_says() -> None:
    digest = Digest.of(b"input")
    sample = encode(
        {"x": np.arange(3), "y": np.float32(1)},
        meta={"é": {"k": [1, None]}},
        input_digest=digest,
        provenance="asserted",
    )
    data = whole(sample)
    entry = sample.entry(offset=512, time_ns=9)
    assert entry == scan_sample(data).entry(offset=512, time_ns=9)
    assert entry.length == len(data) == sample.length
    assert entry.header_digest == Digest.of(data[: entry.header_length])
    assert json.loads(entry.schema) == [["x", "I64", [3], "raw"], ["y", "F32", [], "raw"]]
    assert (entry.meta, entry.input_digest, entry.provenance) == ('{"é":{"k":[1,null]}}', digest, "asserted")


class Wrapped(torch.Tensor):
    """A subclass that keeps its data elsewhere, as distributed and fake tensors do."""

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch's own annotation lacks the function argument
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return func(*args, **(kwargs or {}))


def refused() -> dict[str, Any]:
    quantized = torch.empty(2, dtype=torch.int8)
    return {
        "sparse": torch.eye(3).to_sparse(),
        "meta": torch.empty(3, device="meta"),
        "complex128": np.zeros(2, np.complex128),
        "complex128_torch": torch.zeros(2, dtype=torch.complex128),
        "longdouble": np.zeros(2, np.longdouble),
        "object": np.array([None, {}], dtype=object),
        "str": np.array(["a"]),
        "bytes": np.array([b"a"]),
        "structured": np.zeros(2, np.dtype([("a", "i4"), ("b", "f4")])),
        "datetime": np.zeros(2, "datetime64[ns]"),
        "int4": np.zeros(2, ml_dtypes.int4),
        "masked": np.ma.masked_array([1, 2], mask=[True, False]),
        "list": [1.0, 2.0],
        "float": 1.0,
        "none": None,
        "packed": quantized.view(torch.uint8).view(torch.float4_e2m1fn_x2),
        "rank": np.zeros((1,) * 33),
        "wrapper": torch.zeros(3).as_subclass(Wrapped),
    }


@pytest.mark.parametrize("case", sorted(refused()))
def test_tensor_without_lossless_form_is_refused_by_name(case: str) -> None:
    with pytest.raises(UnsupportedTensor, match=f"'the_{case}'"):
        encode({"fine": np.zeros(1), f"the_{case}": refused()[case]})


@pytest.mark.filterwarnings("ignore")  # torch warns that these kinds of tensor are prototypes
def test_nested_and_quantized_are_refused() -> None:
    nested = torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)])
    with pytest.raises(UnsupportedTensor, match="'n' is nested"):
        encode({"n": nested})
    with pytest.raises(UnsupportedTensor, match="'q' is quantized"):
        encode({"q": torch.quantize_per_tensor(torch.zeros(4), 0.1, 0, torch.qint8)})


@pytest.mark.parametrize(
    "name", ["", "a\nb", "a\x00", "x" * 257, "é" * 129, "__metadata__", "\ud800", "a\u2028b", 7, None]
)
def test_bad_tensor_names_are_refused(name: Any) -> None:
    with pytest.raises(InvalidInput, match="tensor name"):
        encode({name: np.zeros(1)})


@pytest.mark.parametrize(
    "meta",
    [
        {"a": float("nan")},
        {"a": float("inf")},
        {"a": object()},
        {1: "a"},
        {"a": {2: 1, 10: 1}},
        {"a": [{"b": {None: 1}}]},
        {"a": b"x"},
        {"a": {1, 2}},
        {"a": "\ud800"},
        {"a": "x" * (1 << 20)},
        {"a": 10**5000},
        [("a", 1)],
        "text",
    ],
    ids=range(13),
)
def test_meta_that_would_not_come_back_is_refused(meta: Any) -> None:
    with pytest.raises(InvalidInput):
        encode({"x": np.zeros(1)}, meta=meta)


def test_meta_nesting_is_bounded() -> None:
    deep: Any = 1
    for _ in range(32):
        deep = {"k": deep}
    scan_sample(whole(encode({"x": np.zeros(1)}, meta=deep)))
    for depth in (33, 500, 5_000):
        value: Any = 1
        for _ in range(depth):
            value = [value]
        with pytest.raises(InvalidInput):
            encode({"x": np.zeros(1)}, meta={"k": value})


def test_counts_and_kinds_are_refused() -> None:
    with pytest.raises(InvalidInput, match="1 to 4096 tensors"):
        encode({})
    with pytest.raises(InvalidInput, match="1 to 4096 tensors"):
        encode({str(i): np.zeros(1) for i in range(4097)})
    with pytest.raises(InvalidInput, match="not a mapping"):
        encode([np.zeros(1)])  # type: ignore[arg-type]  # the refusal under test
    with pytest.raises(InvalidInput, match="provenance"):
        encode({"x": np.zeros(1)}, provenance="guessed")


def test_4096_tensors_round_trip() -> None:
    sample = encode({f"layer.{i}": np.uint8(i % 256) for i in range(4096)})
    assert len(scan_sample(whole(sample)).tensors) == 4096

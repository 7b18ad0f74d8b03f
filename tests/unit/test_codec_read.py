"""Selecting and decoding: exact rows, only checked bytes, faults that name sample, tensor and chunk."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from durastore.codec import (
    SampleContext,
    SampleHeader,
    Selection,
    decode_tensors,
    encode_sample,
    plan_rows,
    scan_sample,
)
from durastore.errors import IntegrityError, InvalidInput, UnsupportedTensor
from durastore.model import Run, SampleId

RUN = Run.of({})
HIDDEN = np.random.default_rng(0).standard_normal((1500, 4, 576)).astype(ml_dtypes.bfloat16)  # 6.9 MB: four chunks


def sample_of(tensors: dict[str, Any]) -> tuple[bytes, SampleHeader]:
    sample = encode_sample(SampleId("s/1"), tensors, context=SampleContext(run=RUN, meta=None, input_digest=None))
    data = b"".join(sample.chunks())
    return data, scan_sample(data)


DATA, HEADER = sample_of(
    {"hidden": HIDDEN, "ids": np.arange(1500), "scale": np.float32(0.5), "empty": np.zeros((0, 4), np.int8)}
)


def buffers(data: bytes, selection: Selection) -> list[bytes]:
    return [data[r.offset : r.offset + r.length] for r in selection]


def test_whole_sample_comes_back_as_torch_and_as_numpy() -> None:
    selection = plan_rows(HEADER, None, rows=None)
    found = decode_tensors(HEADER, selection, buffers=buffers(DATA, selection))
    assert torch.equal(found["hidden"].view(torch.int16), torch.from_numpy(HIDDEN.view(np.int16)))
    assert found["hidden"].dtype == torch.bfloat16
    assert found["scale"].shape == ()
    assert found["empty"].shape == (0, 4)
    arrays = decode_tensors(HEADER, selection, buffers=buffers(DATA, selection), framework="numpy")
    assert arrays["hidden"].dtype == ml_dtypes.bfloat16
    assert arrays["hidden"].tobytes() == HIDDEN.tobytes()
    assert arrays["scale"].shape == ()
    assert float(arrays["scale"]) == 0.5


def test_rows_read_only_their_chunks() -> None:
    per_chunk = HEADER.tensors[[t.name for t in HEADER.tensors].index("hidden")].rows_per_chunk
    selection = plan_rows(HEADER, ["hidden"], rows=slice(per_chunk - 1, per_chunk + 1))
    assert [r.chunk for r in selection] == [0, 1]
    assert selection.rows == (per_chunk - 1, per_chunk + 1)
    found = decode_tensors(HEADER, selection, buffers=buffers(DATA, selection), framework="numpy")
    assert found["hidden"].tobytes() == HIDDEN[per_chunk - 1 : per_chunk + 1].tobytes()
    last = plan_rows(HEADER, ["hidden"], rows=slice(-1, None))
    assert [r.chunk for r in last] == [3]
    assert last[0].offset + last[0].length == HEADER.tensor_offsets[2] + HIDDEN.nbytes


def test_decoded_tensors_own_their_memory_and_can_be_written() -> None:
    selection = plan_rows(HEADER, ["ids"], rows=None)
    source = bytearray(buffers(DATA, selection)[0])
    for framework in ("torch", "numpy"):
        found = decode_tensors(HEADER, selection, buffers=[source], framework=framework)["ids"]
        found[0] = 99
        assert source[0] == 0
        assert int(found[0]) == 99


@pytest.mark.parametrize(
    "rows", [slice(0, 10, 2), slice(None, None, -1), slice(0.5, 2), slice("a", "b"), slice(None, None, 0), 3]
)
def test_rows_that_are_no_range_are_refused(rows: Any) -> None:
    with pytest.raises(InvalidInput):
        plan_rows(HEADER, ["ids"], rows=rows)


def test_rows_of_a_scalar_are_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match="'scale'"):
        plan_rows(HEADER, None, rows=slice(0, 1))


@pytest.mark.parametrize("names", [["nope"], ["ids", "ids"], "ids"])
def test_wrong_names_are_refused(names: Any) -> None:
    with pytest.raises(InvalidInput):
        plan_rows(HEADER, names, rows=None)


def test_no_names_select_nothing() -> None:
    selection = plan_rows(HEADER, [], rows=None)
    assert len(selection) == 0
    assert decode_tensors(HEADER, selection, buffers=[]) == {}


def test_damaged_chunk_is_named_and_nothing_is_handed_out() -> None:
    selection = plan_rows(HEADER, ["hidden"], rows=None)
    parts = [bytearray(b) for b in buffers(DATA, selection)]
    parts[2][100] ^= 1
    with pytest.raises(IntegrityError, match=r"sample 's/1', tensor 'hidden', chunk 2 does not match"):
        decode_tensors(HEADER, selection, buffers=parts)


def test_missing_and_short_chunks_are_faults() -> None:
    selection = plan_rows(HEADER, ["hidden"], rows=None)
    parts = buffers(DATA, selection)
    with pytest.raises(IntegrityError, match="4 chunks were wanted, 3 came"):
        decode_tensors(HEADER, selection, buffers=parts[:-1])
    with pytest.raises(IntegrityError, match="chunk 1"):
        decode_tensors(HEADER, selection, buffers=[parts[0], parts[1][:-1], *parts[2:]])
    with pytest.raises(IntegrityError, match="chunk 0"):
        decode_tensors(HEADER, selection, buffers=[parts[1], parts[0], *parts[2:]])


def test_unknown_framework_is_refused() -> None:
    selection = plan_rows(HEADER, [], rows=None)
    with pytest.raises(InvalidInput, match="jax"):
        decode_tensors(HEADER, selection, buffers=[], framework="jax")


def test_extended_dtype_without_ml_dtypes_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from durastore.codec import dtypes

    dtypes.numpy_dtype.cache_clear()
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    try:
        with pytest.raises(UnsupportedTensor, match="install ml_dtypes"):
            dtypes.numpy_dtype("BF16")
        assert dtypes.numpy_dtype("F32") == np.float32
    finally:
        dtypes.numpy_dtype.cache_clear()


def test_encoding_numpy_imports_no_torch_and_decoding_works_without_it() -> None:
    program = """
import sys
import numpy as np
from durastore.codec import SampleContext, decode_tensors, encode_sample, plan_rows, scan_sample
from durastore.model import Run, SampleId
context = SampleContext(run=Run.of({}), meta=None, input_digest=None)
sample = encode_sample(SampleId("a"), {"x": np.arange(4)}, context=context)
assert "torch" not in sys.modules
sys.modules["torch"] = None
data = b"".join(sample.chunks())
header = scan_sample(data)
plan = plan_rows(header, None, rows=None)
found = decode_tensors(header, plan, buffers=[data[r.offset : r.offset + r.length] for r in plan])
assert type(found["x"]) is np.ndarray and found["x"].tolist() == [0, 1, 2, 3]
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)

"""Format 1 as it was first written: these bytes must be read, to these values, by every later version."""

from __future__ import annotations

import io
import json
import tarfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from safetensors import safe_open

from durastore.codec import decode_tensors, plan_rows, scan_sample
from durastore.formats.keys import parse_pack_key
from durastore.model import Digest, ObjectKey
from tests.formats.render_v1 import NAMES, dense_tensors, describe, files, planes_tensors

FOLDER = Path(__file__).parent / "v1"
EXPECTED: dict[str, Any] = json.loads((FOLDER / "expected.json").read_bytes())


def read(name: str) -> bytes:
    return (FOLDER / name).read_bytes()


def limited(found: Any, known: Any) -> Any:
    """`found` without the fields that were added since `known` was written."""
    if isinstance(found, dict) and isinstance(known, dict):
        return {k: limited(v, known[k]) for k, v in found.items() if k in known}
    if isinstance(found, list) and isinstance(known, list) and len(found) == len(known):
        return [limited(f, k) for f, k in zip(found, known, strict=True)]
    return found


@pytest.mark.parametrize("part", ["digests", "sample", "pack", "segment", "marker"])
def test_old_bytes_still_read_to_the_same_values(part: str) -> None:
    assert limited(describe(read)[part], EXPECTED[part]) == EXPECTED[part]


@pytest.mark.parametrize("name", [n for n in NAMES if n != "segment.parquet"])
def test_same_input_still_gives_the_same_bytes(name: str) -> None:
    """Not so for the segment: pyarrow names its own version inside a Parquet file."""
    assert files()[name] == read(name)


def test_expected_values_are_those_that_were_put_in() -> None:
    tensors = EXPECTED["sample"]["tensors"]
    assert tensors["token_ids"]["values"] == [0, 1, 2, 3, 4]
    assert tensors["hidden_states"]["dtype"] == "BF16"
    assert tensors["hidden_states"]["values"][1] == [[1.0, 1.125, 1.25, 1.375], [1.5, 1.625, 1.75, 1.875]]
    assert tensors["scale"]["shape"] == []
    ids = [s["entry"]["sample_id"]["text"] for s in EXPECTED["pack"]["samples"]]
    assert ids == ["HumanEval/0", "a.b/ü%/x.y", "long/" + "n" * 120]
    assert [r["entry"]["sample_id"]["text"] for r in EXPECTED["segment"]["rows"]] == ids
    assert EXPECTED["marker"]["store_id"] == "00112233445566778899aabbccddeeff"


def test_rows_point_at_their_samples() -> None:
    pack = read("pack.tar")
    for row, sample in zip(EXPECTED["segment"]["rows"], EXPECTED["pack"]["samples"], strict=True):
        entry, held = row["entry"], row["object"]
        header = pack[entry["offset"] : entry["offset"] + entry["header_length"]]
        assert Digest.of(header).hex == entry["header_digest"]["hex"] == sample["entry"]["header_digest"]["hex"]
        parts = parse_pack_key("data", ObjectKey(held["key"]["text"]))
        assert parts is not None
        assert parts.short_digest == Digest.of(pack).short


def test_other_tools_open_the_old_bytes() -> None:
    with safe_open(FOLDER / "sample.safetensors", framework="pt") as opened:
        assert opened.get_tensor("token_ids").tolist() == [0, 1, 2, 3, 4]
        assert opened.get_tensor("hidden_states").dtype == torch.bfloat16
    with tarfile.open(fileobj=io.BytesIO(read("pack.tar"))) as opened_tar:
        assert opened_tar.getnames() == [name for name, _, _ in EXPECTED["pack"]["members"]]
    assert pq.read_table(FOLDER / "segment.parquet").num_rows == 4


def test_compressed_tensors_still_unpack_to_the_same_elements() -> None:
    """Not the same bytes again: another zstd may shrink better."""
    found = elements("planes.safetensors", expected=planes_tensors())
    assert {name: t["codec"] for name, t in found.items()} == {"bf16": "planes-zstd", "few": "raw"}
    assert read("planes.safetensors")[found["bf16"]["offset"]] == 1  # middle values taken off
    sizes = found["bf16"]["chunk_sizes"]
    assert len(sizes) == 2
    assert sum(sizes) < 0.5 * 2_400_000


def test_densely_compressed_tensors_still_unpack_to_the_same_elements() -> None:
    found = elements("dense.safetensors", expected=dense_tensors())
    codecs = {name: t["codec"] for name, t in found.items()}
    assert codecs == {**dict.fromkeys(("bf16", "f16", "f32", "f8", "odd"), "planes-zstd"), "scale": "raw"}
    data, at = read("dense.safetensors"), found["bf16"]["offset"]
    assert data[at] == 7  # middle values, signs apart and flipped: the whole form is in these bytes
    assert sum(found["bf16"]["chunk_sizes"]) < 0.7 * 64_000


def elements(name: str, *, expected: dict[str, Any]) -> dict[str, Any]:
    """The tensors of a stored file, whose elements are found to be `expected` bit for bit."""
    data = read(name)
    header = scan_sample(data)
    plan = plan_rows(header, None, rows=None)
    arrays = decode_tensors(
        header, plan, buffers=[data[r.offset : r.offset + r.length] for r in plan], framework="numpy"
    )
    for tensor, value in expected.items():
        assert arrays[tensor].dtype == value.dtype
        assert arrays[tensor].tobytes() == value.tobytes()
    return {t.name: {**asdict(t), "offset": at} for t, at in zip(header.tensors, header.tensor_offsets, strict=True)}

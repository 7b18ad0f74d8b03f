"""Writes the files of `tests/formats/v1/` once: `python tests/formats/render_v1.py DIRECTORY`.

They are kept for ever; a later format gets a folder and a writer of its own. Existing files are never overwritten.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from durastore.codec import EncodedSample, SampleContext, decode_tensors, encode_sample, plan_rows, scan_sample
from durastore.formats.keys import pack_key
from durastore.formats.marker import Marker
from durastore.formats.pack import TRAILER, iter_pack, member_header, member_padding, run_member
from durastore.formats.runs import parse_run
from durastore.formats.segment import SegmentContent, parse_segment, render_segment
from durastore.model import Digest, ManifestRow, ObjectFacts, PackKind, Run, SampleId, Tombstone, WriterId

RUN = Run.of({"model": "demo", "layers": [2, 15], "dtype": "bfloat16", "note": "é"})
WRITER = WriterId("0123456789abcdef")
NAMES = ("sample.safetensors", "pack.tar", "segment.parquet", "marker.json")
TIME_NS = 1_700_000_000_000_000_000


def tensors(seed: int) -> dict[str, Any]:
    """Three tensors whose values follow from `seed`."""
    hidden = (np.arange(5 * 2 * 4, dtype=np.float32).reshape(5, 2, 4) / 8 + seed).astype(ml_dtypes.bfloat16)
    return {"hidden_states": hidden, "token_ids": np.arange(seed, seed + 5), "scale": np.float32(0.5 * seed)}


def sample(name: str, seed: int, *, is_own_pack: bool = False) -> EncodedSample:
    return encode_sample(
        SampleId(name),
        tensors(seed),
        context=SampleContext(
            run=RUN,
            meta={"seed": seed, "tags": ["a", None], "weight": 0.1},
            input_digest=Digest.of(b"input %d" % seed),
            embed_run_above_bytes=0 if is_own_pack else 16 << 20,
        ),
    )


def scattered(count: int, *, below: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Numbers 0..below without any pattern that a compressor would see; the same on every machine."""
    steps = np.arange(count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return ((steps ^ steps >> np.uint64(29)) * np.uint64(0xBF58476D1CE4E5B9) >> np.uint64(40)).astype(np.int64) % below


def planes_tensors() -> dict[str, Any]:
    """One tensor of two chunks whose columns differ in scale, and one too small to be worth it."""
    values = (scattered(1_200_000, below=13) - 6) * np.exp2(np.arange(1_200_000) % 600 % 11)
    return {"bf16": values.reshape(2000, 600).astype(ml_dtypes.bfloat16), "few": np.arange(3, dtype=np.int32)}


def dense_tensors() -> dict[str, Any]:
    """Floats of every width whose columns differ in scale and lean to one side, and some that are not compressed."""
    noise = np.sum([scattered(32_000 + n, below=4096)[n:] for n in range(6)], axis=0) / 4096 - 3
    columns = np.arange(160)
    values = (noise.reshape(200, 4, 40) + (columns % 3 - 1).reshape(4, 40)) * np.exp2(columns % 11).reshape(4, 40)
    return {
        "bf16": values.astype(ml_dtypes.bfloat16),
        "f16": (values / 64).astype(np.float16),
        "f32": values[:50].astype(ml_dtypes.bfloat16).astype(np.float32),
        "f8": (values[:50] / 64).astype(ml_dtypes.float8_e4m3fn),
        "odd": np.tile(np.array([0, 0x8000, 0x7F80, 0x7FC1, 0xFFFF, 1], np.uint16), 100).view(ml_dtypes.bfloat16),
        "scale": np.float32(0.5),
    }


def packed_sample(name: str, tensors_of: dict[str, Any], *, compress: str) -> bytes:
    context = SampleContext(run=RUN, meta=None, input_digest=None, compress=compress)
    return b"".join(encode_sample(SampleId(name), tensors_of, context=context).chunks())


def packed_files() -> dict[str, bytes]:
    """Compressed samples: another zstd may give other bytes, so these are only read again."""
    return {
        "planes.safetensors": packed_sample("planes", planes_tensors(), compress="auto"),
        "dense.safetensors": packed_sample("dense", dense_tensors(), compress="planes-zstd-dense"),
    }


def samples() -> list[EncodedSample]:
    return [sample("HumanEval/0", 0), sample("a.b/ü%/x.y", 1), sample("long/" + "n" * 120, 2)]


def render_pack() -> tuple[bytes, list[int]]:
    """The tar and the offset of each sample in it."""
    data, offsets = run_member(RUN), []
    for one in samples():
        data += member_header(one.sample_id, one.length)
        offsets.append(len(data))
        data += b"".join(one.chunks()) + member_padding(one.length)
    return data + TRAILER, offsets


def segment_content() -> SegmentContent:
    pack, offsets = render_pack()
    digest = Digest.of(pack)
    held = ObjectFacts(
        key=pack_key("data", WRITER, seq=1, digest=digest, kind=PackKind.TAR),
        size_bytes=len(pack),
        digest=digest,
        crc64nvme="AAAAAAAAAAA=",
        etag='"5d41402abc4b2a76b9719d911017c592"',
        version_id=None,
        writer=WRITER,
    )
    rows = tuple(
        ManifestRow(entry=one.entry(offset=at, time_ns=TIME_NS + at), object=held)
        for one, at in zip(samples(), offsets, strict=True)
    )
    covered = pack_key("data", WRITER, seq=9, digest=digest, kind=PackKind.TAR)
    lost = Tombstone(sample_id=SampleId("gone"), key=covered, offset=512, reason="lost")
    return SegmentContent(rows=rows, tombstones=(lost,), covers=(covered,), runs=(RUN,))


def files() -> dict[str, bytes]:
    """`NAMES` and their bytes."""
    marker = Marker(store_id="00112233445566778899aabbccddeeff", format=1, run=RUN, created_ns=TIME_NS)
    return {
        "sample.safetensors": b"".join(sample("HumanEval/0", 0, is_own_pack=True).chunks()),
        "pack.tar": render_pack()[0],
        "segment.parquet": render_segment(segment_content()),
        "marker.json": marker.render(),
    }


def describe(read: Callable[[str], bytes]) -> dict[str, Any]:
    """All that today's code reads out of the folder's files, as plain JSON."""
    pack, segment = read("pack.tar"), parse_segment(read("segment.parquet"))
    members = list(iter_pack(lambda at, length: pack[at : at + length], len(pack)))
    marker = Marker.parse(read("marker.json"))
    return {
        "digests": {name: Digest.of(read(name)).hex for name in NAMES},
        "sample": describe_sample(read("sample.safetensors")),
        "pack": {
            "members": [[m.name, m.offset, m.length] for m in members],
            "run": parse_run(pack[members[0].offset : members[0].offset + members[0].length]).text,
            "samples": [describe_sample(pack[m.offset : m.offset + m.length]) for m in members[1:]],
        },
        "segment": {
            "rows": [_plain(row) for row in segment.rows],
            "tombstones": [_plain(tombstone) for tombstone in segment.tombstones],
            "covers": [key.text for key in segment.covers],
            "runs": [run.text for run in segment.runs],
        },
        "marker": _plain(marker),
    }


def describe_sample(data: bytes) -> dict[str, Any]:
    header = scan_sample(data)
    plan = plan_rows(header, None, rows=None)
    buffers = [data[r.offset : r.offset + r.length] for r in plan]
    found = decode_tensors(header, plan, buffers=buffers, framework="numpy")
    return {
        "entry": _plain(header.entry(offset=0, time_ns=0)),
        "run_text": header.run_text,
        "tensors": {
            t.name: {**_plain(t), "offset": at, "values": found[t.name].astype(np.float64).tolist()}
            for t, at in zip(header.tensors, header.tensor_offsets, strict=True)
        },
    }


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(asdict(value)))


def main(folder: Path) -> None:
    rendered = {**files(), **packed_files()}
    rendered["expected.json"] = (json.dumps(describe(rendered.__getitem__), indent=1) + "\n").encode()
    for name, data in rendered.items():
        with (folder / name).open("xb") as opened:
            opened.write(data)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

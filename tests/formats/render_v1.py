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


def planes_tensors() -> dict[str, Any]:
    """One tensor of two chunks whose exponents shrink, and one too small to be worth it."""
    values = np.sin(np.arange(600_000) * 0.37) * (1 + np.arange(600_000) % 7)
    return {"bf16": values.reshape(1000, 600).astype(ml_dtypes.bfloat16), "few": np.arange(3, dtype=np.int32)}


def planes_sample() -> bytes:
    context = SampleContext(run=RUN, meta=None, input_digest=None, compress="auto")
    return b"".join(encode_sample(SampleId("planes"), planes_tensors(), context=context).chunks())


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
    rendered = {**files(), "planes.safetensors": planes_sample()}
    rendered["expected.json"] = (json.dumps(describe(rendered.__getitem__), indent=1) + "\n").encode()
    for name, data in rendered.items():
        with (folder / name).open("xb") as opened:
            opened.write(data)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

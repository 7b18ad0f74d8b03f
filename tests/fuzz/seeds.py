"""Writes the seed corpus: small inputs made by our own writers, one folder a target.

`python -m tests.fuzz.seeds` writes the files that are not there yet.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from durastore.codec.dtypes import DTYPES, numpy_dtype
from durastore.codec.encode import EncodedSample, SampleContext, encode_sample
from durastore.codec.planes import encode_chunk
from durastore.formats.failure_list import FailedSample, FailureList, SettledFailure, render_failure_list
from durastore.formats.journal import render_entry, render_evidence
from durastore.formats.marker import Marker
from durastore.formats.pack import TRAILER, member_header, member_padding, run_member
from durastore.formats.segment import SegmentContent, render_segment
from durastore.formats.spool_root import RootRecord, render_root
from durastore.formats.stop import LiftRecord, Place, StopRecord
from durastore.manifest.snapshot import SegmentRef, snapshot_of
from durastore.model import (
    Digest,
    Evidence,
    EvidenceLevel,
    ManifestRow,
    ObjectFacts,
    ObjectKey,
    Run,
    SampleId,
    Tombstone,
    WriterId,
    render_json,
)
from durastore.objectstore.probe.result import ChecksumKind, Outcome, ProbeCheck, ProbeResult
from tests.fuzz.target import CORPUS

RUN = Run.of({"model": "m", "layers": [2, 15]})
KEY = ObjectKey("p/packs/0123456789abcdef/000000000001-0011223344556677.tar")
SEGMENT_KEYS = tuple(ObjectKey(f"p/manifest/0123456789abcdef/{seq:012d}-{seq:016x}.parquet") for seq in (1, 2, 3))
CRC = "AAAAAAAAAAA="


def samples() -> list[EncodedSample]:
    context = SampleContext(run=RUN, meta={"k": [1, None]}, input_digest=Digest.of(b"i"))
    alone = SampleContext(run=RUN, meta=None, input_digest=None, embed_run_above_bytes=0)
    hidden = np.arange(12, dtype=np.float32).reshape(6, 2)
    return [
        encode_sample(
            SampleId("a/b"), {"h": hidden, "z": np.zeros((0, 2), np.int8), "s": np.uint8(3)}, context=context
        ),
        encode_sample(SampleId("x.y"), {"t": np.arange(5, dtype=np.int64)}, context=alone),
        encode_sample(SampleId("big"), {"w": np.zeros((6, 700, 512), np.uint8)}, context=context),
        encode_sample(
            SampleId("packed"),
            {"w": np.arange(40_000, dtype=np.float32), "s": hidden},
            context=replace(context, compress="auto"),
        ),
    ]


def pack(*names: str) -> bytes:
    small = b"".join(samples()[1].chunks())
    members = [member_header(SampleId(n), len(small)) + small + member_padding(len(small)) for n in names]
    return run_member(RUN) + b"".join(members)


def segment() -> bytes:
    return render_segment(
        SegmentContent(
            rows=tuple(ManifestRow(entry=s.entry(offset=512, time_ns=7), object=held()) for s in samples()),
            tombstones=(Tombstone(sample_id=SampleId("t"), key=KEY, offset=0, reason="lost"),),
            covers=SEGMENT_KEYS,
            runs=(RUN,),
        )
    )


def held() -> ObjectFacts:
    return ObjectFacts(
        key=KEY,
        size_bytes=1 << 30,
        digest=Digest.of(b"o"),
        crc64nvme=CRC,
        etag='"e"',
        version_id=None,
        writer=WriterId("0123456789abcdef"),
    )


def evidence() -> str:
    return render_evidence(
        Evidence(
            level=EvidenceLevel.READ_BACK,
            key=KEY,
            size_bytes=9,
            digest=Digest.of(b"o"),
            etag='"e"',
            version_id="v",
            taken="1:2:boot",
            server_time_s=1.5,
        )
    )


def probe() -> ProbeResult:
    names = (("put.crc64nvme", Outcome.REFUSED), ("lifecycle", Outcome.BLOCKING), ("clock", Outcome.UNKNOWN))
    return ProbeResult(
        id="0" * 16,
        target="0" * 32,
        taken="1:2:boot",
        endpoint="http://h:1",
        bucket="b",
        prefix="p",
        checks=tuple(ProbeCheck(name=n, outcome=o, detail="d", meaning="m") for n, o in names),
        level_single=EvidenceLevel.ATTESTED,
        level_multipart=EvidenceLevel.READ_BACK,
        checksum_single=ChecksumKind.CRC64NVME,
        checksum_multipart=None,
        absent_is_404=True,
        is_create_only_enforced=False,
        is_if_match_enforced=None,
        is_versioned=False,
        clock_skew_s=-0.5,
        expiring_rule=None,
        request_count=40,
    )


def corpora() -> dict[str, Mapping[str, bytes]]:
    """Target -> name -> bytes."""
    encoded = samples()
    headers = {name: one.header for name, one in zip(("three", "alone", "chunks", "packed"), encoded, strict=True)}
    return {
        "sample_header": headers,
        "sample_decode": headers,
        "planes_chunk": _planes_seeds(),
        "sample_scan": {"three": b"".join(encoded[0].chunks()), "alone": b"".join(encoded[1].chunks())},
        "pack_walk": {"two": pack("a", "b/c.d") + TRAILER, "long": pack("n" * 150), "run": run_member(RUN)},
        "segment_row": _row_seeds(encoded[0]),
        "failure_row": _failure_seeds(),
        **_text_seeds(),
        **_journal_seeds(encoded[0]),
        **_name_seeds(),
        "foreign_file": _foreign_seeds(),
    }


def _foreign_seeds() -> dict[str, bytes]:
    """Small files of `torch.save` and safetensors; the first byte is the place of their suffix in `SUFFIXES`."""
    import gzip
    from io import BytesIO

    import safetensors.torch
    import torch

    tensors = {"hidden_states": torch.ones(2, 2, 3, dtype=torch.bfloat16), "input_ids": torch.arange(2)}
    zipped, old = BytesIO(), BytesIO()
    torch.save({**tensors, "loss_mask": torch.ones(1, 2), "id": "c-1", "deep": {"n": [1, None]}}, zipped)
    torch.save(tensors, old, _use_new_zipfile_serialization=False)
    return {
        "zip": b"\x00" + zipped.getvalue(),
        "old": b"\x01" + old.getvalue(),
        "gzip": b"\x03" + gzip.compress(zipped.getvalue(), mtime=0),
        "safetensors": b"\x04" + safetensors.torch.save(tensors, metadata={"id": "c-1"}),
    }


def _planes_seeds() -> dict[str, bytes]:
    """Every form of a chunk: as it is, packed, less its middle values, with the signs apart and flipped or not."""
    at = np.arange(2400)
    random = [_scattered(len(at), salt=n) for n in range(3)]
    exponent = 100 + at % 20 * 7 % 20 - np.log2(1 - random[0]).astype(np.int64)
    sign = random[1] < 0.1 + 0.4 * (at % 20 % 3)
    words = (exponent << 7 | (random[2] ** 2 * 128).astype(np.int64) | sign.astype(np.int64) << 15).astype(np.uint16)
    found = {}
    for name, dtype, columns, is_dense in (
        ("BF16", "BF16", 0, False),
        ("row", "BF16", 20, False),
        ("apart", "BF16", 0, True),
        ("flipped", "BF16", 20, True),
        ("F32", "F32", 0, False),
        ("I64", "I64", 0, False),
    ):
        elements = words if dtype == "BF16" else words[:1000].astype(numpy_dtype(dtype))
        pieces = encode_chunk(elements.view(np.uint8).data, dtype, columns=columns, is_dense=is_dense)
        head = bytes([sorted(DTYPES).index(dtype)]) + len(elements).to_bytes(2, "little")
        found[name] = head + b"".join(pieces)
    return found


def _scattered(count: int, *, salt: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Numbers in 0..1 without a pattern that a compressor would see, the same everywhere."""
    steps = (np.arange(count, dtype=np.uint64) + np.uint64(salt << 32)) * np.uint64(0x9E3779B97F4A7C15)
    return ((steps ^ steps >> np.uint64(29)) * np.uint64(0xBF58476D1CE4E5B9) >> np.uint64(40)) / (1 << 24)


def failure_list() -> bytes:
    """A list as `durastore.formats.failure_list` writes it."""
    values: dict[str, Any] = {"line": 3, "attempts": 2, "runs": 2, "worker": "pid 7", "host": "node-1", "time_ns": 7}
    name = SampleId("a/b")
    failed = (
        FailedSample(sample_id=name, input_digest=Digest.of(b"i"), stage="states", reason="has a NaN", **values),
        FailedSample(sample_id=None, input_digest=None, stage="read", reason="is not JSON", **values),
    )
    settled = (SettledFailure(sample_id=None, line=3, time_ns=7, stored_id=name),)
    return render_failure_list(FailureList(run=RUN.digest, failed=failed, settled=settled))


def _failure_seeds() -> dict[str, bytes]:
    failed = {
        "kind": "failed", "sample_id": "a/b", "line": 3, "input_digest": "0123456789abcdef", "stage": "states",
        "reason": "state 2 has a NaN", "attempts": 2, "runs": 1, "worker": "worker 3 on node-2", "host": "node-1",
        "time_ns": 7, "stored_id": None,
    }  # fmt: skip
    settled = {"kind": "settled", "line": 3, "time_ns": 7, "stored_id": "a/b"}
    return {"failed": json.dumps(failed).encode(), "settled": json.dumps(settled).encode()}


def _row_seeds(one: EncodedSample) -> dict[str, bytes]:
    entry, facts = one.entry(offset=512, time_ns=7), held()
    row = {
        "kind": "row", "sample_id": "a/b", "key": KEY.text, "offset": 512, "length": entry.length,
        "header_length": entry.header_length, "header_digest": "0123456789abcdef", "object_size": 1 << 30,
        "object_digest": "0123456789abcdef", "crc64nvme": CRC, "etag": facts.etag, "version_id": "v",
        "writer": facts.writer.hex, "schema": entry.schema, "meta": entry.meta, "run": "0123456789abcdef",
        "input_digest": "0123456789abcdef", "provenance": "computed", "time_ns": 7, "reason": None,
        "covers": render_json([key.text for key in SEGMENT_KEYS]), "runs": render_json([RUN.text]),
    }  # fmt: skip
    stone = {**row, "kind": "tombstone", "reason": "lost"}
    return {"row": json.dumps(row).encode(), "tombstone": json.dumps(stone).encode()}


def _text_seeds() -> dict[str, Mapping[str, bytes]]:
    marker = Marker(store_id="0" * 32, format=1, run=RUN, created_ns=1)
    refs = [SegmentRef(key=key, size_bytes=5, last_modified_s=1.5) for key in SEGMENT_KEYS]
    root = RootRecord(root_id="0" * 32, fs_uuid="uuid", directory_inode=7)
    place = Place(endpoint="http://h", bucket="b", prefix="p")
    note = {"key": "a/b", "size_bytes": 3, "crc64nvme": CRC, "metadata": {"k": "v"}}
    rows = {
        "tokens": {"id": "a", "input_ids": [1, 2, 3], "loss_mask": [0, 1, 1]},
        "chat": {"id": 7, "messages": [{"role": "user", "content": "hi"}], "tools": [{"name": "t"}]},
        "text": {"prompt": "def f():\n"},
    }
    return {
        "marker": {
            "run": marker.render(),
            "plain": Marker(store_id="1" * 32, format=1, run=None, created_ns=1).render(),
        },
        "run": {"run": RUN.text.encode()},
        "snapshot": {"three": snapshot_of("p", refs).render().encode(), "empty": snapshot_of("", []).render().encode()},
        "probe_result": {"attested": probe().render()},
        "stop_of_reclaiming": {
            "stop": StopRecord(id="1" * 16, thrown="1:2:x", reason="r", place=place).render(),
            "lift": LiftRecord(stop="1" * 16, probe="2" * 16, lifted="1:2:x").render(),
        },
        "spool_root": {"root": render_root(root)},
        "directory_note": {"note": render_json(note).encode()},
        "input_row": {name: json.dumps(row).encode() for name, row in rows.items()},
    }


def _journal_seeds(one: EncodedSample) -> dict[str, Mapping[str, bytes]]:
    entry = render_entry(1, one.entry(offset=512, time_ns=7))[1:]
    record = [
        1, "0123456789abcdef-000000000001.tar", "tar", "verified", "0123456789abcdef", 1, 99, "0" * 32, CRC, KEY.text,
        "1:2:3:4:5", "w", '"e"', "v", "1:2:boot", 1.5, evidence(), SEGMENT_KEYS[0].text, "1:2:boot",
        "intent", "reason", 3, 8 << 20,
    ]  # fmt: skip
    rows = {"entry": json.dumps(entry).encode(), "pack": json.dumps(record).encode(), "evidence": evidence().encode()}
    return {"journal_columns": rows}


def _name_seeds() -> dict[str, Mapping[str, bytes]]:
    page = (
        b'<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        b"<IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken><EncodingType>url</EncodingType>"
        b"<Contents><Key>p/a%20b</Key><LastModified>2024-01-01T00:00:00.000Z</LastModified><ETag>&quot;e&quot;</ETag>"
        b"<Size>3</Size><StorageClass>STANDARD</StorageClass></Contents>"
        b"<Contents><Key>p/c/</Key><Size>0</Size></Contents></ListBucketResult>"
    )
    urls = {"s3": "s3://bucket/p/q", "file": "file:///tmp/a%20b", "path": "./a/b", "name": "bucket", "size": "1.5GiB"}
    names = {"id": "HumanEval/0", "dots": "a.b/ü%/x.y", "key": KEY.text, "hidden": ".durastore/x"}
    return {
        "list_page": {"page": page, "end": page.replace(b">true<", b">false<").replace(b"url<", b"none<")},
        "bucket_url": {"endpoint": b"https://host:9000", **{name: text.encode() for name, text in urls.items()}},
        "names": {name: text.encode() for name, text in names.items()},
    }


def main() -> None:
    for target, files in corpora().items():
        folder = CORPUS / target
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            if not (folder / name).exists():
                (folder / name).write_bytes(data)


if __name__ == "__main__":
    main()

"""A bucket with real packs and segments, for the tests of manifest, read, dataset and rebuild."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from durastore.clock import ManualClock
from durastore.codec.encode import EncodedSample, SampleContext, encode_sample
from durastore.formats.keys import pack_key
from durastore.formats.pack import TRAILER, member_header, member_padding, run_member
from durastore.formats.segment import SegmentContent, render_segment
from durastore.manifest.marker_store import ensure_marker
from durastore.manifest.segments import publish_segment
from durastore.manifest.snapshot import fetch_snapshot
from durastore.manifest.view import ResolvedView, fetch_view
from durastore.model import (
    Digest,
    ManifestRow,
    ObjectFacts,
    ObjectKey,
    PackKind,
    Run,
    SampleEntry,
    SampleId,
    Tombstone,
    WriterId,
)
from durastore.objectstore.crc import crc64nvme_b64
from durastore.objectstore.memory import MemoryStore

RUN = Run.of({"model": "m", "layers": [2, 15]})


def tensors_of(number: int, *, rows: int = 5) -> dict[str, Any]:
    """Distinct, checkable tensors."""
    return {
        "hidden_states": np.arange(rows * 8, dtype=np.float32).reshape(rows, 8) + number,
        "token_ids": np.arange(rows, dtype=np.int64) * 1000 + number,
    }


def encode(
    sample_id: str, number: int, *, run: Run = RUN, input_digest: Digest | None = None, rows: int = 5
) -> EncodedSample:
    context = SampleContext(run=run, meta={"number": number}, input_digest=input_digest)
    return encode_sample(SampleId(sample_id), tensors_of(number, rows=rows), context=context)


class Bucket:
    """Builds packs and segments of one writer in a MemoryStore."""

    def __init__(self, store: MemoryStore | None = None, prefix: str = "data/set") -> None:
        self.store = store if store is not None else MemoryStore()
        self.prefix = prefix
        self.writer = WriterId.mint()
        self._pack_seq = 0
        self._segment_seqs: dict[WriterId, int] = {}

    def mark(self, run: Run | None = RUN) -> None:
        ensure_marker(self.store, self.prefix, run=run, clock=ManualClock(), settle_s=0)

    def add_tar(self, samples: Sequence[EncodedSample], *, run: Run | None = RUN) -> list[ManifestRow]:
        """Put a tar pack; returns its rows, which no segment names yet."""
        data = bytearray(run_member(run) if run is not None else b"")
        entries = []
        for sample in samples:
            data += member_header(sample.sample_id, sample.length)
            entries.append(sample.entry(offset=len(data), time_ns=1))
            data += b"".join(sample.chunks()) + member_padding(sample.length)
        return self.put_pack(bytes(data + TRAILER), entries, kind=PackKind.TAR)

    def add_single(self, sample: EncodedSample) -> ManifestRow:
        """Put a sample that is its own pack."""
        return self.put_pack(b"".join(sample.chunks()), [sample.entry(offset=0, time_ns=1)], kind=PackKind.SAFETENSORS)[
            0
        ]

    def put_pack(self, data: bytes, entries: Iterable[SampleEntry], *, kind: PackKind) -> list[ManifestRow]:
        self._pack_seq += 1
        digest = Digest.of(data)
        key = pack_key(self.prefix, self.writer, seq=self._pack_seq, digest=digest, kind=kind)
        crc = crc64nvme_b64(data)
        reply = self.store.put(key, data, crc64nvme=crc, metadata={})
        facts = ObjectFacts(
            key=key,
            size_bytes=len(data),
            digest=digest,
            crc64nvme=crc,
            etag=reply.etag,
            version_id=reply.version_id,
            writer=self.writer,
        )
        return [ManifestRow(entry=entry, object=facts) for entry in entries]

    def add_segment(
        self,
        rows: Iterable[ManifestRow] = (),
        *,
        tombstones: Iterable[Tombstone] = (),
        covers: Iterable[ObjectKey] = (),
        writer: WriterId | None = None,
    ) -> ObjectKey:
        writer = writer or self.writer
        self._segment_seqs[writer] = seq = self._segment_seqs.get(writer, 0) + 1
        content = SegmentContent(rows=tuple(rows), tombstones=tuple(tombstones), covers=tuple(covers), runs=(RUN,))
        return publish_segment(self.store, render_segment(content), prefix=self.prefix, writer=writer, seq=seq)

    def skip_segment(self, writer: WriterId | None = None) -> None:
        """Leave a number out of the writer's sequence."""
        writer = writer or self.writer
        self._segment_seqs[writer] = self._segment_seqs.get(writer, 0) + 1

    def damage(self, key: ObjectKey, *, at: int) -> None:
        """Flip one bit of the stored object."""
        data = bytearray(self.store.fetch(key))
        data[at] ^= 1
        self.store.put(key, bytes(data), crc64nvme=None, metadata={})

    def view(self) -> ResolvedView:
        return fetch_view(self.store, fetch_snapshot(self.store, self.prefix))


def tombstone_of(row: ManifestRow) -> Tombstone:
    return Tombstone(sample_id=row.entry.sample_id, key=row.object.key, offset=row.entry.offset)


def assert_tensors(found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert np.array_equal(np.asarray(found[name]), value), name
        assert np.asarray(found[name]).dtype == value.dtype, name

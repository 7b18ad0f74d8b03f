"""A spool to experiment on, and the oracles that every experiment ends with."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import xxhash

from durastore.clock import SYSTEM_CLOCK
from durastore.codec.encode import EncodedSample, SampleContext, encode_sample
from durastore.formats.pack import iter_pack, member_name
from durastore.formats.upload_session import UploadSession
from durastore.model import Digest, Evidence, EvidenceLevel, ObjectKey, PackKind, PackState, Run, SampleId
from durastore.spool import spool as spool_module
from durastore.spool.journal import PackRecord
from durastore.spool.pack_writer import PackLimits, PackWriter
from durastore.spool.root import SpoolRoot
from durastore.spool.spool import Spool

RUN = Run.of({"model": "lab", "layers": [2, 15]})
PREFIX = "lab/data"
LIMITS = PackLimits(target_bytes=40_000, single_bytes=30_000)
BALLAST_BYTES = spool_module._BALLAST_BYTES
LIVE = (
    PackState.OPEN,
    PackState.SEALED,
    PackState.UPLOADED,
    PackState.VERIFIED,
    PackState.MANIFESTED,
    PackState.UNKNOWN,
    PackState.CONFLICT,
)


@contextmanager
def no_file_beyond(size_bytes: int) -> Iterator[None]:
    """The kernel lets no file of this process grow beyond this size (EFBIG: an error of the disk, and not for room)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def make_ballasts_small() -> None:
    """A run opens hundreds of spools: their ballasts would fill the disk."""
    spool_module._BALLAST_BYTES = 65_536


def sample(name: str, *, size: int = 4_096, seed: int = 0) -> EncodedSample:
    """A sample whose content follows from its name and `seed`, so that another process makes the same one."""
    start = xxhash.xxh3_64_intdigest(name.encode(), seed) % 251
    data = (np.arange(size, dtype=np.uint32) * 31 + start).astype(np.uint8)
    context = SampleContext(
        run=RUN,
        meta={"name": name},
        input_digest=Digest.of(name.encode()),
        embed_run_above_bytes=LIMITS.single_bytes,
    )
    return encode_sample(SampleId(name), {"x": data}, context=context)


def content(encoded: EncodedSample) -> bytes:
    return b"".join(bytes(chunk) for chunk in encoded.chunks())


@contextmanager
def spool_at(path: Path, *, prefix: str = PREFIX) -> Iterator[Spool]:
    """The first free spool below `path`, bound and ready to be recovered."""
    root = SpoolRoot.open(path)
    try:
        spool = Spool.claim(root, clock=SYSTEM_CLOCK)
        try:
            spool.bind(prefix)
            yield spool
        finally:
            spool.close()
    finally:
        root.close()


def writer_of(spool: Spool, *, limits: PackLimits = LIMITS) -> PackWriter:
    return PackWriter(spool, RUN, limits=limits, clock=SYSTEM_CLOCK)


def held_bytes(spool: Spool, sample_id: SampleId) -> list[bytes]:
    """The bytes of the sample in every live pack that claims to have it."""
    found = []
    for record, entry in spool.journal.find_sample(sample_id):
        if record.state in LIVE and spool.packs_folder.has(record.name):
            fd = spool.packs_folder.open_read(record.name)
            try:
                found.append(os.pread(fd, entry.length, entry.offset))
            finally:
                os.close(fd)
    return found


def assert_obtainable(spool: Spool, samples: list[EncodedSample]) -> None:
    """Oracle O1: every one of these samples can be had from this disk, byte for byte."""
    for encoded in samples:
        assert content(encoded) in held_bytes(spool, encoded.sample_id), f"lost: {encoded.sample_id}"


def assert_settled(spool: Spool) -> None:
    """After recovery: nothing is OPEN, every sealed file is what its record says, and no file is unaccounted for."""
    names = set()
    for record in spool.journal.packs(*LIVE):
        assert record.state is not PackState.OPEN
        names.add(record.name)
        assert record.key is not None
        assert record.digest is not None
        assert record.key.text.startswith(f"{PREFIX}/packs/{record.writer}/{record.seq:012d}-{record.digest.short}.")
        assert spool.is_intact(record)
        assert spool.packs_folder.identity(record.name) == record.identity
        _assert_members(spool, record)
    assert set(spool.packs_folder.names()) == names
    assert spool.used_bytes() == sum(spool.packs_folder.identity(name).size_bytes for name in names)


def _assert_members(spool: Spool, record: PackRecord) -> None:
    """The pack says of itself where its samples are: without any journal they would be found again (INV-11)."""
    entries = spool.journal.entries(record.pack_id)
    assert len(entries) == record.sample_count
    if record.kind is PackKind.SAFETENSORS:
        return
    data = spool.packs_folder.read_bytes(record.name, limit_bytes=1 << 24)
    members = {m.name: m.offset for m in iter_pack(lambda at, size: data[at : at + size], len(data))}
    for entry in entries:
        assert member_name(entry.sample_id) in members


def state_of(spool: Spool) -> tuple[object, ...]:
    """All that recovery may change: two of these are equal if and only if nothing did."""
    packs = [(record, spool.journal.entries(record.pack_id)) for record in spool.journal.packs()]
    files = [
        (folder.path.name, name, folder.identity(name).inode, folder.identity(name).size_bytes)
        for folder in (spool.packs_folder, spool.quarantine_folder)
        for name in folder.names()
    ]
    return packs, files


def evidence_of(record: PackRecord, *, level: EvidenceLevel = EvidenceLevel.READ_BACK) -> Evidence:
    """What a verifier would say of this pack's object, had it just read it back."""
    assert record.key is not None
    assert record.size_bytes is not None
    return Evidence(
        level=level,
        key=record.key,
        size_bytes=record.size_bytes,
        digest=record.digest if level is EvidenceLevel.READ_BACK else None,
        etag='"e"',
        version_id=None,
        taken=SYSTEM_CLOCK.stamp().render(),
    )


def record_upload(spool: Spool, upload_id: str) -> None:
    """A sealed pack whose upload in parts is under way."""
    spool.bind("p")
    writer = writer_of(spool)
    ((pack_id, _),) = writer.append([sample("in parts")])
    writer.seal_open()
    writer.close()
    spool.journal.record_session(pack_id, UploadSession(upload_id=upload_id, part_bytes=8 << 20))


class Answer:
    """An upload's answer."""

    etag = '"e"'
    version_id: str | None = None
    server_time_s: float | None = 1_700_000_000.0
    part_bytes: int | None = 8 << 20


def advance(spool: Spool, pack_id: int, *, to: PackState) -> PackRecord:
    """Lead a SEALED pack forward, step by step, without any bucket."""
    journal = spool.journal
    for state in (PackState.UPLOADED, PackState.VERIFIED, PackState.MANIFESTED):
        if state is PackState.UPLOADED:
            journal.write_id(pack_id)
            journal.record_uploaded(pack_id, reply=Answer(), at=SYSTEM_CLOCK.stamp())
        elif state is PackState.VERIFIED:
            journal.record_verified(pack_id, evidence_of(journal.pack(pack_id)))
        else:
            journal.record_manifested([pack_id], ObjectKey(f"{PREFIX}/manifest/m/1.parquet"), at=SYSTEM_CLOCK.stamp())
        if state is to:
            break
    return journal.pack(pack_id)

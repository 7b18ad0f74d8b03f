"""Read one pack object whole and say what is in it.

Duty: every byte fetched, hashed against the key, walked, and each sample checked against its own digests. Must never
make a row of a sample that was not checked, and never raise for damage: damage is a finding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import xxhash

from durastore.codec.decode import scan_sample
from durastore.codec.header import SampleHeader
from durastore.errors import FormatUnsupported, IntegrityError, ObjectAbsent
from durastore.formats.keys import PackKeyParts
from durastore.formats.pack import RUN_MEMBER, iter_pack, member_name
from durastore.formats.runs import parse_run
from durastore.model import Digest, ManifestRow, ObjectFacts, ObjectKey, PackKind, Run
from durastore.objectstore.crc import Crc64Nvme
from durastore.objectstore.port import ObjectReader, ObjectStat
from durastore.reconcile.findings import Finding, FindingKind

__all__ = ["ScannedPack", "scan_pack"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannedPack:
    """What one pack gave: a row for each sound sample, the runs it carries, and what was wrong."""

    key: ObjectKey
    size_bytes: int
    rows: tuple[ManifestRow, ...] = ()
    runs: tuple[Run, ...] = ()
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bytes:
    """A whole object as it came, with our own sums of it."""

    data: memoryview
    digest: Digest
    crc64nvme: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Contents:
    """The sound samples of a pack with their offsets, its runs, and the first fault (after which a walk ends)."""

    samples: tuple[tuple[int, SampleHeader], ...]
    runs: tuple[Run, ...]
    faults: tuple[str, ...]


def scan_pack(reader: ObjectReader, key: ObjectKey, *, parts: PackKeyParts, default_time_ns: int) -> ScannedPack:
    """Fetch and check one pack. Safe to repeat. Errors of the network and of access pass through.

    Rows carry the object's time as the server tells it, else `default_time_ns`: a sample's bytes hold no time.
    """
    try:
        stat = reader.head(key)
        if not stat.is_readable:
            detail = f"cannot be read in storage class {stat.storage_class}: restore it, then rebuild again"
            return _found(key, FindingKind.ORPHAN, detail=detail, size_bytes=stat.size_bytes)
        whole = _fetch_whole(reader, key)
        if whole.digest.short != parts.short_digest:
            whole = _fetch_whole(reader, key)  # once more: the transfer may be at fault, not the object
    except ObjectAbsent:
        return _found(key, FindingKind.DANGLING, detail="is listed, but its bytes are gone", size_bytes=None)
    except IntegrityError as exc:
        return _found(key, FindingKind.TRUNCATED, detail=f"cannot be read to its end: {exc.message}", size_bytes=None)
    contents = _walk(whole.data, parts.kind)
    if whole.digest.short != parts.short_digest:
        detail = f"its bytes do not match the digest in its key; {len(contents.samples)} samples in it still verify"
        return _found(key, FindingKind.DIVERGENT, detail=detail, size_bytes=len(whole.data))
    facts = ObjectFacts(
        key=key,
        size_bytes=len(whole.data),
        digest=whole.digest,
        crc64nvme=whole.crc64nvme,
        etag=stat.etag,
        version_id=stat.version_id,
        writer=parts.writer,
    )
    return _scanned(contents, facts, time_ns=_time_ns(stat, default_time_ns))


def _scanned(contents: _Contents, facts: ObjectFacts, *, time_ns: int) -> ScannedPack:
    texts = {run.digest for run in contents.runs}
    faults = list(contents.faults)
    lacking = {header.run for _, header in contents.samples} - texts
    if lacking:
        faults.append(f"carries no text of the run {min(lacking)} its samples name")
    return ScannedPack(
        key=facts.key,
        size_bytes=facts.size_bytes,
        rows=tuple(ManifestRow(entry=h.entry(offset=at, time_ns=time_ns), object=facts) for at, h in contents.samples),
        runs=contents.runs,
        findings=tuple(_finding(facts, fault) for fault in faults),
    )


def _finding(facts: ObjectFacts, fault: str) -> Finding:
    return Finding(kind=FindingKind.DIVERGENT, key=facts.key, detail=fault, size_bytes=facts.size_bytes)


def _found(key: ObjectKey, kind: FindingKind, *, detail: str, size_bytes: int | None) -> ScannedPack:
    finding = Finding(kind=kind, key=key, detail=detail, size_bytes=size_bytes)
    return ScannedPack(key=key, size_bytes=size_bytes or 0, findings=(finding,))


def _time_ns(stat: ObjectStat, default_time_ns: int) -> int:
    return default_time_ns if stat.last_modified_s is None else int(stat.last_modified_s * 1e9)


def _fetch_whole(reader: ObjectReader, key: ObjectKey) -> _Bytes:
    data = bytearray()
    content, transport = xxhash.xxh3_128(), Crc64Nvme()
    for chunk in reader.fetch_chunks(key):
        content.update(chunk)
        transport.update(chunk)
        data += chunk
    view = memoryview(data).toreadonly()
    return _Bytes(data=view, digest=Digest(content.hexdigest()), crc64nvme=transport.text())


def _walk(data: memoryview, kind: PackKind) -> _Contents:
    """Every sample that checks, and what does not. A damaged member hides only itself, a damaged frame the rest."""
    samples: list[tuple[int, SampleHeader]] = []
    runs: dict[Digest, Run] = {}
    faults: list[str] = []
    try:
        for name, offset, length in _members(data, kind):
            body = data[offset : offset + length]
            try:
                if name == RUN_MEMBER:
                    run = parse_run(bytes(body))
                    runs[run.digest] = run
                    continue
                header = scan_sample(body)
            except (IntegrityError, FormatUnsupported) as exc:
                faults.append(f"member at byte {offset}: {exc.message}")
                continue
            samples.append((offset, header))
            if header.run_text is not None:
                runs[header.run] = parse_run(header.run_text)
            if name is not None and name != member_name(header.sample_id):
                faults.append(f"member {name!r} holds the sample {header.sample_id.text!r}")
    except IntegrityError as exc:
        faults.append(exc.message)
    return _Contents(samples=tuple(samples), runs=tuple(runs.values()), faults=tuple(faults))


def _members(data: memoryview, kind: PackKind) -> Iterator[tuple[str | None, int, int]]:
    if kind is PackKind.SAFETENSORS:
        yield None, 0, len(data)
        return

    def read_at(offset: int, length: int) -> bytes:
        return bytes(data[offset : offset + length])

    for member in iter_pack(read_at, len(data)):
        yield member.name, member.offset, member.length

"""A pack record with everything that reclaim asks for, to be made wrong one fact at a time."""

from __future__ import annotations

from typing import Any

from durastore.clock import ManualClock
from durastore.fsio.identity import FileIdentity
from durastore.model import Digest, Evidence, EvidenceLevel, ObjectKey, PackKind, PackState, WriterId
from durastore.objectstore.probe.result import ChecksumKind, ProbeResult
from durastore.spool.records import PackRecord
from durastore.verify.policy import ProofPolicy

DATA = b"the bytes of a pack" * 50
DIGEST = Digest.of(DATA)
WRITER = WriterId("00112233445566aa")
KEY = ObjectKey(f"p/packs/{WRITER}/000000000001-{DIGEST.short}.tar")
CRC = "AAAAAAAAAAA="


def evidence(clock: ManualClock, **changes: Any) -> Evidence:
    facts: dict[str, Any] = {
        "level": EvidenceLevel.READ_BACK,
        "key": KEY,
        "size_bytes": len(DATA),
        "digest": DIGEST,
        "etag": '"e"',
        "version_id": None,
        "taken": clock.stamp().render(),
        "server_time_s": 1_000.0,
    }
    return Evidence(**(facts | changes))


def record(clock: ManualClock, **changes: Any) -> PackRecord:
    """A manifested pack, uploaded and read back at the clock's present moment."""
    facts: dict[str, Any] = {
        "pack_id": 1,
        "name": f"{WRITER}-000000000001.tar",
        "kind": PackKind.TAR,
        "state": PackState.MANIFESTED,
        "writer": WRITER,
        "seq": 1,
        "size_bytes": len(DATA),
        "digest": DIGEST,
        "crc64nvme": CRC,
        "key": KEY,
        "identity": FileIdentity(dev=1, inode=2, size_bytes=len(DATA), mtime_ns=3, ctime_ns=4),
        "write_id": "w",
        "etag": '"e"',
        "version_id": None,
        "uploaded_at": clock.stamp(),
        "uploaded_server_time_s": 1_000.0,
        "evidence": evidence(clock),
        "manifested_in": ObjectKey("p/manifest/00112233445566aa/000000000001-00112233445566aa.parquet"),
        "manifested_at": clock.stamp(),
        "intent": None,
        "reason": None,
        "sample_count": 3,
        "part_bytes": 0,
    }
    return PackRecord(**(facts | changes))


def probe_result(
    single: ChecksumKind | None = None, multipart: ChecksumKind | None = None, **changes: Any
) -> ProbeResult:
    """A probe that saw these checksums guarded; a path without one has to be read back."""
    facts: dict[str, Any] = {
        "id": "00112233445566ff",
        "target": "0" * 32,
        "taken": ManualClock().stamp().render(),
        "endpoint": "http://127.0.0.1:1",
        "bucket": "b",
        "prefix": "p",
        "checks": (),
        "level_single": EvidenceLevel.ATTESTED if single else EvidenceLevel.READ_BACK,
        "level_multipart": EvidenceLevel.ATTESTED if multipart else EvidenceLevel.READ_BACK,
        "checksum_single": single,
        "checksum_multipart": multipart,
        "absent_is_404": True,
        "is_create_only_enforced": True,
        "is_if_match_enforced": True,
        "is_versioned": False,
        "clock_skew_s": 0.0,
        "expiring_rule": None,
        "request_count": 50,
    }
    return ProbeResult(**(facts | changes))


def policy(**changes: Any) -> ProofPolicy:
    facts: dict[str, Any] = {
        "evidence_ttl_s": 1_000.0,
        "settle_s": 600.0,
        "receipt_ttl_s": 60.0,
        "part_bytes": 1 << 24,
        "audit_share": 0.0,
    }
    return ProofPolicy(**(facts | changes))

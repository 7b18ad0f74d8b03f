"""The conditions under which a local file may go, one small function each, all pure.

Duty: every guard takes facts and returns, or raises `NotVerified` with the reason. None has a default that lets a byte
go: a fact that is missing refuses. (The guards on the receipt itself live in `receipt`.)
"""

from __future__ import annotations

from durastore.clock import Stamp, age_s, least_age_s
from durastore.errors import NotVerified
from durastore.formats.file_keys import carries_file
from durastore.formats.keys import carries_pack
from durastore.model import Digest, Evidence, EvidenceLevel, PackState
from durastore.objectstore.port import ObjectStat
from durastore.spool.records import PackRecord
from durastore.verify.policy import ProofPolicy

__all__ = [
    "guard_evidence",
    "guard_freshness",
    "guard_head",
    "guard_recorded",
    "guard_server_clock",
    "guard_settled",
    "settle_age_s",
]

MAX_SERVER_DRIFT_S = 60.0


def guard_recorded(record: PackRecord) -> tuple[Digest, int]:
    """Hashed by us before the upload, and listed in a manifest segment that was read back (INV-3)."""
    if record.state is not PackState.MANIFESTED or record.manifested_in is None:
        raise NotVerified(f"pack {record.name} is {record.state.value}, not manifested")
    if record.digest is None or record.size_bytes is None or record.key is None or record.identity is None:
        raise NotVerified(f"pack {record.name} has no digest, size, key or identity on record")
    is_carried = carries_pack(record.key, digest=record.digest)
    if not is_carried and not carries_file(record.key, name=record.name, digest=record.digest):
        raise NotVerified(f"pack {record.name}: its key does not carry its digest")
    return record.digest, record.size_bytes


def guard_evidence(record: PackRecord, evidence: Evidence | None, *, policy: ProofPolicy) -> Evidence:
    """Evidence of this very object, strong enough for this endpoint and this pack's write path."""
    if evidence is None:
        raise NotVerified(f"pack {record.name} has no evidence")
    least = max(policy.level_for(record), EvidenceLevel.ATTESTED)
    if evidence.level < least:
        raise NotVerified(f"pack {record.name}: evidence {evidence.level.name} is below {least.name}")
    if evidence.key != record.key or evidence.size_bytes != record.size_bytes:
        raise NotVerified(f"pack {record.name}: evidence is of another object")
    if evidence.level is EvidenceLevel.READ_BACK and evidence.digest != record.digest:
        raise NotVerified(f"pack {record.name}: evidence has another digest")
    if evidence.level is EvidenceLevel.ATTESTED and (evidence.probe is None or evidence.probe != policy.probe_id):
        raise NotVerified(f"pack {record.name}: attested under another probe of the endpoint")
    return evidence


def guard_freshness(record: PackRecord, evidence: Evidence, *, now: Stamp, policy: ProofPolicy) -> None:
    """Evidence younger than its time to live. Another boot or a wall clock that went back makes every age unknown."""
    age = age_s(Stamp.parse(evidence.taken), now)
    if age is None or age > policy.evidence_ttl_s:
        raise NotVerified(f"pack {record.name}: evidence is too old, or its age cannot be told")


def settle_age_s(record: PackRecord, evidence: Evidence | None, *, now: Stamp) -> float | None:
    """Seconds since the upload's answer or since its manifest segment was read back, whichever was later: the segment
    can be forgotten as well. What was before a reboot counts from the first full look in this boot, and so does an
    object that somebody wrote again since. None: not known.
    """
    looked = least_age_s(Stamp.parse(evidence.taken), now) if evidence is not None else None
    is_ours = evidence is None or evidence.etag == record.etag
    ages = []
    for since in (record.uploaded_at if is_ours else None, record.manifested_at):
        age = least_age_s(since, now) if since is not None else None
        ages.append(looked if age is None else age)
    if record.manifested_at is None or None in ages:
        return None
    return min(age for age in ages if age is not None)


def guard_settled(record: PackRecord, evidence: Evidence, *, now: Stamp, policy: ProofPolicy) -> None:
    """Servers forget what they acknowledged a moment ago: `settle_s` lie between upload, segment and this look."""
    age = settle_age_s(record, evidence, now=now)
    if age is None or age < policy.settle_s:
        raise NotVerified(
            f"pack {record.name}: sent or listed less than {policy.settle_s:g} s ago, or at an unknown time"
        )


def guard_server_clock(record: PackRecord, stat: ObjectStat, *, evidence: Evidence, now: Stamp) -> None:
    """The server's own clock advanced as ours did since the evidence (within 60 s), where it tells the time at all."""
    if evidence.server_time_s is None:
        return
    elapsed = age_s(Stamp.parse(evidence.taken), now)
    if stat.server_time_s is None or elapsed is None:
        raise NotVerified(f"pack {record.name}: the server told the time at the proof and does not now")
    drift = (stat.server_time_s - evidence.server_time_s) - elapsed
    if abs(drift) > MAX_SERVER_DRIFT_S:
        raise NotVerified(f"pack {record.name}: server clock and ours drifted apart by {drift:.0f} s since the proof")


def guard_head(record: PackRecord, stat: ObjectStat, *, evidence: Evidence) -> None:
    """What a new connection sees now is the object that the evidence is of, whole and readable."""
    if stat.size_bytes is None or stat.size_bytes != record.size_bytes:
        raise NotVerified(f"pack {record.name}: the object has {stat.size_bytes} bytes, the pack {record.size_bytes}")
    if stat.etag != evidence.etag or not stat.etag:
        raise NotVerified(f"pack {record.name}: the object's etag changed since it was verified")
    if evidence.version_id is not None and stat.version_id != evidence.version_id:
        raise NotVerified(f"pack {record.name}: another version is the current one")
    if stat.crc64nvme is not None and stat.crc64nvme != record.crc64nvme:
        raise NotVerified(f"pack {record.name}: the server names another CRC64NVME than ours")
    if not stat.is_readable:
        raise NotVerified(f"pack {record.name}: storage class {stat.storage_class} cannot be read back at once")

"""From outcomes to evidence levels. Pure, and hard to please.

Duty: ATTESTED for a write path only where a checksum was refused when wrong on that path and returned right afterwards
(or an etag shown to be the server's own MD5), by an endpoint that was caught in no lie. In every doubt READ_BACK.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from durastore.model import EvidenceLevel
from durastore.objectstore.probe.result import ChecksumKind, Outcome, WritePath

__all__ = ["Verdict", "find_distrust", "judge"]

Outcomes = Mapping[str, Outcome]

# Where an unclear answer leaves it open whether the endpoint passes off our claims as its knowledge.
_ECHO_CHECKS = ("put.crc64nvme", "put.crc32", "put.sha256", "put.content-md5", "complete.crc64nvme")
_REASONS = {
    Outcome.ECHOED: "returns wrong checksums that it was sent",
    Outcome.INCONSISTENT: "refuses the same lie only sometimes",
    Outcome.WRONG: "tells of its objects what is not so",
    Outcome.BLOCKING: "does not keep what it stored",
}
_LYING = ("put.", "part.", "complete.", "get.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """For one write path: the evidence to ask for, and the checksum to send (and, where ATTESTED, to compare)."""

    level: EvidenceLevel
    checksum: ChecksumKind | None


def find_distrust(outcomes: Outcomes) -> list[str]:
    """Why nothing this endpoint says about an object may count, on any path; empty where no reason is known."""
    found = []
    for name, outcome in outcomes.items():
        if name == "put.if-match" or not name.startswith(_LYING):
            continue  # no write of ours is conditional on an etag
        if outcome in _REASONS:
            found.append(f"{name}: {_REASONS[outcome]}")
    unknown = [name for name in _ECHO_CHECKS if outcomes.get(name, Outcome.UNKNOWN) is Outcome.UNKNOWN]
    found += [f"{name}: not known" for name in unknown]
    for name in ("get.whole", "get.range"):
        outcome = outcomes.get(name, Outcome.UNKNOWN)
        if outcome not in (Outcome.HONOURED, Outcome.BLOCKING, Outcome.WRONG):
            found.append(f"{name}: {outcome.value}, so objects cannot be spot-read")
    return found


def judge(path: WritePath, outcomes: Outcomes) -> Verdict:
    """The verdict on one path from all outcomes of the probe; a check that lacks counts as unknown."""

    def has(name: str, outcome: Outcome) -> bool:
        return outcomes.get(name, Outcome.UNKNOWN) is outcome

    if path is WritePath.SINGLE:
        is_crc = has("put.crc64nvme", Outcome.REFUSED)
        is_crc_told = has("put.returned", Outcome.RETURNED)
        is_md5 = has("put.content-md5", Outcome.REFUSED)
        is_etag = has("put.etag", Outcome.MD5)
    else:
        is_crc = has("part.crc64nvme", Outcome.REFUSED) and has("complete.crc64nvme", Outcome.REFUSED)
        is_crc_told = has("complete.returned", Outcome.RETURNED)
        is_md5 = has("part.content-md5", Outcome.REFUSED)
        is_etag = has("complete.etag", Outcome.MD5)
    if not find_distrust(outcomes):
        if is_crc and is_crc_told:
            return Verdict(level=EvidenceLevel.ATTESTED, checksum=ChecksumKind.CRC64NVME)
        if is_md5 and is_etag:
            return Verdict(level=EvidenceLevel.ATTESTED, checksum=ChecksumKind.ETAG_MD5)
    checksum = ChecksumKind.CRC64NVME if is_crc else ChecksumKind.CONTENT_MD5 if is_md5 else None
    return Verdict(level=EvidenceLevel.READ_BACK, checksum=checksum)

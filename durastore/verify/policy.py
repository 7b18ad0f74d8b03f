"""What counts as proof on this endpoint, chosen per write path from what the probe saw.

Pure values. Must never be laxer than READ_BACK without a probe result.
"""

from __future__ import annotations

from dataclasses import dataclass

from durastore.model import EvidenceLevel
from durastore.objectstore.probe.result import ChecksumKind, ProbeResult, WritePath
from durastore.spool.records import PackRecord

__all__ = ["ProofPolicy"]

_COMPARED = (ChecksumKind.CRC64NVME, ChecksumKind.ETAG_MD5)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofPolicy:
    """Times and levels. `probe` None: nothing was probed, so every copy is read back in full."""

    evidence_ttl_s: float
    settle_s: float
    """Least time between the later of upload and manifest segment and the look that may free the file."""
    receipt_ttl_s: float
    part_bytes: int
    """Size of the parts to look into of a pack of which nobody knows how it was sent."""
    audit_share: float = 0.01
    """Share of packs read back in full, whatever the endpoint attests."""
    probe: ProbeResult | None = None
    block: ProbeResult | None = None
    """An older or unused result that says that objects do not stay here, as long as no newer one contradicts it."""

    @property
    def probe_id(self) -> str | None:
        return self.probe.id if self.probe is not None else None

    def level_for(self, record: PackRecord) -> EvidenceLevel:
        """The least evidence that may free this pack: ATTESTED or READ_BACK, never less."""
        return EvidenceLevel.ATTESTED if self.checksum_for(record) is not None else EvidenceLevel.READ_BACK

    def checksum_for(self, record: PackRecord) -> ChecksumKind | None:
        """The checksum that this pack's write path was seen to guard and that we can compare; None: read back.

        Where the path is not known (the object was found under its key, or an older version recorded it), both have to
        be guarded, by a checksum that does not depend on the parts.
        """
        if self.probe is None or record.size_bytes is None:
            return None
        kinds = {self._guarded_by(self.probe, path) for path in self.paths_of(record)}
        if record.part_bytes is None and kinds != {ChecksumKind.CRC64NVME}:
            return None
        return kinds.pop()

    def paths_of(self, record: PackRecord) -> tuple[WritePath, ...]:
        """The write path by which the pack went, as recorded; both of them where that is not known."""
        if record.part_bytes is None:
            return (WritePath.SINGLE, WritePath.MULTIPART)
        return (WritePath.MULTIPART if record.part_bytes else WritePath.SINGLE,)

    def is_multipart(self, record: PackRecord) -> bool:
        """Whether the pack was sent in parts, or may have been."""
        return WritePath.MULTIPART in self.paths_of(record)

    def part_bytes_of(self, record: PackRecord) -> int:
        """Size of the parts (but the last) of a pack that was sent in parts. A resumed upload keeps the size that it
        began with, whatever is the limit today.
        """
        return record.part_bytes or self.part_bytes

    @staticmethod
    def _guarded_by(probe: ProbeResult, path: WritePath) -> ChecksumKind | None:
        kind = probe.checksum_of(path)
        return kind if probe.level_of(path) is EvidenceLevel.ATTESTED and kind in _COMPARED else None

"""What a demo run ends with: a short table, or the same as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from durastore.extract.report import ExtractReport

__all__ = ["Comparison", "DemoReport"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Stored states against a fresh forward pass of one sample alone."""

    sample_id: str
    max_error: float
    """Largest absolute difference, relative to the largest magnitude of the reference state of that layer."""
    is_equal_within_tolerance: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoReport:
    """Everything the demo measured; `findings` lists what is not as it should be."""

    extract: ExtractReport
    bucket: str
    folder: str
    samples_read: int
    samples_expected: int
    bytes_read: int
    object_bytes: int
    read_s: float
    total_s: float
    drain_s: float
    local_bytes: int | None
    """None where an interrupted run was not drained."""
    quarantined_bytes: int
    comparisons: tuple[Comparison, ...]
    findings: tuple[str, ...]
    snapshot: str

    @property
    def exit_code(self) -> int:
        """The extraction's own code, else 12 if there is a finding."""
        return self.extract.exit_code or (12 if self.findings else 0)

    def lines(self) -> Iterator[str]:
        """The table for people."""
        counts = self.extract.counts
        rate = counts.ok / self.extract.elapsed_s if self.extract.elapsed_s else 0.0
        within = sum(c.is_equal_within_tolerance for c in self.comparisons)
        worst = max((c.max_error for c in self.comparisons), default=0.0)
        rows = [
            ("samples extracted now", f"{counts.ok} ({counts.tokens} tokens, {counts.tensor_bytes / 1e6:.1f} MB)"),
            ("samples done before", f"{counts.skipped}"),
            ("samples failed", f"{counts.failed}"),
            ("extraction", f"{self.extract.elapsed_s:.1f} s, {rate:.1f} samples/s"),
            ("read back, digests checked", f"{self.samples_read} of {self.samples_expected}"),
            ("reading", f"{self.bytes_read / 1e6:.1f} MB in {self.read_s:.1f} s"),
            ("compared with a batch-1 forward", f"{within} of {len(self.comparisons)} equal (worst error {worst:.4f})"),
            ("objects in the bucket", f"{self.object_bytes / 1e6:.1f} MB at {self.bucket}"),
            ("local bytes left", "not drained" if self.local_bytes is None else f"{self.local_bytes}"),
            ("quarantined bytes", f"{self.quarantined_bytes}"),
            ("findings", f"{len(self.findings)}"),
            ("whole demo", f"{self.total_s:.1f} s ({self.drain_s:.1f} s of it waiting to reclaim)"),
        ]
        width = max(len(name) for name, _ in rows)
        for name, value in rows:
            yield f"{name:<{width}}  {value}"
        for finding in self.findings:
            yield f"finding: {finding}"
        yield f"server data, spool and logs are in {self.folder}"

    def render(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "extract": self.extract.render(),
            "bucket": self.bucket,
            "folder": self.folder,
            "samples_read": self.samples_read,
            "samples_expected": self.samples_expected,
            "bytes_read": self.bytes_read,
            "object_bytes": self.object_bytes,
            "read_s": round(self.read_s, 3),
            "drain_s": round(self.drain_s, 3),
            "total_s": round(self.total_s, 3),
            "local_bytes": self.local_bytes,
            "quarantined_bytes": self.quarantined_bytes,
            "comparisons": [
                {"id": c.sample_id, "max_error": c.max_error, "is_equal": c.is_equal_within_tolerance}
                for c in self.comparisons
            ],
            "findings": list(self.findings),
            "snapshot": self.snapshot,
            "exit_code": self.exit_code,
        }

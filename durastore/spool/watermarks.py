"""When the spool is full, and how much has to go: pure arithmetic, no I/O.

Duty: `Watermarks`. It only answers; it never frees, and never lets a byte go because space is short (case B04).
"""

from __future__ import annotations

from dataclasses import dataclass

from durastore.errors import ConfigError

__all__ = ["Watermarks"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermarks:
    """`high_bytes`: put waits above it. `low_bytes`: lazy reclaim stops there. `reserve_bytes`: free space never used.

    The reserve has to hold the copy that is made of a pack whose write failed. `ConfigError` for marks that contradict.
    """

    high_bytes: int
    low_bytes: int
    reserve_bytes: int

    def __post_init__(self) -> None:
        if not 0 <= self.low_bytes <= self.high_bytes or self.high_bytes < 1 or self.reserve_bytes < 0:
            raise ConfigError(
                f"watermarks do not fit: low {self.low_bytes}, high {self.high_bytes}, reserve {self.reserve_bytes}",
                hint="0 <= low <= high, and a reserve of at least 0",
            )

    def must_block(self, used: int, free: int) -> bool:
        """True if a put that leads to `used` spool bytes and `free` disk bytes has to wait."""
        return used > self.high_bytes or free < self.reserve_bytes

    def to_free(self, used: int) -> int:
        """Bytes above the low watermark."""
        return max(0, used - self.low_bytes)

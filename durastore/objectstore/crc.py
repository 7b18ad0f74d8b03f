"""CRC64NVME, as S3 writes it: base64 of the eight big-endian bytes.

Duty: the transport checksum of bytes we hold. Must never be taken from an answer and called ours.
"""

from __future__ import annotations

import base64
import binascii

from durastore.errors import InvalidInput

__all__ = ["Crc64Nvme", "combine", "crc64nvme_b64", "parse_crc64nvme", "render_crc64nvme"]

_PIECE = 1 << 30  # the native call takes a C int somewhere below; stay clear of its edge


def render_crc64nvme(value: int) -> str:
    return base64.b64encode(value.to_bytes(8, "big")).decode("ascii")


def parse_crc64nvme(text: str) -> int:
    """Inverse of `render_crc64nvme`; `InvalidInput` on anything else."""
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as exc:
        raise InvalidInput(f"not a CRC64NVME: {ascii(text)[:40]}") from exc
    if len(raw) != 8:
        raise InvalidInput(f"not a CRC64NVME: {ascii(text)[:40]}")
    return int.from_bytes(raw, "big")


class Crc64Nvme:
    """A running CRC64NVME with the number of bytes it covers. Not thread-safe."""

    __slots__ = ("size_bytes", "value")

    def __init__(self) -> None:
        self.value = 0
        self.size_bytes = 0

    def update(self, data: bytes | bytearray | memoryview) -> None:
        from awscrt.checksums import crc64nvme

        view = memoryview(data).cast("B")
        for start in range(0, len(view), _PIECE):
            # The native function asks for bytes in its hint but takes any contiguous buffer, without a copy.
            self.value = crc64nvme(view[start : start + _PIECE], self.value)
        self.size_bytes += len(view)

    def text(self) -> str:
        return render_crc64nvme(self.value)


def crc64nvme_b64(data: bytes | bytearray | memoryview, previous: int = 0) -> str:
    """The checksum of `data`, going on from the checksum value `previous`."""
    running = Crc64Nvme()
    running.value = previous
    running.update(data)
    return running.text()


def combine(first: str, second: str, *, second_size_bytes: int) -> str:
    """The checksum of two byte strings one after the other, from their checksums and the second one's length."""
    from awscrt.checksums import combine_crc64nvme

    if second_size_bytes == 0:
        return first
    return render_crc64nvme(combine_crc64nvme(parse_crc64nvme(first), parse_crc64nvme(second), second_size_bytes))

"""The rules of joining parts, for the adapters that play the server themselves.

Duty: refuse what a strict S3 endpoint refuses on Complete. Must never join parts that were not acknowledged as listed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from durastore.errors import RequestRefused
from durastore.model import ObjectKey
from durastore.objectstore.port import PartReply

__all__ = ["check_parts"]


def check_parts(key: ObjectKey, parts: Sequence[PartReply], *, held: Mapping[int, PartReply], size_bytes: int) -> None:
    """Return if `parts` are held as listed, ascend and add up to `size_bytes`; else `RequestRefused` with S3's code."""
    numbers = [part.number for part in parts]
    if not parts or numbers != sorted(set(numbers)):
        raise RequestRefused(f"complete {key}: the parts do not ascend", status=400, server_code="InvalidPartOrder")
    for part in parts:
        found = held.get(part.number)
        if found is None or found.etag != part.etag or (part.crc64nvme and part.crc64nvme != found.crc64nvme):
            raise RequestRefused(
                f"complete {key}: part {part.number} is not held as listed", status=400, server_code="InvalidPart"
            )
    total = sum(held[number].size_bytes for number in numbers)
    if total != size_bytes:
        raise RequestRefused(
            f"complete {key}: the parts have {total} bytes, not {size_bytes}", status=400, server_code="InvalidRequest"
        )

"""A great many objects that cost nothing: keys and bytes made when they are asked for.

Duty: behave as a sorted run of keys. Holds no bytes and no list.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

import xxhash

__all__ = ["PopulatedRange"]

_DIGITS = 12
_MARK = "{digest}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PopulatedRange:
    """Keys `prefix` + 12 digits (1 to `count`) + `suffix`; `{digest}` in the suffix is 16 hex of its XXH3-128.

    The content of an object is its own number, repeated to `size_bytes`.
    """

    prefix: str
    count: int
    size_bytes: int = 100
    suffix: str = ""

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> str:
        number = index + 1
        if _MARK not in self.suffix:
            return f"{self.prefix}{number:0{_DIGITS}d}{self.suffix}"
        digest = xxhash.xxh3_128_hexdigest(self._body(number))[:16]
        return f"{self.prefix}{number:0{_DIGITS}d}{digest.join(self.suffix.split(_MARK))}"

    def keys_from(self, lower: str) -> Iterator[str]:
        for index in range(self._index(lower), self.count):
            yield self[index]

    def find(self, key: str) -> tuple[bytes, str] | None:
        """Body and etag of a key of this range."""
        digits = key[len(self.prefix) : len(self.prefix) + _DIGITS]
        if not key.startswith(self.prefix) or not (digits.isascii() and digits.isdigit()):
            return None
        number = int(digits)
        if not 1 <= number <= self.count or self[number - 1] != key:
            return None
        body = self._body(number)
        return body, f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'

    def _index(self, lower: str) -> int:
        return bisect_left(self, lower)

    def _body(self, number: int) -> bytes:
        digits = f"{number:0{_DIGITS}d}".encode()
        return (digits * (self.size_bytes // _DIGITS + 1))[: self.size_bytes]

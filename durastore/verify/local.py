"""Hashing the local side, through the open descriptor that the proof is about."""

from __future__ import annotations

import os

import xxhash

from durastore.model import Digest

__all__ = ["digest_of"]

_BLOCK_BYTES = 8 << 20


def digest_of(fd: int) -> Digest:
    """XXH3-128 of the whole file behind `fd`, read at explicit offsets. OSError if a byte cannot be read."""
    hasher = xxhash.xxh3_128()
    offset = 0
    while block := os.pread(fd, _BLOCK_BYTES, offset):
        hasher.update(block)
        offset += len(block)
    return Digest(hasher.hexdigest())

"""Mutants of the sweep that no test can or should notice, each with the reason."""

from __future__ import annotations

__all__ = ["EXPLAINED"]

_SIZE = "a pack that comes so far has a size, and never 0: the `or 0` is there for the type"
_BYTES = "a pack has at least a block of 512 bytes: what happens to one of a byte or none cannot be told"
_ATTEST = "durastore/verify/attest.py"

EXPLAINED: dict[str, str] = {
    f"{_ATTEST} | _compare_md5 | size = record.size_bytes or 0 | 0 -> 1": _SIZE,
    f"{_ATTEST} | compare_spots | size = record.size_bytes or 0 | 0 -> 1": _SIZE,
    f"{_ATTEST} | _stretches | step = part_bytes or max(size, 1) | 1 -> 2": _BYTES,
    f"{_ATTEST} | compare_spots | length = room if room <= WHOLE_BYTES else SPOT_BYTES | <= -> <": (
        "a part of exactly 1 MiB is looked into by a block instead of whole, as every larger one is"
    ),
    "durastore/reclaim/foreign.py | ForeignReclaimer._moved | place, private = self._place, secrets.token_hex(16)"
    " | 16 -> 17": "a random name of one byte more is as good",
    "durastore/reclaim/plan.py | plan_reclaim | size = record.size_bytes or 0 | 0 -> 1": _SIZE,
    f'{_ATTEST} | _compare_md5 | joined = b"".join(_md5(fd, at, length=min(step, size - at)).digest() for at in cuts)'
    " | - -> +": "the last part is read to the end of the file instead, which is the same place",
    f"{_ATTEST} | _md5 | hasher = hashlib.md5(usedforsecurity=False) | False -> True": (
        "only a Python built for FIPS tells these apart"
    ),
    f"{_ATTEST} | _md5 | while offset < end and (block := os.pread(fd, min(_HASH_BLOCK, end - offset), offset)): | "
    "< -> <=": "one more read of no bytes, which ends the loop",
    "durastore/verify/verifier.py | Verifier.heed | if reason is not None and self._distrust is None: | and -> or": (
        "of two reasons to stop another one is told"
    ),
}

"""Mutations of bytes and of JSON, for fuzzing without any engine and as a helper of one.

Duty: derive odd inputs from sound ones, the same for the same random state. Knows nothing of any format.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

__all__ = ["ODD_VALUES", "mutate_bytes", "mutate_json", "mutate_tree"]

_ODD_BYTES = (0, 1, 0x09, 0x0A, 0x20, 0x22, 0x2E, 0x2F, 0x30, 0x5C, 0x7B, 0x7F, 0x80, 0xC0, 0xED, 0xFF)
_TEXTS = (
    b'""',
    b"[]",
    b"{}",
    b",",
    b'":',
    b"null",
    b"1e400",
    b"-0",
    b"NaN",
    b"\\u0000",
    b"\\ud800",
    b"[" * 99,
    b"9" * 99,
)
_ODD_NUMBERS = (0, 1, 7, 255, 256, 511, 512, 65_535, 1 << 24, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, (1 << 63) - 1)
ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 1 << 31, 1 << 62, 1 << 63, 1 << 64, -(1 << 63), 10**40, 10**400, 0.5, -0.0, 1e308,
    "", ".", "..", "/", "../../etc/passwd", "a//b", "\x00", "\u2028", "\ud800", "e\u0301", "A" * 300, "0" * 32,
    "f" * 16, "1", "2", "1.0", "raw", "BF16", [], {}, [[]], [0], [1 << 62], {"a": {}}, [None], ["a"],
)  # fmt: skip


def mutate_bytes(data: bytes, rng: random.Random, *, others: Sequence[bytes] = (), max_bytes: int = 4096) -> bytes:
    """`data` with one to eight spots overwritten, moved, cut, doubled, or replaced by a piece of another input."""
    out = bytearray(data)
    for _ in range(1 << rng.choice((0, 0, 1, 3))):
        _havoc(out, rng, others=others)
    return bytes(out[:max_bytes])


def _havoc(out: bytearray, rng: random.Random, *, others: Sequence[bytes]) -> None:
    how = rng.randrange(9)
    at = rng.randrange(len(out) + 1)
    size = min(1 << rng.randrange(10), 1 + rng.randrange(64) * rng.randrange(16))
    if how == 0 and at < len(out):
        out[at] ^= 1 << rng.randrange(8)
    elif how == 1 and at < len(out):
        out[at] = rng.choice(_ODD_BYTES)
    elif how == 2:
        width = rng.choice((1, 2, 4, 8))
        number = rng.choice(_ODD_NUMBERS) & ((1 << 8 * width) - 1)
        out[at : at + width] = number.to_bytes(width, rng.choice(("little", "big")))
    elif how == 3:
        del out[at : at + size]
    elif how == 4:
        out[at:at] = out[at : at + size]
    elif how == 5:
        out[at : at + size] = rng.randbytes(min(size, 64)) if rng.randrange(2) else rng.choice(_TEXTS)
    elif how == 6 and others:
        other = rng.choice(others)
        start = rng.randrange(len(other) + 1)
        out[at : at + rng.choice((0, size))] = other[start : start + size]
    elif how == 7 and rng.randrange(8) == 0:
        del out[at:]
    else:
        source = rng.randrange(len(out) + 1)
        out[at : at + size] = out[source : source + size]


def mutate_json(text: bytes, rng: random.Random) -> bytes | None:
    """The same JSON with one to four values, keys or items changed; None where `text` is not JSON."""
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError):
        return None
    for _ in range(1 + rng.randrange(4)):
        tree = mutate_tree(tree, rng)
    ensure_ascii = rng.randrange(2) == 0
    return json.dumps(tree, ensure_ascii=ensure_ascii, separators=(",", ":")).encode("utf-8", "surrogatepass")


def mutate_tree(tree: Any, rng: random.Random) -> Any:
    """`tree` with one spot changed, in place where that is possible."""
    spots: list[tuple[Any, Any]] = []
    todo = [tree]
    while todo:
        node = todo.pop()
        keys = list(node) if isinstance(node, dict) else list(range(len(node))) if isinstance(node, list) else []
        spots += [(node, key) for key in keys]
        todo += [node[key] for key in keys]
    if not spots or rng.randrange(200) == 0:
        return deepcopy(rng.choice(ODD_VALUES))
    place, key = rng.choice(spots)
    how = rng.randrange(6)
    if how == 0:
        del place[key]
    elif how == 1 and isinstance(place, list):
        place.insert(key, deepcopy(place[key]))
    elif how == 1:
        place[rng.choice(["", "x", key + "x", "__metadata__", "../x"])] = deepcopy(place[key])
    elif how == 2:
        other, other_key = rng.choice(spots)
        if other_key in other if isinstance(other, dict) else other_key < len(other):
            place[key] = deepcopy(other[other_key])
    else:
        place[key] = _odd_form(place[key], rng)
    return tree


def _odd_form(value: Any, rng: random.Random) -> Any:
    if isinstance(value, str) and rng.randrange(3):
        at = rng.randrange(len(value) + 1)
        piece = rng.choice(("", "\x00", "/", "..", "\ud83d", "\u00e9", "0", value[:3], "," * 50))
        return value[:at] + piece + value[at + rng.randrange(3) :]
    if type(value) is int and rng.randrange(3):
        return value + rng.choice((-1, 1, -value, value, 1 << 32, 7))
    return deepcopy(rng.choice(ODD_VALUES))

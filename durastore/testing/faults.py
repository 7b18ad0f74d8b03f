"""Which calls of a `FaultyStore` fail, and how.

Duty: the names of the faults, and one rule as a value that could come due. Must never fail a call itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from types import MappingProxyType

from durastore.errors import InvalidInput

__all__ = ["Fault", "FaultRule"]


class Fault(Enum):
    """What goes wrong in one call."""

    DROP_REQUEST = "the request never arrives"
    DROP_RESPONSE = "it happens, and the answer is lost"
    SERVER_ERROR = "500"
    SLOW_DOWN = "503 SlowDown"
    FORBIDDEN = "403 AccessDenied"
    ABSENT = "404 although the object is there"
    STALE_HEAD = "head answers as before the last write of the key"
    WRONG_BYTE = "a read hands out one wrong byte"
    SHORT_READ = "a read hands out half of the bytes as if they were all"
    TRUNCATE = "a read ends early, which the adapter notices"
    CUT_BODY = "the connection breaks in the middle of a read"
    STORE_EMPTY = "the write is acknowledged and zero bytes are stored"
    LOSE_OBJECT = "the write is acknowledged and the object is gone afterwards"
    ZERO_BLOCK = "the write is acknowledged; one 4 KiB block reads as zeros, size and checksum look right"
    FLIP_BYTE = "the write is acknowledged; one stored byte is wrong, size and checksum look right"
    SHORT_PAGE = "a listing lacks the last key of its first page"
    REPEAT_PAGE = "a listing gives its first page twice"


_OPS = (
    "put",
    "head",
    "fetch",
    "fetch_chunks",
    "list",
    "create_upload",
    "upload_part",
    "complete_upload",
    "abort_upload",
    "list_parts",
    "list_uploads",
    "check_bucket",
)
_READS = ("fetch", "fetch_chunks")
_ONLY_IN: Mapping[Fault, tuple[str, ...]] = MappingProxyType(
    {
        Fault.STALE_HEAD: ("head",),
        Fault.WRONG_BYTE: _READS,
        Fault.SHORT_READ: _READS,
        Fault.TRUNCATE: _READS,
        Fault.CUT_BODY: _READS,
        Fault.STORE_EMPTY: ("put",),
        Fault.LOSE_OBJECT: ("put", "complete_upload"),
        Fault.ZERO_BLOCK: ("put", "complete_upload"),
        Fault.FLIP_BYTE: ("put", "complete_upload"),
        Fault.SHORT_PAGE: ("list",),
        Fault.REPEAT_PAGE: ("list",),
        Fault.DROP_RESPONSE: tuple(op for op in _OPS if op != "check_bucket"),
    }
)
"""The others act on any call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRule:
    """`fault` at calls number `first` to `first + count - 1` of `op`, counted over calls whose key holds `key_part`.

    `op` is a method name of the port (`put`, `head`, `fetch`, `fetch_chunks`, `list`, `upload_part`, ...) or `*`.
    `InvalidInput` for a rule that could never be due: the test that rests on it would pass for nothing.
    """

    op: str
    fault: Fault
    first: int = 1
    count: int | None = 1
    """None: from `first` on, for ever."""
    key_part: str = ""

    def __post_init__(self) -> None:
        if self.op not in ("*", *_OPS):
            near = get_close_matches(str(self.op), _OPS, n=3)
            hint = f"did you mean {' or '.join(near)}?" if near else f"one of {' '.join(_OPS)}"
            raise InvalidInput(f"no operation of a store is called {ascii(self.op)[:60]}", hint=hint)
        if not isinstance(self.fault, Fault):
            raise InvalidInput(f"{ascii(self.fault)[:60]} is no fault", hint="give one of `Fault`")
        ops = _ONLY_IN.get(self.fault, _OPS)
        if self.op not in ("*", *ops):
            raise InvalidInput(f"{self.fault.name} never acts on {self.op}", hint=f"it acts on {' '.join(ops)}")
        if self.first < 1 or (self.count is not None and self.count < 1):
            raise InvalidInput(f"first {self.first}, count {self.count}: no call is due", hint="both from 1")

    def is_due(self, number: int) -> bool:
        return number >= self.first and (self.count is None or number < self.first + self.count)

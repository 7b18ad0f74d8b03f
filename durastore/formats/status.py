"""Status files, format 1: the last words of a process about itself (`docs/format/status.md`).

Duty: a record to the bytes of one of two slots, and both slots back to the newer whole record. No I/O. A torn or
foreign file is None, never an error and never a guess: what is shown to people must not stop anything.
"""

from __future__ import annotations

import dataclasses
import json
import struct
import types
import typing
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import xxhash

from durastore.observe.status import AtRisk, StoreRecord, WorkerRecord

__all__ = ["SLOT_BYTES", "STORE_STATUS_NAME", "WORKER_STATUS_NAME", "parse_status", "render_slot"]

STORE_STATUS_NAME = "store.status"
WORKER_STATUS_NAME = "worker.status"
SLOT_BYTES = 32_768
_MAGIC = b"DSTATUS1"
_HEAD = struct.Struct("<8sQIQ")
"""Magic, number of the record, length of its text, XXH3-64 of number and text."""
Record = TypeVar("Record", StoreRecord, WorkerRecord)


def render_slot(record: StoreRecord | WorkerRecord, *, number: int) -> bytes:
    """One slot, of the whole slot's size or less. Lists give way where a record would not fit."""
    text = _text(record)
    if len(text) > SLOT_BYTES - _HEAD.size:
        text = _text(_shortened(record))
    head = _HEAD.pack(_MAGIC, number, len(text), _digest(number, text))
    return head + text


def parse_status(data: bytes, kind: type[Record]) -> Record | None:
    """The newer whole record of both slots; None if there is none, or if it is of another kind or version."""
    texts = [_text_of(data[at : at + SLOT_BYTES]) for at in (0, SLOT_BYTES)]
    newest = max((found for found in texts if found is not None), default=None)
    if newest is None:
        return None
    try:
        facts = json.loads(newest[1])
        if not isinstance(facts, dict) or facts.get("kind") != kind.__name__:
            return None
        record = _reader_of(kind)(facts)
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return typing.cast("Record", record)


def _text(record: StoreRecord | WorkerRecord) -> bytes:
    facts = {"kind": type(record).__name__, **dataclasses.asdict(record)}
    return json.dumps(facts, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")


def _shortened(record: StoreRecord | WorkerRecord) -> StoreRecord | WorkerRecord:
    if isinstance(record, StoreRecord):
        at_risk = AtRisk(total=record.at_risk.total, shown=record.at_risk.shown[:1])
        return replace(record, failures=record.failures[:1], happenings=record.happenings[-2:], at_risk=at_risk)
    return replace(record, happenings=record.happenings[-2:])


def _digest(number: int, text: bytes) -> int:
    return xxhash.xxh3_64_intdigest(number.to_bytes(8, "little") + text)


def _text_of(slot: bytes) -> tuple[int, bytes] | None:
    if len(slot) < _HEAD.size:
        return None
    magic, number, length, digest = _HEAD.unpack_from(slot)
    text = slot[_HEAD.size : _HEAD.size + length]
    return (number, text) if magic == _MAGIC and len(text) == length and _digest(number, text) == digest else None


# --- JSON to values ------------------------------------------------------------------------------------------------

Reader = Callable[[Any], Any]
_READERS: dict[Any, Reader] = {}


def _reader_of(kind: Any) -> Reader:
    if kind not in _READERS:
        _READERS[kind] = _made_reader(kind)
    return _READERS[kind]


def _made_reader(kind: Any) -> Reader:
    """What makes a value of `kind` of JSON. It raises TypeError where it is none; fields that are not known are left
    out, as of a later minor. Put together once for each kind: a monitor reads over a hundred records a second.
    """
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _object_reader(kind)
    if typing.get_origin(kind) is tuple:
        return _list_reader(typing.get_args(kind)[0])
    if typing.get_origin(kind) is types.UnionType:
        inner = _reader_of(next(each for each in typing.get_args(kind) if each is not type(None)))
        return lambda raw: None if raw is None else inner(raw)
    allowed = (int, float) if kind is float else (kind,)

    def plain(raw: Any) -> Any:
        if type(raw) not in allowed:
            raise TypeError(f"{raw!r:.40} is no {kind}")
        return raw

    return plain


def _object_reader(kind: type[Any]) -> Reader:
    readers = {name: _reader_of(each) for name, each in typing.get_type_hints(kind).items()}

    def read(raw: Any) -> Any:
        if type(raw) is not dict:
            raise TypeError(f"{kind.__name__} is no object")
        return kind(**{name: readers[name](value) for name, value in raw.items() if name in readers})

    return read


def _list_reader(kind: Any) -> Reader:
    of = _reader_of(kind)

    def read(raw: Any) -> Any:
        if type(raw) is not list:
            raise TypeError("no list")
        return tuple([of(each) for each in raw])

    return read

"""Whether a file of a known format can be whole: its length against what its own header or directory says.

Duty: `find_fault` for one open file, with a few small reads. It finds what a full disk, a kill or a crash leaves
(truncated, zeros in place of data), never a flipped bit. Must never call a file damaged because it could not be read
(that is an OSError), nor because it is another thing than its suffix says: that one may be whole, and is only odd.
"""

from __future__ import annotations

import ast
import os
import struct
import threading
import zipfile
from dataclasses import dataclass
from io import BufferedReader, FileIO
from pathlib import PurePosixPath
from typing import Any

from durastore.adopt.zero_tails import NumberBlock, ZeroTail, find_zero_tail, is_end_unwritten
from durastore.errors import IntegrityError
from durastore.model import parse_json

__all__ = ["DATA_SUFFIXES", "Fault", "find_fault", "is_data", "tell_damage"]

_MAX_HEADER_BYTES = 100 << 20
_PICKLE = b"\x80"
_NPY = b"\x93NUMPY"
_ZIP_MEMBER = b"PK\x03\x04"
_ZIPS = frozenset({".ckpt", ".pt", ".pth", ".npz"})
DATA_SUFFIXES = frozenset({".safetensors", ".npy"}) | _ZIPS
"""Formats whose wholeness can be told. Files of others are never sent and never moved."""

_PARSING = threading.Lock()
"""Up to 3.12 CPython counts the depth of all syntax trees under way together: parsing in two threads at once may raise
SystemError."""


def is_data(path: str) -> bool:
    """Whether the file's format is one that can be looked into, by its suffix."""
    return PurePosixPath(path).suffix in DATA_SUFFIXES  # ".npy" alone is a name, not a suffix


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Why a file is not, whole, what its suffix says."""

    reason: str
    is_damage: bool
    """It ends before its header says, or holds zeros in place of data. Else it may be whole and something else: more
    than one array in one file, another format, a newer one."""
    is_suspect: bool = False
    """It ends in zeros that may be lost pages or data, and nothing tells which. Never with `is_damage`."""


def find_fault(fd: int, path: str) -> Fault | None:
    """What speaks against the open file; None where nothing does, also for formats that cannot be looked into.

    OSError where it cannot be read. Reads header, directory and tail only. Safe to repeat.
    """
    if not is_data(path):
        return None  # of such a file nothing can be told
    size = os.fstat(fd).st_size
    if size == 0:
        return _damage("has no bytes")
    is_unwritten = is_end_unwritten(fd, size)  # before anything is read
    suffix = PurePosixPath(path).suffix
    blocks: list[NumberBlock] = []
    is_zip = suffix in _ZIPS and os.pread(fd, 1, 0) != _PICKLE
    if is_zip:
        fault = _zip_fault(fd)
    elif suffix in _ZIPS:
        fault = None  # what torch wrote before its zip format, which does not tell its length
    else:
        look = _safetensors_fault if suffix == ".safetensors" else _npy_fault
        fault = look(fd, size, blocks=blocks)
    if fault is not None and fault.is_damage:
        return fault
    zeros = find_zero_tail(fd, size)
    if zeros is None:
        return fault
    if zeros.start == 0:
        return _damage(f"holds nothing but {size} zeros")  # no format begins with one: of whatever size, never written
    if fault is not None:
        return fault  # somebody's bytes behind the data, or somebody's format, which may well end in zeros
    if is_zip:
        return _odd("has zeros behind its zip directory")  # which is there, and every member where it says
    return _zeros_fault(fd, zeros, blocks=blocks, is_unwritten=is_unwritten)


def _zeros_fault(fd: int, zeros: ZeroTail, *, blocks: list[NumberBlock], is_unwritten: bool) -> Fault:
    what = f"holds nothing but zeros from byte {zeros.start} to its end at {zeros.size_bytes}"
    if is_unwritten:
        return _damage(f"{what}, which nobody ever wrote")
    if zeros.is_torn(fd, blocks):
        return _damage(f"{what}, from the middle of a row of numbers on")
    return Fault(reason=f"{what}: data, or pages that a crash lost", is_damage=False, is_suspect=True)


def tell_damage(fd: int, path: str) -> tuple[bool, str | None]:
    """Whether the file's format tells a length and the file has it, and else why it is damaged: None also where that
    cannot be told. As `find_fault` otherwise.
    """
    fault = find_fault(fd, path)
    if fault is None:
        return _tells_length(fd, path), None
    return False, fault.reason if fault.is_damage else None


def _tells_length(fd: int, path: str) -> bool:
    """What torch wrote before its zip format, and arrays of objects, say nothing of their length."""
    if PurePosixPath(path).suffix in _ZIPS:
        return os.pread(fd, 1, 0) != _PICKLE
    return not (path.endswith(".npy") and b"'|O'" in os.pread(fd, 256, 0))


def _damage(reason: str) -> Fault:
    return Fault(reason=reason, is_damage=True)


def _odd(reason: str) -> Fault:
    return Fault(reason=reason, is_damage=False)


def _against(size: int, expected: int) -> Fault | None:
    if size < expected:
        return _damage(f"has {size} bytes, its header says {expected}")
    return _odd(f"has {size - expected} bytes more than its header says") if size > expected else None


def _safetensors_fault(fd: int, size: int, *, blocks: list[NumberBlock]) -> Fault | None:
    """8 + header + the end of the last tensor is the length of the file. Adds to `blocks`."""
    lead = os.pread(fd, 8, 0)
    header_bytes = int.from_bytes(lead, "little")
    if len(lead) < 8:
        return _damage("ends inside its header")
    if not 2 <= header_bytes <= _MAX_HEADER_BYTES:
        return _odd("does not begin with the length of a safetensors header")
    if 8 + header_bytes > size:
        return _damage(f"ends inside its header ({size} of {8 + header_bytes} bytes)")
    try:
        header = parse_json(os.pread(fd, header_bytes, 8), what="safetensors header")
        entries = [entry for name, entry in header.items() if name != "__metadata__"]
        expected = 8 + header_bytes + max((entry["data_offsets"][1] for entry in entries), default=0)
        blocks += [_block_of(entry, start=8 + header_bytes) for entry in entries if _is_float(entry["dtype"])]
    except (IntegrityError, AttributeError, KeyError, TypeError, ValueError, IndexError) as exc:
        return _odd(f"has no readable safetensors header: {str(exc)[:120]}")
    if type(expected) is not int:
        return _odd("has no readable safetensors header: an offset is no whole number")
    return _against(size, expected)


def _npy_fault(fd: int, size: int, *, blocks: list[NumberBlock]) -> Fault | None:
    """The header says type and shape, which say the length (pickled objects have none, and are taken as they are). Adds
    to `blocks`.
    """
    lead = os.pread(fd, 12, 0)
    if not lead.startswith(_NPY[: len(lead)]):
        return _odd("does not begin as a .npy file")
    if len(lead) < 12:
        return _damage("ends inside its header")
    start, length = (10, lead[8:10]) if lead[6] == 1 else (12, lead[8:12])
    header_bytes = int.from_bytes(length, "little")
    if start + header_bytes > size or header_bytes > _MAX_HEADER_BYTES:
        return _damage("ends inside its header")
    try:
        text = os.pread(fd, header_bytes, start).decode("latin-1")
        with _PARSING:
            header = ast.literal_eval(text)
        descr, shape = header["descr"], header["shape"]
        if not isinstance(descr, str) or descr.endswith("O"):
            return None
        begin, item_bytes = start + header_bytes, _item_bytes(descr)
        expected = begin + item_bytes * _product(shape)
        if descr.lstrip("<>|=").startswith("f") and not header.get("fortran_order"):
            row_bytes = item_bytes * shape[-1] if len(shape) > 1 else 0
            blocks.append(NumberBlock(start=begin, stop=expected, row_bytes=row_bytes))
    except (ValueError, SyntaxError, KeyError, TypeError, MemoryError, RecursionError) as exc:
        return _odd(f"has no readable .npy header: {str(exc)[:120]}")
    return _against(size, expected)


def _is_float(dtype: object) -> bool:
    return isinstance(dtype, str) and dtype.startswith(("F", "BF"))


def _block_of(entry: dict[str, Any], *, start: int) -> NumberBlock:
    """Zeros tell nothing about masks and ids, which are full of them, nor about a single row."""
    begin, end = entry["data_offsets"]
    rows = _product(tuple(entry["shape"][:-1])) if len(entry["shape"]) > 1 else 0
    return NumberBlock(start=start + begin, stop=start + end, row_bytes=(end - begin) // rows if rows else 0)


def _item_bytes(descr: str) -> int:
    digits = descr.lstrip("<>|=").partition("[")[0][1:]
    return int(digits) * (4 if descr.lstrip("<>|=").startswith("U") else 1)


def _product(shape: tuple[int, ...]) -> int:
    count = 1
    for extent in shape:
        if type(extent) is not int or extent < 0:
            raise ValueError("a shape of no whole numbers")
        count *= extent
    return count


def _zip_fault(fd: int) -> Fault | None:
    """The directory of a zip archive is at its end and names every member's place: a file cut short has none."""
    try:
        with BufferedReader(FileIO(os.dup(fd), "rb")) as stream:
            stream.seek(0)
            with zipfile.ZipFile(stream) as archive:
                members = archive.infolist()
                start = archive.start_dir
    except (zipfile.BadZipFile, ValueError, NotImplementedError, EOFError, OverflowError, struct.error) as exc:
        # whatever zipfile makes of a directory that is none
        lead = os.pread(fd, 4, 0)
        is_cut = lead == _ZIP_MEMBER[: len(lead)]  # it began as an archive
        return Fault(reason=f"has no readable zip directory: {str(exc)[:120]}", is_damage=is_cut)
    if not members:
        return _odd("is an archive without members")
    for member in members:
        if member.header_offset + member.compress_size > start:
            return _damage(f"its member {member.filename[:80]!r} reaches beyond the data")
        lead = os.pread(fd, 4, member.header_offset)
        if lead != _ZIP_MEMBER:
            fault = f"its member {member.filename[:80]!r} is not where the directory says"
            return Fault(reason=fault, is_damage=lead == bytes(4))
    return None

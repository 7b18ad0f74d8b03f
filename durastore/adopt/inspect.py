"""Whether a file of a known format can be whole: its length against what its own header or directory says.

Duty: `find_fault` for one open file, with a few small reads. It finds what a full disk, a kill or a crash leaves
(truncated, zeros in place of data), never a flipped bit. Must never call a file damaged because it could not be read
(that is an OSError), nor because it is another thing than its suffix says: that one may be whole, and is only odd.
"""

from __future__ import annotations

import ast
import os
import threading
import zipfile
from dataclasses import dataclass
from io import BufferedReader, FileIO
from pathlib import PurePosixPath

from durastore.errors import IntegrityError
from durastore.model import parse_json

__all__ = ["DATA_SUFFIXES", "Fault", "find_fault", "is_data", "tell_damage"]

_PAGE_BYTES = 4096
_NEAR_PAGE_BYTES = 64
_MAX_HEADER_BYTES = 100 << 20
_PICKLE = b"\x80"
_NPY = b"\x93NUMPY"
_ZIP_MEMBER = b"PK\x03\x04"
_ZIPS = frozenset({".pt", ".pth", ".npz"})
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


def find_fault(fd: int, path: str) -> Fault | None:
    """What speaks against the open file; None where nothing does.

    OSError where it cannot be read. Reads header, directory and tail only. Safe to repeat.
    """
    size = os.fstat(fd).st_size
    if size == 0:
        return _damage("has no bytes")
    suffix = PurePosixPath(path).suffix
    if suffix in _ZIPS and os.pread(fd, 1, 0) != _PICKLE:
        fault = _zip_fault(fd)
    elif suffix in _ZIPS:
        fault = None  # what torch wrote before its zip format, which does not tell its length
    else:
        fault = _safetensors_fault(fd, size) if suffix == ".safetensors" else _npy_fault(fd, size)
    if fault is not None and fault.is_damage:
        return fault
    zeros = _zero_tail(fd, size)
    if zeros is None or (fault is not None and fault.reason.endswith(_LONGER)):
        return fault  # what its header tells of is all there: what comes behind is somebody's
    return _damage(zeros)


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


_LONGER = "more than its header says"


def _damage(reason: str) -> Fault:
    return Fault(reason=reason, is_damage=True)


def _odd(reason: str) -> Fault:
    return Fault(reason=reason, is_damage=False)


def _against(size: int, expected: int) -> Fault | None:
    if size < expected:
        return _damage(f"has {size} bytes, its header says {expected}")
    return _odd(f"has {size - expected} bytes {_LONGER}") if size > expected else None


def _safetensors_fault(fd: int, size: int) -> Fault | None:
    """8 + header + the end of the last tensor is the length of the file."""
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
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        expected = 8 + header_bytes + max(ends, default=0)
    except (IntegrityError, AttributeError, KeyError, TypeError, IndexError) as exc:
        return _odd(f"has no readable safetensors header: {str(exc)[:120]}")
    if type(expected) is not int:
        return _odd("has no readable safetensors header: an offset is no whole number")
    return _against(size, expected)


def _npy_fault(fd: int, size: int) -> Fault | None:
    """The header says type and shape, which say the length. (Pickled objects have none, and are taken as they are.)"""
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
        expected = start + header_bytes + _item_bytes(descr) * _product(shape)
    except (ValueError, SyntaxError, KeyError, TypeError, MemoryError, RecursionError) as exc:
        return _odd(f"has no readable .npy header: {str(exc)[:120]}")
    return _against(size, expected)


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
    except (zipfile.BadZipFile, ValueError, NotImplementedError, EOFError) as exc:
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


def _zero_tail(fd: int, size: int) -> str | None:
    """Zeros from a page's edge to the end are pages that were never written. Zeros that begin anywhere else are taken
    for data: tensors do end in zeros.
    """
    end = size
    while end:
        start = max(0, end - (1 << 20))
        block = os.pread(fd, end - start, start).rstrip(b"\0")
        if block:
            end = start + len(block)
            break
        end = start
    if end == 0:
        return f"holds nothing but {size} zeros"  # no format begins with one: of whatever size, it was never written
    to_edge = -end % _PAGE_BYTES
    if size - end - to_edge < _PAGE_BYTES or to_edge >= _NEAR_PAGE_BYTES:
        return None
    return f"holds nothing but zeros from byte {end} to its end at {size}"

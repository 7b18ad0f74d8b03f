"""A pack as a plain tar: writing member headers, and walking a tar that nothing vouches for.

Duty: `docs/format/pack.md` as code. Member headers are those of `tarfile`, the common ones made from a template; the
walker is our own, bounded and strict: every fault is `IntegrityError`. Must never interpret a member's bytes.
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from durastore.errors import IntegrityError, InvalidInput
from durastore.model import Run, SampleId

__all__ = [
    "RUN_MEMBER",
    "TRAILER",
    "PackMember",
    "iter_pack",
    "member_header",
    "member_name",
    "member_padding",
    "run_member",
]

BLOCK = 512
TRAILER = bytes(2 * BLOCK)
RUN_MEMBER = "__durastore_run__"
SUFFIX = ".safetensors"

MAX_PAX_BYTES = 64 << 10
MAX_TRAILER_BYTES = 10_240
_MAX_BYTES = 1 << 62

# WebDataset takes members below a folder of this form for its own and skips them in silence.
_SKIPPED_FOLDER = re.compile(r"__[^/]*__/")
_OCTAL = re.compile(rb"[0-7]+[ \0]*")
_PAX_LENGTH = re.compile(rb"([1-9][0-9]{0,5}) ")


_NAME_BYTES = 100
_OCTAL_BYTES = 8**11 - 1

# --- writing -------------------------------------------------------------------------------------------------------


def member_name(sample_id: SampleId) -> str:
    """The member's path: the id with `%` as %25 and dots of its last segment as %2E, and `.safetensors`.

    Percent-decoding gives the id back. WebDataset splits at the first dot of the last segment, so its key is the id.
    """
    folder, slash, last = sample_id.text.replace("%", "%25").rpartition("/")
    name = f"{folder}{slash}{last.replace('.', '%2E')}{SUFFIX}"
    return f"%5F{name[1:]}" if _SKIPPED_FOLDER.match(name) else name


def member_header(sample_id: SampleId, length: int) -> bytes:
    """The tar header blocks (with a PAX header where path or size need one) of a sample of `length` bytes."""
    return _header(member_name(sample_id), length)


def member_padding(length: int) -> bytes:
    """The zero bytes between a member's `length` bytes and the next block."""
    return bytes(-length % BLOCK)


def run_member(run: Run) -> bytes:
    """The whole first member of a tar pack: header, the run's text, padding."""
    body = run.text.encode()
    return _header(RUN_MEMBER, len(body)) + body + member_padding(len(body))


def _header(name: str, length: int) -> bytes:
    if not 0 <= length <= _MAX_BYTES:
        raise InvalidInput(f"a member of {length} bytes does not fit a pack")
    if len(name) <= _NAME_BYTES and length <= _OCTAL_BYTES and name.isascii():
        head = name.encode("ascii").ljust(_NAME_BYTES, b"\0")
        size = b"%011o" % length
        # the template's own sum counts the checksum field as blanks, as the format asks
        return b"%b%b%b%b%06o%b" % (head, _MODE, size, _TIME, _FIXED_SUM + sum(head) + sum(size), _REST)
    return _slow_header(name, length)


def _slow_header(name: str, length: int) -> bytes:
    """What tarfile writes: also for long, non-ASCII and huge members, at ten times the cost."""
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = length, 0o600, 0
    return info.tobuf(tarfile.PAX_FORMAT, encoding="utf-8", errors="strict")


# The fields of a header that are the same for every member: mode and owner, time, and what follows the checksum.
_TEMPLATE = _slow_header("x", 0)
_MODE, _TIME, _REST = _TEMPLATE[100:124], _TEMPLATE[135:148], _TEMPLATE[154:]
_FIXED_SUM = sum(_MODE) + sum(_TIME) + sum(_TEMPLATE[156:]) + 8 * 0x20


# --- walking -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PackMember:
    """One file of a tar pack; `offset` is that of its bytes."""

    name: str
    offset: int
    length: int


def iter_pack(read_at: Callable[[int, int], bytes], size: int) -> Iterator[PackMember]:
    """The members of a tar pack of `size` bytes, in order, the run member among them.

    `read_at(offset, length)` gives exactly these bytes. Only headers and padding are read. The trailer may be missing
    (a pack sealed by recovery has none). Raises `IntegrityError` on anything a pack writer would not have written.
    """
    if size % BLOCK:
        raise IntegrityError(f"a tar is made of 512-byte blocks; {size} bytes are not")
    at = 0
    while at < size:
        block = _read(read_at, at, length=BLOCK)
        if not any(block):
            _check_trailer(read_at, at, size=size)
            return
        member, at = _parse_member(read_at, block, at=at, size=size)
        yield member


def _parse_member(read_at: Callable[[int, int], bytes], block: bytes, *, at: int, size: int) -> tuple[PackMember, int]:
    """The member whose first header block is `block`, and where the next one begins."""
    start = at
    kind, name, length = _parse_block(block, at=at)
    at += BLOCK
    if kind == b"x":
        if length > MAX_PAX_BYTES or at + _rounded(length) + BLOCK > size:
            raise _odd(start, "has an extended header of impossible length")
        records = _parse_pax(_read(read_at, at, length=_rounded(length)), length, at=start)
        at += _rounded(length)
        kind, name, length = _parse_block(_read(read_at, at, length=BLOCK), at=at)
        at += BLOCK
        name = records.get("path", name)
        length = _decimal(records["size"], at=start) if "size" in records else length
    if kind not in (b"0", b"\0"):
        raise _odd(start, "is not a regular file")
    if length > size - at or _rounded(length) > size - at:
        raise _odd(start, "reaches past the end of the pack")
    if any(_read(read_at, at + length, length=-length % BLOCK)):
        raise _odd(start, "is not padded with zero bytes")
    if any(part in ("", ".", "..") for part in name.split("/")) or "\0" in name:
        raise _odd(start, "has an unsafe name")
    return PackMember(name=name, offset=at, length=length), at + _rounded(length)


def _parse_block(block: bytes, *, at: int) -> tuple[bytes, str, int]:
    """Type flag, name and size of one ustar header block whose checksum is right."""
    if block[257:265] != b"ustar\x0000":
        raise _odd(at, "has no ustar header")
    if _octal(block[148:156], at=at) != sum(block) - sum(block[148:156]) + 8 * 0x20:
        raise _odd(at, "has a wrong header checksum")
    name = _text(block[:100].split(b"\0", 1)[0], at=at)
    prefix = _text(block[345:500].split(b"\0", 1)[0], at=at)
    return block[156:157], f"{prefix}/{name}" if prefix else name, _octal(block[124:136], at=at)


def _parse_pax(raw: bytes, length: int, *, at: int) -> dict[str, str]:
    """The records `<length> <key>=<value>\\n` of an extended header; only path and size are known."""
    records: dict[str, str] = {}
    position = 0
    while position < length:
        found = _PAX_LENGTH.match(raw, position, length)
        end = position + int(found[1]) if found else 0
        if not found or not found.end() < end <= length or raw[end - 1 : end] != b"\n":
            raise _odd(at, "has a malformed extended header")
        key, equals, value = raw[found.end() : end - 1].partition(b"=")
        keyword = _text(key, at=at)
        if not equals or keyword not in ("path", "size") or keyword in records:
            raise _odd(at, "has an extended header record no pack has")
        records[keyword] = _text(value, at=at)
        position = end
    if any(raw[length:]):
        raise _odd(at, "has an extended header that is not padded with zero bytes")
    return records


def _check_trailer(read_at: Callable[[int, int], bytes], at: int, *, size: int) -> None:
    if size - at > MAX_TRAILER_BYTES or any(_read(read_at, at, length=size - at)):
        raise IntegrityError(f"the pack's trailer at byte {at} is not {len(TRAILER)} zero bytes")


def _read(read_at: Callable[[int, int], bytes], offset: int, *, length: int) -> bytes:
    data = read_at(offset, length) if length else b""
    if len(data) != length:
        raise IntegrityError(f"the pack ends at byte {offset + len(data)}, inside a member")
    return data


def _octal(field: bytes, *, at: int) -> int:
    if not _OCTAL.fullmatch(field):
        raise _odd(at, "has a number that is not octal")
    return int(field.rstrip(b" \0"), 8)


def _decimal(text: str, *, at: int) -> int:
    if not re.fullmatch("[0-9]{1,19}", text) or int(text) > _MAX_BYTES:
        raise _odd(at, "has an impossible size")
    return int(text)


def _text(raw: bytes, *, at: int) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as exc:
        raise _odd(at, "has a name that is not UTF-8") from exc


def _rounded(length: int) -> int:
    return length + -length % BLOCK


def _odd(at: int, what: str) -> IntegrityError:
    return IntegrityError(f"the pack's member at byte {at} {what}", offset=at)

"""The nouns of durastore as frozen values that check themselves.

Duty: identities (`SampleId`, `ObjectKey`, `Digest`, `WriterId`), what a sample and a manifest row are, and how strongly
a remote copy is known. No I/O. Must never hold a handle, a path or a secret.
"""

from __future__ import annotations

import json
import re
import secrets
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any

import xxhash

from durastore.errors import IntegrityError, InvalidInput, InvalidSampleId
from durastore.texts import JSON_HINT, odd_member

__all__ = [
    "VERBATIM_SCHEMA",
    "Digest",
    "Evidence",
    "EvidenceLevel",
    "ManifestRow",
    "ObjectFacts",
    "ObjectKey",
    "PackKind",
    "PackState",
    "Run",
    "Sample",
    "SampleEntry",
    "SampleId",
    "TensorSpec",
    "Tombstone",
    "WriterId",
    "id_fault",
    "json_items",
    "parse_json",
    "render_json",
]

MAX_ID_BYTES = 512
VERBATIM_SCHEMA = '"verbatim"'
"""The schema of a row whose object is a file kept as it was: its digest is the file's, and there is no header."""
MAX_RUN_BYTES = 262_144
MAX_JSON_DEPTH = 64
MAX_JSON_ITEMS = 1_000_000
_JSON_MARKS = "[{,:"
_HEX = frozenset("0123456789abcdef")


@dataclass(frozen=True, slots=True, order=True)
class SampleId:
    """A sample's name: NFC UTF-8, 1..512 bytes, no control characters, no empty, `.` or `..` segment between slashes.

    Raises `InvalidSampleId`, before anything is written, with the reason.
    """

    text: str

    def __post_init__(self) -> None:
        reason = id_fault(self.text)
        if reason:
            shown = ascii(self.text) if isinstance(self.text, str) else repr(type(self.text))
            raise InvalidSampleId(
                f"sample id {shown[:120]} {reason}", hint="use a non-empty NFC UTF-8 id of at most 512 bytes"
            )

    def __str__(self) -> str:
        return self.text

    def digest(self) -> Digest:
        """XXH3-128 of the UTF-8 id: the key of membership indexes."""
        return Digest.of(self.text.encode())


# What nearly every id is: printable ASCII, no segment that begins with a dot. The rest is looked at closely.
_PLAIN_ID = re.compile(r"(?!\.)[ -.0-~]+(?:/(?!\.)[ -.0-~]+)*")


def id_fault(text: object) -> str | None:
    """Why this cannot be a `SampleId`; None where it can."""
    if not isinstance(text, str):
        return "is not a string"
    if len(text) <= MAX_ID_BYTES and _PLAIN_ID.fullmatch(text):
        return None
    try:
        size_bytes = len(text.encode("utf-8"))
    except UnicodeEncodeError:
        return "has lone surrogates and no UTF-8 form"
    if not 0 < size_bytes <= MAX_ID_BYTES:
        return f"has {size_bytes} bytes (1 to {MAX_ID_BYTES} are allowed)"
    if not text.isascii() and unicodedata.normalize("NFC", text) != text:
        return "is not NFC-normalised (two spellings of one name would be two samples)"
    is_plain = text.isascii() and text.isprintable()  # nearly all of them, at a hundredth of the cost
    if not is_plain and any(unicodedata.category(c) in ("Cc", "Zl", "Zp") for c in text):
        return "has a control character or line separator"
    if any(part in ("", ".", "..") for part in text.split("/")):
        return "has an empty, '.' or '..' segment"
    return None


@dataclass(frozen=True, slots=True, order=True)
class ObjectKey:
    """A full object key in the bucket, prefix included: 1..1024 UTF-8 bytes, relative, no empty or dot segment."""

    text: str

    def __post_init__(self) -> None:
        if not _is_key(self.text):
            raise InvalidInput(f"object key {ascii(self.text)[:120]} is not usable on every endpoint")

    def __str__(self) -> str:
        return self.text


def _is_key(text: str) -> bool:
    try:
        size_bytes = len(text.encode())
    except UnicodeEncodeError:  # a file name or an escape that is no text at all
        return False
    return 0 < size_bytes <= 1024 and not any(p in ("", ".", "..") for p in text.split("/")) and "\0" not in text


@dataclass(frozen=True, slots=True, order=True)
class Digest:
    """XXH3-128 that we computed, as 32 lower-case hex digits."""

    hex: str

    def __post_init__(self) -> None:
        if len(self.hex) != 32 or not _HEX.issuperset(self.hex):
            raise InvalidInput(f"not a 32-digit hex digest: {ascii(self.hex)[:60]}")

    def __str__(self) -> str:
        return self.hex

    @property
    def short(self) -> str:
        """The 16 hex digits that object keys carry."""
        return self.hex[:16]

    @classmethod
    def of(cls, data: bytes | bytearray | memoryview) -> Digest:
        return cls(xxhash.xxh3_128_hexdigest(data))


@dataclass(frozen=True, slots=True, order=True)
class WriterId:
    """Random id minted at every open of a spool, never reused: 16 lower-case hex digits."""

    hex: str

    def __post_init__(self) -> None:
        if len(self.hex) != 16 or not _HEX.issuperset(self.hex):
            raise InvalidInput(f"not a writer id: {ascii(self.hex)[:40]}")

    def __str__(self) -> str:
        return self.hex

    @classmethod
    def mint(cls) -> WriterId:
        return cls(secrets.token_hex(8))


def render_json(value: object) -> str:
    """Canonical JSON (sorted keys, no spaces, no NaN): equal values give equal bytes. Raises `InvalidInput`."""
    try:
        text = _ENCODER.encode(value)
        text.encode()  # a lone surrogate has no UTF-8 form
    except (TypeError, ValueError, RecursionError) as exc:
        odd = odd_member(value, at="") if isinstance(exc, TypeError) else None
        raise InvalidInput(f"not plain JSON: {odd or exc}", hint=JSON_HINT) from exc
    return text


def json_items(text: str) -> int:
    """How many items `text` can hold at most as JSON: brackets, commas and colons, those inside of texts included."""
    return sum(map(text.count, _JSON_MARKS))


def parse_json(
    data: bytes | str, *, what: str, max_depth: int = MAX_JSON_DEPTH, max_items: int = MAX_JSON_ITEMS
) -> Any:
    """Strict JSON of bytes that nothing vouches for.

    Refuses bad UTF-8, lone surrogates, doubled keys, NaN and infinities, nesting deeper than `max_depth`, and text of
    more than `max_items` by `json_items`. Every fault is `IntegrityError` naming `what`; no input makes it raise
    anything else.
    """
    try:
        text = data if isinstance(data, str) else str(data, "utf-8")
        if json_items(text) > max_items:  # three bytes of text can become eighty bytes of objects
            raise ValueError(f"it may have more than {max_items} items")
        value = _DECODER.decode(text)
        if "\\u" in text or (text is data and not text.isascii()):
            json.dumps(value, ensure_ascii=False).encode()  # a lone surrogate has no UTF-8 form
    except (ValueError, RecursionError, MemoryError) as exc:
        raise IntegrityError(f"{what} is not valid JSON: {str(exc)[:120]}") from exc
    if text.count("[") + text.count("{") <= max_depth:  # it cannot be nested deeper than it has brackets
        return value
    level, depth = [value], 0
    while level:  # breadth first, so that no nesting can exhaust the stack here
        if depth > max_depth:
            raise IntegrityError(f"{what} is nested deeper than {max_depth} levels")
        containers = [v for v in level if isinstance(v, (dict, list))]
        level = [item for v in containers for item in (v.values() if isinstance(v, dict) else v)]
        depth += 1
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object has the same key twice")
    return found


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"{text[:40]} is out of range")
    return value


# Made once: making them takes as long as the JSON of a small sample.
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse_constant, parse_float=_finite)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What produced the samples (model identity, layers, dtype, ...), as canonical JSON and its digest."""

    text: str
    digest: Digest

    @classmethod
    def of(cls, mapping: Mapping[str, Any]) -> Run:
        """The run of a JSON mapping; `InvalidInput` where it is none, or over 256 KiB."""
        text = render_json(dict(mapping))
        try:
            parse_json(text, what="run")  # what cannot be read back strictly (nesting) must not be written
        except IntegrityError as exc:
            raise InvalidInput(exc.message) from exc
        if len(text.encode()) > MAX_RUN_BYTES:
            raise InvalidInput(
                "run is larger than 256 KiB", hint="record digests of large values instead of the values"
            )
        return cls(text=text, digest=Digest.of(text.encode()))


class PackState(Enum):
    """A pack's life; doubt moves it back, never forward."""

    OPEN = "open"
    SEALED = "sealed"
    UPLOADED = "uploaded"
    VERIFIED = "verified"
    MANIFESTED = "manifested"
    RECLAIMED = "reclaimed"
    UNKNOWN = "unknown"
    CONFLICT = "conflict"
    QUARANTINED = "quarantined"
    LOST = "lost"


class PackKind(Enum):
    """The file form of a pack, which is also its suffix."""

    TAR = "tar"
    SAFETENSORS = "safetensors"


class EvidenceLevel(IntEnum):
    """How a copy is known: its name was listed; a word that this endpoint keeps; every byte. LISTED never frees one."""

    LISTED = 1
    ATTESTED = 2
    READ_BACK = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What was seen of one object (a pack's), when, and by which means. A value: says nothing about the present."""

    level: EvidenceLevel
    key: ObjectKey
    size_bytes: int
    digest: Digest | None
    """XXH3-128 of the bytes read back; None below READ_BACK."""
    etag: str
    version_id: str | None
    taken: str
    """`Stamp.render()` of the moment the look ended."""
    server_time_s: float | None = None
    """The server's own Date at that moment, Unix seconds."""
    probe: str | None = None
    """Id of the probe result that justified ATTESTED."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """One tensor of a sample, as the sample's own header tells it."""

    name: str
    dtype: str
    """safetensors name: BF16, F16, F32, F64, F8_E4M3, F8_E5M2, I8..I64, U8..U64, BOOL, C64."""
    shape: tuple[int, ...]
    codec: str = "raw"
    rows_per_chunk: int = 1
    """Rows of the first dimension per digest chunk (a 0-dim tensor counts as one row)."""
    chunk_sizes: tuple[int, ...] = ()
    """Stored bytes of each chunk, in order."""
    chunk_digests: tuple[str, ...] = ()
    """XXH3-128 hex of each chunk's stored bytes."""
    content_digests: tuple[str, ...] = ()
    """XXH3-128 hex of each chunk's elements, where they are stored compressed; else empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleEntry:
    """One sample inside a pack: where its bytes are and what its header said when it was written."""

    sample_id: SampleId
    offset: int
    """Byte offset of the sample (its safetensors file) in the pack."""
    length: int
    header_length: int
    """8 + JSON header, in bytes."""
    header_digest: Digest
    """XXH3-128 of those header bytes; it covers id, meta, run, input digest and all chunk digests."""
    schema: str
    """JSON list of [name, dtype, shape, codec]."""
    meta: str
    """Canonical JSON object."""
    run: Digest
    input_digest: Digest | None
    provenance: str
    """`computed`, or `asserted` for adopted data."""
    time_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectFacts:
    """What is recorded of the object that holds a pack."""

    key: ObjectKey
    size_bytes: int
    digest: Digest
    crc64nvme: str
    """Base64 of the 8 big-endian bytes, as S3 writes it; computed by us."""
    etag: str
    version_id: str | None
    writer: WriterId


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestRow:
    """One row of the manifest: a sample and the object that holds it."""

    entry: SampleEntry
    object: ObjectFacts


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Tombstone:
    """Takes exactly one row out of the resolved view; never names an id alone, so order does not matter."""

    sample_id: SampleId
    key: ObjectKey
    offset: int
    reason: str = "superseded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A sample as read back: every byte handed out matched its digest. `tensors` has dtypes and shapes as put (the
    first dimension: of the rows read), as torch tensors on the CPU, else as numpy arrays (bf16/fp8 via ml_dtypes).
    """

    id: str
    tensors: dict[str, Any]
    meta: dict[str, Any]
    digest: Digest
    """XXH3-128 of the sample's header, which covers all of it."""
    input_digest: Digest | None = None
    rows: tuple[int, int] | None = field(default=None)
    """First row read and the one after the last, where only part was asked for."""
    provenance: str = "computed"
    """`computed`, or `asserted` for adopted data."""

"""The list of an artifact: which files a snapshot of a folder holds, and under which keys their bytes lie.

Duty: `docs/format/artifacts.md` as code, bytes <-> values, keys <-> parts. A list's key carries 16 hex digits of the
digest of its bytes (INV-4). Must never accept a list that names a path outside its folder, or a key outside its area.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from durastore.errors import FormatUnsupported, IntegrityError, InvalidInput
from durastore.model import Digest, ObjectKey, SampleId, parse_json, render_json

__all__ = [
    "ArtifactFile",
    "ArtifactList",
    "ArtifactName",
    "ListRef",
    "area_of",
    "list_key",
    "list_listing_prefix",
    "parse_list_key",
]

_MAJOR = 1
_FORMAT = "1.0"
_AREA = "artifacts"
_FOLDER = "snapshots"
_MAX_ITEMS = 100_000_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_KEY = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,99})/([0-9]{12})-([0-9a-f]{16})\.json")


@dataclass(frozen=True, slots=True, order=True)
class ArtifactName:
    """What a folder's snapshots are called: letters, digits, `.`, `_` and `-`, at most 100. `InvalidInput`."""

    text: str

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.text):
            raise InvalidInput(
                f"artifact name {self.text[:120]!r} is not usable", hint="letters, digits, '.', '_', '-', at most 100"
            )

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactFile:
    """One file of a snapshot."""

    path: SampleId
    size_bytes: int
    digest: Digest
    key: ObjectKey
    """Where its bytes lie; files of equal bytes may share it."""
    segment: ObjectKey
    """The manifest segment that names that object, as it was read back."""
    is_local: bool = True
    """False: it was freed from the folder, after its proof, and belongs to it all the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactList:
    """A snapshot of a folder. `files` are in order of their paths, each once."""

    name: ArtifactName
    seq: int
    created_ns: int
    host: str
    files: tuple[ArtifactFile, ...]

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    def render(self, area: str) -> bytes:
        """Canonical JSON; keys relative to `area`."""
        lead = f"{area}/" if area else ""
        rows = [
            [
                file.path.text,
                file.size_bytes,
                file.digest.hex,
                file.key.text.removeprefix(lead),
                file.segment.text.removeprefix(lead),
                file.is_local,
            ]
            for file in self.files
        ]
        facts = {
            "format": _FORMAT,
            "name": self.name.text,
            "seq": self.seq,
            "created_ns": self.created_ns,
            "host": self.host,
            "files": rows,
        }
        return render_json(facts).encode()

    @classmethod
    def parse(cls, data: bytes, *, area: str) -> ArtifactList:
        """Inverse of `render`. `IntegrityError` on anything else, `FormatUnsupported` for a newer format."""
        facts = parse_json(data, what="artifact list", max_items=_MAX_ITEMS)
        if not isinstance(facts, dict):
            raise IntegrityError("artifact list is no object")
        version = str(facts.get("format"))
        if version.partition(".")[0] != str(_MAJOR):
            raise FormatUnsupported(f"artifact list has format {version[:20]!r}", hint="use a newer durastore")
        try:
            files = tuple(_file(row, area=area) for row in facts["files"])
            found = cls(
                name=ArtifactName(facts["name"]),
                seq=_whole(facts["seq"]),
                created_ns=_whole(facts["created_ns"]),
                host=str(facts["host"])[:255],
                files=files,
            )
        except (KeyError, TypeError, ValueError, InvalidInput) as exc:
            raise IntegrityError(f"artifact list is not one: {str(exc)[:120]}") from exc
        paths = [file.path for file in files]
        if paths != sorted(set(paths)):
            raise IntegrityError("artifact list names a path twice, or not in order")
        return found


def _file(row: Any, *, area: str) -> ArtifactFile:
    path, size_bytes, digest, key, segment, is_local = row
    if not isinstance(is_local, bool):
        raise TypeError("is_local is no boolean")
    lead = f"{area}/" if area else ""
    return ArtifactFile(
        path=SampleId(path),
        size_bytes=_whole(size_bytes),
        digest=Digest(digest),
        key=ObjectKey(f"{lead}{key}"),
        segment=ObjectKey(f"{lead}{segment}"),
        is_local=is_local,
    )


def _whole(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise TypeError(f"{value!r} is no count")
    return value


# --- keys ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class ListRef:
    """A list as its key tells."""

    name: ArtifactName
    seq: int
    short_digest: str
    key: ObjectKey


def area_of(prefix: str) -> str:
    """Below it artifacts have a manifest, a marker and files of their own: nothing of them is a sample of `prefix`."""
    return f"{prefix}/{_AREA}" if prefix else _AREA


def list_key(area: str, name: ArtifactName, *, seq: int, digest: Digest) -> ObjectKey:
    """`<prefix>/artifacts/snapshots/<name>/<12-digit seq>-<16 hex>.json`."""
    return ObjectKey(f"{list_listing_prefix(area, name)}{seq:012d}-{digest.short}.json")


def list_listing_prefix(area: str, name: ArtifactName | None = None) -> str:
    """What to LIST for all lists, or for those of one name, in order of their seq."""
    return f"{area}/{_FOLDER}/" + (f"{name}/" if name is not None else "")


def parse_list_key(area: str, key: ObjectKey) -> ListRef | None:
    """Exact inverse of `list_key`; None for every other key."""
    lead = list_listing_prefix(area)
    found = _KEY.fullmatch(key.text[len(lead) :]) if key.text.startswith(lead) else None
    if found is None:
        return None
    return ListRef(name=ArtifactName(found[1]), seq=int(found[2]), short_digest=found[3], key=key)

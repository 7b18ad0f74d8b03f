"""The root marker, which makes a directory a spool root and tells whether it still is the same one, and spool names.

Duty: the value `RootRecord` and its JSON form, and how spools are called (`docs/format/spool.md`). No I/O.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from durastore.errors import FormatUnsupported, IntegrityError
from durastore.model import parse_json, render_json

__all__ = [
    "BALLAST_NAME",
    "EXPORT_RECORD_NAME",
    "GOING_NAME",
    "INCOMING_NAME",
    "LOCK_NAME",
    "MOVED_NAME",
    "PACKS_NAME",
    "PRIVATE_ROOT_NAME",
    "QUARANTINE_NAME",
    "ROOT_MARKER_NAME",
    "RootRecord",
    "is_spool_content",
    "parse_root",
    "parse_spool_name",
    "render_root",
    "render_spool_name",
]

ROOT_MARKER_NAME = "durastore-root.json"
MOVED_NAME = "MOVED-TO"
"""A file of this name in a root holds the path that its contents were moved to; such a root is not used again."""
PRIVATE_ROOT_NAME = ".durastore"
"""The root inside a folder of files that durastore did not write: their record, quarantine and stops."""
EXPORT_RECORD_NAME = ".durastore-export"
"""The folder in a folder of exported files that records which file was made of which sample; no file of the user's."""
INCOMING_NAME = "MIGRATING-FROM"
"""A file of this name in a root says that `durastore migrate` is filling it; such a root is not used yet."""
LOCK_NAME, BALLAST_NAME, PACKS_NAME, QUARANTINE_NAME = "lock", "ballast", "packs", "quarantine"
"""What lies in a spool, beside its journal and status files."""
GOING_NAME = "going"
"""The folder of a private root, or of a migration's source, that holds what is about to be freed."""
_FORMAT = 1
_SPOOL = re.compile(r"w-([0-9]{2,6})")
_IN_SPOOL = re.compile(rf"{PACKS_NAME}|{LOCK_NAME}|journal-.*\.sqlite")


def render_spool_name(number: int) -> str:
    """Folder name of a spool in its root: `w-00`, `w-01`, ..."""
    return f"w-{number:02d}"


def parse_spool_name(name: str) -> int | None:
    """The number of the spool whose folder this is; None for every other name."""
    match = _SPOOL.fullmatch(name)
    return int(match[1]) if match is not None else None


def is_spool_content(names: Iterable[str]) -> bool:
    """Whether a folder `w-NN` with these names in it looks like a spool. Rather once too often than not."""
    return any(_IN_SPOOL.fullmatch(name) for name in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class RootRecord:
    """What the marker says: who the root is, and in which directory of which file system it was written."""

    root_id: str
    fs_uuid: str
    directory_inode: int
    """A copy of the marker lies in a directory with another inode, so a copied root does not pass for the original."""


def render_root(record: RootRecord) -> bytes:
    """Canonical JSON and a final newline; equal records give equal bytes."""
    value = {
        "format": _FORMAT,
        "root_id": record.root_id,
        "fs_uuid": record.fs_uuid,
        "directory_inode": record.directory_inode,
    }
    return (render_json(value) + "\n").encode()


def parse_root(data: bytes) -> RootRecord:
    """Inverse of `render_root`. `FormatUnsupported` on a newer format, `IntegrityError` on anything odd."""
    try:
        value = parse_json(data, what="root marker")
        if not isinstance(value, dict) or type(value["format"]) is not int:
            raise TypeError("not a root marker")
        if value["format"] > _FORMAT:
            raise FormatUnsupported(
                f"the root marker has format {value['format']}", hint="open it with a newer durastore"
            )
        root_id, fs_uuid, inode = value["root_id"], value["fs_uuid"], value["directory_inode"]
        if not isinstance(root_id, str) or not isinstance(fs_uuid, str) or type(inode) is not int:
            raise TypeError("a field has the wrong type")
        if len(root_id) != 32 or not set(root_id) <= set("0123456789abcdef"):
            raise ValueError("root_id is not 32 hex digits")
    except (ValueError, KeyError, TypeError) as exc:
        raise IntegrityError(f"the root marker cannot be read: {exc}") from exc
    return RootRecord(root_id=root_id, fs_uuid=fs_uuid, directory_inode=inode)

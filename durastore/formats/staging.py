"""The marker that makes a folder a staging folder, and how the names in it are built.

Duty: the marker's value and JSON form, the names of sessions and requests. No I/O.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass

from durastore.errors import FormatUnsupported, IntegrityError
from durastore.model import Digest, parse_json, render_json

__all__ = [
    "GOING_NAME",
    "LOCK_SUFFIX",
    "STAGING_MARKER_NAME",
    "StagingRecord",
    "new_session",
    "parse_staging",
    "render_request",
    "render_session_file",
    "render_staging",
    "request_in",
]

STAGING_MARKER_NAME = "durastore-staging.json"
GOING_NAME = ".durastore-going"
"""The private folder: files are moved into it before they go."""
LOCK_SUFFIX = ".lock"
"""A server holds the flock of `<file>.lock` for as long as it writes the file."""
_FORMAT = 1
_REQUEST = re.compile(r"(?:\A|[^0-9a-z])(ds-([0-9a-f]{16})-[0-9]+)(?![0-9])")


@dataclass(frozen=True, slots=True, kw_only=True)
class StagingRecord:
    """What the marker says: who may write and read here."""

    served: Digest
    """Of what the server has to serve: model, layers, dtype."""


def render_staging(record: StagingRecord) -> bytes:
    return render_json({"format": _FORMAT, "served": record.served.hex}).encode() + b"\n"


def parse_staging(data: bytes) -> StagingRecord:
    """`IntegrityError` for anything but a marker, `FormatUnsupported` for a newer one."""
    facts = parse_json(data, what="staging marker")
    version, served = facts.get("format"), facts.get("served")
    if type(version) is not int or not isinstance(served, str):
        raise IntegrityError("the staging marker is damaged")
    if version > _FORMAT:
        raise FormatUnsupported(f"a staging folder of format {version}", hint="use a newer durastore")
    return StagingRecord(served=Digest(served))


def new_session() -> str:
    """The name of one process's work in a staging folder: 16 hex digits, never used again."""
    return secrets.token_hex(8)


def render_session_file(session: str) -> str:
    """The file whose flock says that the session lives."""
    return f".durastore-session-{session}"


def render_request(session: str, number: int) -> str:
    """The id under which a server is asked; servers build file names around it."""
    return f"ds-{session}-{number}"


def request_in(name: str) -> tuple[str, str] | None:
    """Session and id of the request that a file's name tells of; None where it tells of none."""
    found = _REQUEST.search(name)
    return (found.group(2), found.group(1)) if found else None

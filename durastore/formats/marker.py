"""The bucket marker `durastore.json`: which store this prefix is, in which format, of which run.

Duty: render and strictly parse it. Must never guess at a newer format.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from durastore.errors import FormatUnsupported, IntegrityError, InvalidInput
from durastore.formats.runs import parse_run
from durastore.model import Run, parse_json, render_json

__all__ = ["MARKER_FORMAT", "MAX_MARKER_BYTES", "Marker"]

MARKER_FORMAT = 1
MAX_MARKER_BYTES = 1 << 20

_STORE_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """What `durastore.json` says. Raises `InvalidInput` where a field is out of range."""

    store_id: str
    """32 random lower-case hex digits, minted once a prefix."""
    format: int
    run: Run | None
    created_ns: int

    def __post_init__(self) -> None:
        if not _STORE_ID.fullmatch(self.store_id):
            raise InvalidInput(f"not a store id: {ascii(self.store_id)[:60]}")
        if self.format != MARKER_FORMAT:
            raise InvalidInput(f"this version writes and reads store format {MARKER_FORMAT}, not {self.format}")
        if not 0 <= self.created_ns < 1 << 63:
            raise InvalidInput(f"creation time {self.created_ns} is out of range")

    def render(self) -> bytes:
        """Canonical JSON and a newline: equal markers give equal bytes."""
        facts = {
            "created_ns": self.created_ns,
            "format": self.format,
            # As text, not as an object: the digest is of these very bytes.
            "run": self.run.text if self.run else None,
            "store_id": self.store_id,
        }
        return render_json(facts).encode() + b"\n"

    @classmethod
    def parse(cls, data: bytes) -> Marker:
        """Inverse of `render`; unknown fields are ignored.

        Raises `IntegrityError` on anything odd and `FormatUnsupported` for a newer format.
        """
        if len(data) > MAX_MARKER_BYTES:
            raise IntegrityError(f"the marker has {len(data)} bytes (1 MiB is allowed)")
        facts = parse_json(data, what="marker")
        if not isinstance(facts, dict):
            raise IntegrityError("the marker is not a JSON object")
        version = _whole(facts, "format")
        if version > MARKER_FORMAT:
            raise FormatUnsupported(f"store format {version} is newer than {MARKER_FORMAT}", hint="upgrade durastore")
        store_id, run = facts.get("store_id"), facts.get("run")
        if not isinstance(store_id, str) or not (run is None or isinstance(run, str)):
            raise IntegrityError("the marker's store_id or run is missing or not text")
        try:
            return cls(
                store_id=store_id,
                format=version,
                run=parse_run(run) if run is not None else None,
                created_ns=_whole(facts, "created_ns"),
            )
        except InvalidInput as exc:
            raise IntegrityError(f"marker: {exc.message}") from exc


def _whole(facts: dict[str, Any], name: str) -> int:
    value = facts.get(name)
    if type(value) is not int:
        raise IntegrityError(f"the marker's {name} is missing or not a whole number")
    return value

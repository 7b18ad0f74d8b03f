"""A stop of reclaiming, and the lifting of one, as files in the spool root.

Duty: the values, their names and their JSON form (`docs/format/spool.md`). No I/O.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import asdict, dataclass
from typing import Any

from durastore.errors import FormatUnsupported, IntegrityError
from durastore.model import parse_json, render_json

__all__ = ["MAX_REASON", "MAX_STOP_BYTES", "LiftRecord", "Place", "StopRecord", "lift_name", "stop_id_in", "stop_name"]

MAX_STOP_BYTES = 65_536
MAX_REASON = 2_000
_FORMAT = 1
_ID = re.compile(r"[0-9a-f]{16}")
_STOP_NAME = re.compile(r"reclaim-stop-([0-9a-f]{16})\.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a store keeps its objects, whoever's key it uses."""

    endpoint: str
    bucket: str
    prefix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRecord:
    """A copy was found wrong: nothing is reclaimed at this root until a person lifted exactly this stop."""

    id: str
    """16 random hex digits; a probe that was begun with the stop in sight names it."""
    thrown: str
    """`Stamp.render()`, for people: which came first is never told by clocks."""
    reason: str
    place: Place | None
    """Where the copy lies; None where an adapter of the caller's own knows, or the record could not be read."""

    def render(self) -> bytes:
        """Canonical JSON and a final newline."""
        place = asdict(self.place) if self.place is not None else dict.fromkeys(Place.__slots__)
        facts = {"format": _FORMAT, "id": self.id, "thrown": self.thrown, "reason": self.reason} | place
        return (render_json(facts) + "\n").encode()

    @classmethod
    def parse(cls, data: bytes) -> StopRecord:
        """Inverse of `render`. `FormatUnsupported` on a newer format, `IntegrityError` on anything odd."""
        facts = _facts_of(data, what="stop of reclaiming", texts=("thrown", "reason"), ids=("id",))
        parts = {name: part for name in Place.__slots__ if isinstance(part := facts.get(name), str)}
        place = Place(**parts) if len(parts) == len(Place.__slots__) else None
        return cls(id=facts["id"], thrown=facts["thrown"], reason=facts["reason"], place=place)

    @classmethod
    def unreadable(cls, stop_id: str, *, why: str) -> StopRecord:
        """A stop of which only the name can be told. It stops all the same, and no probe can lift it."""
        return cls(id=stop_id, thrown="", reason=f"{stop_name(stop_id)} cannot be read: {why}", place=None)

    @classmethod
    def of_text(cls, text: str) -> StopRecord:
        """The record in a journal. One that cannot be read stops all the same, always under the same id."""
        try:
            return cls.parse(text.encode())
        except (IntegrityError, FormatUnsupported):
            return cls(
                id=hashlib.sha256(text.encode()).hexdigest()[:16], thrown="", reason=text[:MAX_REASON], place=None
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class LiftRecord:
    """A person looked at the endpoint after the stop was thrown."""

    stop: str
    probe: str
    """Id of the probe that they ran."""
    lifted: str
    """`Stamp.render()`, for people."""

    def render(self) -> bytes:
        """Canonical JSON and a final newline."""
        return (render_json({"format": _FORMAT} | asdict(self)) + "\n").encode()

    @classmethod
    def parse(cls, data: bytes) -> LiftRecord:
        """Inverse of `render`. `FormatUnsupported` on a newer format, `IntegrityError` on anything odd."""
        facts = _facts_of(data, what="lifting of a stop", texts=("lifted",), ids=("stop", "probe"))
        return cls(stop=facts["stop"], probe=facts["probe"], lifted=facts["lifted"])


def stop_name(stop_id: str) -> str:
    return f"reclaim-stop-{stop_id}.json"


def lift_name(stop_id: str) -> str:
    return f"reclaim-lift-{stop_id}.json"


def stop_id_in(name: str) -> str | None:
    """The id in the name of a stop's file; None for every other name."""
    match = _STOP_NAME.fullmatch(name)
    return match[1] if match is not None else None


def _facts_of(data: bytes, *, what: str, texts: tuple[str, ...], ids: tuple[str, ...]) -> dict[str, Any]:
    facts = parse_json(data, what=what)
    if not isinstance(facts, dict) or type(facts.get("format")) is not int:
        raise IntegrityError(f"this is no {what}")
    if facts["format"] > _FORMAT:
        raise FormatUnsupported(f"a {what} has format {facts['format']}", hint="open it with a newer durastore")
    for name in (*texts, *ids):
        value = facts.get(name)
        if not isinstance(value, str) or (name in ids and _ID.fullmatch(value) is None):
            raise IntegrityError(f"a {what} has no proper {name}")
    return facts

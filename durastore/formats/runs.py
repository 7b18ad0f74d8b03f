"""The run as text inside packs, segments and the marker.

Duty: read a run's text strictly, keeping it byte for byte (its digest is of those bytes). Must never re-render it.
"""

from __future__ import annotations

from durastore.errors import IntegrityError
from durastore.model import MAX_RUN_BYTES, Digest, Run, parse_json

__all__ = ["parse_run"]


def parse_run(text: bytes | str) -> Run:
    """The run of its own text. `IntegrityError` where it is over 256 KiB or no JSON object."""
    try:
        raw = text.encode() if isinstance(text, str) else bytes(text)
    except UnicodeEncodeError as exc:
        raise IntegrityError("run text has lone surrogates") from exc
    if len(raw) > MAX_RUN_BYTES:
        raise IntegrityError(f"run text has {len(raw)} bytes ({MAX_RUN_BYTES} are allowed)")
    if not isinstance(parse_json(raw, what="run"), dict):
        raise IntegrityError("run is not a JSON object")
    return Run(text=raw.decode(), digest=Digest.of(raw))

"""What a scrub has verified so far, in a file of the user's, so that a long one goes on after a kill.

Duty: whole lines, appended. Only objects found sound are noted: what was found wrong is looked at again. Must never
shorten or overwrite a file, and never take a file of another scrub for this one's.
"""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from durastore.errors import ConfigError, DiskFailed, IntegrityError
from durastore.model import parse_json

__all__ = ["ScrubState"]

_VERSION = 1
_MAX_BYTES = 4 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class _Begin:
    place: str
    share: float
    seed: str


class ScrubState:
    """Open with `open`; without a file (`path` None) nothing is remembered. Used by one thread."""

    def __init__(self, fd: int, begin: _Begin, *, done: set[str], path: Path | None) -> None:
        self._fd = fd
        self._path = path
        self.seed = begin.seed
        """Decides which objects a share takes: the same ones after a restart."""
        self.done = done
        """Keys of objects that were found sound."""

    @classmethod
    def open(cls, path: Path | None, *, place: str, share: float) -> ScrubState:
        """Begin, or go on with a scrub of the same `place` and `share` that `path` tells of.

        `ConfigError` where the file is something else, or tells of a scrub that has ended; `DiskFailed`.
        """
        begin = _Begin(place=place, share=share, seed=secrets.token_hex(8))
        if path is None:
            return cls(-1, begin, done=set(), path=None)
        try:
            fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as exc:
            raise DiskFailed(f"opening {path}: {exc.strerror}", errno=exc.errno) from exc
        try:
            found, done, is_torn = _read(fd, path)
            state = cls(fd, found or begin, done=done, path=path)
            if found is None:
                state._append({"durastore_scrub": _VERSION, "place": place, "share": share, "seed": begin.seed})
            elif (found.place, found.share) != (place, share):
                raise ConfigError(
                    f"{path} tells of a scrub of {found.place} with share {found.share:g}",
                    hint="give the same options to go on with it, or another --state file",
                )
            elif is_torn:
                state._write(b"\n")  # the last line was cut off by a kill: what comes next is a line of its own
        except BaseException:
            os.close(fd)
            raise
        return state

    def note_sound(self, key: str) -> None:
        """This object was read in full and every digest matched."""
        self._append({"ok": key})

    def note_end(self, *, findings: int) -> None:
        """Everything was looked at."""
        self._append({"ended": True, "findings": findings})

    def close(self) -> None:
        """Safe to repeat. What was noted stays."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def _append(self, facts: dict[str, Any]) -> None:
        self._write(json.dumps(facts, ensure_ascii=False).encode() + b"\n")

    def _write(self, data: bytes) -> None:
        if self._fd < 0:
            return
        try:
            written = os.write(self._fd, data)
        except OSError as exc:
            raise DiskFailed(f"writing {self._path}: {exc.strerror}", errno=exc.errno) from exc
        if written != len(data):
            raise DiskFailed(f"writing {self._path}: the disk is full")


def _read(fd: int, path: Path) -> tuple[_Begin | None, set[str], bool]:
    size_bytes = os.fstat(fd).st_size
    if size_bytes > _MAX_BYTES:
        raise ConfigError(f"{path} is too large to be the state of a scrub")
    with open(fd, "rb", closefd=False) as file:
        data = file.read()
    *lines, last = data.split(b"\n")
    values = [value for value in (_parse(line) for line in lines) if value is not None]
    if not values and not data:
        return None, set(), False
    first = values[0] if values else {}
    if first.get("durastore_scrub") != _VERSION:
        raise ConfigError(f"{path} is not the state of a scrub", hint="give a new file, or one that --state made")
    if any(value.get("ended") for value in values):
        raise ConfigError(f"{path} tells of a scrub that has ended", hint="give a new file for the next one")
    begin = _Begin(place=str(first.get("place")), share=float(first.get("share", 0)), seed=str(first.get("seed")))
    return begin, {value["ok"] for value in values if isinstance(value.get("ok"), str)}, bool(last)


def _parse(line: bytes) -> dict[str, Any] | None:
    """A line; None for one that a kill cut off, which costs one object read again."""
    try:
        value = parse_json(line, what="state of a scrub")
    except IntegrityError:
        return None
    return value if isinstance(value, dict) else None

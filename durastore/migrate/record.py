"""Which copies were proven, and what was about to be freed: append-only lists in DST's private folder.

Duty: so that a run goes on where another one ended, and knows what lies aside. A line carries its own digest; one that
does not match it (torn by a crash, damaged) counts for nothing, and its file is read again. A line is written only when
what it says is durable (INV-2).
"""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from durastore.fsio.append import DurableFile
from durastore.fsio.folder import Folder
from durastore.fsio.identity import FileIdentity
from durastore.model import Digest
from durastore.verify.copied import CopiedFile

__all__ = ["Intents", "Prior", "Proven", "ProvenLog", "load_intents", "load_proven"]


class Prior(Enum):
    """What was known of a file before it was copied, besides that it could be read."""

    DIGEST = "digest on record"
    LENGTH = "whole by its own header"
    NONE = "no prior evidence"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proven:
    """One proven copy, and what the source was held against."""

    copied: CopiedFile
    prior: Prior
    damage: str | None = None
    """Why the source is not what it should be. The copy has the same bytes."""
    has_writer: bool = False
    """Somebody had the source open for writing while it was read."""
    is_unsure: bool = False
    """What it was then says nothing of what it is now. Who has a file mapped changes its bytes and not its times, and
    so does who writes twice in what is one moment to the file system.
    """

    def of_now(self, source: FileIdentity, target: FileIdentity) -> Proven | None:
        """The same with today's device numbers; None unless both files are those that were recorded, and hold still."""
        if self.is_unsure:
            return None
        then = self.copied
        if source.is_same_remounted(then.source) and target.is_same_remounted(then.target):
            return replace(self, copied=replace(then, source=source, target=target))
        return None


class _Log:
    """One file of lines, made with the first of them. Thread-safe."""

    def __init__(self, folder: Folder, kind: str, *, head: Any) -> None:
        self._folder = folder
        self._name = f"{kind}-{secrets.token_hex(8)}.log"
        self._head = head
        self._lock = threading.Lock()
        self._file: DurableFile | None = None

    def _append(self, bodies: Iterable[Any], *, is_synced: bool) -> None:
        lines = [_line(body) for body in bodies]
        if not lines:
            return
        with self._lock:
            if self._file is None:
                self._file = DurableFile.create(self._folder, self._name)
                self._file.append([_line(self._head)])
            self._file.append(lines)
            if is_synced:
                self._file.sync()

    def close(self) -> None:
        """Durable up to here. Safe to repeat."""
        with self._lock:
            if self._file is not None:
                file, self._file = self._file, None
                try:
                    file.sync()
                finally:
                    file.close()


class ProvenLog(_Log):
    """`source`: which tree the copies are of."""

    def __init__(self, folder: Folder, *, source: str) -> None:
        super().__init__(folder, "proven", head=["source", source])

    def add(self, proven: Iterable[Proven]) -> None:
        """Their names have to be durable. The lines themselves need not be: what is missing is read again."""
        self._append([_render(each) for each in proven], is_synced=False)


class Intents(_Log):
    """What is about to go, on the disk of the copies: the source's may be full."""

    def __init__(self, folder: Folder, *, source: str) -> None:
        super().__init__(folder, "freed", head=["source", source])

    def announce(self, private: str, path: str) -> None:
        """Durable when it returns."""
        self._append([["going", private, path]], is_synced=True)

    def record_receipt(self, private: str, text: str) -> None:
        """Durable when it returns."""
        self._append([["receipt", private, text]], is_synced=True)


def load_proven(folder: Folder, *, source: str) -> dict[str, Proven]:
    """Path -> the last that is on record of copies of this tree. OSError passes."""
    found: dict[str, Proven] = {}
    for body in _bodies(folder, "proven", source=source):
        proven = _parse(body)
        if proven is not None:
            found[proven.copied.path] = proven
    return found


def load_intents(folder: Folder, *, source: str) -> dict[str, str]:
    """Private name -> path, of everything that was ever about to go from this tree. OSError passes."""
    return {
        body[1]: body[2]
        for body in _bodies(folder, "freed", source=source)
        if len(body) == 3 and body[0] == "going" and all(isinstance(text, str) for text in body)
    }


# --- lines -------------------------------------------------------------------------------------------------------


def _line(body: Any) -> bytes:
    text = json.dumps(body, ensure_ascii=True, separators=(",", ":")).encode("ascii")  # names may be no UTF-8
    return Digest.of(text).short.encode("ascii") + b" " + text + b"\n"


def _bodies(folder: Folder, kind: str, *, source: str) -> Iterator[list[Any]]:
    """The lists in the lines of every log of this kind that is about `source`."""
    for name in folder.names():
        if not (name.startswith(f"{kind}-") and name.endswith(".log")):
            continue
        is_ours = False
        with open(folder.open_read(name), "rb") as file:
            for line in file:
                body = _body(line)
                if body is not None and body[0] == "source":
                    is_ours = body[1:] == [source]
                elif body is not None and is_ours:
                    yield body


def _body(line: bytes) -> list[Any] | None:
    digest, _, text = line.rstrip(b"\n").partition(b" ")
    if not line.endswith(b"\n") or Digest.of(text).short.encode("ascii") != digest:
        return None
    body = json.loads(text)
    return body if isinstance(body, list) and body else None


def _render(proven: Proven) -> list[Any]:
    copied = proven.copied
    identities = [copied.source.render(), copied.target.render()]
    facts = [copied.is_quiet, proven.prior.name, proven.damage, proven.is_unsure]
    return ["copy", copied.path, copied.digest.hex, *identities, *facts]


def _parse(body: list[Any]) -> Proven | None:
    if body[0] != "copy" or len(body) != 9:
        return None  # of another version
    _, path, digest, source, target, is_quiet, prior, damage, is_unsure = body
    copied = CopiedFile(
        path=path,
        source=FileIdentity.parse(source),
        target=FileIdentity.parse(target),
        digest=Digest(digest),
        is_quiet=is_quiet,
        is_read_back=False,
    )
    return Proven(copied=copied, prior=Prior[prior], damage=damage, is_unsure=is_unsure)

"""What a bucket keeps beside an object's bytes, for a directory: checksum and user metadata.

Duty: one small immutable file per object file, found by the key and by which file it was written for. A note whose
file changed is not believed: the bytes are read instead. Must never stand in for the bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from durastore.errors import SpoolUnreadable
from durastore.fsio.folder import Folder
from durastore.fsio.identity import FileIdentity
from durastore.fsio.publish import publish
from durastore.model import Digest, ObjectKey, render_json
from durastore.objectstore.crc import Crc64Nvme
from durastore.objectstore.directory_object import HIDDEN, OpenObject

__all__ = ["Note", "NoteBook", "parse_note"]

_NOTES = "notes"
_LIMIT_BYTES = 64 << 10
_STEP_BYTES = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Size, checksum and metadata of an object's content."""

    size_bytes: int
    crc64nvme: str
    metadata: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, crc64nvme: str, size_bytes: int, *, metadata: Mapping[str, str]) -> Note:
        pairs = sorted((name.lower(), value) for name, value in metadata.items())
        return cls(size_bytes=size_bytes, crc64nvme=crc64nvme, metadata=tuple(pairs))

    @property
    def etag(self) -> str:
        return f'"{self.crc64nvme}-{self.size_bytes}"'


class NoteBook:
    """The notes of one bucket. Thread-safe: notes are only ever added."""

    def __init__(self, root: Folder) -> None:
        self._root = root

    def ensure(self, key: ObjectKey, note: Note, *, identity: FileIdentity) -> None:
        """Keep `note` for this file. Safe to repeat; the first note of a file stays."""
        text = render_json(
            {
                "key": key.text,
                "size_bytes": note.size_bytes,
                "crc64nvme": note.crc64nvme,
                "metadata": dict(note.metadata),
            }
        )
        folder_name, name = _place(key, identity)
        with (
            self._root.ensure_child(HIDDEN) as hidden,
            hidden.ensure_child(_NOTES) as notes,
            notes.ensure_child(folder_name) as folder,
        ):
            try:
                publish(folder, name, chunks=[text.encode()])
            except FileExistsError:
                return  # a put that was repeated, or two at once: one file has one content, so the notes agree on it

    def current(self, key: ObjectKey, found: OpenObject) -> Note:
        """The note of this very file, or one made now by reading all of its bytes (then without metadata)."""
        note = self._load(key, found.identity)
        if note is not None:
            return note
        running = Crc64Nvme()
        for start in range(0, found.identity.size_bytes, _STEP_BYTES):
            running.update(found.read(start, min(start + _STEP_BYTES, found.identity.size_bytes)))
        return Note(size_bytes=running.size_bytes, crc64nvme=running.text())

    def noted_etag(self, key: ObjectKey, identity: FileIdentity) -> str:
        """The etag, if it is known without reading the object; else empty."""
        note = self._load(key, identity)
        return note.etag if note is not None else ""

    def _load(self, key: ObjectKey, identity: FileIdentity) -> Note | None:
        folder_name, name = _place(key, identity)
        try:
            with self._root.child(HIDDEN) as hidden, hidden.child(_NOTES) as notes, notes.child(folder_name) as folder:
                data = folder.read_bytes(name, limit_bytes=_LIMIT_BYTES)
        except (OSError, SpoolUnreadable):
            return None  # not knowing costs a read of the object, nothing else
        return parse_note(data, key, identity=identity)


def _place(key: ObjectKey, identity: FileIdentity) -> tuple[str, str]:
    digest = Digest.of(key.text.encode()).hex
    # Without the device number: it differs after a reboot although nothing changed.
    marks = f"{identity.inode}-{identity.size_bytes}-{identity.mtime_ns}-{identity.ctime_ns}"
    return digest[:2], f"{digest[2:]}-{marks}.json"


def parse_note(data: bytes, key: ObjectKey, *, identity: FileIdentity) -> Note | None:
    try:
        value = json.loads(data)
        if value["key"] != key.text or value["size_bytes"] != identity.size_bytes:
            return None
        metadata = {str(name): str(text) for name, text in value["metadata"].items()}
        return Note.of(str(value["crc64nvme"]), identity.size_bytes, metadata=metadata)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None

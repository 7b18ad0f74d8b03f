"""One object of a directory bucket, held open: which file a key is, and its bytes.

Duty: resolve a key segment by segment from a held folder, without following a link, and read exactly. Must never
resolve a key to anything outside the bucket or inside its hidden folder.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from durastore.errors import (
    IntegrityError,
    InvalidInput,
    ObjectAbsent,
    PermissionRefused,
    RequestRefused,
    SpoolUnreadable,
    UnknownAnswer,
)
from durastore.fsio.folder import Folder
from durastore.fsio.identity import FileIdentity, identify
from durastore.fsio.publish import TEMP_PREFIX
from durastore.model import ObjectKey
from durastore.objectstore.port import Body

__all__ = ["HIDDEN", "OpenObject", "enter", "segments_of"]

HIDDEN = ".durastore"
"""The bucket's own folder; no key may begin with it."""
_MAX_NAME_BYTES = 255


def segments_of(key: ObjectKey) -> list[str]:
    """The key's path segments; `InvalidInput` where a file system could not hold one, or it is reserved."""
    segments = key.text.split("/")
    if segments[0] == HIDDEN or any(segment.startswith(TEMP_PREFIX) for segment in segments):
        raise InvalidInput(f"key {key.text!r} is reserved in a directory bucket")
    if any(len(segment.encode()) > _MAX_NAME_BYTES for segment in segments):
        raise InvalidInput(f"key {ascii(key.text)[:80]} has a segment of more than {_MAX_NAME_BYTES} bytes")
    return segments


def enter(folder: Folder, segment: str, *, key: ObjectKey, is_made: bool) -> Folder:
    """The folder `segment` inside `folder`, made if asked for."""
    try:
        return folder.ensure_child(segment) if is_made else folder.child(segment)
    except FileNotFoundError as exc:
        raise _absent(key) from exc
    except PermissionError as exc:
        raise PermissionRefused(f"{key}: {folder.path / segment}: {exc.strerror}") from exc
    except OSError as exc:
        if stat.S_ISREG(_mode(folder, segment)):
            if is_made:
                raise RequestRefused(f"put {key}: a file stands where the key needs a folder", status=409) from exc
            raise _absent(key) from exc
        raise UnknownAnswer(f"{key}: {folder.path / segment}: {exc.strerror}", hint="links are not followed") from exc


def _absent(key: ObjectKey) -> ObjectAbsent:
    return ObjectAbsent(f"{key}: no such object", status=404, server_code="NoSuchKey")


def _mode(folder: Folder, name: str) -> int:
    """The type bits of what has this name, 0 where nothing can be seen; a link is seen as a link."""
    try:
        return os.stat(name, dir_fd=folder.fd, follow_symlinks=False).st_mode
    except OSError:
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenObject:
    """An object's open file and which file that is."""

    key: ObjectKey
    fd: int
    identity: FileIdentity

    @classmethod
    @contextmanager
    def open(cls, folder: Folder, name: str, *, key: ObjectKey) -> Iterator[OpenObject]:
        """`ObjectAbsent` if there is no file of that name; `UnknownAnswer` for a link or anything unreadable."""
        try:
            fd = folder.open_read(name)
        except FileNotFoundError as exc:
            raise _absent(key) from exc
        except PermissionError as exc:
            raise PermissionRefused(f"{key}: {folder.path / name}: {exc.strerror}") from exc
        except (OSError, SpoolUnreadable) as exc:
            if stat.S_ISDIR(_mode(folder, name)):
                raise _absent(key) from exc  # other keys continue below it, but this one names no object
            raise UnknownAnswer(f"{key}: cannot be read as a plain file", hint="links are not followed") from exc
        try:
            yield cls(key=key, fd=fd, identity=identify(fd))
        finally:
            os.close(fd)

    def read(self, start: int, stop: int) -> bytes:
        """Exactly the bytes `start` to `stop`; `IntegrityError` if the file ends before."""
        pieces: list[bytes] = []
        position = start
        while position < stop:
            try:
                piece = os.pread(self.fd, stop - position, position)
            except OSError as exc:
                raise UnknownAnswer(f"get {self.key}: reading byte {position}: {exc.strerror}") from exc
            if not piece:
                raise IntegrityError(f"get {self.key}: the file ends at byte {position} instead of {stop}")
            pieces.append(piece)
            position += len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def has_bytes(self, chunks: Iterator[Body]) -> bool:
        """True if the file holds exactly these bytes."""
        position = 0
        for chunk in chunks:
            view = memoryview(chunk).cast("B")
            if position + len(view) > self.identity.size_bytes:
                return False
            if self.read(position, position + len(view)) != view:
                return False
            position += len(view)
        return position == self.identity.size_bytes

    def forget_cached(self) -> None:
        """Ask the kernel to read from the disk next, where it can: a copy that only memory holds is none."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_DONTNEED)

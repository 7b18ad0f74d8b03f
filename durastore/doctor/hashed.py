"""Which packs were hashed and found whole, so that a second look costs little.

Duty: whole lines appended to `doctor.log` in the root: pack, identity, digest, boot id. Believed only in the same boot,
for the same inode, size and times: after a reboot the page cache that was hashed may never have reached the disk. Must
never shorten the file. A line that a full disk cut off counts for nothing, and no note is ever needed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from durastore.clock import Clock
from durastore.errors import SpoolUnreadable
from durastore.fsio.folder import Folder
from durastore.fsio.identity import FileIdentity

__all__ = ["NOTES_FILE", "HashedPacks"]

NOTES_FILE = "doctor.log"
_MAX_BYTES = 256 << 20


class HashedPacks:
    """The notes of one root. Used by one thread."""

    def __init__(self, root: Folder, *, clock: Clock) -> None:
        """OSError where the file is there and cannot be read."""
        self._root = root
        self._boot_id = clock.stamp().boot_id
        try:
            data = root.read_bytes(NOTES_FILE, limit_bytes=_MAX_BYTES)
        except (FileNotFoundError, SpoolUnreadable):
            data = b""
        *lines, self._rest = data.split(b"\n")
        self._known = frozenset(lines)

    def has(self, pack: str, identity: FileIdentity, *, digest: str) -> bool:
        """Whether this very file was hashed in this boot and had this digest. `pack`: `w-NN/<name>`."""
        return self._line(pack, identity, digest=digest) in self._known

    def note(self, found: Iterable[tuple[str, FileIdentity, str]]) -> None:
        """Keep what was hashed now and was right: pack, identity, digest. Where the disk has no room it is not kept."""
        lines = [self._line(pack, identity, digest=digest) for pack, identity, digest in found]
        if not lines:
            return
        begin = b"\n" if self._rest else b""  # a line cut off by a kill must not swallow the next one
        try:
            self._append(begin + b"".join(line + b"\n" for line in lines))
        except OSError:
            return  # full or read-only: they are hashed once more next time

    def _append(self, data: bytes) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(NOTES_FILE, flags, 0o600, dir_fd=self._root.fd)
        try:
            owner = os.fstat(self._root.fd)
            if os.geteuid() == 0 and os.fstat(fd).st_uid != owner.st_uid:
                os.fchown(fd, owner.st_uid, owner.st_gid)  # whoever owns the root must be able to move it
            os.write(fd, data)
        finally:
            os.close(fd)

    def _line(self, pack: str, identity: FileIdentity, *, digest: str) -> bytes:
        return f"{self._boot_id}\t{digest}\t{identity.render()}\t{pack}".encode()

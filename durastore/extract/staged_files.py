"""The files of one process's requests in a staging folder, from the request to the door.

Duty: names for requests, whole reads, and the way out of each file: through the staging door once its sample is
durable, or with its dead request. Must never take a file's bytes for states: that is for the engine to say.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from durastore.clock import Clock
from durastore.errors import DurastoreError, SpoolUnreadable
from durastore.extract.engine import Holds
from durastore.extract.json_server import AskAgain
from durastore.extract.staging_room import Reservation, StagingRoom
from durastore.formats.staging import render_request, request_in
from durastore.fsio.identity import identify
from durastore.fsio.lease import has_writer
from durastore.observe.events import LOGGER
from durastore.reclaim.staging import StagedFile, StagingFolder

__all__ = ["StagedAnswer", "StagedFiles"]

_TIDY_S = 1.0
_DEAD_ROOM_S = 5.0
"""A dead request of which nothing is seen keeps its room so long: its server may be about to write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedAnswer:
    """The files of one answered request."""

    request: str
    files: tuple[StagedFile, ...]
    room: Reservation
    entry: str | None = None
    """The folder that they are in, if they have one of their own."""


@dataclass(slots=True)
class _Dead:
    room: Reservation
    since_s: float


class StagedFiles:
    """Thread-safe."""

    def __init__(self, folder: StagingFolder, room: StagingRoom, *, clock: Clock) -> None:
        self.folder = folder
        self.room = room
        self._clock = clock
        self._numbers = count(1)
        self._lock = threading.Lock()
        self._tidying = threading.Lock()
        self._tidied_s = float("-inf")
        self._dead: dict[str, _Dead] = {}
        self._kept: list[tuple[StagedAnswer, Holds]] = []

    def new_request(self) -> str:
        """An id that no request had before."""
        return render_request(self.folder.session, next(self._numbers))

    def read(self, path: str, *, is_quiet: bool = False) -> tuple[bytes, StagedFile]:
        """A whole file, and which file it was before and after. `AskAgain` if it is not there, changes, or (`is_quiet`)
        somebody has it open for writing.
        """
        try:
            fd = self.folder.open_read(path)
        except (OSError, ValueError, SpoolUnreadable) as exc:
            raise AskAgain(f"its file {path} cannot be read: {exc}") from exc
        try:
            if is_quiet and has_writer(fd):
                raise AskAgain(f"its file {path} is being written")
            before = identify(fd)
            blocks: list[bytes] = []
            offset = 0
            while block := os.pread(fd, before.size_bytes - offset, offset):  # one block, up to 2 GiB
                blocks.append(block)
                offset += len(block)
            if identify(fd) != before or offset != before.size_bytes:
                raise AskAgain(f"its file {path} changes while it is read")
            return blocks[0] if len(blocks) == 1 else b"".join(blocks), StagedFile(path=path, identity=before)
        finally:
            os.close(fd)

    def has_still(self, file: StagedFile) -> bool:
        """Whether the file's name is that of the very bytes that were read."""
        try:
            fd = self.folder.open_read(file.path)
        except (OSError, ValueError, SpoolUnreadable):
            return False
        try:
            return identify(fd) == file.identity
        finally:
            os.close(fd)

    def settle(self, answer: StagedAnswer, holds: Holds | None) -> None:
        """The sample was put, or (None) will not be: its files go, at the latest when somebody tidies."""
        if holds is None:
            self.died(answer.request, answer.room)
        elif not self._freed(answer, holds):
            LOGGER.warning("the staging files of request %s stay for now", answer.request)
            self._keep(answer, holds)

    def died(self, request: str, room: Reservation) -> None:
        """Nothing of this request will ever be ingested. Its room comes back when its files are gone."""
        with self._lock:
            self._dead[request] = _Dead(room, self._clock.monotonic())

    def is_dead(self, request: str) -> bool:
        with self._lock:
            return request in self._dead

    def tidy(self, *, is_due: bool = False) -> None:
        """Reap what dead requests and ended sessions left, and free what could not be freed before; once a second."""
        if not self._tidying.acquire(blocking=False):
            return
        try:
            now_s = self._clock.monotonic()
            if is_due or now_s - self._tidied_s >= _TIDY_S:
                self._tidied_s = now_s
                self._tidy()
        finally:
            self._tidying.release()

    def close(self) -> None:
        """Leave the folder: what is left of this session's requests, the next one reaps. Safe to repeat."""
        self.folder.close()

    def _tidy(self) -> None:
        with self._lock:
            kept, self._kept = self._kept, []
        for answer, holds in kept:
            for file in answer.files:  # whatever has this request's name by now, its sample is durable
                found = request_in(file.path)
                if found is not None and found[1] == answer.request:
                    self.folder.reap(file.path, is_dead=holds)
            if not self._freed(answer, holds):
                self._keep(answer, holds)
        try:
            self.folder.reap_moved()
            names = self.folder.names()
        except (OSError, DurastoreError) as exc:
            LOGGER.warning("the staging folder cannot be looked at: %s", exc)
            return
        ended: dict[str, bool] = {}
        seen = {request for name in names if (request := self._reaped(name, ended)) is not None}
        with self._lock:
            now_s = self._clock.monotonic()
            for request, dead in self._dead.items():
                if request not in seen and now_s - dead.since_s >= _DEAD_ROOM_S:
                    dead.room.give_back()

    def _keep(self, answer: StagedAnswer, holds: Holds) -> None:
        with self._lock:
            self._kept.append((answer, holds))

    def _reaped(self, name: str, ended: dict[str, bool]) -> str | None:
        """Reap the entry if it is of a dead request; that request if it is one of ours and something is left."""
        found = request_in(name)
        if found is None:
            return None
        session, request = found
        if session == self.folder.session:
            if not self.is_dead(request):
                return None
            for path in self._paths(name):
                self.folder.reap(path, is_dead=lambda: self.is_dead(request))
        else:
            if session not in ended:
                ended[session] = self.folder.is_ended(session)
            if not ended[session]:
                return None
            for path in self._paths(name):
                self.folder.reap(path, is_dead=lambda: self.folder.is_ended(session))
        self.folder.drop_entry(name)
        return request if self._paths(name) else None

    def _paths(self, name: str) -> Sequence[str]:
        try:
            return self.folder.files_of(name)
        except OSError:
            return []

    def _freed(self, answer: StagedAnswer, holds: Holds) -> bool:
        is_gone = True
        for file in answer.files:
            if self.folder.free(file, holds=holds) is None and self._paths(file.path):
                is_gone = False
        if is_gone:
            if answer.entry is not None:
                self.folder.drop_entry(answer.entry)
            answer.room.give_back()
        return is_gone

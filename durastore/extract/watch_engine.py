"""Hidden states that a server dumps into a folder, one entry (a file, or a folder of files) for each request.

Duty: an entry counts after the server's answer for its request, and only with its sample's token ids. With a server the
requests are ours, and carry our ids. Must never take an entry because it is there: what lies in such a folder may be
half written, an aborted request's, or an earlier server's under a name that is used again.
"""

from __future__ import annotations

from itertools import count

from durastore.clock import SYSTEM_CLOCK, Clock
from durastore.extract.conversion import RunShape
from durastore.extract.dumped import DumpedEntry, NotWhole, entry_of, read_entry, tensors_of
from durastore.extract.engine import Extracted
from durastore.extract.json_server import AskAgain
from durastore.extract.rows import TokenRow
from durastore.extract.server_settings import ServerSettings
from durastore.extract.sglang_client import SglangClient
from durastore.extract.staged_engine import StagedEngine
from durastore.extract.staged_files import StagedAnswer
from durastore.extract.staged_states import extracted
from durastore.extract.staging_room import Reservation
from durastore.model import Digest

__all__ = ["WatchEngine"]

_POLL_S = 0.05
_CLOCK_SLACK_NS = 100_000_000
"""File times come from a clock of coarser steps."""


class WatchEngine(StagedEngine):
    """SGLang servers of one model that dump what they are asked for."""

    def __init__(
        self, settings: ServerSettings, shape: RunShape, *, served: Digest, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        """As `StagedEngine`."""
        self._clients = [SglangClient(url, clock=clock) for url in settings.endpoints]
        super().__init__(settings, shape, clients=self._clients, served=served, clock=clock)
        self._turns = count()

    def ask(self, row: TokenRow, room: Reservation) -> Extracted:
        files, client = self._files, self._clients[next(self._turns) % len(self._clients)]
        request = files.new_request()
        try:
            asked_ns = self._clock.now_ns()
            ids = [int(each) for each in row.input_ids]
            facts = client.generate(ids, request=request, wants_states=False, timeout_s=self._settings.timeout_s)
            entry = self._whole_entry(str(facts.get("id") or request), asked_ns=asked_ns)
            room.written()
            tensors, meta = tensors_of(
                entry, row, shape=self._shape, is_unverified_taken=self._settings.is_unverified_taken
            )
        except BaseException:
            files.died(request, room)
            raise
        answer = StagedAnswer(request=request, files=entry.files, room=room, entry=entry.folder)
        return extracted(tensors, lambda holds: files.settle(answer, holds), **meta)

    def _whole_entry(self, request: str, *, asked_ns: int) -> DumpedEntry:
        """The entry of an answered request, once it is whole: a dump may end after the answer."""
        until_s = self._clock.monotonic() + self._settings.write_timeout_s
        while True:
            try:
                name = entry_of(request, self._files.folder)
                entry = read_entry(name, self._files)
                if entry.oldest_ns < asked_ns - _CLOCK_SLACK_NS:
                    raise NotWhole(f"the entry {name} is older than the request")
                return entry
            except NotWhole as exc:
                if self._is_over.wait(_POLL_S) or self._clock.monotonic() >= until_s:
                    raise AskAgain(str(exc)) from exc

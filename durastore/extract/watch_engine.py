"""Hidden states that a server dumps into a folder, one entry (a file, or a folder of files) for each request.

Duty: an entry counts after the server's answer for its request, and only with its sample's token ids. With a server the
requests are ours, and carry our ids. Must never take an entry because it is there: what lies in such a folder may be
half written, an aborted request's, or an earlier server's under a name that is used again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import count

from durastore.clock import SYSTEM_CLOCK, Clock
from durastore.errors import ConfigError, EngineFailed
from durastore.extract.conversion import RunShape
from durastore.extract.dumped import DumpedEntry, NotWhole, entry_of, read_entry, tensors_of
from durastore.extract.engine import Extracted, Refused
from durastore.extract.json_server import AskAgain
from durastore.extract.request_stream import RequestStream, in_order
from durastore.extract.rows import TokenRow
from durastore.extract.server_settings import ServerSettings
from durastore.extract.sglang_client import SglangClient
from durastore.extract.staged_files import StagedAnswer, StagedFiles
from durastore.extract.staged_states import extracted, joined, reserved, staged_bytes
from durastore.extract.staging_room import Reservation
from durastore.model import Digest

__all__ = ["WatchEngine"]

_POLL_S = 0.05
_CLOCK_SLACK_NS = 100_000_000
"""File times come from a clock of coarser steps."""


class WatchEngine:
    """Servers that dump into one staging folder. `start`, `health`, `extract` and `close` work without a run."""

    def __init__(
        self, settings: ServerSettings, shape: RunShape, *, served: Digest, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        """`served`: as of `served_digest`. `ConfigError` for settings that cannot work."""
        if not settings.endpoints or settings.staging is None:
            raise ConfigError("a dumping server needs --endpoint and --staging")
        self._settings = settings
        self._shape = shape
        self._served = served
        self._clock = clock
        self._clients = [SglangClient(url, clock=clock) for url in settings.endpoints]
        self._turns = count()
        self._staged: StagedFiles | None = None
        self._is_over = threading.Event()

    def start(self) -> None:
        """Look at the servers and join the staging folder. `ConfigError`, `EngineFailed`. Safe to repeat."""
        if self._staged is not None:
            return
        assert self._settings.staging is not None
        sickness = self.health()
        if sickness is not None:
            raise EngineFailed(f"the server cannot be used: {sickness}")
        self._staged = joined(self._settings.staging, self._settings, served=self._served, clock=self._clock)
        self._staged.tidy(is_due=True)

    def health(self) -> str | None:
        return next((said for client in self._clients if (said := client.health()) is not None), None)

    def extract(self, batch: Sequence[TokenRow]) -> list[Extracted | Refused]:
        """One result per row, in order. A row for whose entry there is no room at the moment is refused."""
        self.start()
        stream = RequestStream(self, pace=self._settings.pace, clock=self._clock, room_wait_s=0.0)
        return in_order(batch, stream.results(iter(batch), may_wait=lambda: True))

    def stream(
        self, rows: Iterator[TokenRow | None], *, may_wait: Callable[[], bool]
    ) -> Iterator[tuple[TokenRow, Extracted | Refused]]:
        self.start()
        return RequestStream(self, pace=self._settings.pace, clock=self._clock).results(rows, may_wait=may_wait)

    def close(self) -> None:
        if self._staged is not None:
            self._staged.tidy(is_due=True)
            self._staged.close()
            self._staged = None

    # --- what the stream asks ------------------------------------------------------------------------------------

    def reserve(self, row: TokenRow) -> Reservation | None:
        return reserved(self._files.room, staged_bytes(self._shape, tokens=len(row.input_ids)))

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

    def tidy(self) -> None:
        self._files.tidy()

    def hang_up(self) -> None:
        self._is_over.set()
        for client in self._clients:
            client.server.hang_up()

    # -------------------------------------------------------------------------------------------------------------

    @property
    def _files(self) -> StagedFiles:
        if self._staged is None:
            raise EngineFailed("the engine was not started")
        return self._staged

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

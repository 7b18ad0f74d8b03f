"""What the engines of servers that write to one staging folder share.

Duty: look at the servers, join the folder, send the rows through a `RequestStream`, and leave. How a row is asked for,
and what of its files is believed, each kind says itself.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from durastore.clock import Clock
from durastore.errors import ConfigError, EngineFailed
from durastore.extract.conversion import RunShape
from durastore.extract.engine import Extracted, Refused
from durastore.extract.json_server import JsonServer, sickness_of
from durastore.extract.request_stream import RequestStream, in_order
from durastore.extract.rows import TokenRow
from durastore.extract.server_settings import ServerSettings
from durastore.extract.staged_files import StagedFiles
from durastore.extract.staged_states import joined, reserved, staged_bytes
from durastore.extract.staging_room import Reservation
from durastore.model import Digest

__all__ = ["StagedEngine"]


class ServerClient(Protocol):
    """What is asked of one server of some kind."""

    @property
    def server(self) -> JsonServer: ...


class StagedEngine(ABC):
    """`start`, `health`, `extract` and `close` work without a run."""

    def __init__(
        self,
        settings: ServerSettings,
        shape: RunShape,
        *,
        clients: Sequence[ServerClient],
        served: Digest,
        clock: Clock,
    ) -> None:
        """`clients`: one for each endpoint. `served`: as of `served_digest`. `ConfigError` for settings that cannot
        work.
        """
        if not clients or settings.staging is None:
            raise ConfigError("a server that writes files needs --endpoint and --staging")
        self._staging = settings.staging
        self._settings = settings
        self._shape = shape
        self._servers = [client.server for client in clients]
        self._served = served
        self._clock = clock
        self._staged: StagedFiles | None = None
        self._is_over = threading.Event()

    def start(self) -> None:
        """Look at the servers and join the staging folder. `ConfigError`, `EngineFailed`. Safe to repeat."""
        if self._staged is not None:
            return
        sickness = self.health()
        if sickness is not None:
            raise EngineFailed(f"the server cannot be used: {sickness}")
        self._look()
        self._staged = joined(self._staging, self._settings, served=self._served, clock=self._clock)
        self._staged.tidy(is_due=True)

    def health(self) -> str | None:
        return sickness_of(self._servers)

    def extract(self, batch: Sequence[TokenRow]) -> list[Extracted | Refused]:
        """One result per row, in order. A row for whose files there is no room at the moment is refused."""
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

    @abstractmethod
    def ask(self, row: TokenRow, room: Reservation) -> Extracted: ...

    def tidy(self) -> None:
        self._files.tidy()

    def hang_up(self) -> None:
        self._is_over.set()
        for server in self._servers:
            server.hang_up()

    # -------------------------------------------------------------------------------------------------------------

    def _look(self) -> None:  # noqa: B027 - most servers need none
        """At healthy servers, before the first request. `ConfigError`, `EngineFailed`."""

    @property
    def _files(self) -> StagedFiles:
        if self._staged is None:
            raise EngineFailed("the engine was not started")
        return self._staged

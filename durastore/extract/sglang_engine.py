"""Hidden states from the answers of an SGLang server.

Duty: one prompt a request, its states as JSON numbers, exact in the run's dtype, one row a token; nothing on a disk.
The server's flags are looked at before the first request. Must never round a number, or take a part of the rows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any

import numpy as np

from durastore.adopt.foreign_formats.contents import Array
from durastore.clock import SYSTEM_CLOCK, Clock
from durastore.codec.dtypes import numpy_dtype
from durastore.errors import ConfigError, EngineFailed
from durastore.extract.engine import Extracted, Refused
from durastore.extract.json_server import AskAgain, Unusable, sickness_of
from durastore.extract.layers import LayerPlan
from durastore.extract.request_stream import RequestStream, in_order
from durastore.extract.rows import TokenRow
from durastore.extract.server_settings import ServerSettings
from durastore.extract.sglang_client import SglangClient, find_flag_faults, layer_order
from durastore.extract.staged_states import DTYPE_NAMES, extracted, shape_of
from durastore.extract.staging_room import Reservation, StagingRoom
from durastore.extract.state_faults import find_array_fault
from durastore.formats.staging import new_session, render_request

__all__ = ["SglangEngine"]

_NO_LIMIT = 1 << 62
_STARTED_ANEW_S = 5.0
"""No server ends, starts and loads a model in less."""


class SglangEngine:
    """Servers of one model. `start`, `health`, `extract` and `close` work without a run."""

    def __init__(
        self, settings: ServerSettings, plan: LayerPlan, *, model: tuple[str, int, str], clock: Clock = SYSTEM_CLOCK
    ) -> None:
        """`model`: architecture, hidden size, dtype. `ConfigError` for settings that cannot work."""
        if not settings.endpoints:
            raise ConfigError("an SGLang server needs --endpoint")
        self._settings = settings
        self._plan = plan
        self._architecture, self._hidden_size, dtype = model
        self._shape = shape_of(plan, dtype=dtype, hidden_size=self._hidden_size)
        self._clock = clock
        self._clients = [SglangClient(url, clock=clock) for url in settings.endpoints]
        self._orders: list[list[int]] = []
        """Of each server: which slot of its states is each layer's. Equal layers may come in another order."""
        self._broken = [0] * len(self._clients)
        """Of each server: how many of its requests came to nothing."""
        self._looked = [0] * len(self._clients)
        """The same number, as it was before its flags were last looked at."""
        self._heard_s = [0.0] * len(self._clients)
        self._looking = threading.Lock()
        self._numbers = count(1)
        self._session = new_session()
        self._room = StagingRoom(lambda: _NO_LIMIT, limit_bytes=_NO_LIMIT)

    def start(self) -> None:
        """Look at the servers' health and flags. `ConfigError`, `EngineFailed`. Safe to repeat."""
        if self._orders:
            return
        sickness = self.health()
        if sickness is not None:
            raise EngineFailed(f"the server cannot be used: {sickness}")
        self._orders = [self._order_of(client) for client in self._clients]
        self._heard_s = [self._clock.monotonic()] * len(self._clients)

    def health(self) -> str | None:
        return sickness_of(client.server for client in self._clients)

    def extract(self, batch: Sequence[TokenRow]) -> list[Extracted | Refused]:
        """One result per row, in order."""
        return in_order(batch, self.stream(iter(batch), may_wait=lambda: True))

    def stream(
        self, rows: Iterator[TokenRow | None], *, may_wait: Callable[[], bool]
    ) -> Iterator[tuple[TokenRow, Extracted | Refused]]:
        self.start()
        return RequestStream(self, pace=self._settings.pace, clock=self._clock).results(rows, may_wait=may_wait)

    def close(self) -> None:
        """Nothing is held."""

    # --- what the stream asks ------------------------------------------------------------------------------------

    def reserve(self, row: TokenRow) -> Reservation | None:
        return self._room.reserve(len(row.input_ids))

    def ask(self, row: TokenRow, room: Reservation) -> Extracted:
        room.give_back()  # nothing lies on a disk
        number = next(self._numbers)
        turn = number % len(self._clients)
        order = self._order_now(turn)
        try:
            facts = self._clients[turn].generate(
                [int(each) for each in row.input_ids],
                request=render_request(self._session, number),
                wants_states=True,
                timeout_s=self._settings.timeout_s,
            )
        except AskAgain:
            with self._looking:
                self._broken[turn] += 1
            raise
        # Another request broke meanwhile: perhaps this answer is of a server that was started anew. If it still has the
        # order that was asked for, the answer is good: a sample must not fail because its neighbour does.
        if self._order_now(turn) != order:
            raise AskAgain("the server was started anew meanwhile, with other layers")
        self._heard_s[turn] = self._clock.monotonic()
        states = self._states(facts, row, order=order)
        tensors: dict[str, Any] = {"hidden_states": states, "input_ids": row.input_ids}
        if row.loss_mask is not None:
            tensors["loss_mask"] = row.loss_mask
        return extracted(tensors, lambda holds: None)

    def tidy(self) -> None:
        pass

    def hang_up(self) -> None:
        for client in self._clients:
            client.server.hang_up()

    # -------------------------------------------------------------------------------------------------------------

    def _order_now(self, turn: int) -> list[int]:
        """After a request that broke, and after a silence in which a server can have loaded its model, it may be
        another one, started with other flags: it is looked at again. `AskAgain` where it does not answer yet.
        """
        with self._looking:
            broken = self._broken[turn]
            silence_s = self._clock.monotonic() - self._heard_s[turn]
            if broken != self._looked[turn] or silence_s > _STARTED_ANEW_S:
                try:
                    self._orders[turn] = self._order_of(self._clients[turn])
                except EngineFailed as exc:
                    raise AskAgain(exc.message) from exc
                self._looked[turn] = broken  # what breaks during the look is looked at once more
                self._heard_s[turn] = self._clock.monotonic()
            return self._orders[turn]

    def _order_of(self, client: SglangClient) -> list[int]:
        """By its flags as they are now. `ConfigError` where they are none for this run, `EngineFailed`."""
        try:
            flags = client.flags()
        except (AskAgain, Unusable) as exc:
            raise EngineFailed(f"the server cannot be used: {exc}") from exc
        faults = find_flag_faults(flags, self._plan, architecture=self._architecture)
        if faults:
            raise ConfigError(f"the server {client.server.url} was not started for this: {'; '.join(faults)}")
        return layer_order(flags, self._plan, architecture=self._architecture)

    def _states(self, facts: dict[str, Any], row: TokenRow, *, order: list[int]) -> Array:
        blocks = facts.get("hidden_states")
        if not isinstance(blocks, list) or not blocks:
            raise AskAgain("the answer has no hidden states")
        try:
            given = np.array(blocks[0], dtype=np.float64)
        except (ValueError, TypeError) as exc:
            raise AskAgain("its states are not rows of numbers") from exc
        slots, tokens = len(order), len(row.input_ids)
        if given.ndim != 2 or len(given) != tokens:
            raise AskAgain(f"it came with {len(given)} rows of states for {tokens} tokens")
        if given.shape[1] != slots * self._hidden_size:
            raise AskAgain(f"its states have {given.shape[1]} numbers, not {slots} times {self._hidden_size}")
        states = given.astype(numpy_dtype(DTYPE_NAMES[self._shape.dtype or ""]))
        if not np.array_equal(states.astype(np.float64), given, equal_nan=True):
            raise AskAgain(f"its states are no {self._shape.dtype} numbers: the server works in another dtype")
        states = np.ascontiguousarray(states.reshape(tokens, slots, self._hidden_size)[:, order])
        fault = find_array_fault(states, self._plan.indices)
        if fault is not None:
            raise AskAgain(fault)
        return states

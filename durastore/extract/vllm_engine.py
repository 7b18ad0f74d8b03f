"""Hidden states from a vLLM server that was started with `extract_hidden_states`.

Duty: one prompt a request; the file of a request only after its answer, under its lock, and with its token ids. A file
without an answer is never looked at: vLLM also writes those of aborted requests, with all token ids and states that
were never computed. Must never take a path outside the staging folder.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path

from durastore.clock import SYSTEM_CLOCK, Clock
from durastore.errors import ConfigError, DiskFailed, EngineFailed
from durastore.extract.conversion import RunShape
from durastore.extract.engine import Extracted, Refused
from durastore.extract.json_server import AskAgain, JsonServer, Unusable
from durastore.extract.request_stream import RequestStream, in_order
from durastore.extract.rows import TokenRow
from durastore.extract.server_settings import ServerSettings
from durastore.extract.staged_files import StagedAnswer, StagedFiles
from durastore.extract.staged_states import extracted, joined, reserved, staged_bytes, states_in
from durastore.extract.staging_room import Reservation
from durastore.formats.staging import LOCK_SUFFIX
from durastore.fsio.lock import FlockedFile
from durastore.model import Digest
from durastore.reclaim.staging import StagedFile

__all__ = ["VllmClient", "VllmEngine"]

_LOOK_S = 10.0
"""For answers that need no model."""
_POLL_S = 0.02
_CLOCK_SLACK_NS = 1_000_000_000
_LAUNCH = "start it with --speculative_config extract_hidden_states and ExampleHiddenStatesConnector"


class VllmClient:
    """What is asked of one server. Thread-safe; usable without a run."""

    def __init__(self, url: str, *, clock: Clock = SYSTEM_CLOCK) -> None:
        """`url`: with or without `/v1`."""
        self.server = JsonServer(url.rstrip("/").removesuffix("/v1"), clock=clock)

    def health(self) -> str | None:
        """None if the server says that it works, else the reason."""
        try:
            self.server.get("/health", timeout_s=_LOOK_S)
        except (AskAgain, Unusable, EngineFailed) as exc:
            return f"{self.server.url}: {exc}"
        return None

    def models(self) -> list[str]:
        """The names that the server has for what it serves. `AskAgain`, `Unusable`."""
        answer = self.server.get("/v1/models", timeout_s=_LOOK_S)
        data = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(data, list):
            raise AskAgain(f"{self.server.url}/v1/models lists no models")
        return [str(each["id"]) for each in data if isinstance(each, dict) and "id" in each]

    def extract(self, ids: Sequence[int], *, model: str, request: str, timeout_s: float) -> str:
        """Ask for the states of one prompt; the path of the file that the server writes, as the server names it.

        `AskAgain`, `Unusable`, `EngineFailed`; `ConfigError` if the server does not extract states.
        """
        body = {"model": model, "prompt": list(ids), "max_tokens": 1, "temperature": 0.0, "return_token_ids": True}
        headers = {"X-Request-Id": request}
        answer = self.server.post("/v1/completions", body, timeout_s=timeout_s, headers=headers)
        choices = answer.get("choices") if isinstance(answer, dict) else None
        if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
            raise AskAgain("the answer has not exactly one choice")
        said = choices[0].get("prompt_token_ids")
        if said is not None and said != list(ids):
            raise AskAgain("the server answered for other token ids")
        transfer = answer.get("kv_transfer_params")
        path = transfer.get("hidden_states_path") or transfer.get("handle") if isinstance(transfer, dict) else None
        if not isinstance(path, str):
            raise ConfigError(f"{self.server.url} does not extract hidden states", hint=_LAUNCH)
        return path


class VllmEngine:
    """Servers that write to one staging folder. `start`, `health`, `extract` and `close` work without a run."""

    def __init__(
        self, settings: ServerSettings, shape: RunShape, *, served: Digest, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        """`served`: as of `served_digest`. `ConfigError` for settings that cannot work."""
        if not settings.endpoints or settings.staging is None:
            raise ConfigError("a vLLM server needs --endpoint and --staging", hint=_LAUNCH)
        if shape.is_last_normed:
            raise ConfigError("vLLM gives the last state before the final norm", hint="leave --normed-last out")
        self._settings = settings
        self._shape = shape
        self._served = served
        self._clock = clock
        self._clients = [VllmClient(url, clock=clock) for url in settings.endpoints]
        self._turns = count()
        self._model = ""
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
        self._model = self._model_name()
        self._staged = joined(self._settings.staging, self._settings, served=self._served, clock=self._clock)
        self._staged.tidy(is_due=True)

    def health(self) -> str | None:
        return next((said for client in self._clients if (said := client.health()) is not None), None)

    def extract(self, batch: Sequence[TokenRow]) -> list[Extracted | Refused]:
        """One result per row, in order. A row for whose file there is no room at the moment is refused."""
        stream = self._stream(room_wait_s=0.0)
        return in_order(batch, stream.results(iter(batch), may_wait=lambda: True))

    def stream(
        self, rows: Iterator[TokenRow | None], *, may_wait: Callable[[], bool]
    ) -> Iterator[tuple[TokenRow, Extracted | Refused]]:
        return self._stream().results(rows, may_wait=may_wait)

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
            ids = [int(each) for each in row.input_ids]
            asked_ns = self._clock.now_ns()
            named = client.extract(ids, model=self._model, request=request, timeout_s=self._settings.timeout_s)
            data, staged = self._whole_file(self._name_of(named))
            if staged.identity.mtime_ns < asked_ns - _CLOCK_SLACK_NS:
                raise AskAgain(f"its file {staged.path} is older than the request")
            room.written()
            tensors = states_in(data, row, shape=self._shape, path=staged.path)
        except BaseException:
            files.died(request, room)
            raise
        answer = StagedAnswer(request=request, files=(staged,), room=room)
        return extracted(tensors, lambda holds: files.settle(answer, holds))

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

    def _stream(self, *, room_wait_s: float | None = None) -> RequestStream:
        self.start()
        more = {} if room_wait_s is None else {"room_wait_s": room_wait_s}
        return RequestStream(self, pace=self._settings.pace, clock=self._clock, **more)

    def _model_name(self) -> str:
        wanted = self._settings.served_model
        try:
            listed = [client.models() for client in self._clients]
        except (AskAgain, Unusable) as exc:
            raise EngineFailed(f"the server cannot be used: {exc}") from exc
        names = set(listed[0]).intersection(*listed)
        if wanted is not None and wanted not in names:
            raise ConfigError(
                f"the server has no model {wanted!r}", hint=f"it has {', '.join(sorted(names)) or 'none'}"
            )
        if wanted is None and len(names) != 1:
            raise ConfigError(f"the server lists {len(names)} models", hint="name one with --served-model")
        return wanted or names.pop()

    def _name_of(self, named: str) -> str:
        """The file's name in the staging folder. What the server calls the folder may be another path to it."""
        path = Path(named)
        folder = self._files.folder
        try:
            is_there = path.parent.samefile(folder.path)
        except OSError:
            is_there = False
        if not is_there or not path.name.endswith(".safetensors"):
            raise ConfigError(
                f"the server writes to {path.parent}, and the staging folder is {folder.path}",
                hint="start it with shared_storage_path set to the folder that --staging names",
            )
        return path.name

    def _whole_file(self, name: str) -> tuple[bytes, StagedFile]:
        """Under its lock: the answer comes before the write has ended, and a failed write lets go of the lock, too."""
        lock = self._locked(f"{name}{LOCK_SUFFIX}")
        try:
            return self._files.read(name)
        finally:
            lock.close()

    def _locked(self, name: str) -> FlockedFile:
        until_s = self._clock.monotonic() + self._settings.write_timeout_s
        while True:
            try:
                lock = FlockedFile.try_lock_existing(self._files.folder.folder, name, is_shared=True)
            except (OSError, DiskFailed) as exc:
                raise AskAgain(f"its lock {name} cannot be had: {exc}") from exc
            if lock is not None:
                return lock
            if self._is_over.wait(_POLL_S) or self._clock.monotonic() >= until_s:
                raise AskAgain(f"its file is still being written after {self._settings.write_timeout_s:g} s")

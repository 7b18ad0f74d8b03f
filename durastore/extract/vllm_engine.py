"""Hidden states from a vLLM server that was started with `extract_hidden_states`.

Duty: one prompt a request; the file of a request only after its answer, under its lock, and with its token ids. A file
without an answer is never looked at: vLLM also writes those of aborted requests, with all token ids and states that
were never computed. Must never take a path outside the staging folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from pathlib import Path

from durastore.clock import SYSTEM_CLOCK, Clock
from durastore.errors import ConfigError, DiskFailed, EngineFailed
from durastore.extract.conversion import RunShape
from durastore.extract.engine import Extracted
from durastore.extract.json_server import LOOK_S, AskAgain, JsonServer, Unusable
from durastore.extract.rows import TokenRow
from durastore.extract.server_settings import ServerSettings
from durastore.extract.staged_engine import StagedEngine
from durastore.extract.staged_files import StagedAnswer
from durastore.extract.staged_states import extracted, states_in
from durastore.extract.staging_room import Reservation
from durastore.formats.staging import LOCK_SUFFIX
from durastore.fsio.lock import FlockedFile
from durastore.model import Digest
from durastore.reclaim.staging import StagedFile

__all__ = ["VllmClient", "VllmEngine"]

_POLL_S = 0.02
_CLOCK_SLACK_NS = 1_000_000_000
_LAUNCH = "start it with --speculative_config extract_hidden_states and ExampleHiddenStatesConnector"


class VllmClient:
    """What is asked of one server. Thread-safe; usable without a run."""

    def __init__(self, url: str, *, clock: Clock = SYSTEM_CLOCK) -> None:
        """`url`: with or without `/v1`."""
        self.server = JsonServer(url.rstrip("/").removesuffix("/v1"), clock=clock)

    def models(self) -> list[str]:
        """The names that the server has for what it serves. `AskAgain`, `Unusable`."""
        answer = self.server.get("/v1/models", timeout_s=LOOK_S)
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


class VllmEngine(StagedEngine):
    """vLLM servers of one model."""

    def __init__(
        self, settings: ServerSettings, shape: RunShape, *, served: Digest, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        """As `StagedEngine`."""
        self._clients = [VllmClient(url, clock=clock) for url in settings.endpoints]
        super().__init__(settings, shape, clients=self._clients, served=served, clock=clock)
        if shape.is_last_normed:
            raise ConfigError("vLLM gives the last state before the final norm", hint="leave --normed-last out")
        self._turns = count()
        self._model = ""

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

    def _look(self) -> None:
        self._model = self._model_name()

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

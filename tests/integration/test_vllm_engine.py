"""The vLLM engine by itself against a server that goes wrong in every known way: a sample is right, or is refused."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from durastore.clock import SYSTEM_CLOCK
from durastore.errors import ConfigError, EngineFailed
from durastore.extract.conversion import RunShape
from durastore.extract.engine import Extracted, Refused, StreamEngine
from durastore.extract.json_server import AskAgain, JsonServer, Unusable
from durastore.extract.request_stream import Pace
from durastore.extract.rows import TokenRow
from durastore.extract.server_settings import ServerSettings
from durastore.extract.staging_room import StagingRoom
from durastore.extract.vllm_engine import VllmClient, VllmEngine
from durastore.extract.watched_passes import watched
from durastore.formats.staging import STAGING_MARKER_NAME
from durastore.model import Digest
from tests.integration.extract_lab import token_rows
from tests.integration.model_servers import JsonHandler, VllmServer, random_states

SHAPE = RunShape(layers=(1, 3), num_layers=4, is_last_normed=None, dtype="bfloat16", hidden_size=16)
STATES = random_states((2, 16))
SERVED = Digest("a" * 32)
IDS = [5, 6, 7, 8]
FAULTS = {
    "failed": "cannot be read",
    "partial": "no whole safetensors",
    "slow": "no answer in",
    "error": "500",
    "other answer": "other token ids",
    "other ids": "token 0 is",
    "stale": "older than the request",
    "short": "tokens",
    "nan": "NaN",
}
"""What the server does with a request -> what the sample is refused for, if nothing better comes."""


@pytest.fixture
def server(tmp_path: Path) -> VllmServer:
    (tmp_path / "hs").mkdir()
    return VllmServer(tmp_path / "hs", STATES)


@pytest.fixture
def settings(server: VllmServer) -> Iterator[ServerSettings]:
    with server.running() as url:
        yield ServerSettings(
            endpoints=(url,),
            staging=server.folder,
            pace=Pace(concurrency=4, tries=2, first_wait_s=0.02),
            timeout_s=20.0,
        )


def engine_of(settings: ServerSettings) -> VllmEngine:
    return VllmEngine(settings, SHAPE, served=SERVED)


def check(result: Extracted | Refused, ids: list[int] = IDS) -> None:
    assert isinstance(result, Extracted), result
    states = result.tensors["hidden_states"].view(torch.uint16).numpy()
    assert np.array_equal(states, STATES(ids).view(np.uint16))
    assert result.tensors["input_ids"].tolist() == ids


def left_in(folder: Path) -> list[str]:
    return sorted(name for name in os.listdir(folder) if not name.startswith((".durastore-", STAGING_MARKER_NAME)))


@pytest.mark.parametrize("fault", FAULTS)
def test_what_goes_wrong_is_never_handed_out(server: VllmServer, settings: ServerSettings, fault: str) -> None:
    if fault == "slow":
        settings = replace(settings, timeout_s=1.0)
    patient = replace(settings.pace, tries=6)  # on a busy machine an answer that is right may be late as well
    engine = engine_of(replace(settings, pace=patient))  # case B88
    engine.start()
    if fault == "stale":
        (server.folder / "old.safetensors").write_bytes(server.bytes_of(IDS, fault="stale"))
        (server.folder / "old.safetensors.lock").touch()
        os.utime(server.folder / "old.safetensors", (1, 1))
    server.plan.add(IDS, fault)
    (good,) = engine.extract(token_rows([IDS]))  # another request gives it
    check(good)
    server.plan.add(IDS, fault, fault)
    hasty = engine_of(settings)
    (bad,) = hasty.extract(token_rows([IDS]))
    assert isinstance(bad, Refused)
    assert FAULTS[fault] in bad.reason
    assert bad.attempts == 2
    assert isinstance(good, Extracted)
    good.settle(lambda: True)
    hasty.close()  # what it left is an ended session's
    left = ["old.safetensors", "old.safetensors.lock"] if fault == "stale" else []
    _until(lambda: left_in(server.folder) == left, engine)
    engine.close()


def _until(is_so: Callable[[], bool], engine: VllmEngine) -> None:
    """Tidy until it is so: a server may write long after its client hung up."""
    until = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < until
        engine._files.tidy(is_due=True)
        time.sleep(0.02)


def test_a_late_write_is_waited_for_and_one_that_never_ends_is_not(
    server: VllmServer, settings: ServerSettings
) -> None:
    server.plan.add(IDS, "late")
    settings = replace(settings, pace=Pace(tries=1))
    engine = engine_of(settings)
    check(engine.extract(token_rows([IDS]))[0])
    engine.close()
    server.plan.add(IDS, "late")
    hasty = engine_of(replace(settings, write_timeout_s=0.05))
    (result,) = hasty.extract(token_rows([IDS]))
    assert isinstance(result, Refused)
    assert "still being written" in result.reason
    hasty.close()


def test_files_stay_until_the_store_holds_their_sample(server: VllmServer, settings: ServerSettings) -> None:
    engine = engine_of(settings)
    (kept, failed) = engine.extract(token_rows([IDS, [1, 2]]))
    assert isinstance(kept, Extracted)
    assert isinstance(failed, Extracted)
    answers = [False]
    kept.settle(lambda: answers[-1])
    assert len(left_in(server.folder)) == 4
    failed.settle(None)
    engine._files.tidy(is_due=True)
    assert len(left_in(server.folder)) == 2
    answers.append(True)
    engine._files.tidy(is_due=True)
    assert left_in(server.folder) == []
    engine.close()


def test_requests_wait_for_room_and_room_comes_back(server: VllmServer, settings: ServerSettings) -> None:
    """Room for two files: never more than two are there, although eight samples are asked for at once."""
    engine = engine_of(replace(settings, staging_limit_bytes=2 * 8192))
    engine.start()
    rows = token_rows([[n, n + 1] for n in range(8)])
    most = 0
    held: list[Extracted] = []
    for row, result in engine.stream(iter(rows), may_wait=lambda: True):
        check(result, row.input_ids.tolist())
        assert isinstance(result, Extracted)
        most = max(most, sum(name.endswith(".safetensors") for name in left_in(server.folder)))
        held.append(result)
        if len(held) == 2:
            for each in held:
                each.settle(lambda: True)
            held.clear()
    assert most == 2
    assert engine._files.room.reserved_bytes == 0
    full = engine.extract(token_rows([[n] for n in range(4)]))  # whoever asks for a batch alone makes no room
    assert [isinstance(result, Extracted) for result in full].count(True) == 2
    assert {result.reason for result in full if isinstance(result, Refused)} == {
        "there is no room for it in the staging folder"
    }
    engine.close()


def test_a_sample_that_never_fits_is_refused_and_the_others_pass(server: VllmServer, settings: ServerSettings) -> None:
    engine = engine_of(replace(settings, staging_limit_bytes=8192))
    rows = token_rows([[1] * 200, [2], [3]])
    results: dict[int, Extracted | Refused] = {}
    for row, result in engine.stream(iter(rows), may_wait=lambda: True):
        results[len(row.input_ids)] = result
        if isinstance(result, Extracted):
            result.settle(lambda: True)
    refused = results[200]
    assert isinstance(refused, Refused)
    assert "does not fit" in refused.reason
    assert isinstance(results[1], Extracted)
    assert [1] * 200 not in [list(ids) for ids in server.asked]
    engine.close()


def test_a_server_that_writes_elsewhere_ends_the_run(server: VllmServer, settings: ServerSettings) -> None:
    server.plan.add(IDS, "elsewhere")
    engine = engine_of(settings)
    with pytest.raises(ConfigError, match="the server writes to"):
        engine.extract(token_rows([IDS]))
    engine.close()
    (server.folder.parent / "other").mkdir()
    (server.folder.parent / "other" / "somebody's").write_bytes(b"x")
    with pytest.raises(ConfigError, match="no staging folder"):
        engine_of(replace(settings, staging=server.folder.parent / "other")).start()


def test_room_that_others_took_is_not_there() -> None:
    free = [100]
    room = StagingRoom(lambda: free[0], limit_bytes=1000)
    one = room.reserve(60)
    assert one is not None
    assert room.reserve(60) is None  # 60 of the 100 are about to be written
    one.written()
    free[0] = 50
    assert room.reserve(60) is None
    two = room.reserve(50)
    assert two is not None
    for each in (one, two, two):
        each.give_back()
    assert (room.reserved_bytes, room.unwritten_bytes) == (0, 0)
    assert StagingRoom(lambda: 100).limit_bytes == 85


def test_an_end_does_not_wait_for_requests_in_flight(server: VllmServer, settings: ServerSettings) -> None:
    engine = engine_of(replace(settings, timeout_s=600.0))
    engine.start()
    rows = token_rows([[1], [2], [3]])
    server.plan.add([2], "slow")
    server.plan.add([3], "slow")
    is_over = threading.Event()
    got: list[TokenRow] = []
    for row, _ in engine.stream(iter(rows), may_wait=lambda: not is_over.is_set()):
        got.append(row)
        is_over.set()
    assert [row.input_ids.tolist() for row in got] == [[1]]
    engine.close()


def test_the_server_of_these_tests_ends_after_the_request_of_a_client_that_hung_up(
    server: VllmServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or it would write into the folder of a test that is over."""
    wait = JsonHandler.waits_for_hang_up

    def wait_and_dawdle(handler: JsonHandler) -> None:
        wait(handler)
        time.sleep(0.3)

    monkeypatch.setattr(JsonHandler, "waits_for_hang_up", wait_and_dawdle)
    body = json.dumps({"prompt": IDS, "max_tokens": 1, "return_token_ids": True, "model": "tiny"}).encode()
    server.plan.add(IDS, "slow")
    with server.running() as url:
        with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as client:
            client.sendall(b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
            while not server.asked:
                time.sleep(0.001)
    assert len(list(server.folder.glob("*.safetensors"))) == 1


def test_rows_that_are_not_there_yet_hold_nothing_back(settings: ServerSettings) -> None:
    engine = engine_of(settings)
    rows = token_rows([[1], [2]])
    got: list[TokenRow] = []

    def source() -> Iterator[TokenRow | None]:
        yield rows[0]
        while not got:  # the first result comes although the next row does not
            yield None
        yield rows[1]

    for row, _ in engine.stream(source(), may_wait=lambda: True):
        got.append(row)
    assert len(got) == 2
    engine.close()


def test_settings_that_cannot_work_are_refused(server: VllmServer, settings: ServerSettings) -> None:
    with pytest.raises(ConfigError, match="--staging"):
        engine_of(replace(settings, staging=None))
    with pytest.raises(ConfigError, match="final norm"):
        VllmEngine(settings, replace(SHAPE, is_last_normed=True), served=SERVED)
    with pytest.raises(ConfigError, match="--endpoint is not usable"):
        engine_of(replace(settings, endpoints=("localhost:8000",)))
    with pytest.raises(ConfigError, match="no model 'other'"):
        engine_of(replace(settings, served_model="other")).start()
    server.is_sick = True
    with pytest.raises(EngineFailed, match="500"):
        engine_of(settings).start()
    assert left_in(server.folder) == []
    with pytest.raises(EngineFailed, match="no answer"):
        engine_of(replace(settings, endpoints=("http://127.0.0.1:9",))).start()


def test_a_stream_is_told_from_a_batch_engine(settings: ServerSettings) -> None:
    engine = engine_of(settings)
    assert isinstance(engine, StreamEngine)
    assert isinstance(watched(engine, clock=SYSTEM_CLOCK, lease_s=1.0), StreamEngine)


def test_the_client_works_alone(server: VllmServer, settings: ServerSettings) -> None:
    client = VllmClient(settings.endpoints[0])
    assert client.server.health() is None
    assert client.models() == ["tiny"]
    path = Path(client.extract(IDS, model="tiny", request="probe", timeout_s=5.0))
    assert path.parent == server.folder
    assert path.name.startswith("cmpl-probe-0-")
    server.plan.add(IDS, "refused")
    with pytest.raises(Unusable, match="too long"):
        client.extract(IDS, model="tiny", request="probe", timeout_s=5.0)
    client.server.hang_up()
    with pytest.raises(AskAgain, match="ending"):
        client.models()
    with pytest.raises(ConfigError):
        JsonServer("ftp://x", clock=SYSTEM_CLOCK)

"""Extraction from SGLang servers: states in their answers, or in what they dump."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from durastore.clock import ManualClock
from durastore.errors import ConfigError, EngineFailed
from durastore.extract.engine import Extracted, Refused
from durastore.extract.layers import parse_layers
from durastore.extract.request_stream import Pace
from durastore.extract.server_settings import ServerSettings
from durastore.extract.sglang_engine import SglangEngine
from durastore.formats.staging import STAGING_MARKER_NAME
from tests.integration.extract_lab import Job, job, model_folder, token_rows
from tests.integration.model_servers import JsonHandler, SglangServer, States
from tests.integration.served_lab import Served, rows_of, small_states

__all__ = ["job", "model_folder", "small_states"]  # fixtures


def left_in(folder: Path) -> list[str]:
    return sorted(name for name in os.listdir(folder) if not name.startswith((".durastore-", STAGING_MARKER_NAME)))


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    folder = tmp_path / "dump"
    folder.mkdir()
    return folder


def test_a_server_that_dumps_gives_every_sample_once_and_nothing_else(
    job: Job, small_states: States, dump: Path
) -> None:
    server = SglangServer(small_states, folder=dump, is_entry_a_folder=True)
    rows = rows_of(30)
    for row, fault in zip(rows, ("late", "partial", "never", "slow", "error", "other ids", "short"), strict=False):
        server.plan.add(row["input_ids"], fault)
    server.plan.add(rows[10]["input_ids"], "no ids")
    with server.running() as url:
        settings = ServerSettings(
            endpoints=(url,), staging=dump, pace=Pace(concurrency=8), timeout_s=2.0, write_timeout_s=1.0
        )
        served = Served(job, engine="watch", settings=settings, states=small_states)
        served.write(rows)
        report = served.run()
        assert (report.error, report.exit_code, report.counts.ok, report.counts.failed) == (None, 3, 29, 1)
        served.check_stored(without=[rows[10]["id"]])
        server.plan.add(rows[10]["input_ids"], "no ids")
        again = served.run(server=replace(settings, is_unverified_taken=True), is_retry=True)
        assert (again.exit_code, again.counts.ok) == (0, 1)
    served.check_stored()
    metas = {name: job.dataset()[name].meta for name in ("s/9", "s/10")}
    assert metas == {
        "s/9": {"line": 10, "n_tokens": len(rows[9]["input_ids"])},
        "s/10": {"line": 11, "n_tokens": len(rows[10]["input_ids"]), "input": "unverified"},
    }
    assert left_in(dump) == []


def test_a_folder_that_somebody_else_fills_is_read_as_it_fills(job: Job, small_states: States, dump: Path) -> None:
    """Entries come in another order than the rows, between others that are of no row or are never done."""
    server = SglangServer(small_states, folder=dump)
    rows = rows_of(30)
    settings = ServerSettings(staging=dump, idle_s=20.0)
    served = Served(job, engine="watch", settings=settings, states=small_states)
    served.write(rows)

    def fill() -> None:
        while not (dump / STAGING_MARKER_NAME).exists():
            time.sleep(0.02)
        for number, row in enumerate(reversed(rows)):
            server.dump(str(number), row["input_ids"], fault="partial")
            server.dump(f"aborted-{number}", row["input_ids"], fault="poison")  # never marked
            server.dump(str(number), row["input_ids"])
            (dump / f"req_{number}.done").touch()
        server.dump("other", [60, 60, 60], fault="poison")
        (dump / "req_other.done").touch()

    thread = threading.Thread(target=fill)
    thread.start()
    report = served.run()
    thread.join()
    assert (report.error, report.exit_code, report.counts.ok) == (None, 0, 30)
    served.check_stored()
    kept = [f"req_aborted-{number}.safetensors" for number in range(30)]
    assert left_in(dump) == sorted([*kept, "req_other.done", "req_other.safetensors"])


# --- states in the answer --------------------------------------------------------------------------------------------


@pytest.fixture
def server(small_states: States) -> SglangServer:
    server = SglangServer(small_states)
    server.flags["return_aux_hidden_state_layer_ids"] = [2, 3, 0]
    server.order = [1, 2, 0]  # the server gives the order in which it was asked for
    return server


@pytest.fixture
def settings(server: SglangServer) -> Iterator[ServerSettings]:
    with server.running() as url:
        yield ServerSettings(endpoints=(url,), pace=Pace(concurrency=4, tries=2), timeout_s=5.0)


def test_states_in_the_answer_are_stored_exactly(
    server: SglangServer, settings: ServerSettings, job: Job, small_states: States
) -> None:
    rows = rows_of(30)
    for row, fault in zip(rows, ("short", "nan", "error", "other dtype"), strict=False):
        server.plan.add(row["input_ids"], fault)
    server.plan.add(rows[5]["input_ids"], "refused")
    served = Served(job, engine="sglang", settings=settings, states=small_states)
    served.write(rows)
    report = served.run()
    assert (report.error, report.exit_code, report.counts.ok, report.counts.failed) == (None, 3, 29, 1)
    served.check_stored(without=[rows[5]["id"]])
    assert (served.run().exit_code, len(server.asked)) == (0, 30 + 4 + 1)
    served.check_stored()
    server.flags["disable_radix_cache"] = False
    served.write(rows_of(31))
    report = served.run()
    assert isinstance(report.error, ConfigError)
    assert "--disable-radix-cache" in report.error.message
    assert report.counts.left == 1


def test_servers_that_give_the_layers_in_different_orders_are_told_apart(
    server: SglangServer, settings: ServerSettings, job: Job, small_states: States
) -> None:
    plain = SglangServer(small_states)
    plain.flags["return_aux_hidden_state_layer_ids"] = [0, 2, 3]
    with plain.running() as url:
        both = replace(settings, endpoints=(*settings.endpoints, url))
        served = Served(job, engine="sglang", settings=both, states=small_states)
        served.write(rows_of(12))
        report = served.run()
    assert (report.error, report.exit_code, report.counts.ok) == (None, 0, 12)
    assert server.asked
    assert plain.asked
    served.check_stored()


def test_an_engine_that_refused_one_of_its_servers_refuses_it_again(
    server: SglangServer, settings: ServerSettings, small_states: States
) -> None:
    cut = SglangServer(small_states)
    cut.flags |= {"return_aux_hidden_state_layer_ids": [0, 2, 3], "chunked_prefill_size": 8192}
    with cut.running() as url:
        engine = _engine(replace(settings, endpoints=(*settings.endpoints, url)))
        for _ in range(2):
            with pytest.raises(ConfigError, match="chunked-prefill-size"):
                engine.start()


def test_a_server_that_was_started_anew_in_between_is_looked_at_again(
    server: SglangServer, settings: ServerSettings, job: Job, small_states: States
) -> None:
    rows = rows_of(12)
    server.plan.add(rows[6]["input_ids"], "error")
    begin = server.asked.append

    class Restarted(list[tuple[int, ...]]):
        def append(self, ids: tuple[int, ...]) -> None:
            begin(ids)
            if list(ids) == rows[6]["input_ids"]:  # its connections break, and it is up again with other flags
                server.flags["return_aux_hidden_state_layer_ids"] = [0, 2, 3]
                server.order = None

    server.asked = Restarted()
    served = Served(job, engine="sglang", settings=replace(settings, pace=Pace(concurrency=1)), states=small_states)
    served.write(rows)
    report = served.run()
    assert (report.error, report.exit_code, report.counts.ok) == (None, 0, 12)
    served.check_stored()


class _Meanwhile(SglangServer):
    """While `late` is asked for, the request for `broken` comes to nothing; then `late` is answered."""

    def __init__(self, states: States) -> None:
        super().__init__(states)
        self.broken, self.late = [5, 6, 7], [8, 9]
        self.flags["return_aux_hidden_state_layer_ids"] = [0, 2, 3]
        self.plan.add(self.broken, "error")
        self.is_late_asked, self.is_broken = threading.Event(), threading.Event()
        self.before_late: Callable[[], None] = lambda: None

    def generate(self, handler: JsonHandler, body: dict[str, Any]) -> None:
        if body["input_ids"] == self.late:
            self.is_late_asked.set()
            assert self.is_broken.wait(30)
            time.sleep(0.5)  # the client has to read its answer
            self.before_late()
        else:
            assert self.is_late_asked.wait(30)
        super().generate(handler, body)
        if body["input_ids"] == self.broken:
            self.is_broken.set()


def _one_try(url: str) -> ServerSettings:
    return ServerSettings(endpoints=(url,), pace=Pace(concurrency=2, tries=1), timeout_s=60.0)


def test_a_sample_does_not_fail_because_its_neighbour_does(small_states: States) -> None:
    server = _Meanwhile(small_states)
    with server.running() as url:
        refused, good = _engine(_one_try(url)).extract(token_rows([server.broken, server.late]))
    assert isinstance(refused, Refused)
    assert isinstance(good, Extracted)
    assert good.tensors["hidden_states"].view(torch.uint16).numpy().tolist() == bits(small_states(server.late))


def test_an_answer_of_a_server_that_was_started_anew_meanwhile_is_not_taken(small_states: States) -> None:
    server = _Meanwhile(small_states)

    def start_anew() -> None:
        server.flags["return_aux_hidden_state_layer_ids"] = [2, 0, 3]
        server.order = [1, 0, 2]

    server.before_late = start_anew
    with server.running() as url:
        engine = _engine(_one_try(url))
        refused = engine.extract(token_rows([server.broken, server.late]))
        assert [type(each) for each in refused] == [Refused, Refused]
        (good,) = engine.extract(token_rows([server.late]))
    assert isinstance(good, Extracted)
    assert good.tensors["hidden_states"].view(torch.uint16).numpy().tolist() == bits(small_states(server.late))


def test_a_server_that_was_started_anew_while_nothing_was_asked_is_looked_at_again(
    server: SglangServer, settings: ServerSettings, small_states: States
) -> None:
    clock = ManualClock()
    engine = SglangEngine(settings, _PLAN, model=_MODEL, clock=clock)
    for order, layers in (([1, 2, 0], [2, 3, 0]), ([0, 2, 1], [0, 3, 2])):
        server.flags["return_aux_hidden_state_layer_ids"], server.order = layers, order
        (good,) = engine.extract(token_rows([[5, 6]]))
        assert isinstance(good, Extracted)
        assert good.tensors["hidden_states"].view(torch.uint16).numpy().tolist() == bits(small_states([5, 6]))
        clock.advance(60)


def test_a_server_that_was_started_anew_for_something_else_ends_the_run(
    server: SglangServer, settings: ServerSettings
) -> None:
    engine = _engine(settings)
    engine.start()
    server.plan.add([5, 6], "error")
    server.flags["disable_radix_cache"] = False
    with pytest.raises(ConfigError, match="--disable-radix-cache"):
        engine.extract(token_rows([[5, 6]]))


_PLAN = parse_layers("1,3,last", num_layers=4)
_MODEL = ("LlamaForCausalLM", 32, "bfloat16")


def _engine(settings: ServerSettings) -> SglangEngine:
    return SglangEngine(settings, _PLAN, model=_MODEL)


def bits(states: Any) -> Any:
    return states.view("u2").tolist()


@pytest.mark.parametrize(
    "fault, said",
    [("short", "rows of states"), ("nan", "NaN"), ("other dtype", "another dtype"), ("error", "500")],
)
def test_what_goes_wrong_is_refused(server: SglangServer, settings: ServerSettings, fault: str, said: str) -> None:
    ids = [5, 6, 7, 8]
    server.plan.add(ids, fault, fault)
    refused, good = _engine(settings).extract(token_rows([ids, [1]]))
    assert isinstance(refused, Refused)
    assert said in refused.reason
    assert isinstance(good, Extracted)
    assert good.tensors["hidden_states"].shape == (1, 3, 32)


def test_a_server_that_cannot_be_used_is_told_before_the_first_request(
    server: SglangServer, settings: ServerSettings
) -> None:
    server.info_path = "/server_info"
    _engine(settings).start()
    server.flags["chunked_prefill_size"] = 8192
    with pytest.raises(ConfigError, match="--chunked-prefill-size -1"):
        _engine(settings).start()
    server.info_path = "/nowhere"
    with pytest.raises(EngineFailed, match="does not tell"):
        _engine(settings).start()
    server.is_sick = True
    with pytest.raises(EngineFailed, match="503"):
        _engine(settings).start()
    with pytest.raises(ConfigError, match="--endpoint"):
        _engine(replace(settings, endpoints=()))
    assert server.asked == []

"""Engines that read a dump folder, against servers that dump too little, too late, twice, or for nobody."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from durastore.errors import ConfigError, EngineFailed
from durastore.extract.conversion import RunShape
from durastore.extract.dump_engine import DumpEngine
from durastore.extract.engine import Extracted, Refused
from durastore.extract.engine_choice import engine_factory
from durastore.extract.request_stream import Pace
from durastore.extract.rows import TokenRow
from durastore.extract.server_settings import ServerSettings
from durastore.extract.watch_engine import WatchEngine
from durastore.formats.staging import STAGING_MARKER_NAME
from durastore.model import Digest
from tests.integration.extract_lab import token_rows
from tests.integration.model_servers import SglangServer, random_states

SHAPE = RunShape(layers=(1, 3), num_layers=4, is_last_normed=None, dtype="bfloat16", hidden_size=16)
STATES = random_states((2, 16))
SERVED = Digest("a" * 32)
IDS = [5, 6, 7, 8]
FAULTS = {
    "partial": "no whole safetensors",
    "never": "dumped 0 entries",
    "slow": "no answer in",
    "error": "500",
    "other ids": "token 0 is",
    "short": "has 3 tokens",
    "no ids": "does not say which tokens",
}


@pytest.fixture(params=[False, True], ids=["files", "folders"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> SglangServer:
    (tmp_path / "dump").mkdir()
    return SglangServer(STATES, folder=tmp_path / "dump", is_entry_a_folder=request.param)


@pytest.fixture
def settings(server: SglangServer, tmp_path: Path) -> Iterator[ServerSettings]:
    with server.running() as url:
        yield ServerSettings(
            endpoints=(url,),
            staging=tmp_path / "dump",
            pace=Pace(concurrency=4, tries=2, first_wait_s=0.02),
            timeout_s=20.0,
            write_timeout_s=0.4,
        )


def engine_of(settings: ServerSettings) -> WatchEngine:
    return WatchEngine(settings, SHAPE, served=SERVED)


def check(result: Extracted | Refused, ids: Sequence[int] = IDS) -> None:
    assert isinstance(result, Extracted), result
    states = result.tensors["hidden_states"].view(torch.uint16).numpy()
    assert np.array_equal(states, STATES(ids).view(np.uint16))
    assert result.tensors["input_ids"].tolist() == list(ids)


def left_in(settings: ServerSettings) -> list[str]:
    assert settings.staging is not None
    names = os.listdir(settings.staging)
    return sorted(name for name in names if not name.startswith((".durastore-", STAGING_MARKER_NAME)))


def _until(is_so: Callable[[], bool], tidy: Callable[[], None] = lambda: None) -> None:
    until = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < until
        tidy()
        time.sleep(0.02)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("server", [False], indirect=True)
def test_what_goes_wrong_is_never_handed_out(server: SglangServer, settings: ServerSettings, fault: str) -> None:
    server.is_entry_a_folder = fault in ("partial", "other ids", "no ids")
    if fault == "slow":
        settings = replace(settings, timeout_s=1.0)
    patient = replace(settings.pace, tries=6)  # on a busy machine an answer that is right may be late as well
    engine = engine_of(replace(settings, pace=patient))  # case B88
    engine.start()
    if fault != "no ids":  # not tried again: the server would say no more the next time
        server.plan.add(IDS, fault)
        (good,) = engine.extract(token_rows([IDS]))
        check(good)
        assert isinstance(good, Extracted)
        good.settle(lambda: True)
    server.plan.add(IDS, fault, fault)
    hasty = engine_of(settings)
    (bad,) = hasty.extract(token_rows([IDS]))
    assert isinstance(bad, Refused)
    assert FAULTS[fault] in bad.reason
    hasty.close()  # what it left is an ended session's
    _until(lambda: left_in(settings) == [], lambda: engine._files.tidy(is_due=True))
    engine.close()


def test_a_late_dump_is_waited_for(server: SglangServer, settings: ServerSettings) -> None:
    server.plan.add(IDS, "late")
    engine = engine_of(replace(settings, pace=Pace(tries=1), write_timeout_s=10.0))
    check(engine.extract(token_rows([IDS]))[0])
    engine.close()


def test_a_stale_entry_under_a_name_that_is_used_again_is_never_taken(
    server: SglangServer, settings: ServerSettings
) -> None:
    """A server that numbers its entries begins anew; the old ones have the same names, and the same token ids."""
    engine = engine_of(settings)
    engine.start()
    server.is_counting = True
    for number in (1, 2, 3):
        server.dump(str(number), IDS, fault="poison")
    assert settings.staging is not None
    for path in settings.staging.rglob("*.safetensors"):
        os.utime(path, (1, 1))
    server.plan.add(IDS, "never", "never")
    (bad,) = engine.extract(token_rows([IDS]))
    assert isinstance(bad, Refused)
    assert "older than the request" in bad.reason
    (good,) = engine.extract(token_rows([IDS]))  # this one is written anew
    check(good)
    engine.close()


def test_a_dump_without_ids_is_taken_on_request_and_marked(server: SglangServer, settings: ServerSettings) -> None:
    server.plan.add(IDS, "no ids")
    engine = engine_of(replace(settings, is_unverified_taken=True))
    (unverified, verified) = engine.extract(token_rows([IDS, [1, 2]]))
    check(unverified)
    assert isinstance(unverified, Extracted)
    assert isinstance(verified, Extracted)
    assert (unverified.meta, verified.meta) == ({"input": "unverified"}, {})
    engine.close()


def test_an_entry_that_is_open_for_writing_is_not_read(server: SglangServer, settings: ServerSettings) -> None:
    """Its bytes may all be there and not be its last ones."""
    assert settings.staging is not None
    engine = engine_of(settings)
    engine.start()
    server.is_counting = True
    server.dump("1", IDS, fault="poison")
    path = next(settings.staging.rglob("*.safetensors"))
    server.plan.add(IDS, "never", "refused")
    with path.open("r+b"):
        os.utime(path, (time.time() + 60, time.time() + 60))
        (bad,) = engine.extract(token_rows([IDS]))
    assert isinstance(bad, Refused)
    engine.close()


# --- without a server ------------------------------------------------------------------------------------------------


def dumping(settings: ServerSettings, **changes: object) -> DumpEngine:
    values = replace(settings, endpoints=(), idle_s=1.0)
    engine = DumpEngine(replace(values, **changes), SHAPE, served=SERVED)  # type: ignore[arg-type]
    engine.start()
    return engine


def mark(settings: ServerSettings, name: str) -> Path:
    assert settings.staging is not None
    entry = settings.staging / f"req_{name}"
    marker = entry / "done" if entry.is_dir() else settings.staging / f"req_{name}.done"
    marker.touch()
    return marker


def test_entries_count_with_a_marker_and_the_token_ids_of_a_row(server: SglangServer, settings: ServerSettings) -> None:
    engine = dumping(settings)
    samples = [[1, 2], [3, 4, 5], [6], [7, 8], [9]]
    for number, (ids, fault) in enumerate(zip(samples, ("", "poison", "no ids", "partial", ""), strict=True)):
        server.dump(str(number), ids, fault=fault)
        if fault != "poison":  # dumped, and never marked: an aborted request's, perhaps
            mark(settings, str(number))
    server.dump("other", [50, 51], fault="poison")
    mark(settings, "other")
    results = engine.extract(token_rows(samples))
    check(results[0], samples[0])
    check(results[4], samples[4])
    assert all(isinstance(result, Refused) and "no entry of it" in result.reason for result in results[1:4])
    before = left_in(settings)
    for result in (results[0], results[4]):
        assert isinstance(result, Extracted)
        result.settle(lambda: True)
    assert [name for name in before if name not in left_in(settings)] == [
        name for name in before if name.startswith(("req_0", "req_4"))
    ]
    engine.close()


def test_a_name_that_is_used_again_is_read_again_and_an_old_marker_is_not_believed(
    server: SglangServer, settings: ServerSettings
) -> None:
    # case B89
    engine = dumping(settings)
    server.dump("0", [1, 2])
    marker = mark(settings, "0")
    got: list[TokenRow] = []
    held: list[Extracted] = []

    def again() -> None:
        _until(lambda: len(got) == 1)
        os.utime(marker, (1, 1))
        server.dump("0", [3, 4], fault="poison")  # not done yet
        time.sleep(0.5)
        assert len(got) == 1
        held[0].settle(lambda: True)  # the sample is durable; what lies there now is another's, and stays
        server.dump("0", [3, 4])
        mark(settings, "0")

    thread = threading.Thread(target=again)
    thread.start()
    rows = token_rows([[1, 2], [3, 4]])
    for row, result in engine.stream(iter(rows), may_wait=lambda: True):
        check(result, row.input_ids.tolist())
        assert isinstance(result, Extracted)
        held.append(result)
        got.append(row)
    thread.join()
    held[1].settle(lambda: True)
    assert left_in(settings) == []
    engine.close()


def test_two_samples_of_the_same_tokens_need_two_entries(server: SglangServer, settings: ServerSettings) -> None:
    engine = dumping(settings)
    for name in ("a", "b"):
        server.dump(name, IDS)
        mark(settings, name)
    one, two, three = engine.extract(token_rows([IDS, IDS, IDS]))
    check(one)
    check(two)
    assert isinstance(three, Refused)
    engine.close()


def test_settings_that_cannot_work_are_refused(server: SglangServer, settings: ServerSettings) -> None:
    with pytest.raises(ConfigError, match="--staging"):
        engine_of(replace(settings, staging=None))
    with pytest.raises(ConfigError, match="only its token ids"):
        dumping(settings, is_unverified_taken=True)
    with pytest.raises(ConfigError, match="one process"):
        engine_factory("watch", server=replace(settings, endpoints=()), workers=2)
    with pytest.raises(ConfigError, match="unknown"):
        engine_factory("tensorflow", server=settings, workers=None)
    with pytest.raises(ConfigError, match="asks no server"):
        engine_factory("transformers", server=settings, workers=None)
    server.is_sick = True
    with pytest.raises(EngineFailed, match="503"):
        engine_of(settings).start()

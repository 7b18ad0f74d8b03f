"""An extraction server is believed only where one sample of it is complete, twice; its leavings are told."""

from __future__ import annotations

import fcntl
import os
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from durastore.clock import SYSTEM_CLOCK
from durastore.doctor.request import DoctorRequest, Examination
from durastore.doctor.server import look_at_server
from durastore.doctor.server_protocols import identify_server
from durastore.doctor.stages import Stage, StageReport, Status, run_stages
from durastore.doctor.staging import look_at_staging
from durastore.errors import ConfigError
from durastore.formats.staging import render_request
from durastore.model import Digest, Run
from durastore.objectstore.location import BucketUrl
from durastore.reclaim.staging import StagingFolder
from tests.unit.extraction_server import HIDDEN, LAYERS, LabServer

RUN = Run.of({"layers": [1, 3, 4], "model": {"hidden_size": HIDDEN}})
IDS = list(range(5, 25))


class Lab:
    """A server, and a doctor's look at it."""

    def __init__(self, staging: Path) -> None:
        self.staging = staging
        staging.mkdir()

    def server(self, kind: str, *, lie: str = "", **settings: Any) -> LabServer:
        return LabServer(kind, self.staging, lie=lie, settings=settings)

    def look(
        self, url: str | None, *, run: Run | None = RUN, ids: list[int] | None = IDS, is_applied: bool = False
    ) -> StageReport:
        bucket = BucketUrl.parse("memory://b")
        request = DoctorRequest(
            local=self.staging, bucket=bucket, server=url, staging=self.staging, is_applied=is_applied
        )
        with ExitStack() as stack:
            seen = Examination(request=request, clock=SYSTEM_CLOCK, resources=stack, run=run)
            seen.probe_ids = np.array(ids, dtype=np.int64) if ids is not None else None
            (report,) = run_stages([Stage(name="server", needs=(), look=lambda: look_at_server(seen))])
            self.seen = seen
            return report


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    monkeypatch.setattr("durastore.doctor.server_protocols._WRITTEN_S", 0.5)
    return Lab(tmp_path / "staging")


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_a_server_that_gives_all_states_passes(lab: Lab, kind: str) -> None:
    with lab.server(kind).running() as server:
        report = lab.look(server.url + ("/v1" if kind == "vllm" else ""))
    assert report.status is Status.OK, report
    assert server.asked == [IDS, IDS], "the same sample twice"
    assert report.verdict.facts["kind"] == kind
    began = lab.seen.server_started_s
    assert began is not None, "it listens on this machine, so its process is known"
    assert began < SYSTEM_CLOCK.now_ns() / 1e9
    assert len(report.verdict.facts["files"]) == (2 if kind == "vllm" else 0)


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_without_an_input_any_tokens_do(lab: Lab, kind: str) -> None:
    with lab.server(kind).running() as server:
        assert lab.look(server.url, run=None, ids=None).status is Status.OK


@pytest.mark.parametrize(
    "kind, lie, word",
    [
        ("vllm", "short", "10 rows of states for 20 tokens"),
        ("sglang", "short", "10 rows of states for 20 tokens"),
        ("vllm", "cached", "a cache of prefixes is on"),
        ("sglang", "cached", "a cache of prefixes is on"),
        ("vllm", "nan", "state 3 has a NaN"),
        ("sglang", "nan", "state 3 has a NaN"),
        ("vllm", "zero", "state 1 is zero everywhere"),
        ("sglang", "zero", "state 1 is zero everywhere"),
        ("vllm", "layers", "2 layers, and the run has 3"),
        ("sglang", "layers", f"{2 * HIDDEN} numbers a token, and the run has {LAYERS} layers of {HIDDEN}"),
        ("sglang", "last", "1 rows of states for 20 tokens"),
    ],
)
def test_states_that_are_not_complete_fail(lab: Lab, kind: str, lie: str, word: str) -> None:
    with lab.server(kind, lie=lie).running() as server:
        report = lab.look(server.url)
    assert (report.status, report.verdict.exit_code) == (Status.FAILED, 12)
    assert any(word in line for line in report.verdict.lines), report.verdict.lines


@pytest.mark.parametrize(
    "kind, lie, code, word",
    [
        ("vllm", "sick", 20, "answered 503"),
        ("vllm", "error", 20, "out of memory"),
        ("sglang", "error", 20, "out of memory"),
        ("vllm", "no states", 2, "does not extract hidden states"),
        ("sglang", "no states", 1, "returns no hidden states"),
        ("vllm", "tokens", 20, "answered for other token ids"),
        ("vllm", "full", 1, "is not written"),
        ("vllm", "torn", 1, "cannot be read"),
        ("vllm", "elsewhere", 1, "the server writes to /etc"),
        ("other", "", 1, "neither vLLM nor SGLang"),
    ],
)
def test_an_answer_that_is_none_fails(lab: Lab, kind: str, lie: str, code: int, word: str) -> None:
    with lab.server(kind, lie=lie).running() as server:
        report = lab.look(server.url)
    assert (report.status, report.verdict.exit_code) == (Status.FAILED, code)
    assert word in report.verdict.summary


@pytest.mark.parametrize(
    "settings, word",
    [
        ({"disable_radix_cache": False}, "--disable-radix-cache"),
        ({"chunked_prefill_size": 8192}, "prompts over 8192 tokens"),
    ],
)
@pytest.mark.parametrize("is_newer", [False, True])
def test_settings_that_cut_longer_samples_fail(
    lab: Lab, settings: dict[str, Any], word: str, *, is_newer: bool
) -> None:
    with lab.server("sglang", **settings).running() as server:
        server.is_newer = is_newer
        report = lab.look(server.url)
    assert report.status is Status.FAILED
    assert word in report.verdict.lines[0]


def test_a_server_that_is_down_fails_with_its_own_exit_code(lab: Lab) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    report = lab.look(f"http://127.0.0.1:{port}")
    assert (report.status, report.verdict.exit_code) == (Status.FAILED, 20)


@pytest.mark.parametrize("url", ["ftp://host", "http://user:secret@host", "host:8000"])
def test_a_url_that_is_none_or_has_credentials_is_refused(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        identify_server(url, clock=SYSTEM_CLOCK)
    assert "secret" not in str(refused.value)


# --- staging ---------------------------------------------------------------------------------------------------------


def test_entries_of_an_older_start_are_told_from_those_of_now(lab: Lab) -> None:
    with lab.server("vllm").running() as server:
        lab.look(server.url)
    began = lab.seen.server_started_s
    assert began is not None
    for name in ("old.safetensors", "held.safetensors"):
        (lab.staging / name).write_bytes(bytes(100))
        os.utime(lab.staging / name, (began - 60, began - 60))
    held = os.open(lab.staging / "held.safetensors.lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(held, fcntl.LOCK_EX)
    (lab.staging / "link").symlink_to("/etc/hostname")
    verdict = look_at_staging(lab.seen)
    assert verdict.status is Status.NOTE
    assert [line.partition(":")[0] for line in verdict.lines] == ["old.safetensors"]
    entries = {entry["name"]: entry for entry in verdict.facts["entries"]}
    assert "link" not in entries
    assert entries["held.safetensors"]["is_held"]
    assert sum(bool(entry["is_stale"]) for entry in entries.values()) == 1
    assert (lab.staging / "old.safetensors").exists(), "listed, and left"
    os.close(held)


def test_where_no_server_is_known_all_entries_are_told(lab: Lab) -> None:
    (lab.staging / "x.safetensors").write_bytes(bytes(10))
    report = lab.look(None)
    assert report.status is Status.SKIPPED
    verdict = look_at_staging(lab.seen)
    assert verdict.status is Status.NOTE
    assert "not known" in verdict.summary
    assert len(verdict.lines) == 1


class Sessions:
    """A marked staging folder with files of an ended session, of a living one, and of somebody else."""

    def __init__(self, staging: Path) -> None:
        self.staging = staging
        ended, self.living = (StagingFolder.open(staging, served=Digest.of(b"lab"), clock=SYSTEM_CLOCK) for _ in "ab")
        ended.close()
        self.dead = self._write(f"cmpl-{render_request(ended.session, 1)}-0-0000000a.safetensors")
        self.alive = self._write(f"cmpl-{render_request(self.living.session, 1)}-0-0000000a.safetensors")
        self.foreign = self._write("cmpl-of-others-0-0000000a.safetensors")

    def _write(self, name: str) -> str:
        (self.staging / name).write_bytes(bytes(100))
        (self.staging / f"{name}.lock").write_bytes(b"")
        return name

    def names(self) -> set[str]:
        return {name for name in os.listdir(self.staging) if name.startswith("cmpl-") and not name.endswith(".lock")}


def test_dead_requests_are_told_and_only_told(lab: Lab) -> None:
    made = Sessions(lab.staging)
    lab.look(None)
    verdict = look_at_staging(lab.seen)
    told = {line.partition(":")[0] for line in verdict.lines}
    assert told == {made.dead, f"{made.dead}.lock"}
    assert made.names() == {made.dead, made.alive, made.foreign}
    made.living.close()


def test_told_to_dead_requests_go_through_the_door_with_what_the_look_left_and_nothing_else(lab: Lab) -> None:
    made = Sessions(lab.staging)
    with lab.server("vllm").running() as server:
        assert lab.look(server.url, is_applied=True).status is Status.OK
        assert len(made.names()) == 5
        verdict = look_at_staging(lab.seen)
    assert verdict.lines[0].startswith("6 files of dead requests went, "), verdict.lines
    assert made.names() == {made.alive, made.foreign}
    made.living.close()


def test_a_folder_that_durastore_did_not_mark_is_left_as_it_is(lab: Lab) -> None:
    name = f"cmpl-{render_request('0' * 16, 1)}-0-0000000a.safetensors"
    (lab.staging / name).write_bytes(bytes(10))
    lab.look(None, is_applied=True)
    verdict = look_at_staging(lab.seen)
    assert "nothing is taken out of it" in verdict.lines[0]
    assert os.listdir(lab.staging) == [name]

"""A whole extraction with a small model and a real bucket: stored, readable, resumable, counted."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from durastore.errors import ConfigError, InvalidInput, RunMismatch
from durastore.extract.entry import extract
from durastore.extract.ledger import FAILURES_FILE, LOG_FILE
from durastore.extract.rows import input_digest
from durastore.extract.runner import RunnerLimits
from durastore.extract.transformers_engine import ModelSettings
from durastore.model import SampleId
from durastore.monitor.sampler import look_once
from durastore.observe.status import STAGES
from durastore_cli.main import run
from tests.integration.extract_lab import Job, extract_command, extracting, job, model_folder

__all__ = ["job", "model_folder"]  # fixtures


def test_rows_of_all_kinds_are_stored_read_back_and_not_done_twice(job: Job) -> None:
    rows: list[dict[str, Any] | str] = [
        {"id": "ids/1", "input_ids": [5, 6, 7, 8], "loss_mask": [0, 0, 1, 1]},
        {"sample_id": "text", "text": "w1 w2 w3"},
        {"conversation_id": "chat", "messages": [{"role": "user", "content": "w4 w5"}]},
        {"prompt": "w6"},
        "{",
        {"id": "long", "input_ids": [1] * 41},
        {"id": "outside", "input_ids": [64]},
        {"id": "ids/1", "input_ids": [5, 6, 7, 8], "loss_mask": [0, 0, 1, 1]},
    ]
    job.write(*rows)
    report = job.run()
    counts = report.counts
    assert (counts.inputs, counts.ok, counts.failed, counts.skipped, counts.left) == (7, 4, 3, 0, 0)
    assert (report.error, report.local_only, report.duplicates, report.exit_code) == (None, (), 1, 3)
    assert {(f.line, f.stage) for f in report.failures} == {(5, "read"), (6, "length"), (7, "states")}
    _monitor_tells_the_end(job)
    dataset = job.dataset()
    assert len(dataset) == 4
    sample = dataset["ids/1"]
    assert sample.tensors["hidden_states"].shape == (4, 3, 32)
    assert sample.tensors["hidden_states"].dtype is torch.bfloat16
    assert sample.tensors["input_ids"].tolist() == [5, 6, 7, 8]
    assert sample.tensors["loss_mask"].tolist() == [0, 0, 1, 1]
    assert sample.meta == {"line": 1, "n_tokens": 4}
    assert dataset["chat"].tensors["input_ids"].tolist() == [1, 7, 8, 2]
    ids, mask = sample.tensors["input_ids"].numpy(), sample.tensors["loss_mask"].numpy()
    assert sample.input_digest == input_digest(ids, mask)

    again = job.run()
    assert (again.counts.ok, again.counts.failed, again.counts.skipped) == (0, 3, 4)
    rows[1] = {"sample_id": "text", "text": "w1 w2 w9"}
    job.write(*rows, {"id": "new", "text": "w1"})
    edited = job.run()
    assert (edited.counts.ok, edited.counts.failed, edited.counts.skipped) == (2, 3, 3)
    dataset = job.dataset()
    assert len(dataset) == 5
    assert dataset["text"].tensors["input_ids"].tolist() == [4, 5, 12]
    markers = [line.split()[1] for line in (job.root / LOG_FILE).read_text(encoding="utf-8").splitlines()]
    assert [m for m in markers if m != "LOG"] == ["START", "END", "RESTART", "END", "RESTART", "END"]
    assert len((job.root / FAILURES_FILE).read_text(encoding="utf-8").splitlines()) == 9


def _monitor_tells_the_end(job: Job) -> None:
    """Whoever looks afterwards sees what the process said last."""
    view = look_once([job.root])
    shown, (worker,) = view.job, view.workers
    assert shown is not None
    assert (shown.inputs, shown.ok, shown.failed, shown.state, shown.exit_code) == (7, 4, 3, "ended", 3)
    assert shown.share == 1
    assert (worker.state, worker.ok, worker.failed, worker.only_local) == ("ended", 4, 3, 0)
    assert {stage.name: stage.done.samples for stage in view.stages[:-1]} == dict.fromkeys(STAGES[:-1], 4)
    assert (view.failure_count, view.deaths, view.banners) == (3, 0, ())
    assert {failure.where for failure in view.failures} == {"read", "length", "states"}


def test_the_stored_run_tells_model_layers_and_convention(job: Job) -> None:
    job.write({"id": "a", "text": "w1"})
    job.run(layers="last,2", is_truncated=True, max_tokens=30)
    (run,) = job.dataset().runs.values()
    values = json.loads(run.text)
    assert values["layers"] == [2, 4]
    assert (values["num_layers"], values["last_is_normed"], values["dtype"]) == (4, False, "bfloat16")
    assert values["truncated_to_tokens"] == 30
    assert values["model"]["architecture"] == "LlamaForCausalLM"
    assert set(values["model"]) > {"config_digest", "tensors_digest", "tokenizer_digest", "weights_probe"}


def test_another_run_at_the_prefix_is_refused_before_the_model_is_loaded(job: Job) -> None:
    job.write({"id": "a", "text": "w1"})
    assert job.run().exit_code == 0
    with pytest.raises(RunMismatch, match="layers"):
        job.run(layers="2")
    assert job.run(max_tokens=7).counts.skipped == 1  # a length limit alone is not another run


@pytest.mark.parametrize(
    "changes, error",
    [
        ({"layers": "5"}, InvalidInput),
        ({"model": "./absent"}, ConfigError),
        ({"input": Path("absent.jsonl")}, InvalidInput),
        ({"options": {"reclaim": "always"}}, ConfigError),
    ],
)
def test_a_wrong_request_writes_nothing(changes: dict[str, Any], error: type[Exception], job: Job) -> None:
    job.write({"id": "a", "text": "w1"})
    with pytest.raises(error):
        job.run(**changes)
    assert not job.root.exists()


@pytest.mark.parametrize("workers", [None, 2])
def test_an_input_that_the_model_cannot_tokenise_writes_nothing(
    workers: int | None, job: Job, model_folder: Path, tmp_path: Path
) -> None:
    plain = tmp_path / "plain"
    shutil.copytree(model_folder, plain)
    for name in ("chat_template.jinja", "tokenizer_config.json"):
        (plain / name).unlink(missing_ok=True)
    job.write({"id": "a", "input_ids": [1]}, {"id": "b", "messages": [{"role": "user", "content": "w1"}]})
    with pytest.raises(ConfigError, match=r"tokeniser|chat template"):
        extract(job.request(model=str(plain), workers=workers))
    assert not job.root.exists()


@pytest.mark.parametrize("engine", ["vllm", "sglang", "watch"])
def test_a_server_that_is_not_named_writes_nothing(engine: str, job: Job) -> None:
    job.write({"id": "a", "text": "w1"})
    with pytest.raises(ConfigError, match=r"--endpoint|--staging"):
        extract(job.request(engine=engine))
    assert not job.root.exists()


def test_one_id_with_two_contents_is_refused_before_the_start(job: Job) -> None:
    job.write({"id": "a", "text": "w1"}, {"id": "b", "text": "w1"}, {"id": "a", "text": "w2"})
    with pytest.raises(InvalidInput, match="lines 1 and 3"):
        job.run()
    assert not job.root.exists()


def test_stored_states_equal_a_forward_pass_of_their_own(job: Job, model_folder: Path) -> None:
    job.write(*({"id": f"s{n}", "text": " ".join(f"w{(n * k) % 60}" for k in range(1, 2 + 5 * n))} for n in range(7)))
    assert job.run(settings=ModelSettings(device="cpu", dtype="float32"), layers="0,2,last").exit_code == 0
    model = transformers.AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32).eval()
    dataset = job.dataset()
    for n in range(7):
        sample = dataset[SampleId(f"s{n}").text]
        with torch.inference_mode():
            states = model(input_ids=sample.tensors["input_ids"][None], output_hidden_states=True).hidden_states
        stored = sample.tensors["hidden_states"]
        torch.testing.assert_close(stored[:, 0], states[0][0])
        torch.testing.assert_close(stored[:, 1], states[2][0], rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(model.model.norm(stored[:, 2]), states[4][0], rtol=1e-4, atol=1e-5)


# --- the command line ----------------------------------------------------------------------------------------------


def _wait_for_packs(job: Job, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while not any(path.stat().st_size > 20_000 for path in job.root.glob("w-*/packs/*")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_stop_ends_an_extraction_cleanly_and_the_same_command_resumes(
    job: Job,
    model_folder: Path,
    aws_env: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    inputs = 250
    job.write(*({"id": f"s{n}", "input_ids": [n % 60] * 5} for n in range(inputs)))
    first = extracting(job, model_folder, aws_env, "--batch-tokens", "5")
    _wait_for_packs(job, first)
    assert run(["stop", "--local", str(job.root), "--grace", "60", "--json"]) == 0
    stopped = json.loads(capsys.readouterr().out)["processes"]
    assert stopped == [{"pid": first.pid, "spools": ["w-00"], "outcome": "stopped"}]
    out, err = first.communicate(timeout=10)
    assert first.returncode == 143, err
    report = json.loads(out)
    assert (report["interrupted_by"], report["failed"], report["local_only"]) == ("SIGTERM", 0, [])
    assert 0 < report["ok"] < inputs
    assert report["ok"] + report["not_attempted"] == inputs
    assert len(job.dataset()) == report["ok"]

    monkeypatch.setenv("DURASTORE_SEAL_AGE_S", "0.2")
    assert run(extract_command(job, model_folder)) == 0
    out, err = capsys.readouterr()
    resumed = json.loads(out)
    assert (resumed["skipped"], resumed["ok"]) == (report["ok"], inputs - report["ok"])
    assert "\x1b" not in err
    assert "durastore extract: " in err
    assert len(job.dataset()) == inputs
    remote = ["--bucket", job.bucket, "--endpoint-url", str(job.options["endpoint_url"]), "--json"]
    assert run(["manifest", "show", *remote]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["samples"], shown["duplicate_rows"], len(shown["runs"])) == (inputs, 0, 1)
    assert run(["manifest", "rebuild", "--dry-run", *remote]) == 0
    assert json.loads(capsys.readouterr().out)["packs_to_read"] == 0


def test_a_second_sigint_leaves_at_once_and_costs_no_stored_sample(
    job: Job, model_folder: Path, aws_env: dict[str, str]
) -> None:
    job.write(*({"id": f"s{n}", "input_ids": [n % 60] * 5} for n in range(250)))
    process = extracting(job, model_folder, aws_env, "--batch-tokens", "5")
    _wait_for_packs(job, process)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    while "stopping after this batch" not in (line := process.stderr.readline()):
        assert line
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130
    report = job.run(layers="2,last", limits=RunnerLimits(batch_tokens=5000))
    assert (report.error, report.exit_code) == (None, 0)
    assert report.counts.skipped > 0
    assert len(job.dataset()) == 250


def test_a_preflight_counts_what_is_left_and_writes_nothing(
    job: Job, model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job.write(*({"id": f"s{n}", "input_ids": [n] * 4} for n in range(10)), "{", {"id": "long", "input_ids": [1] * 41})
    command = extract_command(job, model_folder, "--preflight", "--tokens-per-s", "8")
    assert run(command) == 3  # as the extraction of these rows
    facts = json.loads(capsys.readouterr().out)
    assert facts["unusable_rows"] == 2
    assert [(row["line"], row["stage"]) for row in facts["first_unusable"]] == [(11, "read"), (12, "length")]
    assert (facts["samples"], facts["tokens"], facts["longest_tokens"], facts["seconds"]) == (10, 40, 4, 5.0)
    assert not job.root.exists()
    assert job.run(layers="2,last").counts.ok == 10
    job.write(*({"id": f"s{n}", "input_ids": [n] * 4} for n in range(13)))
    assert run(command) == 0
    assert json.loads(capsys.readouterr().out)["samples"] == 3
    assert run([*command, "--layers", "1"]) == 2  # another run
    assert "run-mismatch" in capsys.readouterr().err


def test_a_deadline_that_cannot_be_kept_is_refused_before_anything_is_written(
    job: Job, model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job.write(*({"id": f"s{n}", "input_ids": [n] * 30} for n in range(10)))
    limits = ["--deadline", "0.01", "--tokens-per-s", "5"]
    assert run(extract_command(job, model_folder, *limits)) == 2
    assert "the deadline is in 36 s" in capsys.readouterr().err
    assert not job.root.exists()
    assert run(extract_command(job, model_folder, "--deadline", "1")) == 2
    assert "--tokens-per-s" in capsys.readouterr().err
    assert run(extract_command(job, model_folder, *limits, "--preflight")) == 2
    assert len(json.loads(capsys.readouterr().out)["refusals"]) == 1
    assert run(extract_command(job, model_folder, "--deadline", "1", "--tokens-per-s", "5")) == 0


def test_parts_of_the_input_are_the_whole_when_taken_together(
    job: Job, model_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    job.write(*({"id": f"s{n}", "input_ids": [n] * 4} for n in range(30)), "{")
    assert run(extract_command(job, model_folder, "--shard", "0/2")) == 3
    first = json.loads(capsys.readouterr().out)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert run(extract_command(job, model_folder)) == 0
    second = json.loads(capsys.readouterr().out)
    assert (first["shard"], second["shard"], first["failed"], second["failed"]) == ("0/2", "1/2", 1, 0)
    assert (first["ok"] + second["ok"], first["not_attempted"] + second["not_attempted"]) == (30, 0)
    assert len(job.dataset()) == 30


def test_an_audit_compares_and_tells(job: Job) -> None:
    job.write(*({"id": f"s{n}", "input_ids": [n, *range(n % 5)]} for n in range(40)))
    report = job.run(limits=RunnerLimits(batch_tokens=64, audit_share=1.0))
    assert (report.exit_code, report.counts.ok) == (0, 40)
    assert report.checks.audited > 30
    assert look_once([job.root]).audited == report.checks.audited
    assert report.checks.worst_difference < 0.05
    assert [norm.samples for norm in report.checks.norms] == [40, 40, 40]

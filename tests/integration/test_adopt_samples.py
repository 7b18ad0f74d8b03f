"""Old files become samples, and `extract` over the same input takes them for done: a real model, a real bucket."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from durastore.demo.seaweed import SeaweedServer
from durastore.extract.job import ExtractRequest, run_extract
from durastore.extract.report import ExtractReport
from durastore.extract.runner import RunnerLimits
from durastore.extract.transformers_engine import ModelSettings
from durastore_cli.main import run
from tests.integration.extract_lab import Job, model_folder
from tests.integration.old_files import LAYERS, CountingEngine, make_run_file, save_rows_pt, states_of
from tests.integration.reconcile_files import cut

COUNT = 100

__all__ = ["model_folder"]  # a fixture


class OldRun:
    """An input, the files that another script made from it, a bucket, and an operator who types."""

    def __init__(self, job: Job, folder: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.job, self.model, self.capsys = job, model, capsys
        self.folder = folder / "old"
        self.run_file = make_run_file(folder / "run.toml", model)
        self.tokens = [[(n * 7 + at) % 60 for at in range(5 + n % 9)] for n in range(COUNT)]
        job.write(*({"id": f"conv/{n}", "input_ids": ids} for n, ids in enumerate(self.tokens)))

    def make_files(self) -> list[Path]:
        states = states_of(self.model, self.tokens)
        return [
            save_rows_pt(self.folder, n, states[n], input_ids=torch.tensor(ids), seconds=0.25, tags=["a", n])
            for n, ids in enumerate(self.tokens)
        ]

    def adopt(self, *options: str) -> tuple[int, Any]:
        self.capsys.readouterr()
        where = ["--bucket", self.job.bucket, "--endpoint-url", str(self.job.options["endpoint_url"])]
        where += ["--local", str(self.job.root), "--run", str(self.run_file)]
        code = run(["adopt", str(self.folder), "--as-samples", *where, "--json", *options])
        out = self.capsys.readouterr().out
        return code, json.loads(out) if out else None

    def extract(self, *, is_last_normed: bool = False) -> tuple[ExtractReport, CountingEngine]:
        engine = CountingEngine()
        request = ExtractRequest(
            input=self.job.input,
            model=str(self.model),
            layers="1,3,last",
            bucket=self.job.bucket,
            local=self.job.root,
            options=self.job.options,
            settings=ModelSettings(device="cpu"),
            limits=RunnerLimits(batch_tokens=64),
            is_last_normed=is_last_normed,
        )
        return run_extract(request, engine_factory=engine), engine


@pytest.fixture
def old(
    tmp_path: Path,
    model_folder: Path,
    seaweed: SeaweedServer,
    aws_env: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> OldRun:
    del aws_env
    monkeypatch.setenv("DURASTORE_SEAL_AGE_S", "0.2")
    return OldRun(Job(tmp_path, model_folder, seaweed), tmp_path, model_folder, capsys)


def test_a_hundred_adopted_files_cost_no_forward_pass(old: OldRun) -> None:
    paths = old.make_files()
    before = {path: path.read_bytes() for path in paths}

    code, planned = old.adopt("--data", str(old.job.input), "--dry-run")
    assert (code, planned["adopted"], planned["refused"]) == (0, COUNT, [])
    assert not old.job.root.exists()

    code, report = old.adopt("--data", str(old.job.input))
    assert (code, report["files"], report["adopted"], report["held"], report["refused"]) == (0, COUNT, COUNT, 0, [])
    assert report["adopted_bytes"] == sum(map(len, before.values()))
    assert {path: path.read_bytes() for path in paths} == before  # the files stay as they are

    extracted, engine = old.extract()
    assert (extracted.counts.skipped, extracted.counts.ok, extracted.exit_code) == (COUNT, 0, 0)
    assert (engine.forwards, engine.starts) == ([], 0)

    code, again = old.adopt("--data", str(old.job.input))
    assert (code, again["adopted"], again["held"]) == (0, 0, COUNT)

    dataset = old.job.dataset()
    assert len(dataset) == COUNT
    sample = dataset["conv/17"]
    assert sample.provenance == "asserted"
    saved = torch.load(paths[17], weights_only=True)
    assert torch.equal(sample.tensors["hidden_states"], saved["hidden_states"])
    assert sample.tensors["input_ids"].tolist() == old.tokens[17]
    adopted = sample.meta.pop("adopted")
    assert sample.meta == {"line": 18, "n_tokens": len(old.tokens[17])}
    assert (adopted["path"], adopted["layout"]) == ("rows_0-2000/data_17.pt", "rows-pt")
    assert adopted["values"] == {"seconds": 0.25, "tags": ["a", 17]}  # what has no place as a tensor


def test_exactly_the_three_that_cannot_be_adopted_are_extracted(old: OldRun) -> None:
    # case B88
    paths = old.make_files()
    cut(paths[3])
    save_rows_pt(old.folder, 41, states_of(old.model, [old.tokens[42]])[0], input_ids=torch.tensor(old.tokens[42]))
    states = torch.load(paths[77], weights_only=True)["hidden_states"]
    states[2, 1] = float("nan")
    save_rows_pt(old.folder, 77, states, input_ids=torch.tensor(old.tokens[77]))

    code, report = old.adopt("--data", str(old.job.input))
    assert (code, report["adopted"], report["held"], report["not_attempted"]) == (3, COUNT - 3, 0, 0)
    refused = {Path(each["path"]).name: (each["trouble"], each["reason"]) for each in report["refused"]}
    assert {name: trouble for name, (trouble, _) in refused.items()} == {
        "data_3.pt": "damaged",
        "data_41.pt": "mismatched",
        "data_77.pt": "mismatched",
    }
    assert "line 42 of the input" in refused["data_41.pt"][1]
    assert "NaN" in refused["data_77.pt"][1]

    extracted, engine = old.extract()
    assert sorted(engine.forwards) == ["conv/3", "conv/41", "conv/77"]
    assert (extracted.counts.skipped, extracted.counts.ok, extracted.exit_code) == (COUNT - 3, 3, 0)
    dataset = old.job.dataset()
    assert {dataset[f"conv/{n}"].provenance for n in (3, 41, 77)} == {"computed"}
    assert len(dataset) == COUNT


def test_another_run_than_the_buckets_is_refused_before_anything_is_written(old: OldRun) -> None:
    old.job.write({"id": "conv/0", "input_ids": old.tokens[0]})
    old.extract()
    save_rows_pt(old.folder, 0, states_of(old.model, [old.tokens[0]])[0])
    make_run_file(old.run_file, old.model, normed_last=True)
    assert old.adopt("--data", str(old.job.input))[0] == 2
    assert old.adopt("--data", str(old.job.input), "--dry-run")[0] == 2
    assert old.job.dataset()["conv/0"].provenance == "computed"


def _speculators(folder: Path, number: int, ids: list[int], *, states: torch.Tensor) -> None:
    folder.mkdir(exist_ok=True)
    tensors = {"hidden_states": states.contiguous(), "token_ids": torch.tensor(ids)}
    safetensors.torch.save_file(tensors, folder / f"hs_{number}.safetensors")


def _specforge(folder: Path, number: int, ids: list[int], *, states: torch.Tensor) -> None:
    """Padded to the longest of its batch, and compressed."""
    path = folder / "rows_0-2000" / f"data_{number}.ckpt.gz"
    path.parent.mkdir(parents=True, exist_ok=True)
    padded = torch.cat([states, torch.ones((3, *states.shape[1:]), dtype=states.dtype)])[None]
    value = {
        "input_ids": torch.tensor([*ids, 0, 0, 0]),
        "loss_mask": torch.tensor([*([1] * len(ids)), 0, 0, 0]),
        "aux_hidden_state": padded[:, :, :2].flatten(2),
        "hidden_state": padded[:, :, 2],
    }
    target = BytesIO()
    torch.save(value, target)
    path.write_bytes(gzip.compress(target.getvalue(), 1))


@pytest.mark.parametrize("save, is_last_normed", [(_speculators, False), (_specforge, True)])
def test_files_of_other_tools_are_the_samples_that_extract_would_make(
    old: OldRun, save: Callable[..., None], *, is_last_normed: bool
) -> None:
    plan = replace(LAYERS, is_last_normed=is_last_normed)
    rows: list[dict[str, Any]] = [{"id": f"s{n}", "input_ids": old.tokens[n]} for n in range(4)]
    old.job.write(
        *rows, {"id": "text", "text": "w1 w2 w3"}, {"id": "chat", "messages": [{"role": "u", "content": "w7"}]}
    )
    tokens = [*old.tokens[:4], [4, 5, 6], [1, 10, 2]]  # as the model's tokeniser and chat template have them
    states = states_of(old.model, tokens, plan=plan)
    for number, ids in enumerate(tokens):
        save(old.folder, number, ids, states=states[number])
    make_run_file(old.run_file, old.model, normed_last=is_last_normed)
    code, report = old.adopt("--data", str(old.job.input))
    assert (code, report["adopted"], report["refused"]) == (0, len(tokens), [])
    extracted, engine = old.extract(is_last_normed=is_last_normed)
    assert (extracted.counts.skipped, engine.forwards) == (len(tokens), [])
    dataset = old.job.dataset()
    for name, wanted in zip(["s0", "s1", "s2", "s3", "text", "chat"], states, strict=True):
        assert torch.equal(dataset[name].tensors["hidden_states"], wanted)

    # another convention for the last state is another run, and the files do not fit it
    old.job.bucket += "-other"
    old.job.root = old.job.root.with_name("other-spool")
    make_run_file(old.run_file, old.model, normed_last=not is_last_normed)
    code, report = old.adopt("--data", str(old.job.input))
    assert (code, report["adopted"]) == (3, 0)
    assert all("final norm" in each["reason"] for each in report["refused"])

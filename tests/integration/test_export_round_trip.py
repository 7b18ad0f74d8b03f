"""Every exported format there and back, byte for byte, and through the other tools' own readers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import durastore
from durastore.extract.rows import input_digest
from durastore.manifest import marker_store
from durastore_cli.main import run

T, H, N = 6, 4, 4
RUN = {"layers": [2, 4, 6, 8], "num_layers": 8, "dtype": "bfloat16"}


class Lab:
    """A store in a folder, filled as `extract` fills one; and the way back into another one."""

    def __init__(self, folder: Path, *, is_normed: bool) -> None:
        self.folder = folder
        self.run = {**RUN, "last_is_normed": is_normed}
        self.bucket = folder / "bucket"
        self.bucket.mkdir()
        self.data = folder / "train.jsonl"
        rows = [{"id": f"doc-{n}", "input_ids": self.tokens(n), "loss_mask": self.mask(n)} for n in range(N)]
        self.data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        self._fill()

    @staticmethod
    def tokens(number: int) -> list[int]:
        return [100 * number + at + 1 for at in range(T + number)]

    @staticmethod
    def mask(number: int) -> list[int]:
        return [at % 2 for at in range(T + number)]

    def states(self, number: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(number)
        return torch.randn(T + number, 4, H, generator=generator).bfloat16()

    def _fill(self) -> None:
        place: dict[str, Any] = {"local": self.folder / "spool", "is_any_filesystem_allowed": True, "reclaim": "never"}
        with durastore.open(str(self.bucket), run=self.run, **place) as store:
            for n in range(N):
                ids, mask = np.array(self.tokens(n)), np.array(self.mask(n), np.uint8)
                tensors = {"hidden_states": self.states(n), "input_ids": ids, "loss_mask": mask}
                store.put(f"doc-{n}", tensors, input_digest=input_digest(ids, mask).hex)
            store.flush()

    def export(self, form: str, *more: str) -> Path:
        out = self.folder / form
        names = [] if form == "vllm" else ["--data", str(self.data)]
        command = ["export", "--all", "--format", form, "--out", str(out), "--bucket", str(self.bucket), *names, *more]
        assert run(command) == 0
        return out

    def adopt(self, files: Path, rule: str) -> dict[str, Any]:
        """What the exported files become in a new store of the same run."""
        back = self.folder / f"back-{files.name}"
        back.mkdir()
        (self.folder / "run.toml").write_text(f"run = {_toml(self.run)}\n", encoding="utf-8")
        command = ["adopt", str(files), "--as-samples", "--run", str(self.folder / "run.toml"), "--any-filesystem"]
        command += ["--data", str(self.data), "--id-from", rule, "--local", str(self.folder / f"spool-{files.name}")]
        assert run([*command, "--bucket", str(back)]) in (0, 3)  # the record of the export is no sample
        dataset = durastore.Dataset(str(back))
        return {sample.id: sample for sample in dataset}


def _toml(run: dict[str, Any]) -> str:
    return "{" + ", ".join(f"{key} = {json.dumps(value)}" for key, value in run.items()) + "}"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder needs no time to settle a new marker."""
    monkeypatch.setenv("DURASTORE_RECLAIM", "never")
    real = marker_store._settled_marker

    def settled(store: Any, prefix: str, *, clock: Any, settle_s: float) -> Any:
        del settle_s
        return real(store, prefix, clock=clock, settle_s=0.0)

    monkeypatch.setattr(marker_store, "_settled_marker", settled)


@pytest.fixture
def lab(tmp_path: Path, request: pytest.FixtureRequest) -> Lab:
    return Lab(tmp_path, is_normed=request.param)


@pytest.mark.parametrize(
    "lab, form, rule",
    [
        (False, "vllm", r"regex:(doc-\d+)\."),
        (False, "speculators", "row"),
        (True, "specforge-eagle3", "row"),
        (True, "specforge-dspark", "row"),
    ],
    indirect=["lab"],
)
def test_what_comes_back_is_what_was_there(lab: Lab, form: str, rule: str) -> None:
    before = {sample.id: sample for sample in durastore.Dataset(str(lab.bucket))}
    after = lab.adopt(lab.export(form), rule)
    assert after.keys() == before.keys()
    for name, sample in before.items():
        found = after[name]
        assert found.input_digest == sample.input_digest
        assert found.tensors.keys() == sample.tensors.keys()
        for key, tensor in sample.tensors.items():
            assert found.tensors[key].dtype == tensor.dtype, key
            assert found.tensors[key].shape == tensor.shape, key
            assert found.tensors[key].view(torch.uint8).equal(tensor.view(torch.uint8)), key


@pytest.mark.parametrize("lab", [True], indirect=True)
def test_dflash_files_come_back_in_a_run_of_those_layers(lab: Lab) -> None:
    files = lab.export("specforge-dflash", "--layers", "2,6")
    lab.run = {"layers": [2, 6], "num_layers": 8, "dtype": "bfloat16"}
    after = lab.adopt(files, "row")
    for n in range(N):
        assert after[f"doc-{n}"].tensors["hidden_states"].equal(lab.states(n)[:, [0, 2]])
        assert after[f"doc-{n}"].tensors["loss_mask"].tolist() == lab.mask(n)


@pytest.mark.parametrize("lab", [False], indirect=True)
def test_the_reader_of_speculators_takes_the_files(lab: Lab) -> None:
    connectors = pytest.importorskip("hs_connectors")
    transfer = connectors.FileTransfer(lab.export("speculators"))
    for n in range(N):
        found = transfer.get_cached(n)
        assert found["hidden_states"].equal(lab.states(n))
        assert found["token_ids"].tolist() == lab.tokens(n)
    assert transfer.get_cached(N) is None


@pytest.mark.parametrize("lab", [True], indirect=True)
def test_the_reader_of_specforge_takes_the_files(lab: Lab) -> None:
    reader = pytest.importorskip("specforge.runtime.data_plane.offline_reader")
    store = pytest.importorskip("specforge.runtime.data_plane.feature_store")
    out = lab.export("specforge-eagle3")
    refs = list(reader.OfflineManifestReader(str(out), validate_files=True).read())
    assert len(refs) == N
    for n in range(N):
        found = store.load_feature_file(str(out / f"rows_0-2000/data_{n}.ckpt"))
        assert found["aux_hidden_state"].equal(lab.states(n)[:, :3].reshape(1, T + n, 3 * H))
        assert found["hidden_state"].equal(lab.states(n)[:, 3].reshape(1, T + n, H))
        assert found["loss_mask"].tolist() == lab.mask(n)

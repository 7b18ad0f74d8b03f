"""Every exported format there and back, byte for byte, and through the other tools' own readers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import durastore
from tests.integration.export_lab import ExportLab, H, N, T, hurry


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)


@pytest.fixture
def lab(tmp_path: Path, request: pytest.FixtureRequest) -> ExportLab:
    return ExportLab(tmp_path, is_normed=request.param)


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
def test_what_comes_back_is_what_was_there(lab: ExportLab, form: str, rule: str) -> None:
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
def test_dflash_files_come_back_in_a_run_of_those_layers(lab: ExportLab) -> None:
    files = lab.export("specforge-dflash", "--layers", "2,6")
    lab.run = {"layers": [2, 6], "num_layers": 8, "dtype": "bfloat16"}
    after = lab.adopt(files, "row")
    for n in range(N):
        assert after[f"doc-{n}"].tensors["hidden_states"].equal(lab.states(n)[:, [0, 2]])
        assert after[f"doc-{n}"].tensors["loss_mask"].tolist() == lab.mask(n)


@pytest.mark.parametrize("lab", [False], indirect=True)
def test_the_reader_of_speculators_takes_the_files(lab: ExportLab) -> None:
    connectors = pytest.importorskip("hs_connectors")
    transfer = connectors.FileTransfer(lab.export("speculators"))
    for n in range(N):
        found = transfer.get_cached(n)
        assert found["hidden_states"].equal(lab.states(n))
        assert found["token_ids"].tolist() == lab.tokens(n)
    assert transfer.get_cached(N) is None


@pytest.mark.parametrize("lab", [True], indirect=True)
def test_the_reader_of_specforge_takes_the_files(lab: ExportLab) -> None:
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

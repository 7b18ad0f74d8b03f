"""The backend for speculators, against the real packages where they are installed."""

from __future__ import annotations

import argparse
import inspect
import pickle
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from durastore.errors import ConfigError, IntegrityError, InvalidInput
from tests.architecture.source_tree import REPO
from tests.integration.export_lab import ExportLab, N, hurry

connectors = pytest.importorskip("hs_connectors", reason="pip install hs-connectors")
backend = pytest.importorskip("durastore.integrations.speculators")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)


@pytest.fixture
def lab(tmp_path: Path) -> ExportLab:
    return ExportLab(tmp_path, is_normed=False)


def transfer_of(lab: ExportLab, data_path: Path | str = "unused", **given: Any) -> Any:
    parser = argparse.ArgumentParser()
    backend.DurastoreBackend.add_train_args(parser)
    args = parser.parse_args([])
    args.durastore_url = str(lab.bucket)
    for name, value in given.items():
        setattr(args, f"durastore_{name}", value)
    return backend.DurastoreBackend.from_train_args(args, str(data_path))


def assert_same(found: dict[str, torch.Tensor] | None, wanted: dict[str, torch.Tensor]) -> None:
    assert found is not None
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype
        assert found[name].equal(tensor)


def test_rows_are_what_the_file_backend_reads_from_an_export(lab: ExportLab) -> None:
    files = connectors.FileTransfer(lab.export("speculators"))
    transfer = transfer_of(lab, id="doc-{row}")
    for row in range(N):
        assert_same(transfer.get_cached(row), files.get_cached(row))
    assert transfer.get_cached(N) is None
    few = transfer_of(lab, id="doc-{row}", layers="2,6").get_cached(1)
    assert few["hidden_states"].equal(lab.states(1)[:, [0, 2, 3]])


def test_every_process_reads_the_snapshot_of_the_start(lab: ExportLab) -> None:
    transfer = transfer_of(lab, id="doc-{row}")
    lab.put(N)
    sent = pickle.loads(pickle.dumps(transfer))
    assert sent.get_cached(0) is not None
    assert (sent.get_cached(N), transfer.get_cached(N)) == (None, None)
    used = pickle.loads(pickle.dumps(sent))  # with its connections open
    assert_same(used.get_cached(1), sent.get_cached(1))
    assert transfer_of(lab, id="doc-{row}").get_cached(N) is not None


def test_damage_is_not_taken_for_a_sample_that_is_not_there(lab: ExportLab) -> None:
    # case B73
    transfer = transfer_of(lab, id="doc-{row}")
    (pack,) = lab.bucket.glob("**/packs/*/*.tar")
    data = bytearray(pack.read_bytes())
    for at in range(0, len(data), 97):
        data[at] ^= 1
    pack.chmod(0o600)
    pack.write_bytes(data)
    with pytest.raises(IntegrityError, match="doc-1"):
        transfer.get_cached(1)


def test_what_cannot_work_is_told_at_the_start(lab: ExportLab, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--durastore-url is missing"):
        transfer_of(lab, url=None)
    with pytest.raises(ConfigError, match=r"no \{row\} in it"):
        transfer_of(lab, id="doc")
    with pytest.raises(ConfigError, match="no list of numbers"):
        transfer_of(lab, id="{row}", layers="a")
    (tmp_path / "other").mkdir()
    with pytest.raises(InvalidInput, match="after the final norm"):
        transfer_of(ExportLab(tmp_path / "other", is_normed=True), id="doc-{row}")


def test_rows_of_prepared_data_find_their_samples_by_their_tokens(lab: ExportLab, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    order = [2, 0, 3]
    columns = {
        "input_ids": [*(lab.tokens(n) for n in order), [9, 9]],
        "loss_mask": [*(lab.mask(n) for n in order), [0, 1]],
        "seq_len": [*(len(lab.tokens(n)) for n in order), 2],
    }
    datasets.Dataset.from_dict(columns).save_to_disk(str(tmp_path / "prepared"))
    transfer = pickle.loads(pickle.dumps(transfer_of(lab, tmp_path / "prepared")))
    for row, number in enumerate(order):
        assert transfer.get_cached(row)["hidden_states"].equal(lab.states(number))
    assert [transfer.get_cached(row) for row in (3, 4)] == [None, None]


def test_what_the_serving_side_makes_is_passed_on(lab: ExportLab, tmp_path: Path) -> None:
    transfer = transfer_of(lab, id="doc-{row}")
    path = tmp_path / "made.safetensors"
    made = {"hidden_states": torch.ones(2, 3, 4), "token_ids": torch.arange(2)}
    safetensors.torch.save_file(made, path)
    takes_path = "handle" in inspect.signature(connectors.FileTransfer.get_generated).parameters  # up to 0.8
    assert_same(transfer.get_generated(str(path) if takes_path else {"hidden_states_path": str(path)}), made)
    transfer.setup()
    transfer.cache(str(path), 0)
    transfer.delete(str(path))
    assert not path.exists()


def test_all_backends_share_one_launch_parser(lab: ExportLab) -> None:
    parser = argparse.ArgumentParser()
    for each in connectors.HiddenStatesBackend.registry.values():
        each.add_launch_args(parser)
    chosen = connectors.HiddenStatesBackend.registry["durastore"]
    config = chosen.build_kv_transfer_config(parser.parse_args(["--hidden-states-path", "/dev/shm/x"]))
    assert config["kv_connector_extra_config"]["shared_storage_path"] == "/dev/shm/x"
    assert chosen.from_train_args is backend.DurastoreBackend.from_train_args


def _run(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", f"durastore.integrations.{module}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, cwd=REPO)


def test_the_launch_wrapper_runs_the_script_with_the_backend_known(tmp_path: Path) -> None:
    script = tmp_path / "launch_vllm.py"
    script.write_text(
        "import sys\nfrom hs_connectors import HiddenStatesBackend\n"
        "if __name__ == '__main__':\n    print('durastore' in HiddenStatesBackend.registry, sys.argv[1:])\n"
    )
    done = _run("speculators_launch", str(script), "model", "--dry-run")
    assert done.stdout == "True ['model', '--dry-run']\n", done.stderr
    assert "name speculators' launch script" in _run("speculators_launch", "model").stderr


@pytest.mark.skipif(find_spec("speculators") is None or find_spec("openai") is None, reason="pip install speculators")
def test_the_train_wrapper_knows_the_backend(tmp_path: Path) -> None:
    done = _run("speculators_train", "--help")
    assert done.returncode == 0, done.stderr
    assert "--durastore-url" in done.stdout
    plain = subprocess.run(
        [sys.executable, "-m", "speculators.train", "--help"], capture_output=True, text=True, timeout=100, check=False
    )
    assert "--durastore-url" not in plain.stdout


@pytest.mark.skipif(find_spec("speculators") is None or find_spec("openai") is None, reason="pip install speculators")
def test_the_dataset_of_speculators_gives_the_same_items(lab: ExportLab, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    data = pytest.importorskip("speculators.train.data")
    columns = {
        "input_ids": [lab.tokens(n) for n in range(N)],
        "loss_mask": [lab.mask(n) for n in range(N)],
        "seq_len": [len(lab.tokens(n)) for n in range(N)],
    }
    prepared = datasets.Dataset.from_dict(columns)
    prepared.set_format("torch", columns=["input_ids", "loss_mask"])
    prepared.save_to_disk(str(tmp_path / "prepared"))
    given: dict[str, Any] = {"max_len": 64, "datapath": str(tmp_path / "prepared"), "on_missing": "raise"}
    ours = data.ArrowDataset(transfer=transfer_of(lab, tmp_path / "prepared"), **given)
    theirs = data.ArrowDataset(transfer=connectors.FileTransfer(lab.export("speculators")), **given)
    assert len(ours) == N
    for row in range(N):
        assert_same(ours[row], theirs[row])

"""A real model's final norm in an export: what it gives is what the model itself gives after its norm."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from durastore.errors import ConfigError
from durastore.extract.model_identity import identify_model, resolve_model
from durastore.integrations.final_norm import FinalNorm
from durastore.integrations.states import array_of
from durastore.model import Run
from tests.integration.extract_lab import make_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_model(tmp_path_factory.mktemp("model"))
    weights = torch.linspace(0.5, 2.0, 32)  # a norm of ones would hide whose it is
    _rewrite(folder, weights)
    return folder


def _rewrite(folder: Path, norm: torch.Tensor) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"] = norm
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def _run(model: Path, dtype: str) -> Run:
    return Run.of({"model": identify_model(resolve_model(str(model))).description, "dtype": dtype, "layers": [4]})


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_norm_of_the_files_is_that_of_the_model(model: Path, dtype: str) -> None:
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype)).eval()
    states: list[torch.Tensor] = []
    network.model.norm.register_forward_pre_hook(lambda _, args: states.append(args[0]))
    with torch.inference_mode():
        wanted = network.model(input_ids=torch.arange(3, 20)[None]).last_hidden_state[0]
    norm = FinalNorm.load(str(model), run=_run(model, dtype))
    found = norm(array_of("last", states[0][0]))
    assert found.dtype.name == dtype
    assert np.array_equal(found.view(np.uint8), array_of("wanted", wanted.contiguous()).view(np.uint8))


def test_another_model_is_refused(model: Path, tmp_path: Path) -> None:
    run = _run(model, "bfloat16")
    other = tmp_path / "other"
    other.mkdir()
    for path in model.iterdir():
        (other / path.name).write_bytes(path.read_bytes())
    assert FinalNorm.load(str(other), run=run).digest  # a copy of the same files is the same model
    _rewrite(other, torch.ones(32))
    with pytest.raises(ConfigError, match="weights_probe differ"):
        FinalNorm.load(str(other), run=run)
    with pytest.raises(ConfigError, match="the run names no model"):
        FinalNorm.load(str(model), run=Run.of({"layers": [4]}))


def test_a_norm_that_is_not_in_the_files_is_refused(model: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    other = tmp_path / "other"
    other.mkdir()
    for path in model.iterdir():
        (other / path.name).write_bytes(path.read_bytes())
    tensors = load_file(other / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, other / "model.safetensors")
    with pytest.raises(ConfigError, match=r"no tensor 'model\.norm\.weight'"):
        FinalNorm.load(str(other), run=_run(other, "bfloat16"))
    assert json.loads((other / "config.json").read_text())["num_hidden_layers"] == 4

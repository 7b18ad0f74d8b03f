"""The final norm of the very model that a run names, for states that were stored before it.

Duty: check that the model's files are those of the run, read the norm's weight and nothing else of them, apply it. Must
never stand in for another model's norm.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from durastore.adopt.foreign_formats.contents import Array
from durastore.errors import ConfigError
from durastore.extract.layers import LayerPlan
from durastore.extract.model_identity import ModelIdentity, ModelSource, identify_model, resolve_model
from durastore.extract.transformers_engine import ModelSettings, find_parts, load_model
from durastore.extras import ensure_extra
from durastore.integrations.states import array_of
from durastore.model import Run, parse_json, render_json

__all__ = ["FinalNorm"]


class FinalNorm:
    """Callable on states [T, H], from any thread."""

    def __init__(self, module: Any, *, digest: str) -> None:
        self._module = module
        self.digest = digest
        """Tells two norms apart: the model's identity, as the run has it."""

    @classmethod
    def load(cls, model: str, *, run: Run) -> FinalNorm:
        """The norm of `model` (a folder, a .gguf file or a hub name). `ConfigError` where it is not the run's model, or
        its norm cannot be found.
        """
        ensure_extra("extract", "torch", "transformers", what="applying a model's norm")
        source = resolve_model(model)
        identity = identify_model(source)
        said = parse_json(run.text, what="run")
        _check_same(said.get("model"), identity, model=model)
        settings = ModelSettings(dtype=str(said.get("dtype") or "bfloat16"), device="cpu")
        module = _load_norm(source, num_layers=identity.num_layers, settings=settings)
        return cls(module, digest=render_json(identity.description))

    def __call__(self, states: Array) -> Array:
        """The states after the norm, in their own type."""
        import torch

        tensor = torch.from_numpy(np.ascontiguousarray(states).view(np.uint8).reshape(-1))
        dtype = getattr(torch, states.dtype.name)
        with torch.inference_mode():
            normed = self._module(tensor.view(dtype).reshape(states.shape)).to(dtype)
        return array_of("normed", normed.clone())


def _check_same(said: object, identity: ModelIdentity, *, model: str) -> None:
    found = dict(identity.description)
    if not isinstance(said, Mapping):
        raise ConfigError("the run names no model, so nobody can tell whether this is its norm")
    differing = sorted(key for key in {*said, *found} if said.get(key) != found.get(key))
    if differing:
        raise ConfigError(
            f"{model} is not the model of the run: {', '.join(differing)} differ", hint="give the one it was made with"
        )


def _load_norm(source: ModelSource, *, num_layers: int, settings: ModelSettings) -> Any:
    """The module with its weight, on the CPU. Of a model in safetensors files nothing else is read."""
    plan = LayerPlan(indices=(num_layers,), num_layers=num_layers, is_last_normed=True)
    try:
        if source.gguf_file is not None:
            return find_parts(load_model(source, settings), plan).norm
        return _read_norm(source, plan=plan, settings=settings)
    except ConfigError:
        raise
    except Exception as exc:  # a model's files may be anything, and transformers raises anything for them
        raise ConfigError(f"the final norm cannot be read: {type(exc).__name__}: {exc}") from exc


def _read_norm(source: ModelSource, *, plan: LayerPlan, settings: ModelSettings) -> Any:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(source.folder)
    with torch.device("meta"):  # the shape of the model, and none of its weights
        model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, settings.dtype))
    norm = find_parts(model, plan).norm
    name = next(found for found, module in model.named_modules() if module is norm)
    weights = {key: _read_weight(source, f"{name}.{key}") for key in norm.state_dict()}
    norm = norm.to_empty(device="cpu")
    norm.load_state_dict(weights, strict=True)
    return norm


def _read_weight(source: ModelSource, name: str) -> Any:
    from safetensors import safe_open

    for file in sorted(source.folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as opened:
            if name in opened.keys():  # noqa: SIM118 - it is no mapping
                return opened.get_tensor(name)
    raise ConfigError(f"{source.folder} holds no tensor {name!r}", hint="name the model's folder in its own layout")

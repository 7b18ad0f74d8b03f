"""Hidden states from a causal language model loaded with transformers.

Duty: one right-padded forward pass of the decoder per batch, keeping only the wanted states (hooks; never all layers),
and handing out each sample's rows without padding, with the check that they have to pass. Must never hand out rows of
another sample or padding, and never wait for the device: the next batch is launched while this one is computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from durastore.errors import ConfigError
from durastore.extract.engine import Extracted, Refused
from durastore.extract.layers import LayerPlan
from durastore.extract.model_identity import ModelSource
from durastore.extract.rows import TokenRow
from durastore.extract.state_faults import find_state_fault
from durastore.observe.events import LOGGER

if TYPE_CHECKING:
    import torch

__all__ = ["DTYPES", "ModelSettings", "TransformersEngine", "find_parts", "load_model"]

DTYPES = ("bfloat16", "float16", "float32")
_NORM_NAMES = ("norm", "final_layernorm", "final_layer_norm", "ln_f", "norm_f")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """How the model is loaded."""

    dtype: str = "bfloat16"
    device: str | None = None
    """`cuda`, `cuda:1`, `cpu`; the GPU of this slot by default, else the CPU."""
    slot: int = 0
    """Which of the GPUs, in turn: one for each process."""
    sharers: int = 1
    """So many processes of one command share the cores, where they compute on them."""
    is_remote_code_trusted: bool = False


@dataclass(frozen=True, slots=True)
class _Parts:
    decoder: Any
    blocks: Any
    norm: Any
    vocab_size: int


class TransformersEngine:
    """One model on one device. Not thread-safe; the runner uses it from one thread."""

    def __init__(self, source: ModelSource, plan: LayerPlan, *, settings: ModelSettings) -> None:
        if settings.dtype not in DTYPES:
            raise ConfigError(f"dtype {settings.dtype!r} is unknown", hint=f"use one of {', '.join(DTYPES)}")
        self._source = source
        self._plan = plan
        self._settings = settings
        self._model: Any = None
        self._parts: _Parts | None = None
        self._capture = _Capture(len(plan.indices))
        self._hooks: list[Any] = []

    def start(self) -> None:
        """Load the model and hook the wanted states. `ConfigError` if it cannot be loaded or is not built of layers."""
        if self._parts is not None:
            return
        device = _device_of(self._settings)
        LOGGER.info("loading the model onto %s", device)
        try:
            self._model = load_model(self._source, self._settings).to(device).eval()
        except Exception as exc:  # a model may be its own code, and a device be lost
            raise ConfigError(f"the model cannot be loaded: {type(exc).__name__}: {exc}") from exc
        self._parts = find_parts(self._model, self._plan)
        self._hooks = list(_hook(self._parts, self._plan, capture=self._capture))
        LOGGER.info("the model is loaded")

    def health(self) -> str | None:
        """Run one token. A lost CUDA context fails here, as it would for every sample."""
        if self._parts is None:
            return "the model is not loaded"
        import torch

        try:
            with torch.inference_mode():
                self._parts.decoder(
                    input_ids=torch.zeros((1, 1), dtype=torch.long, device=self._device()), use_cache=False
                )
        except Exception as exc:  # noqa: BLE001 - whatever the model raises for one plain token, it is of no use any more
            return f"{type(exc).__name__}: {exc}"
        return None

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._parts, self._model = [], None, None

    def _device(self) -> torch.device:
        device: torch.device = self._model.get_input_embeddings().weight.device
        return device

    def extract(self, batch: Sequence[TokenRow]) -> list[Extracted | Refused]:
        """States of each row. A row with a token the model does not know is refused before it can harm the others."""
        if self._parts is None:
            self.start()
        parts = self._parts
        assert parts is not None
        results: dict[int, Extracted | Refused] = {}
        usable: list[int] = []
        for at, row in enumerate(batch):
            top = int(row.input_ids.max())
            if top >= parts.vocab_size:  # on a GPU an index out of range would break the process, not the sample
                results[at] = Refused(reason=f"token id {top} is outside the vocabulary of {parts.vocab_size}")
            else:
                usable.append(at)
        if usable:
            rows = [batch[at] for at in usable]
            results |= zip(usable, self._cut(rows, self._forward(rows)), strict=True)
        return [results[at] for at in range(len(batch))]

    def _forward(self, rows: Sequence[TokenRow]) -> torch.Tensor:
        """The wanted states [B, T, L, H] of one right-padded pass, on the model's device."""
        import torch

        assert self._parts is not None
        width = max(len(row.input_ids) for row in rows)
        ids = np.zeros((len(rows), width), dtype=np.int64)  # any token will do as padding: it is masked and comes after
        mask = np.zeros((len(rows), width), dtype=np.int64)
        for at, row in enumerate(rows):
            ids[at, : len(row.input_ids)] = row.input_ids
            mask[at, : len(row.input_ids)] = 1
        device = self._device()
        with self._capture.of(rows=len(rows), width=width) as capture, torch.inference_mode():
            self._parts.decoder(input_ids=_sent(ids, device), attention_mask=_sent(mask, device), use_cache=False)
            return capture.states()

    def _cut(self, rows: Sequence[TokenRow], states: torch.Tensor) -> Iterator[Extracted]:
        """Views of each row's own states. Nothing is looked at or copied here: either would wait for the device."""
        for at, row in enumerate(rows):
            tensors: dict[str, Any] = {"hidden_states": states[at, : len(row.input_ids)], "input_ids": row.input_ids}
            if row.loss_mask is not None:
                tensors["loss_mask"] = row.loss_mask
            held_bytes = sum(tensor.nbytes for tensor in tensors.values())
            yield Extracted(tensors=tensors, held_bytes=held_bytes, find_fault=self._find_fault)

    def _find_fault(self, tensors: Mapping[str, Any]) -> str | None:
        return find_state_fault(tensors["hidden_states"], self._plan.indices)


def _device_of(settings: ModelSettings) -> str:
    """Where the model goes; on the CPU the process takes its share of the cores."""
    import torch

    if settings.device is None and torch.cuda.is_available():
        return f"cuda:{settings.slot % torch.cuda.device_count()}"
    device = settings.device or "cpu"
    if settings.sharers > 1 and device == "cpu":
        torch.set_num_threads(max(1, torch.get_num_threads() // settings.sharers))
    return device


def _sent(values: np.ndarray[Any, np.dtype[np.int64]], device: torch.device) -> torch.Tensor:
    """The values on the device. From page-locked memory, which torch keeps until they are there: from any other the
    copy would wait for all that the device still has to compute.
    """
    import torch

    tensor = torch.from_numpy(values)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


class _Capture:
    """Where the hooks of one pass leave their states: one buffer, filled layer by layer, then taken."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._shape: tuple[int, int] | None = None
        self._buffer: torch.Tensor | None = None
        self._filled: set[int] = set()

    @contextmanager
    def of(self, *, rows: int, width: int) -> Iterator[_Capture]:
        self._shape, self._buffer, self._filled = (rows, width), None, set()
        try:
            yield self
        finally:
            self._shape, self._buffer = None, None  # a failed pass must leave nothing that a later one could hand out

    def take(self, slot: int, hidden: torch.Tensor) -> None:
        """Copy, because later layers may change the tensor in place."""
        if self._shape is None:
            return  # a health check
        if hidden.ndim != 3 or tuple(hidden.shape[:2]) != self._shape:
            raise RuntimeError(f"captured a state of shape {tuple(hidden.shape)} for a batch of {self._shape}")
        if slot in self._filled:
            raise RuntimeError(f"captured state {slot} twice in one pass")
        if self._buffer is None:
            self._buffer = hidden.new_empty((*self._shape, self._slots, hidden.shape[2]))
        self._buffer[:, :, slot].copy_(hidden)
        self._filled.add(slot)

    def states(self) -> torch.Tensor:
        if self._buffer is None or len(self._filled) != self._slots:
            raise RuntimeError(f"captured {len(self._filled)} of {self._slots} states")
        return self._buffer


def load_model(source: ModelSource, settings: ModelSettings) -> Any:
    """All of the model, on the CPU. Raises what transformers raises."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging as hf_logging

    options: dict[str, Any] = {
        "dtype": getattr(torch, settings.dtype),
        "trust_remote_code": settings.is_remote_code_trusted,
    }
    if source.gguf_file is not None:
        options["gguf_file"] = source.gguf_file
        try:
            from transformers import GgufConfig
        except ImportError:
            pass  # older versions always dequantise
        else:
            options["quantization_config"] = GgufConfig(dequantize=True)
    bars: Any = hf_logging
    had_bar = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()  # stderr belongs to our own progress
    try:
        return AutoModelForCausalLM.from_pretrained(source.folder, **options)
    finally:
        if had_bar:
            bars.enable_progress_bar()


def find_parts(model: Any, plan: LayerPlan) -> _Parts:
    """The decoder, its list of layers and its final norm, found by shape and not by the architecture's name."""
    from torch.nn import ModuleList

    decoder = model.get_decoder() if hasattr(model, "get_decoder") else None
    decoder = decoder if decoder is not None else getattr(model, model.base_model_prefix, model)
    lists = [
        (name, module)
        for name, module in decoder.named_modules()
        if isinstance(module, ModuleList) and len(module) == plan.num_layers
    ]
    if not lists:
        raise ConfigError(f"the model has no list of {plan.num_layers} layers that states could be taken from")
    name, blocks = min(lists, key=lambda item: item[0].count("."))
    owner = decoder.get_submodule(name.rpartition(".")[0])
    norm = next((getattr(owner, n) for n in _NORM_NAMES if getattr(owner, n, None) is not None), None)
    if norm is None and plan.indices[-1] == plan.num_layers and plan.is_last_normed:
        raise ConfigError("the model's final norm was not found", hint="take the last state before the norm")
    return _Parts(
        decoder=decoder, blocks=blocks, norm=norm, vocab_size=int(model.get_input_embeddings().weight.shape[0])
    )


def _hook(parts: _Parts, plan: LayerPlan, *, capture: _Capture) -> Iterator[Any]:
    """State k is what layer k receives; state n is what the final norm receives, or gives where that is wanted."""
    for slot, index in enumerate(plan.indices):
        if index < plan.num_layers:
            yield parts.blocks[index].register_forward_pre_hook(_input_hook(capture, slot), with_kwargs=True)
        elif plan.is_last_normed:
            yield parts.norm.register_forward_hook(_output_hook(capture, slot))
        elif parts.norm is not None:
            yield parts.norm.register_forward_pre_hook(_input_hook(capture, slot), with_kwargs=True)
        else:
            yield parts.blocks[-1].register_forward_hook(_output_hook(capture, slot))


def _input_hook(capture: _Capture, slot: int) -> Any:
    def hook(_module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        capture.take(slot, args[0] if args else kwargs["hidden_states"])

    return hook


def _output_hook(capture: _Capture, slot: int) -> Any:
    def hook(_module: Any, _args: tuple[Any, ...], output: Any) -> None:
        capture.take(slot, output[0] if isinstance(output, tuple) else output)

    return hook

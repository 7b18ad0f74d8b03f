"""A second opinion: each compared sample alone through the model, all layers kept, against what was stored.

Duty: judge stored states by a path that shares no hook, no batch and no padding with the extractor.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from durastore.dataset.dataset import Dataset
from durastore.demo.report import Comparison

__all__ = ["BF16_TOLERANCE", "compare"]

BF16_TOLERANCE = 0.04
"""Of a layer's largest magnitude. bf16 keeps 8 bits (one rounding is 0.4 %); a different batch shape changes the order
of summation in every matrix product, and 30 layers add these roundings up."""


def compare(dataset: Dataset, *, model: Path, layers: str, count: int) -> tuple[Comparison, ...]:
    """Compare the shortest, the longest and middle samples (`count` of them) with a batch-1 forward pass."""
    import torch
    from transformers import AutoModelForCausalLM, GgufConfig

    reference = AutoModelForCausalLM.from_pretrained(
        str(model.parent), gguf_file=model.name, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    ).eval()
    wanted = [int(name) if name != "last" else reference.config.num_hidden_layers for name in layers.split(",")]
    ids = sorted(dataset.ids, key=lambda name: (dataset.row(name).entry.length, name))
    step = max(1, (len(ids) - 1) // max(1, count - 1))
    return tuple(_compare_one(dataset, name, reference=reference, wanted=wanted) for name in ids[::step][:count])


def _compare_one(dataset: Dataset, sample_id: str, *, reference: Any, wanted: list[int]) -> Comparison:
    import torch

    sample = dataset[sample_id]
    stored, ids = sample.tensors["hidden_states"], sample.tensors["input_ids"]
    before_norm: list[Any] = []
    hook = reference.model.norm.register_forward_pre_hook(lambda _, args: before_norm.append(args[0]))
    try:
        with torch.inference_mode():
            states = reference.model(ids[None], output_hidden_states=True, use_cache=False).hidden_states
    finally:
        hook.remove()
    worst = 0.0
    for slot, index in enumerate(wanted):
        # the tuple's last entry is after the final norm; what is stored is what enters it
        state = (before_norm[0] if index == len(states) - 1 else states[index])[0].float()
        error = (stored[:, slot].float() - state).abs().max() / state.abs().max()
        worst = max(worst, float(error))
    is_whole = stored.shape == (len(ids), len(wanted), reference.config.hidden_size)
    return Comparison(
        sample_id=sample_id, max_error=worst, is_equal_within_tolerance=is_whole and worst <= BF16_TOLERANCE
    )

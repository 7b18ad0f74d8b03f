"""Real hidden states: SmolLM2-135M over Python source, bf16, 4 layers of 2,048 tokens."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoTokenizer

from durastore.demo.material import find_model
from durastore.extract.model_identity import resolve_model
from durastore.extract.transformers_engine import ModelSettings, load_model

__all__ = ["hidden_states"]

LAYERS = (2, 15, 28, 30)
TOKENS = 2048
SAMPLE_TOKENS = 256  # 1.18 MB


def hidden_states(cache: Path) -> list[torch.Tensor]:
    """Samples of shape [256 tokens, 4 layers, 576], bf16; made once, then kept in `cache`."""
    if not cache.exists():
        cache.parent.mkdir(parents=True, exist_ok=True)
        torch.save(_forward(), cache)
    states: torch.Tensor = torch.load(cache, weights_only=True)
    return [states[at : at + SAMPLE_TOKENS] for at in range(0, TOKENS, SAMPLE_TOKENS)]


def _forward() -> torch.Tensor:
    source = resolve_model(str(find_model()))
    model = load_model(source, ModelSettings(dtype="bfloat16", device="cpu"))
    tokenizer = AutoTokenizer.from_pretrained(source.folder, gguf_file=source.gguf_file)
    text = Path(torch.__file__).with_name("functional.py").read_text(encoding="utf-8")
    ids = tokenizer(text, return_tensors="pt").input_ids[:, :TOKENS]
    with torch.no_grad():
        found = model(ids, output_hidden_states=True).hidden_states
    return torch.stack([found[layer][0] for layer in LAYERS], dim=1).contiguous()

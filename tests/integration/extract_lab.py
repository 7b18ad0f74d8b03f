"""A small real model, and one extraction that can be run as often as wanted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

import durastore
from durastore.demo.seaweed import SeaweedServer
from durastore.extract.job import ExtractRequest, run_extract
from durastore.extract.report import ExtractReport
from durastore.extract.runner import RunnerLimits
from durastore.extract.transformers_engine import ModelSettings
from durastore.store.opening import OptionOverrides

__all__ = ["Job", "make_model"]

WORDS = ["<unk>", "<|user|>", "<|end|>", *(f"w{n}" for n in range(60))]
TEMPLATE = "{% for m in messages %}<|user|> {{ m['content'] }} <|end|> {% endfor %}"


def make_model(folder: Path) -> Path:
    """A four-layer Llama with random weights, a word tokeniser and a chat template."""
    transformers.set_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        vocab_size=64,
        max_position_embeddings=40,
    )
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    words = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return folder


class Job:
    """One input file, one root and one bucket; run as often as wanted."""

    def __init__(self, folder: Path, model: Path, server: SeaweedServer) -> None:
        self.input = folder / "train.jsonl"
        self.root = folder / "spool"
        self.bucket = f"s3://{server.make_bucket()}/run"
        self.options = OptionOverrides(endpoint_url=server.endpoint_url, addressing_style="path", seal_age_s=0.2)
        self._model = model

    def write(self, *rows: dict[str, Any] | str) -> None:
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        self.input.write_text("".join(line + "\n" for line in lines), encoding="utf-8")

    def run(self, **changes: Any) -> ExtractReport:
        values: dict[str, Any] = {
            "input": self.input,
            "model": str(self._model),
            "layers": "1,3,last",
            "bucket": self.bucket,
            "local": self.root,
            "options": self.options,
            "settings": ModelSettings(device="cpu"),
            "limits": RunnerLimits(batch_tokens=64),
        }
        return run_extract(ExtractRequest(**{**values, **changes}))

    def dataset(self) -> durastore.Dataset:
        return durastore.Dataset(self.bucket, endpoint_url=self.options["endpoint_url"], addressing_style="path")

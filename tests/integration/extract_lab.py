"""A small model, an input file, a spool root and a bucket to extract with, as often as wanted."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

import durastore
from durastore.demo.seaweed import SeaweedServer
from durastore.extract.job import ExtractRequest, run_extract
from durastore.extract.report import ExtractReport
from durastore.extract.rows import TokenRow, input_digest
from durastore.extract.runner import RunnerLimits
from durastore.extract.transformers_engine import ModelSettings
from durastore.extract.work_db import WORK_FILE
from durastore.model import SampleId
from durastore.store.opening import OptionOverrides

ROOT = Path(__file__).parents[2]
WORDS = ["<unk>", "<|user|>", "<|end|>", *(f"w{n}" for n in range(60))]
TEMPLATE = "{% for m in messages %}<|user|> {{ m['content'] }} <|end|> {% endfor %}"


def make_model(folder: Path, *, layers: int = 4, positions: int = 40) -> Path:
    """A small Llama with random weights, a word tokeniser and a chat template."""
    transformers.set_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=4,
        vocab_size=64,
        max_position_embeddings=positions,
    )
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return make_tokenizer(folder)


def make_tokenizer(folder: Path) -> Path:
    words = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return folder


def token_rows(samples: Sequence[Sequence[int]]) -> list[TokenRow]:
    """Rows of these token ids, outside of any input file."""
    rows = []
    for line, ids in enumerate(samples, start=1):
        array = np.array(ids, dtype=np.int64)
        digest = input_digest(array, None)
        row = TokenRow(line=line, sample_id=SampleId(f"s{line}"), input_ids=array, loss_mask=None, input_digest=digest)
        rows.append(row)
    return rows


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

    def request(self, **changes: Any) -> ExtractRequest:
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
        return ExtractRequest(**{**values, **changes})

    def run(self, **changes: Any) -> ExtractReport:
        return run_extract(self.request(**changes))

    def dataset(self) -> durastore.Dataset:
        return durastore.Dataset(self.bucket, endpoint_url=self.options["endpoint_url"], addressing_style="path")


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def job(tmp_path: Path, model_folder: Path, seaweed: SeaweedServer, aws_env: dict[str, str]) -> Job:
    del aws_env
    return Job(tmp_path, model_folder, seaweed)


class Running:
    """An extraction in a thread of its own."""

    def __init__(self, run: Callable[[], ExtractReport], *, within_s: float) -> None:
        self._reports: list[ExtractReport] = []
        self._errors: list[BaseException] = []
        self._within_s = within_s
        self._thread = threading.Thread(target=self._run, args=(run,))
        self._thread.start()

    def _run(self, run: Callable[[], ExtractReport]) -> None:
        try:
            self._reports.append(run())
        except BaseException as exc:  # noqa: BLE001 - shown by the test
            self._errors.append(exc)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def report(self) -> ExtractReport:
        self._thread.join(self._within_s)
        assert not self._thread.is_alive()
        assert self._errors == []
        return self._reports[0]


class Queue:
    """What the shared file says, read behind the library's back."""

    def __init__(self, root: Path) -> None:
        self._path = root / WORK_FILE

    def ask(self, query: str) -> list[tuple[int, ...]]:
        if not self._path.exists():
            return []
        with closing(sqlite3.connect(self._path, timeout=30)) as conn:
            try:
                return conn.execute(query).fetchall()
            except sqlite3.OperationalError as exc:
                if "no such table" not in str(exc):
                    raise
        return []

    def stored(self) -> int:
        return sum(number for (number,) in self.ask("SELECT count(*) FROM task WHERE state = 'stored'"))

    def busy_pids(self) -> dict[int, int]:
        """Process id of each worker that leases something -> how many samples."""
        query = (
            "SELECT w.pid, count(*) FROM task t JOIN worker w ON w.id = t.worker WHERE t.state = 'leased' GROUP BY 1"
        )
        return {row[0]: row[1] for row in self.ask(query)}


def extract_command(job: Job, model: Path, *more: str) -> list[str]:
    arguments = ["extract", str(job.input), "--model", str(model), "--layers", "2,last", "--device", "cpu", "--json"]
    place = ["--bucket", job.bucket, "--local", str(job.root), "--endpoint-url", str(job.options["endpoint_url"])]
    return [*arguments, *place, "--addressing-style", "path", *more]


def extracting(job: Job, model: Path, env: dict[str, str], *more: str) -> subprocess.Popen[str]:
    """An extraction in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "durastore_cli.main", *extract_command(job, model, *more)],
        env={**env, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'cli'}", "DURASTORE_SEAL_AGE_S": "0.2"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )

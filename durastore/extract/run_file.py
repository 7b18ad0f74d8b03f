"""`run.toml`: which run old files belong to.

Duty: one of two tables. `[extract]` has the words of `durastore extract`, and comes to the very run that it would
record; `[run]` is a run itself, as it was given to `durastore.open`. Must never guess one: another run is another
store.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from durastore.errors import ConfigError
from durastore.extract.job import ExtractRequest, plan_run
from durastore.extract.tokens import LengthRule, NoTokenizer, Tokenizer
from durastore.extract.transformers_engine import DTYPES, ModelSettings
from durastore.extras import ensure_extra
from durastore.model import Run

__all__ = ["RunFile", "load_run_file"]

_LIMIT_BYTES = 1 << 20
_WORDS: Mapping[str, type] = {
    "model": str,
    "layers": str,
    "normed_last": bool,
    "dtype": str,
    "max_seq_len": int,
    "truncate": bool,
    "trust_remote_code": bool,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFile:
    """The run, and how its input becomes tokens."""

    run: Mapping[str, Any]
    tokenizer: Tokenizer
    rule: LengthRule


def load_run_file(path: Path) -> RunFile:
    """The run that a file names. `ConfigError` where it cannot be read, or names none or two."""
    tables = _load(path)
    if set(tables) == {"run"} and isinstance(tables["run"], dict):
        Run.of(tables["run"])
        none = NoTokenizer("[run] names no model to tokenise them", hint="use [extract], or give rows with input_ids")
        return RunFile(run=tables["run"], tokenizer=none, rule=LengthRule(max_tokens=None))
    if set(tables) == {"extract"} and isinstance(tables["extract"], dict):
        return _of_extract(tables["extract"], origin=f"{path}: [extract]")
    raise ConfigError(
        f"{path} has {', '.join(map(repr, tables)) or 'nothing'} at its top",
        hint="one table: [extract] with model and layers as for `durastore extract`, or [run] with the run itself",
    )


def _load(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as stream:
            data = stream.read(_LIMIT_BYTES + 1)
    except OSError as exc:
        raise ConfigError(f"run file {path} cannot be read: {exc.strerror}") from exc
    if len(data) > _LIMIT_BYTES:
        raise ConfigError(f"run file {path} is larger than 1 MiB")
    try:
        return tomllib.loads(data.decode("utf-8"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as exc:
        raise ConfigError(f"run file {path} is not valid TOML: {exc}") from exc


def _of_extract(words: dict[str, Any], *, origin: str) -> RunFile:
    for name, value in words.items():
        if name not in _WORDS:
            raise ConfigError(f"{origin}: unknown word {name!r}", hint=f"known: {', '.join(_WORDS)}")
        if type(value) is not _WORDS[name]:
            raise ConfigError(f"{origin}: {name} takes a {_WORDS[name].__name__}, not {value!r}")
    for name in ("model", "layers"):
        if name not in words:
            raise ConfigError(f"{origin}: {name} is missing", hint="as it was given to `durastore extract`")
    dtype = words.get("dtype", "bfloat16")
    if dtype not in DTYPES or words.get("max_seq_len", 1) < 1:
        raise ConfigError(f"{origin}: dtype or max_seq_len cannot be", hint=f"dtype is one of {', '.join(DTYPES)}")
    ensure_extra("extract", "transformers", what=f"{origin}: [extract] instead of [run]")
    plan = plan_run(
        ExtractRequest(
            input=Path(),
            model=words["model"],
            layers=words["layers"],
            bucket="",
            local=Path(),
            settings=ModelSettings(dtype=dtype, is_remote_code_trusted=words.get("trust_remote_code", False)),
            max_tokens=words.get("max_seq_len"),
            is_truncated=words.get("truncate", False),
            is_last_normed=words.get("normed_last", False),
        )
    )
    return RunFile(run=plan.run, tokenizer=plan.tokenizer, rule=plan.rule)

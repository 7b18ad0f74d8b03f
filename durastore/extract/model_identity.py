"""Which model this is, told without reading all of its weights.

Duty: a model name -> files on this disk (`ModelSource`), and files -> what the run records of them: configuration,
tensor names, dtypes and shapes, sizes, tokeniser, and a digest of a few spread blocks (two checkpoints of one
architecture differ only in the values). Must never record a path, a host or a user name, and never load weights.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from durastore.errors import ConfigError
from durastore.extras import ensure_extra
from durastore.model import Digest, render_json

__all__ = ["PLAIN_TYPES", "ModelIdentity", "ModelSource", "identify_model", "resolve_model"]

_TOKENIZER_FILES = (
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "merges.txt",
    "special_tokens_map.json",
    "spiece.model",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
)
_HUB_PATTERNS = ["*.json", "*.jinja", "*.model", "*.py", "*.safetensors", "*.txt"]
_VOLATILE_CONFIG = ("_name_or_path", "transformers_version")
PLAIN_TYPES = frozenset(
    {
        "cohere",
        "cohere2",
        "deepseek_v2",
        "deepseek_v3",
        "gemma",
        "gemma2",
        "gemma3_text",
        "glm4",
        "gpt_oss",
        "granite",
        "llama",
        "ministral",
        "mistral",
        "mixtral",
        "olmo",
        "olmo2",
        "olmo3",
        "phi",
        "phi3",
        "qwen2",
        "qwen2_moe",
        "qwen3",
        "qwen3_moe",
        "smollm3",
        "stablelm",
        "starcoder2",
    }
)
"""Model types whose config.json says the numbers that we need under the names by which transformers has them. Others
rename, nest or compute them.
"""
_PROBE_BLOCKS = 16
_PROBE_BLOCK_BYTES = 64 << 10
_HEADER_LIMIT_BYTES = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """Where a model lies on this machine: a folder in Hugging Face's layout, or one GGUF file in a folder."""

    folder: Path
    gguf_file: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelIdentity:
    """What the run records of a model, and the two numbers that the job itself needs."""

    description: dict[str, Any]
    num_layers: int
    max_positions: int | None


def resolve_model(name: str) -> ModelSource:
    """The model's files: a folder, a `.gguf` file, or a hub name (fetched into the hub's own cache).

    Raises `ConfigError` if there is no such model. Safe to repeat.
    """
    path = Path(name)
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise ConfigError(f"model {name} is a file but not a .gguf file", hint="name the folder it lies in")
        return ModelSource(folder=path.parent, gguf_file=path.name)
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ConfigError(
                f"model folder {name} has no config.json", hint="name the .gguf file itself, if it is one"
            )
        return ModelSource(folder=path)
    if name.startswith((".", "/", "~")) or name.count("/") != 1:
        raise ConfigError(f"model {name} does not exist", hint="use a folder, a .gguf file or a hub name (owner/model)")
    return ModelSource(folder=_fetch_from_hub(name))


def _fetch_from_hub(name: str) -> Path:
    ensure_extra("extract", "huggingface_hub", what="a model of the hub")
    from huggingface_hub import snapshot_download

    try:
        folder = Path(snapshot_download(name, allow_patterns=_HUB_PATTERNS))
        if not any(folder.glob("*.safetensors")):
            folder = Path(snapshot_download(name, allow_patterns=[*_HUB_PATTERNS, "*.bin"]))
    except Exception as exc:  # the hub's client raises what its HTTP library raises
        raise ConfigError(
            f"model {name} cannot be fetched from the hub: {type(exc).__name__}: {exc}",
            hint="check the name and the network (gated models: HF_TOKEN), or give a folder that holds the model",
        ) from exc
    return folder


def identify_model(source: ModelSource, *, is_remote_code_trusted: bool = False) -> ModelIdentity:
    """The identity of the model's files. `ConfigError` if they cannot be understood. Reads a few MB; safe to repeat."""
    try:
        if source.gguf_file is not None:
            return _identify_gguf(source.folder / source.gguf_file)
        return _identify_folder(source.folder, is_remote_code_trusted=is_remote_code_trusted)
    except (OSError, ValueError, KeyError) as exc:
        raise ConfigError(f"model in {source.folder} cannot be understood: {type(exc).__name__}: {exc}") from exc


# --- Hugging Face folders ------------------------------------------------------------------------------------------


def _identify_folder(folder: Path, *, is_remote_code_trusted: bool) -> ModelIdentity:
    raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    numbers = _plain_numbers(raw) or _configured_numbers(folder, is_remote_code_trusted=is_remote_code_trusted)
    stable = {key: value for key, value in raw.items() if key not in _VOLATILE_CONFIG}
    files = _weight_files(folder)
    tensors = [spec for file in files for spec in _tensor_headers(file)]
    return ModelIdentity(
        description={
            "form": "safetensors" if tensors else "other",
            "architecture": ",".join(raw.get("architectures") or []) or str(raw.get("model_type")),
            "hidden_size": numbers.hidden_size,
            "config_digest": Digest.of(render_json(stable).encode()).hex,
            "tokenizer_digest": _files_digest(folder, _TOKENIZER_FILES),
            **_describe_weights(files, tensors),
        },
        num_layers=numbers.num_layers,
        max_positions=numbers.max_positions,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Numbers:
    hidden_size: int
    num_layers: int
    max_positions: int | None


def _plain_numbers(raw: object) -> _Numbers | None:
    """What a config.json of a common kind says itself; None if transformers has to be asked, which takes seconds to
    import, in the command and in each of its workers.
    """
    if (
        not isinstance(raw, dict)
        or raw.get("model_type") not in PLAIN_TYPES
        or raw.keys() & {"auto_map", "text_config"}
    ):
        return None
    wanted = [raw.get(name) for name in ("hidden_size", "num_hidden_layers", "max_position_embeddings")]
    numbers = [number for number in wanted if type(number) is int and number > 0]
    if len(numbers) < len(wanted):
        return None  # one that is missing has a default
    return _Numbers(hidden_size=numbers[0], num_layers=numbers[1], max_positions=numbers[2])


def _configured_numbers(folder: Path, *, is_remote_code_trusted: bool) -> _Numbers:
    ensure_extra("extract", "transformers", what="looking at a model")
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder, trust_remote_code=is_remote_code_trusted).get_text_config()
    max_positions = getattr(config, "max_position_embeddings", None)
    return _Numbers(
        hidden_size=int(config.hidden_size),
        num_layers=int(config.num_hidden_layers),
        max_positions=int(max_positions) if max_positions else None,
    )


def _weight_files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        return sorted(folder / name for name in names)
    single = folder / "model.safetensors"
    files = [single] if single.is_file() else sorted(folder.glob("*.safetensors")) or sorted(folder.glob("*.bin"))
    if not files:
        raise ConfigError(f"model folder {folder} has no weights (*.safetensors, *.bin)")
    return files


def _tensor_headers(file: Path) -> list[Sequence[Any]]:
    """(name, dtype, shape) of each tensor of a safetensors file; none of another kind of file."""
    if file.suffix != ".safetensors":
        return []
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if not 2 <= length <= min(_HEADER_LIMIT_BYTES, file.stat().st_size):
            raise ValueError(f"{file.name} has no safetensors header")
        header = json.loads(stream.read(length))
    return [(name, spec["dtype"], spec["shape"]) for name, spec in header.items() if name != "__metadata__"]


def _files_digest(folder: Path, names: Iterable[str]) -> str | None:
    parts = []
    for name in names:
        path = folder / name
        if path.is_file():
            parts.append([name, Digest.of(path.read_bytes()).hex])
    return Digest.of(render_json(parts).encode()).hex if parts else None


def _describe_weights(files: Sequence[Path], tensors: Iterable[Sequence[Any]]) -> dict[str, Any]:
    specs = sorted([str(name), str(dtype), list(shape)] for name, dtype, shape in tensors)
    return {
        "tensors": len(specs),
        "tensors_digest": Digest.of(render_json(specs).encode()).hex,
        "weights_bytes": sum(file.stat().st_size for file in files),
        "weights_probe": _probe(files),
    }


def _probe(files: Sequence[Path]) -> str:
    """Digest of 16 blocks of 64 KiB spread evenly over each file: cheap, and no two checkpoints are alike in it."""
    hasher = xxhash.xxh3_128()
    for file in files:
        with file.open("rb") as stream:
            last = max(0, os.fstat(stream.fileno()).st_size - _PROBE_BLOCK_BYTES)
            for block in range(_PROBE_BLOCKS):
                stream.seek(last * block // (_PROBE_BLOCKS - 1))
                hasher.update(stream.read(_PROBE_BLOCK_BYTES))
    return hasher.hexdigest()


# --- GGUF files ----------------------------------------------------------------------------------------------------


def _identify_gguf(file: Path) -> ModelIdentity:
    reader = _gguf_reader(file)
    architecture = str(_gguf_value(reader, "general.architecture"))
    max_positions = _gguf_value(reader, f"{architecture}.context_length", default=None)
    with file.open("rb") as stream:
        header = Digest.of(stream.read(reader.data_offset)).hex  # metadata, tokeniser and tensor headers
    tensors = [(t.name, t.tensor_type.name, [int(n) for n in t.shape]) for t in reader.tensors]
    return ModelIdentity(
        description={
            "form": "gguf",
            "architecture": architecture,
            "hidden_size": int(_gguf_value(reader, f"{architecture}.embedding_length")),
            "config_digest": header,
            "tokenizer_digest": header,
            **_describe_weights([file], tensors),
        },
        num_layers=int(_gguf_value(reader, f"{architecture}.block_count")),
        max_positions=int(max_positions) if max_positions else None,
    )


def _gguf_reader(file: Path) -> Any:
    ensure_extra("extract", "gguf", what="reading a .gguf model")
    from gguf import GGUFReader

    class PlainReader(GGUFReader):  # type: ignore[misc]  # its package is not followed
        """Slices a plain array: of a `memmap` each of the slices, several for each word of the vocabulary, would be
        made a `memmap` again, which takes seconds.
        """

        @property
        def data(self) -> Any:
            return self._mapped

        @data.setter
        def data(self, mapped: np.ndarray[Any, Any]) -> None:
            self._mapped = mapped.view(np.ndarray)  # keeps the mapping it is a view of

    return PlainReader(file)


_REQUIRED = object()


def _gguf_value(reader: Any, name: str, *, default: object = _REQUIRED) -> Any:
    field = reader.get_field(name)
    if field is None:
        if default is _REQUIRED:
            raise ValueError(f"{name} is missing")
        return default
    return field.contents()

"""Rows of the input -> rows of tokens.

Duty: tokenise text and conversations, check lengths, and compute the digest of exactly the tokens the model will see.
Must never shorten a row silently: too long is a failure unless truncation was asked for (and is then in the run).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from durastore.errors import ConfigError
from durastore.extract.model_identity import ModelSource
from durastore.extract.rows import ChatContent, RawRow, RowFailure, TextContent, TokenContent, TokenRow, token_row
from durastore.extras import ensure_extra

__all__ = ["LengthRule", "NoTokenizer", "Tokenizer", "TransformersTokenizer", "ensure_tokenisable", "tokenise"]


class Tokenizer(Protocol):
    """Texts and conversations to token ids; raises for what it cannot encode."""

    def encode_text(self, text: str) -> list[int]: ...

    def encode_chat(self, messages: list[dict[str, Any]], tools: list[Any] | None) -> list[int]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthRule:
    """How long a sample may be."""

    max_tokens: int | None
    is_truncated: bool = False


class NoTokenizer:
    """Where no model is known: rows with `input_ids` need none, and others are an error."""

    def __init__(self, why: str, *, hint: str) -> None:
        """`why`: nothing names a model, in words that go on a sentence."""
        self._why = why
        self._hint = hint

    def encode_text(self, text: str) -> list[int]:
        """`ConfigError`."""
        del text
        raise self._refusal()

    def encode_chat(self, messages: list[dict[str, Any]], tools: list[Any] | None) -> list[int]:
        """`ConfigError`."""
        del messages, tools
        raise self._refusal()

    def _refusal(self) -> ConfigError:
        return ConfigError(f"the input has rows without input_ids, and {self._why}", hint=self._hint)


class TransformersTokenizer:
    """The model's own tokeniser, loaded at the first use (rows with `input_ids` never need it)."""

    def __init__(self, source: ModelSource, *, is_remote_code_trusted: bool = False) -> None:
        self._source = source
        self._is_remote_code_trusted = is_remote_code_trusted
        self._loaded: Any = None

    def _tokenizer(self) -> Any:
        if self._loaded is None:
            ensure_extra("extract", "transformers", what="tokenising text")
            from transformers import AutoTokenizer

            extra = {"gguf_file": self._source.gguf_file} if self._source.gguf_file else {}
            try:
                self._loaded = AutoTokenizer.from_pretrained(
                    self._source.folder, trust_remote_code=self._is_remote_code_trusted, **extra
                )
            except Exception as exc:  # a tokeniser may be the model's own code
                raise ConfigError(f"the model's tokeniser cannot be loaded: {type(exc).__name__}: {exc}") from exc
        return self._loaded

    def encode_text(self, text: str) -> list[int]:
        """Token ids with the special tokens the model's own settings add."""
        return [int(i) for i in self._tokenizer()(text, truncation=False, verbose=False)["input_ids"]]

    def encode_chat(self, messages: list[dict[str, Any]], tools: list[Any] | None) -> list[int]:
        """The whole conversation through the chat template, without an opening for a next answer."""
        tokenizer = self._tokenizer()
        if not tokenizer.chat_template:
            raise ConfigError("the model has no chat template", hint="give rows with input_ids, prompt or text")
        ids = tokenizer.apply_chat_template(
            messages, tools=tools, tokenize=True, add_generation_prompt=False, return_dict=False
        )
        # Some versions return a mapping here, whose length is 2 for every conversation.
        if not isinstance(ids, list) or not all(isinstance(i, int) for i in ids):
            raise TypeError(f"the chat template gave {type(ids).__name__} instead of token ids")
        return ids


def tokenise(row: RawRow, tokenizer: Tokenizer, *, rule: LengthRule) -> TokenRow | RowFailure:
    """The row's tokens, or why it has none that can be used. Raises only `ConfigError` (no usable tokeniser)."""
    try:
        ids = _encode(row, tokenizer)
    except ConfigError:
        raise  # would be the same for every row
    except Exception as exc:  # noqa: BLE001 - templates and tokenisers raise anything; the row is counted failed with the reason
        return _failed(row, stage="tokenise", reason=f"{type(exc).__name__}: {exc}")
    mask = row.loss_mask
    if mask is not None and len(mask) != len(ids):
        return _failed(row, stage="tokenise", reason=f"loss_mask has {len(mask)} entries for {len(ids)} tokens")
    if len(ids) == 0:
        return _failed(row, stage="length", reason="has no tokens")
    if rule.max_tokens is not None and len(ids) > rule.max_tokens:
        if not rule.is_truncated:
            return _failed(row, stage="length", reason=f"has {len(ids)} tokens, more than {rule.max_tokens}")
        ids, mask = ids[: rule.max_tokens], mask[: rule.max_tokens] if mask is not None else None
    return token_row(row, ids, loss_mask=mask)


def ensure_tokenisable(rows: Iterable[RawRow], tokenizer: Tokenizer) -> None:
    """`ConfigError` where rows of such kinds have no usable tokeniser: before anything is made, and not by the first
    row that needs it, when a prefix is bound to the run already. What one row alone cannot be, its own failure tells.
    """
    for row in rows:
        tokenise(row, tokenizer, rule=LengthRule(max_tokens=None))


def _encode(row: RawRow, tokenizer: Tokenizer) -> npt.NDArray[np.int64]:
    match row.content:
        case TokenContent(input_ids=ids):
            return ids
        case TextContent(text=text):
            return np.array(tokenizer.encode_text(text), dtype=np.int64)
        case ChatContent(messages=messages, tools=tools):
            return np.array(
                tokenizer.encode_chat(json.loads(messages), json.loads(tools) if tools is not None else None),
                dtype=np.int64,
            )


def _failed(row: RawRow, *, stage: str, reason: str) -> RowFailure:
    return RowFailure(line=row.line, sample_id=row.sample_id, stage=stage, reason=" ".join(reason.split())[:500])

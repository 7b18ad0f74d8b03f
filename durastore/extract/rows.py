"""What one line of an extraction input says, as checked values.

Duty: line bytes -> `RawRow` or `RowFailure`, and tokens -> `TokenRow` with its input digest. No I/O, no tokeniser.
Must never repair a row: what cannot be understood is a failure with a reason, and the other rows go on.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from durastore.errors import InvalidInput, InvalidSampleId
from durastore.model import Digest, SampleId, render_json

__all__ = [
    "ChatContent",
    "RawRow",
    "RowFailure",
    "TextContent",
    "TokenContent",
    "TokenRow",
    "input_digest",
    "parse_row",
    "token_row",
]

Ids = npt.NDArray[np.int64]
Mask = npt.NDArray[np.uint8]
_ID_KEYS = ("id", "sample_id", "conversation_id")
_TEXT_KEYS = ("prompt", "text")


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFailure:
    """An input row (or a sample made from it) that will not be stored in this run, and why."""

    line: int
    sample_id: SampleId | None
    stage: str
    """Where it failed: read, tokenise, length, model, states, audit, worker, store."""
    reason: str
    attempts: int = 1
    """How often the model (or what comes before it) was asked for it in this run."""
    input_digest: Digest | None = None
    """Of the tokens that the model was asked for; None where it did not come to that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenContent:
    """A row that is already tokenised."""

    input_ids: Ids


@dataclass(frozen=True, slots=True, kw_only=True)
class TextContent:
    """A row of plain text."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatContent:
    """A conversation, for the tokeniser's chat template. Both fields are canonical JSON texts."""

    messages: str
    tools: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RawRow:
    """One readable row. `content_digest` covers what the states depend on, not the id."""

    line: int
    sample_id: SampleId
    content: TokenContent | TextContent | ChatContent
    loss_mask: Mask | None
    content_digest: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRow:
    """A row ready for the model: 1..max tokens."""

    line: int
    sample_id: SampleId
    input_ids: Ids
    loss_mask: Mask | None
    input_digest: Digest


class _RowError(Exception):
    """The row's text breaks the rules; the message is the reason."""


def input_digest(input_ids: Ids, loss_mask: Mask | None) -> Digest:
    """XXH3-128 of the token ids as little-endian int64, then of the loss mask as one byte a token, if there is one."""
    hasher = xxhash.xxh3_128(input_ids.astype("<i8", copy=False).tobytes())
    if loss_mask is not None:
        hasher.update(loss_mask.tobytes())
    return Digest(hasher.hexdigest())


def token_row(row: RawRow, input_ids: Ids, *, loss_mask: Mask | None) -> TokenRow:
    """The row with the tokens the model will see; the digest is of exactly these."""
    return TokenRow(
        line=row.line,
        sample_id=row.sample_id,
        input_ids=input_ids,
        loss_mask=loss_mask,
        input_digest=input_digest(input_ids, loss_mask),
    )


def parse_row(data: bytes, *, line: int) -> RawRow | RowFailure:
    """The row that a line of JSON holds, or the reason why it holds none. Never raises for what the line says."""
    try:
        values = _object_of(data)
    except _RowError as exc:
        return RowFailure(line=line, sample_id=None, stage="read", reason=str(exc))
    sample_id: SampleId | None = None
    try:
        sample_id = _id_of(values)
        mask = _mask_of(values)
        content, digest = _content_of(values, mask)
    except _RowError as exc:
        return RowFailure(line=line, sample_id=sample_id, stage="read", reason=str(exc))
    if sample_id is None:
        sample_id = SampleId(digest.hex)
    return RawRow(line=line, sample_id=sample_id, content=content, loss_mask=mask, content_digest=digest)


def _no_constant(name: str) -> Any:
    raise _RowError(f"holds {name}, which is not JSON")


def _object_of(data: bytes) -> dict[str, Any]:
    try:
        values = json.loads(data.decode("utf-8"), parse_constant=_no_constant)
    except UnicodeDecodeError as exc:
        raise _RowError(f"is not UTF-8 (byte {exc.start})") from exc
    except json.JSONDecodeError as exc:
        raise _RowError(f"is not JSON: {exc.msg} at character {exc.pos}") from exc
    except (RecursionError, ValueError) as exc:  # nesting bombs, integers of thousands of digits
        raise _RowError(f"is not usable JSON: {type(exc).__name__}") from exc
    if not isinstance(values, dict):
        raise _RowError(f"is of type {type(values).__name__}, not a JSON object")
    return values


def _id_of(values: dict[str, Any]) -> SampleId | None:
    for key in _ID_KEYS:
        value = values.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise _RowError(f"{key} is of type {type(value).__name__}, not a text or an integer")
        try:
            return SampleId(str(value))
        except InvalidSampleId as exc:
            raise _RowError(exc.message) from exc
    return None


def _content_of(values: dict[str, Any], mask: Mask | None) -> tuple[TokenContent | TextContent | ChatContent, Digest]:
    """The most exact form the row offers: token ids before messages before text."""
    if values.get("input_ids") is not None:
        ids = _ids_of(values["input_ids"])
        if mask is not None and len(mask) != len(ids):
            raise _RowError(f"loss_mask has {len(mask)} entries for {len(ids)} tokens")
        return TokenContent(input_ids=ids), input_digest(ids, mask)
    content = _chat_of(values) or _text_of(values)
    if content is None:
        raise _RowError("has none of input_ids, messages, prompt, text")
    facts = [content.messages, content.tools] if isinstance(content, ChatContent) else [content.text]
    try:
        text = render_json([type(content).__name__, facts, mask.tolist() if mask is not None else None])
    except InvalidInput as exc:  # a lone surrogate has no UTF-8 form
        raise _RowError(exc.message) from exc
    return content, Digest.of(text.encode())


def _chat_of(values: dict[str, Any]) -> ChatContent | None:
    messages, tools = values.get("messages"), values.get("tools")
    if messages is None:
        return None
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
        raise _RowError("messages is not a list of at least one object")
    try:
        return ChatContent(messages=render_json(messages), tools=render_json(tools) if tools is not None else None)
    except InvalidInput as exc:
        raise _RowError(exc.message) from exc


def _text_of(values: dict[str, Any]) -> TextContent | None:
    for key in _TEXT_KEYS:
        value = values.get(key)
        if value is None:
            continue
        if not isinstance(value, str):
            raise _RowError(f"{key} is of type {type(value).__name__}, not a text")
        return TextContent(text=value)
    return None


def _ids_of(value: object) -> Ids:
    if not isinstance(value, list) or not all(type(item) is int for item in value):
        raise _RowError("input_ids is not a list of integers")
    if value and not 0 <= min(value) <= max(value) < 1 << 31:
        raise _RowError("input_ids has a value outside 0..2^31-1")
    return np.array(value, dtype=np.int64)


def _mask_of(values: dict[str, Any]) -> Mask | None:
    value = values.get("loss_mask")
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(item, int) and item in (0, 1) for item in value):
        raise _RowError("loss_mask is not a list of 0 and 1")
    return np.array(value, dtype=np.uint8)

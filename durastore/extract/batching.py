"""Which rows go through the model together.

Duty: cut a stream of rows into batches of similar length under a budget of padded tokens. Pure and deterministic: the
same rows give the same batches. Must never reorder beyond its window, drop or repeat a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from durastore.errors import InvalidInput
from durastore.extract.rows import TokenRow

__all__ = ["batches", "cut_window"]

WINDOW_BATCHES = 8
"""Rows are sorted by length within about this many batches' worth of tokens."""
WINDOW_ROWS = 4096
BATCH_ROWS = 256


def cut_window(rows: Iterable[TokenRow], *, batch_tokens: int) -> list[list[TokenRow]]:
    """The rows in batches, longest first, so that the largest batch shows at once whether it fits in memory.

    Each batch holds at most `batch_tokens` including padding, except that a longer row makes a batch of its own.
    """
    result: list[list[TokenRow]] = []
    longest = 0
    for row in sorted(rows, key=lambda r: (-len(r.input_ids), r.line)):
        if not result or (len(result[-1]) + 1) * longest > batch_tokens or len(result[-1]) == BATCH_ROWS:
            result.append([])
            longest = len(row.input_ids)
        result[-1].append(row)
    return result


def batches(rows: Iterable[TokenRow], *, batch_tokens: int) -> Iterator[list[TokenRow]]:
    """Cut a stream into batches, one window after the other; every row comes out exactly once."""
    if batch_tokens < 1:
        raise InvalidInput(f"batch_tokens is {batch_tokens}", hint="use a positive number of tokens")
    window: list[TokenRow] = []
    tokens = 0
    for row in rows:
        window.append(row)
        tokens += len(row.input_ids)
        if tokens >= WINDOW_BATCHES * batch_tokens or len(window) == WINDOW_ROWS:
            yield from cut_window(window, batch_tokens=batch_tokens)
            window, tokens = [], 0
    yield from cut_window(window, batch_tokens=batch_tokens)

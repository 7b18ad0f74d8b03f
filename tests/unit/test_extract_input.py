"""Rows, the survey of an input file, layers and batches."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from durastore.errors import ConfigError, InvalidInput
from durastore.extract import inputs
from durastore.extract.batching import BATCH_ROWS, batches
from durastore.extract.inputs import read_selected, survey_input
from durastore.extract.layers import parse_layers
from durastore.extract.rows import RawRow, RowFailure, TokenRow, parse_row, token_row
from durastore.extract.tokens import LengthRule, NoTokenizer, ensure_tokenisable, tokenise


def _file(folder: Path, *rows: Any, name: str = "train.jsonl") -> Path:
    path = folder / name
    path.write_bytes(b"".join((r if isinstance(r, bytes) else json.dumps(r).encode()) + b"\n" for r in rows))
    return path


def _row(value: Any, line: int = 1) -> RawRow:
    row = parse_row(value if isinstance(value, bytes) else json.dumps(value).encode(), line=line)
    assert isinstance(row, RawRow), row
    return row


def _fault(value: Any) -> RowFailure:
    row = parse_row(value if isinstance(value, bytes) else json.dumps(value).encode(), line=5)
    assert isinstance(row, RowFailure), row
    assert row.line == 5
    assert row.stage == "read"
    return row


class WordTokenizer:
    """One token a word; raises for the word `boom`."""

    def encode_text(self, text: str) -> list[int]:
        if "boom" in text:
            raise RuntimeError("no token\nfor boom")
        return [len(word) for word in text.split()]

    def encode_chat(self, messages: list[dict[str, Any]], tools: list[Any] | None) -> list[int]:
        return [1] * (len(messages) + len(tools or []))


# --- rows ----------------------------------------------------------------------------------------------------------


def test_the_input_digest_is_of_little_endian_ids_and_the_mask() -> None:
    row = _row({"id": "a", "input_ids": [1, 2, 300], "loss_mask": [0, 1, 1]})
    tokens = tokenise(row, WordTokenizer(), rule=LengthRule(max_tokens=None))
    assert isinstance(tokens, TokenRow)
    data = b"".join(i.to_bytes(8, "little") for i in (1, 2, 300)) + b"\0\1\1"
    assert tokens.input_digest.hex == xxhash.xxh3_128_hexdigest(data)
    assert tokens.input_digest == row.content_digest
    assert _row({"id": "b", "input_ids": [1, 2, 300]}).content_digest != row.content_digest


@pytest.mark.parametrize("key, value", [("id", "x"), ("sample_id", "x"), ("conversation_id", "x"), ("id", 17)])
def test_where_the_id_comes_from(key: str, value: object) -> None:
    assert _row({key: value, "text": "t"}).sample_id.text == str(value)


def test_the_id_keys_have_an_order_and_null_counts_as_absent() -> None:
    row = {"conversation_id": "c", "sample_id": "s", "id": None, "text": "t"}
    assert _row(row).sample_id.text == "s"


def test_a_row_without_an_id_is_named_by_its_content() -> None:
    first, again, other = _row({"text": "t"}), _row({"text": "t", "note": 1}), _row({"text": "u"})
    assert first.sample_id == again.sample_id
    assert first.sample_id.text == first.content_digest.hex
    assert other.sample_id != first.sample_id


@pytest.mark.parametrize(
    "value, reason",
    [
        (b"{", "not JSON"),
        (b"\xff{}", "not UTF-8"),
        (b"[1]", "not a JSON object"),
        (b'{"text": NaN}', "NaN"),
        (b"[" * 100_000, "not usable JSON"),
        (b'{"input_ids": [' + b"9" * 5000 + b"]}", "not usable JSON"),
        ({}, "has none of"),
        ({"id": "a"}, "has none of"),
        ({"id": "", "text": "t"}, "0 bytes"),
        ({"id": "../x", "text": "t"}, "segment"),
        ({"id": 1.5, "text": "t"}, "float"),
        ({"id": True, "text": "t"}, "bool"),
        ({"text": 3}, "not a text"),
        (b'{"text": "\\ud800"}', "surrogate"),
        ({"input_ids": "1 2"}, "list of integers"),
        ({"input_ids": [1, 2.0]}, "list of integers"),
        ({"input_ids": [1, True]}, "list of integers"),
        ({"input_ids": [-1]}, "outside"),
        ({"input_ids": [1 << 31]}, "outside"),
        ({"input_ids": [1, 2], "loss_mask": [1]}, "1 entries for 2 tokens"),
        ({"input_ids": [1], "loss_mask": [2]}, "0 and 1"),
        ({"messages": []}, "at least one"),
        ({"messages": ["hi"]}, "at least one object"),
    ],
)
def test_what_cannot_be_read_is_a_failure_with_a_reason(value: Any, reason: str) -> None:
    assert reason in _fault(value).reason


@pytest.mark.parametrize(
    "keys, count", [(("input_ids", "messages", "prompt"), 3), (("messages", "prompt"), 1), (("prompt", "text"), 2)]
)
def test_tokens_come_before_messages_before_prompt(keys: tuple[str, ...], count: int) -> None:
    values = {"input_ids": [9, 9, 9], "messages": [{"role": "user"}], "prompt": "a b", "text": "a b c d"}
    tokens = tokenise(_row({key: values[key] for key in keys}), WordTokenizer(), rule=LengthRule(max_tokens=None))
    assert isinstance(tokens, TokenRow)
    assert len(tokens.input_ids) == count


# --- lengths -------------------------------------------------------------------------------------------------------


def _length_result(count: int, rule: LengthRule) -> TokenRow | RowFailure:
    row = _row({"id": "a", "input_ids": list(range(count)), "loss_mask": [1] * count})
    return tokenise(row, WordTokenizer(), rule=rule)


def test_too_long_and_empty_rows_fail_with_a_reason() -> None:
    rule = LengthRule(max_tokens=3)
    assert isinstance(_length_result(3, rule), TokenRow)
    long, empty = _length_result(4, rule), _length_result(0, rule)
    assert isinstance(long, RowFailure)
    assert (long.stage, long.reason) == ("length", "has 4 tokens, more than 3")
    assert isinstance(empty, RowFailure)
    assert empty.reason == "has no tokens"


def test_truncation_is_of_ids_and_mask_and_the_digest_is_of_what_is_left() -> None:
    cut = _length_result(9, LengthRule(max_tokens=3, is_truncated=True))
    exact = _length_result(3, LengthRule(max_tokens=3))
    assert isinstance(cut, TokenRow)
    assert isinstance(exact, TokenRow)
    assert cut.input_ids.tolist() == [0, 1, 2]
    assert cut.loss_mask is not None
    assert len(cut.loss_mask) == 3
    assert cut.input_digest == exact.input_digest


def test_a_tokeniser_that_raises_costs_one_row() -> None:
    failed = tokenise(_row({"id": "a", "text": "boom"}), WordTokenizer(), rule=LengthRule(max_tokens=None))
    assert isinstance(failed, RowFailure)
    assert (failed.stage, failed.reason) == ("tokenise", "RuntimeError: no token for boom")


def test_a_mask_has_to_fit_the_tokens_of_a_text() -> None:
    failed = tokenise(
        _row({"id": "a", "text": "x y", "loss_mask": [1]}), WordTokenizer(), rule=LengthRule(max_tokens=None)
    )
    assert isinstance(failed, RowFailure)
    assert failed.reason == "loss_mask has 1 entries for 2 tokens"


# --- the survey ----------------------------------------------------------------------------------------------------


def test_repeats_are_left_out_and_unreadable_rows_count(tmp_path: Path) -> None:
    path = _file(tmp_path, {"id": "a", "text": "1"}, b"{", b"  ", {"id": "b", "text": "2"}, {"id": "a", "text": "1"})
    survey = survey_input(path)
    assert (survey.rows, survey.unreadable, survey.inputs) == (4, 1, 3)
    assert survey.duplicate_lines == {5}
    assert survey.needs_tokenizer
    assert [row.line for row in read_selected(survey)] == [1, 2, 4]


def test_one_id_with_two_contents_is_refused_naming_both_lines(tmp_path: Path) -> None:
    path = _file(
        tmp_path, {"id": "b", "text": "0"}, {"id": "a", "text": "1"}, {"id": "c", "text": "1"}, {"id": "a", "text": "2"}
    )
    with pytest.raises(InvalidInput, match="lines 2 and 4"):
        survey_input(path)


def test_bom_crlf_blank_and_missing_last_newline(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"id":"a","input_ids":[1]}\r\n\r\n{"id":"b","input_ids":[2]}')
    survey = survey_input(path)
    assert (survey.rows, survey.unreadable, survey.size_bytes) == (2, 0, path.stat().st_size)
    assert not survey.needs_tokenizer
    rows = [row for row in read_selected(survey) if isinstance(row, RawRow)]
    assert [(row.line, row.sample_id.text) for row in rows] == [(1, "a"), (3, "b")]


@pytest.mark.parametrize("text", ["", "\n  \n"])
def test_an_empty_file_is_no_success(tmp_path: Path, text: str) -> None:
    path = tmp_path / "input.jsonl"
    path.write_text(text)
    with pytest.raises(InvalidInput, match="holds no rows") as caught:
        survey_input(path)
    assert caught.value.exit_code == 2


def test_a_folder_is_called_one(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="is a folder") as caught:
        survey_input(tmp_path)
    assert "pipe" not in str(caught.value.hint)


def test_a_limit_takes_the_first_rows_only(tmp_path: Path) -> None:
    path = _file(tmp_path, *({"id": str(n % 3), "text": str(n % 3)} for n in range(6)))
    survey = survey_input(path, limit=4)
    assert (survey.rows, survey.inputs, survey.duplicate_lines) == (4, 3, frozenset({4}))
    assert len(list(read_selected(survey))) == 3


def test_rows_appended_after_the_survey_are_not_read(tmp_path: Path) -> None:
    path = _file(tmp_path, {"id": "a", "text": "1"})
    survey = survey_input(path)
    with path.open("ab") as stream:
        stream.write(b'{"id":"b","text":"2"}\n')
    assert len(list(read_selected(survey))) == 1


@pytest.mark.parametrize("change", ["edit", "shorten"])
def test_a_file_that_changed_between_the_passes_is_told(tmp_path: Path, change: str) -> None:
    path = _file(tmp_path, {"id": "a", "text": "1"}, {"id": "b", "text": "2"})
    survey = survey_input(path)
    data = path.read_bytes()
    path.write_bytes(data.replace(b"2", b"3") if change == "edit" else data[: len(data) // 2])
    with pytest.raises(InvalidInput, match="changed"):
        list(read_selected(survey))


def test_a_line_over_the_limit_is_one_failure_and_the_next_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "LINE_LIMIT_BYTES", 64)
    path = _file(tmp_path, {"id": "a", "text": "x" * 200}, {"id": "b", "text": "1"})
    survey = survey_input(path)
    first, second = read_selected(survey)
    assert isinstance(first, RowFailure)
    assert "longer than" in first.reason
    assert isinstance(second, RawRow)
    assert (survey.rows, survey.unreadable) == (2, 1)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path, tmp_path / "absent", tmp_path / "fifo"):
        with pytest.raises(InvalidInput):
            survey_input(path)


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 1)), max_size=30))
def test_repeats_as_a_table_would_find_them(pairs: list[tuple[int, int]]) -> None:
    first: dict[int, int] = {}
    is_refused = any(first.setdefault(name, content) != content for name, content in pairs)
    ids = inputs._Ids()
    seen: set[int] = set()
    repeats = set()
    for line, (name, content) in enumerate(pairs, start=1):
        ids.add(_row({"id": str(name), "text": str(content)}, line))
        repeats |= {line} if name in seen else set()
        seen.add(name)
    if is_refused:
        with pytest.raises(InvalidInput):
            ids.duplicate_lines()
    else:
        assert ids.duplicate_lines() == repeats


# --- layers --------------------------------------------------------------------------------------------------------


def test_layers_are_sorted_and_distinct_and_last_is_n() -> None:
    plan = parse_layers("27, 2,last,15,30,2,0", num_layers=30)
    assert plan.indices == (0, 2, 15, 27, 30)
    assert plan.describe()["last_is_normed"] is False
    assert parse_layers("2", num_layers=30, is_last_normed=True).describe()["last_is_normed"] is None


@pytest.mark.parametrize("text", ["", "31", "-1", "1,,2", "first", "1-3", "2.0", "LAST", "\u0661", "1" * 5])
def test_an_unknown_layer_is_refused_naming_the_range(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"0 \(embeddings\) to 30"):
        parse_layers(text, num_layers=30)


# --- batches -------------------------------------------------------------------------------------------------------


def _tokens(length: int, line: int) -> TokenRow:
    return token_row(_row({"id": f"s{line}", "text": "x"}, line), np.ones(length, dtype=np.int64), loss_mask=None)


@given(st.lists(st.integers(1, 60), max_size=200), st.integers(1, 200))
def test_batches_keep_every_row_and_the_budget_and_are_deterministic(lengths: list[int], batch_tokens: int) -> None:
    rows = [_tokens(length, line) for line, length in enumerate(lengths, start=1)]
    cut = list(batches(iter(rows), batch_tokens=batch_tokens))
    assert sorted(row.line for batch in cut for row in batch) == [row.line for row in rows]
    for batch in cut:
        padded = len(batch) * max(len(row.input_ids) for row in batch)
        assert padded <= batch_tokens or len(batch) == 1
        assert len(batch) <= BATCH_ROWS
    again = list(batches(rows, batch_tokens=batch_tokens))
    assert [[row.line for row in batch] for batch in again] == [[row.line for row in batch] for batch in cut]


def test_similar_lengths_share_a_batch() -> None:
    rows = [_tokens(length, line) for line, length in enumerate([1, 50] * 20, start=1)]
    padded = sum(len(b) * max(len(r.input_ids) for r in b) for b in batches(rows, batch_tokens=100))
    assert padded <= 1.1 * sum(len(row.input_ids) for row in rows)


def test_batches_stream_instead_of_reading_everything_first() -> None:
    taken = 0

    def rows() -> Any:
        nonlocal taken
        for line in range(1, 100_000):
            taken = line
            yield _tokens(10, line)

    next(iter(batches(rows(), batch_tokens=40)))
    assert taken < 100


def test_one_row_of_each_kind_asks_for_a_tokeniser_before_anything_begins(tmp_path: Path) -> None:
    path = _file(
        tmp_path,
        {"id": "a", "input_ids": [1]},
        {"id": "b", "text": "boom"},
        {"id": "c", "text": "2"},
        {"id": "d", "messages": [{"role": "user", "content": "x"}]},
    )
    rows = survey_input(path).to_tokenise
    assert [row.line for row in rows] == [2, 4]
    ensure_tokenisable(rows, WordTokenizer())  # what one row cannot be is that row's own failure
    with pytest.raises(ConfigError, match="rows without input_ids, and nothing names a model"):
        ensure_tokenisable(rows, NoTokenizer("nothing names a model", hint="give one"))
    given = survey_input(_file(tmp_path, {"id": "a", "input_ids": [1]}))
    ensure_tokenisable(given.to_tokenise, NoTokenizer("nothing names a model", hint="give one"))

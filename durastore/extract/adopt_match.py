"""Which file belongs to which row of the input.

Duty: an `IdRule`, and files paired with rows in one pass over the input, which may be larger than memory. Every file
comes out exactly once: with its row, or with the reason why it has none. Must never pair by order or by nearness.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from durastore.adopt.foreign_formats.containers import stem_of
from durastore.adopt.loading import Unloaded
from durastore.errors import ConfigError, InvalidSampleId
from durastore.extract.inputs import Survey, read_all
from durastore.extract.rows import RawRow, RowFailure, TokenRow
from durastore.extract.tokens import LengthRule, Tokenizer, ensure_tokenisable, tokenise
from durastore.model import SampleId

__all__ = ["Candidate", "IdRule", "Key", "match_alone", "match_input", "parse_id_rule"]

_NUMBER = re.compile(r"(\d+)$", re.ASCII)
_KINDS = "row, field:NAME or regex:R"

Key = int | str
"""What a file says of its row: its number from 0, or its id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdRule:
    """How a file tells which sample it is."""

    kind: str
    """`row`: the number at the end of its name is that of its row, from 0 (`data_17.pt`, `hs_17.safetensors`). `field`:
    the id stands in the file, under `text`. `regex`: the id is what the first group of `text` finds in its path."""
    text: str = ""

    def key_in_path(self, path: str) -> Key | None:
        """What the path alone says; None where it says nothing."""
        if self.kind == "row":
            found = _NUMBER.search(stem_of(path) or "")
            return int(found[1]) if found is not None and len(found[1]) < 19 else None
        match = re.search(self.text, path) if self.kind == "regex" else None
        return match[1] if match is not None else None


def parse_id_rule(text: str) -> IdRule:
    """`row`, `field:NAME` or `regex:R` with one group. `ConfigError` for anything else."""
    kind, colon, rest = text.partition(":")
    if (kind, colon) == ("row", ""):
        return IdRule(kind="row")
    if kind == "field" and rest:
        return IdRule(kind="field", text=rest)
    if kind == "regex" and rest:
        try:
            groups = re.compile(rest).groups
        except re.error as exc:
            raise ConfigError(f"--id-from {text!r} is no regular expression: {exc}") from exc
        if groups == 1:
            return IdRule(kind="regex", text=rest)
        raise ConfigError(f"--id-from {text!r} has {groups} groups", hint="the one group is what finds the id")
    raise ConfigError(f"--id-from {text!r} is not known", hint=f"it is {_KINDS}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A file and the sample that it is said to be."""

    path: str
    sample_id: SampleId
    row: TokenRow | None
    """None where there is no input to tell."""


def match_input(
    keys: Mapping[str, Key], survey: Survey, *, tokenizer: Tokenizer, rule: LengthRule
) -> Iterator[Candidate | Unloaded]:
    """Files (path -> key) with the rows of the input, in its order; then those that no row was found for.

    Only rows that a file belongs to are tokenised. `ConfigError` at once where they cannot be: nothing was made yet.
    `InvalidInput` at the end where the input changed meanwhile.
    """
    by_key: dict[Key, list[str]] = {}
    for path, key in keys.items():
        by_key.setdefault(key, []).append(path)
    ensure_tokenisable(_first_of_each_kind(by_key, survey), tokenizer)
    return _matched(by_key, survey, tokenizer=tokenizer, rule=rule)


def _first_of_each_kind(by_key: dict[Key, list[str]], survey: Survey) -> Iterator[RawRow]:
    """Rows without token ids that files belong to, one of each kind; reads no further than it has to."""
    wanted = {type(row.content) for row in survey.to_tokenise}
    rows = _with_keys(survey, is_numbered=_is_numbered(by_key)) if wanted else ()
    for key, row in rows:
        if isinstance(row, RawRow) and type(row.content) in wanted and key in by_key:
            wanted -= {type(row.content)}
            yield row
        if not wanted:
            return


def _is_numbered(by_key: dict[Key, list[str]]) -> bool:
    return any(isinstance(key, int) for key in by_key)


def _with_keys(survey: Survey, *, is_numbered: bool) -> Iterator[tuple[Key, RawRow | RowFailure]]:
    for number, row in enumerate(read_all(survey)):
        yield number if is_numbered else str(row.sample_id), row


def _matched(
    by_key: dict[Key, list[str]], survey: Survey, *, tokenizer: Tokenizer, rule: LengthRule
) -> Iterator[Candidate | Unloaded]:
    for key, row in _with_keys(survey, is_numbered=_is_numbered(by_key)):
        paths = by_key.pop(key, None)
        if paths is None:
            continue
        found = row if isinstance(row, RowFailure) else tokenise(row, tokenizer, rule=rule)
        for path in sorted(paths):
            if isinstance(found, RowFailure):
                yield _unmatched(path, f"line {found.line} of the input cannot be used: {found.reason}")
            else:
                yield Candidate(path=path, sample_id=found.sample_id, row=found)
    for key, paths in by_key.items():
        for path in paths:
            said = f"row {key} (of {survey.rows}, from 0)" if isinstance(key, int) else f"id {key!r}"
            yield _unmatched(path, f"the input has no {said}")


def match_alone(keys: Iterable[tuple[str, Key]]) -> Iterator[Candidate | Unloaded]:
    """Files with the ids that they tell of themselves."""
    for path, key in keys:
        try:
            yield Candidate(path=path, sample_id=SampleId(str(key)), row=None)
        except InvalidSampleId as exc:
            yield _unmatched(path, exc.message)


def _unmatched(path: str, reason: str) -> Unloaded:
    return Unloaded(path=path, trouble="unmatched", reason=reason)

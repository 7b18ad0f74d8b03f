"""The input against manifest and journals: what is done, what is only here, what failed, what is missing.

Duty: the inventory stage, by extract's own rules: its ids, its tokeniser, its digest of the tokens, and a row of the
bucket's run as the only meaning of done (INV-8). Must never count a sample whose input could not be read as done.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from durastore.doctor.request import Examination, LocalSample
from durastore.doctor.stages import Verdict
from durastore.errors import DurastoreError, RunMismatch, StoreMissing
from durastore.extract.failure_book import load_failures
from durastore.extract.inputs import Survey, read_selected, survey_input
from durastore.extract.model_identity import resolve_model
from durastore.extract.rows import RowFailure, TokenRow
from durastore.extract.shards import WHOLE, parse_shard
from durastore.extract.shared_failures import fetch_told
from durastore.extract.starts import Start
from durastore.extract.tokens import LengthRule, NoTokenizer, Tokenizer, TransformersTokenizer, tokenise
from durastore.manifest.index import IdIndex
from durastore.manifest.snapshot import fetch_snapshot
from durastore.manifest.view import fetch_view
from durastore.model import Run

__all__ = ["Inventory", "look_at_inventory"]

_SHOWN = 10
_LISTED = 1_000
_PROBE_TOKENS = 512


@dataclass(slots=True, kw_only=True)
class Inventory:
    """Each distinct input in exactly one count."""

    inputs: int = 0
    done: int = 0
    only_here: int = 0
    """In packs of this root that the next start brings to the bucket."""
    failed: int = 0
    missing: int = 0
    failures: list[str] = field(default_factory=list)
    missing_ids: list[str] = field(default_factory=list)
    probe_ids: npt.NDArray[np.int64] | None = None
    longest_tokens: int = 0
    unread: list[str] = field(default_factory=list)
    """Lists of failures in the bucket that say nothing."""

    @property
    def adds_up(self) -> bool:
        return self.done + self.only_here + self.failed + self.missing == self.inputs

    def add_failed(self, line: int, sample_id: str | None, *, why: str) -> None:
        self.failed += 1
        if len(self.failures) < _LISTED:
            self.failures.append(f"{sample_id or f'line {line}'}: {why}")

    def add_missing(self, row: TokenRow) -> None:
        self.missing += 1
        if len(self.missing_ids) < _LISTED:
            self.missing_ids.append(str(row.sample_id))

    def note_tokens(self, row: TokenRow) -> None:
        if len(row.input_ids) > self.longest_tokens:
            self.longest_tokens = len(row.input_ids)
            self.probe_ids = row.input_ids[:_PROBE_TOKENS].copy()


def look_at_inventory(seen: Examination) -> Verdict:
    """Reads the whole input and the manifest. `InvalidInput`, `RunMismatch`, `ManifestIncomplete` pass."""
    start = _start_of_run(seen)
    data = seen.request.data if seen.request.data is not None else start.input_path if start is not None else None
    if data is None:
        return Verdict.skipped("no input was named (--data), and no start is on record")
    survey = _survey(data, start)
    rule, tokenizer = _rule(seen, start), _tokenizer(start, survey)
    found = Inventory(inputs=survey.inputs)
    held = _Held(seen)
    found.unread = held.unread
    for row in read_selected(survey):
        _count(row if isinstance(row, RowFailure) else tokenise(row, tokenizer, rule=rule), held, found=found)
    # Failed ones are left, too: whoever told of them, they are not in the bucket, and the command tries them again.
    seen.probe_ids, seen.left = found.probe_ids, found.missing + found.only_here + found.failed
    return _verdict(found, survey)


def _start_of_run(seen: Examination) -> Start | None:
    """The last start of the bucket's run. `RunMismatch` where all starts on record here were of another."""
    if seen.run is None or not seen.starts:
        return seen.last
    fitting = [start for start in seen.starts if start.run == seen.run.digest.hex]
    if not fitting:
        raise RunMismatch(
            f"the bucket holds run {seen.run.digest.hex[:16]}, the last start here was of {seen.starts[0].run[:16]}",
            hint=f"check --bucket; the last start was for {seen.starts[0].bucket}",
        )
    return fitting[0]


def _survey(data: Path, start: Start | None) -> Survey:
    """The part of the input that the start was of; all of another input."""
    if start is None or start.input_path.resolve() != data.resolve():
        return survey_input(data, shard=WHOLE)
    return survey_input(data, limit=start.limit, shard=parse_shard(start.shard))


def _rule(seen: Examination, start: Start | None) -> LengthRule:
    if start is not None:
        return LengthRule(max_tokens=start.max_tokens, is_truncated=start.is_truncated)
    limit = seen.described_run().get("truncated_to_tokens")
    return LengthRule(max_tokens=limit, is_truncated=True) if isinstance(limit, int) else LengthRule(max_tokens=None)


def _tokenizer(start: Start | None, survey: Survey) -> Tokenizer:
    if start is None or not survey.needs_tokenizer:
        return NoTokenizer(
            "no start on record names the model that tokenised them",
            hint="run the extraction once: what is done is found, and the start is on record then",
        )
    source = resolve_model(start.model_name)
    return TransformersTokenizer(source, is_remote_code_trusted=start.is_remote_code_trusted)


class _Held:
    """What is known of samples: manifest, local packs, failures."""

    def __init__(self, seen: Examination) -> None:
        run = seen.run
        self._index: IdIndex | None = None
        self._local: set[LocalSample] = set()
        if run is not None and seen.objects is not None:
            prefix = seen.request.bucket.prefix
            self._index = fetch_view(seen.objects, fetch_snapshot(seen.objects, prefix)).index(run.digest)
            self._local = seen.only_local.get(run.digest.hex, set())
        self.unread: list[str] = []
        self._failures = _failures(seen.request.local, run)
        self._told = self._told_failures(seen, run)

    def is_done(self, row: TokenRow) -> bool:
        return self._index is not None and self._index.contains(row.sample_id, row.input_digest)

    def is_here(self, row: TokenRow) -> bool:
        return (str(row.sample_id), row.input_digest.hex) in self._local

    def _told_failures(self, seen: Examination, run: Run | None) -> dict[str, tuple[str | None, str]]:
        """Sample id -> digest of the input, and why extractions on any machine could not do it, as the bucket was told.
        What is done since, the manifest tells first.
        """
        if run is None or seen.objects is None:
            return {}
        try:
            failures, lists = fetch_told(seen.objects, seen.request.bucket.prefix, run=run.digest)
        except DurastoreError as exc:  # history only: the counts come from the manifest, which was read
            self.unread = [f"those of other machines: {exc.message}"]
            return {}
        self.unread = [f"{each.key}: {each.reason}" for each in lists.ignored]
        return {
            failure.sample_id: (
                failure.input_digest,
                f"{failure.stage}: {failure.reason} (tried in {failure.runs} runs, on {failure.host})",
            )
            for failure in failures
            if failure.sample_id is not None
        }

    def failure(self, row: TokenRow) -> str | None:
        name = str(row.sample_id)
        digest, why = self._told.get(name, (None, None))
        # What failed elsewhere may have been another input of that name, and nobody tried this one.
        is_other_input = digest is not None and digest != row.input_digest.hex
        return self._failures.get(name, why if not is_other_input else None)


def _failures(root: Path, run: Run | None) -> dict[str, str]:
    """Sample id -> why the extractions of this root could not do it."""
    try:
        known = load_failures(root)
    except StoreMissing:
        return {}
    return {
        failure.sample_id: f"{failure.stage}: {failure.reason} (tried in {failure.runs} runs)"
        for failure in known
        if failure.sample_id is not None and (run is None or failure.run == run.digest.hex)
    }


def _count(row: TokenRow | RowFailure, held: _Held, *, found: Inventory) -> None:
    if isinstance(row, RowFailure):
        name = str(row.sample_id) if row.sample_id is not None else None
        found.add_failed(row.line, name, why=f"{row.stage}: {row.reason}")
        return
    found.note_tokens(row)
    if held.is_done(row):
        found.done += 1
    elif held.is_here(row):
        found.only_here += 1
    elif (why := held.failure(row)) is not None:
        found.add_failed(row.line, str(row.sample_id), why=why)
    else:
        found.add_missing(row)


def _verdict(found: Inventory, survey: Survey) -> Verdict:
    faults = [] if found.adds_up else ["the counts do not add up to the inputs: the input changed while it was read"]
    facts = {
        "input": str(survey.path),
        "part": str(survey.shard),
        "rows": survey.rows,
        "repeated_rows": len(survey.duplicate_lines),
        "inputs": found.inputs,
        "done": found.done,
        "only_here": found.only_here,
        "failed": found.failed,
        "missing": found.missing,
        "failures": found.failures,
        "missing_ids": found.missing_ids,
        "longest_tokens": found.longest_tokens,
    }
    part = f" (part {survey.shard})" if survey.shard.count > 1 else ""
    summary = (
        f"{found.inputs} inputs{part}: {found.done} done, {found.only_here} only here so far,"
        f" {found.failed} failed, {found.missing} missing"
    )
    return Verdict.of_faults(faults, _notes(found), summary=summary, facts=facts)


def _notes(found: Inventory) -> Iterator[str]:
    for why in found.failures[:_SHOWN]:
        yield f"failed: {why}"
    if found.failed > _SHOWN:
        yield f"failed: ... and {found.failed - _SHOWN} more"
    yield from (f"failures in the bucket that are not read: {each}" for each in found.unread[:_SHOWN])
    if found.failed:
        yield "the command tries these again; --retry-failed tries nothing else"

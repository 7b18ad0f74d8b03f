"""What is found in states: constants, other samples' states, unusual sizes, other results alone; and shards."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from durastore.errors import ConfigError
from durastore.extract.audit import Audit
from durastore.extract.engine import Extracted, Refused
from durastore.extract.inputs import read_selected, survey_input
from durastore.extract.rows import RawRow, TokenRow, input_digest
from durastore.extract.semantic import StateWatch, find_row_fault, merged
from durastore.extract.shards import Shard, parse_shard, shard_of_environment
from durastore.extract.state_faults import find_state_fault, numbers_of, state_bits
from durastore.model import SampleId

DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


def _row(name: str, *ids: int, line: int = 1) -> TokenRow:
    array = np.array(ids, dtype=np.int64)
    return TokenRow(
        line=line, sample_id=SampleId(name), input_ids=array, loss_mask=None, input_digest=input_digest(array, None)
    )


def _states(*, tokens: int = 4, seed: int = 0, dtype: torch.dtype = torch.bfloat16, scale: float = 1.0) -> torch.Tensor:
    return (torch.randn(tokens, 2, 8, generator=torch.Generator().manual_seed(seed)) * scale).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value, words", [(0.0, "zero everywhere"), (1.5, "the same number"), (float("nan"), "NaN")])
def test_a_layer_of_one_number_is_a_fault(dtype: torch.dtype, value: float, words: str) -> None:
    states = _states(dtype=dtype)
    assert find_state_fault(states, [3, 9]) is None
    states[:, 1] = value
    fault = find_state_fault(states, [3, 9])
    assert fault is not None
    assert words in fault
    assert "state 9" in fault
    states[2, 1, 5] = 0.25  # one number that differs
    if value == 1.5:
        assert find_state_fault(states, [3, 9]) is None


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_bits_are_read_as_the_numbers_they_are(dtype: torch.dtype) -> None:
    states = _states(dtype=dtype)
    bits = state_bits(states)
    assert bits is not None
    assert np.array_equal(numbers_of(bits, states), states.to(torch.float32).numpy())


def test_states_have_to_be_as_many_as_the_tokens_and_the_tokens_those_of_the_sample() -> None:
    row = _row("a", 1, 2, 3)
    states = torch.zeros(3, 2, 8)
    assert find_row_fault(row, {"hidden_states": states, "input_ids": row.input_ids}) is None
    assert find_row_fault(row, {"hidden_states": states[:2]}) == "has 2 rows of states for 3 tokens"
    assert "not the sample's" in str(find_row_fault(row, {"input_ids": np.array([1, 2, 4])}))


def test_states_that_another_sample_has_are_not_stored_unless_the_tokens_are_the_same() -> None:
    watch = StateWatch()
    shared = {"hidden_states": _states()}
    assert watch.find_fault(_row("a", 1, 2, 3, 4, line=7), shared) is None
    assert watch.find_fault(_row("b", 1, 2, 3, 4, line=8), shared) is None
    fault = watch.find_fault(_row("c", 1, 2, 3, 5, line=9), shared)
    assert fault == "its states are those of line 7, whose tokens are others"
    assert watch.find_fault(_row("d", 1, 2, 3, 6), {"hidden_states": _states(seed=1)}) is None


def test_sizes_far_from_the_usual_are_told_and_the_sample_is_kept() -> None:
    watch = StateWatch()
    for seed in range(60):
        assert watch.find_fault(_row(f"s{seed}", seed), {"hidden_states": _states(seed=seed)}) is None
    states = _states(seed=99)
    states[:, 1] *= 64
    assert watch.find_fault(_row("odd", 99, line=61), {"hidden_states": states}) is None
    report = watch.report()
    assert report.outlier_count == 1
    (outlier,) = report.outliers
    assert (outlier.sample_id, outlier.line, outlier.layer) == ("odd", 61, 1)
    assert outlier.value - outlier.usual == pytest.approx(6, abs=0.7)
    assert [norm.samples for norm in report.norms] == [61, 61]
    assert report.norms[0].mean == pytest.approx(0, abs=0.2)


def test_the_findings_of_several_processes_are_as_of_one() -> None:
    whole, parts = StateWatch(), [StateWatch(), StateWatch()]
    for seed in range(40):
        for watch in (whole, parts[seed % 3 == 0]):
            watch.find_fault(_row(f"s{seed}", seed), {"hidden_states": _states(seed=seed, scale=1 + seed % 5)})
    for one, both in zip(whole.report().norms, merged([part.report() for part in parts]).norms, strict=True):
        assert (both.layer, both.samples) == (one.layer, one.samples)
        assert both.mean == pytest.approx(one.mean)
        assert both.spread == pytest.approx(one.spread)


class PaddedWrong:
    """An engine whose samples see their batch: its states depend on how many samples there are."""

    def __init__(self, *, error: float) -> None:
        self._error = error
        self.batches: list[int] = []

    def start(self) -> None: ...

    def health(self) -> str | None:
        return None

    def extract(self, batch: Sequence[TokenRow]) -> list[Extracted | Refused]:
        self.batches.append(len(batch))
        factor = 1 + self._error * (len(batch) - 1)
        return [
            Extracted(
                tensors={"hidden_states": _states(tokens=len(row.input_ids), seed=int(row.input_ids[0])) * factor},
                held_bytes=1,
            )
            for row in batch
        ]

    def close(self) -> None: ...


def test_a_batch_that_changes_its_samples_is_found() -> None:
    batch = [_row("a", 1, 2), _row("b", 2, 3)]
    differences: list[float] = []
    audit = Audit(share=1.0, note=differences.append)
    for error, is_found in ((0.02, False), (0.5, True)):
        engine = PaddedWrong(error=error)
        for result in audit.with_second_look(engine, batch, results=engine.extract(batch)):
            assert isinstance(result, Extracted)
            fault = result.find_fault(result.tensors)
            assert (fault is not None) == is_found
            assert differences[-1] == pytest.approx(error, rel=0.2)
        assert engine.batches == [2, 1, 1]


def test_an_audit_chooses_by_id_and_leaves_the_others_alone() -> None:
    rows = [_row(f"s{number}", number) for number in range(4000)]
    chosen = [row for row in rows if Audit(share=0.05).looks_at(row)]
    assert 140 <= len(chosen) <= 260
    assert chosen == [row for row in rows if Audit(share=0.05).looks_at(row)]
    engine = PaddedWrong(error=0.0)
    pair = [row for row in rows if row not in chosen][:2]
    results = engine.extract(pair)
    assert Audit(share=0.05).with_second_look(engine, pair, results=results) == results
    alone = [chosen[0]]
    Audit(share=1.0).with_second_look(engine, alone, results=engine.extract(alone))
    assert engine.batches == [2, 1]  # a batch of one has nothing to be compared with


# --- shards --------------------------------------------------------------------------------------------------------


@given(st.sets(st.integers(0, 10_000), min_size=1, max_size=60), st.integers(1, 7))
def test_each_sample_is_in_one_part_whatever_else_the_input_has(names: set[int], count: int) -> None:
    parts = [Shard(index=index, count=count) for index in range(count)]
    for name in names:
        assert sum(part.has(SampleId(str(name))) for part in parts) == 1
    assert [part.has(None) for part in parts] == [True] + [False] * (count - 1)


def test_parts_of_an_input_are_counted_as_they_are_read(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    lines = [f'{{"id": "s{number % 40}", "input_ids": [{number % 40}]}}\n' for number in range(50)]
    path.write_text("".join(lines) + "{\n" + '{"id": "bad", "input_ids": 3}\n', encoding="utf-8")
    seen: list[str] = []
    unreadable = 0
    for index in range(3):
        survey = survey_input(path, shard=Shard(index=index, count=3))
        rows = list(read_selected(survey))
        assert survey.inputs == len(rows)
        unreadable += sum(not isinstance(row, RawRow) for row in rows)
        seen += [str(row.sample_id) for row in rows if isinstance(row, RawRow)]
    assert sorted(seen) == sorted(f"s{number}" for number in range(40))
    assert unreadable == 2


@pytest.mark.parametrize(
    "environ, shard",
    [
        ({}, "0/1"),
        ({"RANK": "2", "WORLD_SIZE": "4"}, "2/4"),
        ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "3"}, "1/3"),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, "0/1"),  # a batch script without srun is alone
        ({"RANK": "0", "WORLD_SIZE": "1"}, "0/1"),
    ],
)
def test_the_launcher_tells_the_part(environ: dict[str, str], shard: str) -> None:
    assert str(shard_of_environment(environ)) == shard


@pytest.mark.parametrize("text", ["", "1", "3/3", "-1/2", "1/0", "a/b", "1/2/3", "\u0661/2"])
def test_what_is_no_shard_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_shard(text)
    with pytest.raises(ConfigError, match="--shard"):
        shard_of_environment({"RANK": "4", "WORLD_SIZE": "4"})

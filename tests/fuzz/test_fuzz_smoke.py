"""Every fuzz target for a few thousand executions, without any fuzzing engine; the long form is `make fuzz`."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.fuzz.engine import Finding, run_plain
from tests.fuzz.files import KINDS, run_files
from tests.fuzz.mutate import mutate_bytes, mutate_json
from tests.fuzz.registry import TARGETS
from tests.fuzz.seeds import corpora
from tests.fuzz.target import CORPUS, FuzzTarget, load_corpus

SEED = 20_240_601
EXECUTIONS = 3_000
FILES = {"parquet_files": 400, "sqlite_files": 75}


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_no_mutated_input_is_a_finding(name: str) -> None:
    run_plain(TARGETS[name], EXECUTIONS, seed=SEED)


@pytest.mark.parametrize("kind", KINDS)
def test_no_mutated_file_is_a_finding(kind: str, tmp_path: Path) -> None:
    done = run_files(kind, FILES[kind], work=tmp_path, seed=SEED)
    assert done.findings == (), (tmp_path / f"{kind}.log").read_text()
    assert done.grown_mib <= 256
    assert done.accepted  # else the mutations break every file at the door, and nothing behind it was tried


def test_every_target_has_a_corpus_of_our_own_writers() -> None:
    assert {folder.name for folder in CORPUS.iterdir()} == set(TARGETS) == set(corpora())
    for name, files in corpora().items():
        assert {path.name for path in (CORPUS / name).iterdir()} == set(files)
        assert all(load_corpus(name))


def test_a_parser_that_raises_something_else_is_found() -> None:
    def check(data: bytes) -> None:
        if b"\x00" in data:
            raise KeyError("undocumented")

    with pytest.raises(Finding) as found:
        run_plain(FuzzTarget(name="marker", check=check), 5_000, seed=1)
    assert b"\x00" in found.value.data


def test_the_same_seed_gives_the_same_inputs() -> None:
    data = b'{"a":[1,"b"]}'
    first, again = ([mutate_bytes(data, rng) for _ in range(50)] for rng in (random.Random(3), random.Random(3)))
    assert first == again
    assert len(set(first)) > 30
    shaped, shaped_again = ([mutate_json(data, rng) for _ in range(50)] for rng in (random.Random(3), random.Random(3)))
    assert shaped == shaped_again
    assert mutate_json(b"{", random.Random(3)) is None

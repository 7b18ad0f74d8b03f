"""Old files put through a store in memory: pairing, refusals, resuming. No model, no socket."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from durastore.adopt.loading import Unloaded
from durastore.clock import SystemClock
from durastore.errors import ConfigError, EndpointUnreachable, InvalidInput, RootMismatch, RunMismatch
from durastore.extract.adopt_dry_run import DryRun
from durastore.extract.adopt_match import IdRule, parse_id_rule
from durastore.extract.adopt_report import SampleAdoptionReport
from durastore.extract.adopt_samples import SampleAdoptionRequest, adopt_samples
from durastore.extract.rows import input_digest
from durastore.extract.run_file import load_run_file
from durastore.model import Run
from durastore.objectstore.memory import MemoryStore
from durastore.store.opening import OptionOverrides, open_store
from durastore.testing.faulty import FaultyStore

L, H = 2, 4
RUN = 'run.dtype = "float32"\nrun.layers = [1, 2]\nrun.num_layers = 2\nrun.last_is_normed = false\n'


class Hurried(SystemClock):
    """A new bucket's marker needs no time to settle in memory."""

    def sleep(self, seconds: float) -> None:
        del seconds


class Lab:
    """A folder, an input, a bucket in memory."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.data, self.root = folder / "old", folder / "train.jsonl", folder / "spool"
        self.run_file = folder / "run.toml"
        self.run_file.write_text(RUN, encoding="utf-8")
        self.folder.mkdir()
        self.memory = MemoryStore()
        self.objects = FaultyStore(self.memory)
        self.told: list[tuple[int, int]] = []

    def write(self, rows: Sequence[dict[str, Any]]) -> None:
        self.data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")

    def file(self, name: str, ids: Sequence[int], **keys: Any) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        states = torch.randn(len(ids), L, H, generator=torch.Generator().manual_seed(sum(ids)))
        torch.save({"hidden_states": states, "input_ids": torch.tensor(ids), **keys}, path)
        return path

    @property
    def options(self) -> OptionOverrides:
        return OptionOverrides(objects=self.objects, seal_age_s=0.05, settle_s=0.0, clock=Hurried())

    def adopt(self, rule: str = "row", *, with_data: bool = True, **changes: Any) -> SampleAdoptionReport:
        values: dict[str, Any] = {
            "folder": self.folder,
            "bucket": "s3://lab/set",
            "local": self.root,
            "run_file": self.run_file,
            "id_rule": parse_id_rule(rule),
            "data": self.data if with_data else None,
            "options": self.options,
            "on_progress": lambda done, of: self.told.append((done, of)),
        }
        return adopt_samples(SampleAdoptionRequest(**{**values, **changes}))

    def held(self) -> dict[str, Any]:
        run = load_run_file(self.run_file).run
        with open_store("s3://lab/set", local=self.root, run=run, **self.options) as store:
            ids = [f"s{n}" for n in range(20) if f"s{n}" in store]
            return {name: store.get(name) for name in ids}


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    lab = Lab(tmp_path)
    lab.write([{"id": f"s{n}", "input_ids": [n, n + 1, n + 2]} for n in range(6)])
    return lab


def troubles(report: SampleAdoptionReport) -> dict[str, str]:
    return {each.path: each.trouble for each in report.refused}


def test_every_file_is_a_sample_or_is_named(lab: Lab) -> None:
    for n in (0, 1, 2, 4):
        lab.file(f"rows_0-2000/data_{n}.pt", [n, n + 1, n + 2])
    lab.file("rows_0-2000/data_3.pt", [3, 4, 9])
    lab.file("rows_0-2000/data_6.pt", [6, 7, 8])
    lab.file("rows_0-2000/last.pt", [5, 6, 7])
    (lab.folder / "rows_0-2000/data_5.pt").write_bytes(b"PK\x03\x04 half a file")
    (lab.folder / "notes.txt").write_text("mine")
    (lab.folder / "link.pt").symlink_to(lab.folder / "rows_0-2000/data_0.pt")
    planned = lab.adopt(is_dry_run=True)
    assert not lab.root.exists()
    assert not [stat for page in lab.memory.list("") for stat in page]
    report = lab.adopt()
    assert planned.facts() | {"dry_run": False} == report.facts()
    assert (report.files, report.adopted, report.held, report.exit_code) == (10, 4, 0, 3)
    assert troubles(report) == {
        "link.pt": "unreadable",
        "notes.txt": "refused",
        "rows_0-2000/data_3.pt": "mismatched",
        "rows_0-2000/data_5.pt": "damaged",
        "rows_0-2000/data_6.pt": "unmatched",
        "rows_0-2000/last.pt": "unmatched",
    }
    assert report.not_attempted == 0
    assert lab.told[-1] == (10, 10)
    held = lab.held()
    assert held.keys() == {"s0", "s1", "s2", "s4"}
    assert {sample.provenance for sample in held.values()} == {"asserted"}
    for is_dry_run in (True, False):
        again = lab.adopt(is_dry_run=is_dry_run)
        assert (again.adopted, again.held, troubles(again)) == (0, 4, troubles(report))


def test_a_file_whose_name_no_sample_could_have_ends_nothing(lab: Lab) -> None:
    # case B132
    lab.file("data_0.pt", [0, 1, 2])
    lab.file("data_1.pt", [1, 2, 3]).rename(Path(os.fsdecode(os.fsencode(lab.folder) + b"/\xff\xfe_1.pt")))
    lab.file("line\nbreak_2.pt", [2, 3, 4])
    report = lab.adopt()
    assert troubles(report) == {"\\xff\\xfe_1.pt": "unreadable"}
    assert (report.files, report.adopted, report.exit_code) == (3, 2, 3)
    assert lab.held().keys() == {"s0", "s2"}
    assert len(os.listdir(os.fsencode(lab.folder))) == 3


def test_rows_are_counted_from_nought_over_repeats_and_unreadable_lines(lab: Lab) -> None:
    first = '{"id": "s0", "input_ids": [1, 2]}\n'
    lab.data.write_text(f'{first}\n{{\n{first}{{"id": "s1", "input_ids": [3]}}\n', encoding="utf-8")
    for n, ids in enumerate(([1, 2], [7, 7], [1, 2], [3])):
        lab.file(f"data_{n}.pt", ids)
    report = lab.adopt()
    assert (report.adopted, report.held, troubles(report)) == (2, 1, {"data_1.pt": "unmatched"})
    assert "line 3 of the input cannot be used" in report.refused[0].reason
    assert lab.held()["s1"].meta["line"] == 5


def test_ids_by_a_field_of_the_file_or_by_its_path(lab: Lab) -> None:
    for n, name in ((0, "a.pt"), (1, "b.ckpt"), (2, "c.pt")):
        lab.file(name, [n, n + 1, n + 2], conversation_id=f"s{n}" if n else "nobody")
    report = lab.adopt("field:conversation_id")
    assert (report.adopted, troubles(report)) == (2, {"a.pt": "unmatched"})
    path = lab.folder / "deep" / "s3.safetensors"
    path.parent.mkdir()
    tensors = {"hidden_states": torch.randn(3, L, H), "token_ids": torch.tensor([3, 4, 5])}
    safetensors.torch.save_file(tensors, path, metadata={"conversation_id": "s3"})
    report = lab.adopt(r"regex:deep/(s\d+)\.")
    assert (report.adopted, sorted(troubles(report))) == (1, ["a.pt", "b.ckpt", "c.pt"])
    assert lab.held().keys() == {"s1", "s2", "s3"}
    assert lab.adopt("field:conversation_id").held == 3
    assert troubles(lab.adopt("field:nothing"))["c.pt"] == "unmatched"


def test_a_number_in_the_file_is_an_id_too(lab: Lab) -> None:
    lab.write([{"id": n, "input_ids": [n, n + 1, n + 2]} for n in range(3)])
    lab.file("x.pt", [1, 2, 3], index=1)
    lab.file("y.pt", [2, 3, 4], index=torch.tensor(2))
    assert lab.adopt("field:index").adopted == 2


def test_without_an_input_the_tokens_in_the_file_say_what_it_was_made_from(lab: Lab) -> None:
    lab.file("s1.pt", [1, 2, 3])
    torch.save({"hidden_states": torch.randn(3, L, H)}, lab.folder / "s2.pt")
    report = lab.adopt(r"regex:(s\d)", with_data=False)
    assert (report.adopted, troubles(report)) == (1, {"s2.pt": "mismatched"})
    sample = lab.held()["s1"]
    assert sample.input_digest == input_digest(np.array([1, 2, 3]), None)
    assert "line" not in sample.meta
    again = lab.adopt(r"regex:(s\d)", with_data=False)
    assert (again.adopted, again.held) == (0, 1)
    with pytest.raises(ConfigError, match="none is given"):
        lab.adopt(with_data=False)


def test_two_files_of_one_sample_make_one_sample(lab: Lab) -> None:
    (lab.folder / "a").mkdir()
    (lab.folder / "a" / "data_1.pt").write_bytes(b"")  # the first one is damaged: the second is as good
    lab.file("b/data_1.pt", [1, 2, 3])
    lab.file("c/data_1.pt", [1, 2, 3])
    report = lab.adopt()
    assert (report.adopted, report.held, troubles(report)) == (1, 1, {"a/data_1.pt": "damaged"})


@pytest.mark.parametrize("with_data", [True, False])
def test_a_second_file_of_a_sample_that_holds_something_else_is_named(lab: Lab, with_data: bool) -> None:
    rule = r"regex:(s\d)"
    lab.file("a/s1.pt", [1, 2, 3])
    lab.file("b/s1.pt", [1, 2, 3])
    torch.save({"hidden_states": torch.randn(3, L, H), "input_ids": torch.tensor([1, 2, 3])}, lab.folder / "c_s1.pt")
    wanted = {"c_s1.pt": "repeated"}
    if not with_data:
        lab.file("d/s1.pt", [7, 8, 9])
        wanted["d/s1.pt"] = "repeated"
    first = lab.adopt(rule, with_data=with_data)
    assert (first.adopted, first.held, first.exit_code, troubles(first)) == (1, 1, 3, wanted)
    again = lab.adopt(rule, with_data=with_data)
    assert (again.adopted, again.held, again.exit_code, troubles(again)) == (0, 2, 3, wanted)
    states = lab.held()["s1"].tensors["hidden_states"]
    assert torch.equal(states, torch.load(lab.folder / "a/s1.pt")["hidden_states"])


def test_other_content_for_an_input_that_is_held_is_not_put(lab: Lab) -> None:
    run = load_run_file(lab.run_file).run
    digest = input_digest(np.array([1, 2, 3]), None).hex
    with open_store("s3://lab/set", local=lab.root, run=run, **lab.options) as store:
        store.put("s1", {"hidden_states": torch.ones(3, L, H)}, input_digest=digest)
    lab.file("data_1.pt", [1, 2, 3])
    report = lab.adopt()
    assert (report.adopted, report.held) == (0, 1)
    assert bool((lab.held()["s1"].tensors["hidden_states"] == 1).all())


def test_a_sample_of_another_input_under_the_id_is_not_taken_for_held(lab: Lab) -> None:
    run = load_run_file(lab.run_file).run
    with open_store("s3://lab/set", local=lab.root, run=run, **lab.options) as store:
        store.put("s1", {"hidden_states": torch.ones(3, L, H)}, input_digest="0" * 32)
    lab.file("data_1.pt", [1, 2, 3])
    report = lab.adopt()
    assert (report.adopted, report.held) == (1, 0)
    sample = lab.held()["s1"]
    assert (sample.input_digest, sample.provenance) == (input_digest(np.array([1, 2, 3]), None), "asserted")


def test_one_sample_that_cannot_be_stored_does_not_keep_the_others(lab: Lab) -> None:
    for n in range(3):
        lab.file(f"data_{n}.pt", [n, n + 1, n + 2], note="x" * (2 << 20) if n == 1 else "")
    report = lab.adopt()
    assert (report.adopted, troubles(report)) == (2, {"data_1.pt": "refused"})
    assert "meta takes" in report.refused[0].reason
    lab.file("other/data_1.pt", [1, 2, 3])
    assert lab.adopt().adopted == 1, "a file that could not be stored is nobody's sample"


def test_an_endpoint_that_goes_away_loses_nothing_and_the_same_call_goes_on(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(6):
        lab.file(f"data_{n}.pt", [n, n + 1, n + 2])

    def away(self: Any, timeout_s: float | None = None) -> None:
        raise EndpointUnreachable("nobody answers")

    with monkeypatch.context() as patch:
        patch.setattr("durastore.store.store.Store.flush", away)
        report = lab.adopt(options=OptionOverrides(objects=lab.objects, seal_age_s=3600, clock=Hurried()))
    assert (report.adopted, report.exit_code) == (6, 20)
    assert sorted(report.local_only) == [f"s{n}" for n in range(6)]
    again = lab.adopt()
    assert (again.adopted, again.held, again.exit_code) == (0, 6, 0)
    assert len(lab.held()) == 6


def test_places_that_cannot_be(lab: Lab, tmp_path: Path) -> None:
    with pytest.raises(RootMismatch, match="not mounted"):
        lab.adopt()
    assert not lab.root.exists()
    lab.file("data_1.pt", [1, 2, 3])
    for local in (lab.folder / "spool", tmp_path):
        with pytest.raises(ConfigError, match="lie in one another"):
            lab.adopt(local=local)
    lab.write([{"id": "s1", "input_ids": [1]}, {"id": "s1", "input_ids": [2]}])
    with pytest.raises(InvalidInput, match="lines 1 and 2"):
        lab.adopt()
    assert not lab.root.exists()  # nothing was written for an input that cannot be
    lab.write([{"id": "s1", "text": "words"}, {"id": "s0", "text": "words"}])
    with pytest.raises(ConfigError, match=r"names no model"):
        lab.adopt()


def test_another_run_is_refused(lab: Lab) -> None:
    lab.file("data_1.pt", [1, 2, 3])
    lab.adopt()
    lab.run_file.write_text(RUN.replace("false", "true"), encoding="utf-8")
    for is_dry_run in (True, False):
        with pytest.raises(RunMismatch):
            lab.adopt(is_dry_run=is_dry_run)


def test_a_dry_run_remembers_what_it_would_have_put() -> None:
    dry = DryRun(None)
    assert not dry.contains("a", input_digest="0" * 32)
    dry.put_many({"a": {}}, input_digests={"a": "0" * 32})
    assert dry.contains("a", input_digest="0" * 32)
    assert not dry.contains("a", input_digest="1" * 32)


@pytest.mark.parametrize(
    "text", ["", "rows", "row:1", "field", "field:", "regex:", "regex:(", "regex:x", "regex:(a)(b)"]
)
def test_rules_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_id_rule(text)


def test_a_row_is_the_number_that_a_name_ends_in() -> None:
    rule = IdRule(kind="row")
    names: dict[str, int | None] = {"data_17.pt": 17, "a2/hs_003.safetensors": 3, "9.ckpt.gz": 9}
    names |= dict.fromkeys(["x.pt", "1x.pt", "1" * 30 + ".pt"])
    assert {name: rule.key_in_path(name) for name in names} == names


@pytest.mark.parametrize(
    "text, reason",
    [
        ("", "nothing"),
        ("[run]\nlayers = [1]\n[extract]\nmodel = 'x'\n", "'run', 'extract'"),
        ("run = 3\n", "'run'"),
        ("[extract]\nmodel = 'x'\n", "layers is missing"),
        ("[extract]\nmodel = 'x'\nlayers = [1]\n", "layers takes a str"),
        ("[extract]\nmodel = 'x'\nlayers = '1'\ntruncate = 1\n", "truncate takes a bool"),
        ("[extract]\nmodel = 'x'\nlayers = '1'\ndtype = 'int8'\n", "dtype"),
        ("[extract]\nmodel = 'x'\nlayers = '1'\nmax_seq_len = 0\n", "max_seq_len"),
        ("[extract]\nmodel = 'x'\nlayers = '1'\nlayer = '1'\n", "unknown word 'layer'"),
        ("[extract]\nmodel = '/nowhere/at/all'\nlayers = '1'\n", "does not exist"),
        ("not toml", "not valid TOML"),
        ("[run]\nwhen = 2020-01-01\n", ""),
    ],
)
def test_run_files_that_cannot_be(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "run.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises((ConfigError, InvalidInput), match=reason or None):
        load_run_file(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_run_file(tmp_path / "absent.toml")


def test_a_run_given_as_it_is_has_the_digest_that_open_gives_it(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('[run]\nlayers = [1, 2]\nmodel = {name = "x", hidden_size = 4}\n', encoding="utf-8")
    assert Run.of(load_run_file(path).run) == Run.of({"layers": [1, 2], "model": {"name": "x", "hidden_size": 4}})


def test_the_report_adds_up() -> None:
    refused = (Unloaded(path="x", trouble="damaged", reason="r"),) * 30
    report = SampleAdoptionReport(
        run="r", is_dry_run=True, files=40, adopted=3, adopted_bytes=9, held=4, refused=refused, local_only=("a",)
    )
    assert (report.not_attempted, report.exit_code) == (3, 3)
    lines = list(report.lines())
    assert lines[0] == "files 40: would be adopted 3, held before 4, not adopted 30"
    assert "    ... and 10 more (--json names all)" in lines
    assert report.facts()["not_attempted"] == 3


def test_an_input_without_a_usable_tokeniser_is_refused_before_anything_is_made(lab: Lab) -> None:
    lab.write([{"id": "s0", "input_ids": [0, 1, 2]}, {"id": "s1", "text": "one"}, {"id": "s2", "text": "two"}])
    lab.file("data_0.pt", [0, 1, 2])
    assert lab.adopt(is_dry_run=True).adopted == 1  # rows without a file need no tokeniser
    lab.file("data_2.pt", [2, 3, 4])
    for is_dry_run in (True, False):
        with pytest.raises(ConfigError, match="rows without input_ids"):
            lab.adopt(is_dry_run=is_dry_run)
    assert not lab.root.exists()
    assert not [stat for page in lab.memory.list("") for stat in page]  # no marker: the prefix is bound to no run

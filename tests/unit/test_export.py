"""Samples as files of other tools: what each form holds, what is refused, names, resuming. No model, no socket."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import ml_dtypes
import numpy as np
import pytest
import safetensors.torch
import torch

from durastore.codec.encode import EncodedSample, SampleContext, encode_sample
from durastore.errors import ConfigError, DiskFailed, DurastoreError, InvalidInput
from durastore.extract.conversion import RunShape
from durastore.formats.spool_root import EXPORT_RECORD_NAME
from durastore.fsio.publish import publish
from durastore.integrations.exporting import ExportReport, ExportRequest, export_samples
from durastore.integrations.forms import FORMS, plan_recipe
from durastore.integrations.names import Naming
from durastore.integrations.states import states_of
from durastore.model import Run, Sample, SampleId
from durastore.testing.faulty import FaultyStore
from durastore_cli.export import command
from tests.unit.manifest_bucket import Bucket

T, H = 5, 4
LAYERS = (2, 4, 6, 8)
"""Of a model of 8 layers: the last one is among them."""


def run_of(*, is_normed: bool | None, layers: Sequence[int] = LAYERS) -> Run:
    return Run.of({"layers": list(layers), "num_layers": 8, "last_is_normed": is_normed, "dtype": "bfloat16"})


def tensors_of(number: int, *, layers: int = len(LAYERS), **more: Any) -> dict[str, Any]:
    states = np.random.default_rng(number).standard_normal((T, layers, H)).astype(ml_dtypes.bfloat16)
    mask = np.array([0, 1, 1, 0, 1], np.uint8)
    return {"hidden_states": states, "input_ids": np.arange(T) + 100 * number, "loss_mask": mask, **more}


def encoded(sample_id: str, tensors: dict[str, Any], *, run: Run, meta: dict[str, Any] | None = None) -> EncodedSample:
    return encode_sample(
        SampleId(sample_id), tensors, context=SampleContext(run=run, meta=meta or {}, input_digest=None)
    )


class Lab:
    """A bucket in memory with samples of one run."""

    def __init__(self, *, is_normed: bool | None, layers: Sequence[int] = LAYERS) -> None:
        self.bucket = Bucket()
        self.run = run_of(is_normed=is_normed, layers=layers)
        self.objects = FaultyStore(self.bucket.store)

    def put(self, tensors: dict[str, dict[str, Any]], *, meta: dict[str, Any] | None = None) -> None:
        samples = [encoded(name, each, run=self.run, meta=meta) for name, each in tensors.items()]
        rows = self.bucket.add_tar(samples, run=self.run)
        self._segment(rows)

    def _segment(self, rows: Any) -> None:
        from durastore.formats.segment import SegmentContent, render_segment
        from durastore.manifest.segments import publish_segment

        self.seq = getattr(self, "seq", 0) + 1
        data = render_segment(SegmentContent(rows=tuple(rows), runs=(self.run,)))
        publish_segment(self.bucket.store, data, prefix=self.bucket.prefix, writer=self.bucket.writer, seq=self.seq)

    def export(self, form: str, out: Path, **asked: Any) -> ExportReport:
        if FORMS[form].is_numbered and "data" not in asked:
            asked.setdefault("is_number_from_id", True)
        return export_samples(self.objects, self.bucket.prefix, request=ExportRequest(form=form, out=out, **asked))

    def fetched(self) -> int:
        return sum(op == "fetch" and "/packs/" in key for op, key in self.objects.calls)


@pytest.fixture
def lab() -> Lab:
    lab = Lab(is_normed=False)
    lab.put({f"doc-{n}": tensors_of(n) for n in range(3)})
    return lab


@pytest.fixture
def normed() -> Lab:
    lab = Lab(is_normed=True)
    lab.put({f"doc-{n}": tensors_of(n) for n in range(3)})
    return lab


def torched(array: Any) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array).view(np.int16)).view(torch.bfloat16)


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype, name
        assert found[name].shape == tensor.shape, name
        assert torch.equal(found[name], tensor), name


# --- forms ---------------------------------------------------------------------------------------------------------


def test_vllm_files_are_the_bytes_that_vllm_writes(lab: Lab, tmp_path: Path) -> None:
    report = lab.export("vllm", tmp_path)
    assert (report.written, report.exit_code, report.layers) == (3, 0, "2, 4, 6")
    tensors = tensors_of(1)
    wanted = safetensors.torch.save(
        {"hidden_states": torched(tensors["hidden_states"]), "token_ids": torch.tensor(tensors["input_ids"])}
    )
    assert (tmp_path / "doc-1.safetensors").read_bytes() == wanted


def test_speculators_files_are_called_after_rows_and_end_in_the_last_layer(lab: Lab, tmp_path: Path) -> None:
    lab.export("speculators", tmp_path, layers=(2, 6))
    found = safetensors.torch.load_file(tmp_path / "hs_2.safetensors")
    states = tensors_of(2)["hidden_states"][:, [0, 2, 3]]
    assert_same(found, {"hidden_states": torched(states), "token_ids": torch.arange(T) + 200})


def test_eagle3_files_hold_three_layers_and_the_normed_last(normed: Lab, tmp_path: Path) -> None:
    report = normed.export("specforge-eagle3", tmp_path)
    assert report.layers == "2, 4, 6 (numbered 1, 3, 5 there)"
    found = torch.load(tmp_path / "rows_0-2000/data_1.ckpt", weights_only=True)
    tensors = tensors_of(1)
    states = tensors["hidden_states"]
    assert_same(
        found,
        {
            "input_ids": torch.arange(T) + 100,
            "loss_mask": torch.tensor([0, 1, 1, 0, 1]),
            "aux_hidden_state": torched(states[:, :3]).reshape(1, T, 3 * H),
            "hidden_state": torched(states[:, 3]).reshape(1, T, H),
        },
    )


def test_dflash_files_hold_the_layers_alone_and_dspark_files_the_last_beside_them(normed: Lab, tmp_path: Path) -> None:
    states = tensors_of(0)["hidden_states"]
    normed.export("specforge-dflash", tmp_path / "a")
    normed.export("specforge-dspark", tmp_path / "b", layers=(4,))
    one = torch.load(tmp_path / "a/rows_0-2000/data_0.ckpt", weights_only=True)
    assert list(one) == ["input_ids", "loss_mask", "hidden_states"]
    assert torch.equal(one["hidden_states"], torched(states[:, :3]).reshape(1, T, 3 * H))
    other = torch.load(tmp_path / "b/rows_0-2000/data_0.ckpt", weights_only=True)
    assert torch.equal(other["hidden_states"], torched(states[:, 1]).reshape(1, T, H))
    assert torch.equal(other["target_last_hidden_states"], torched(states[:, 3]).reshape(1, T, H))


def test_layers_are_told_apart_by_the_run_and_not_by_their_place(tmp_path: Path) -> None:
    lab = Lab(is_normed=False, layers=(8, 4, 2))
    lab.put({"doc-0": tensors_of(0, layers=3)})
    lab.export("speculators", tmp_path)
    states = tensors_of(0, layers=3)["hidden_states"]
    found = safetensors.torch.load_file(tmp_path / "hs_0.safetensors")
    assert torch.equal(found["hidden_states"], torched(states[:, [2, 1, 0]]))


# --- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "is_normed, form, reason",
    [
        (False, "specforge-eagle3", "before the final norm"),
        (False, "specforge-dspark", "before the final norm"),
        (True, "speculators", "after the final norm"),
        (True, "vllm", "after the final norm"),
        (None, "speculators", "is not recorded"),
        (None, "specforge-eagle3", "is not recorded"),
    ],
)
def test_the_wrong_side_of_the_final_norm_is_refused_before_anything_is_made(
    tmp_path: Path, is_normed: bool | None, form: str, reason: str
) -> None:
    lab = Lab(is_normed=is_normed)
    lab.put({"doc-0": tensors_of(0)})
    with pytest.raises(InvalidInput, match=reason) as caught:
        lab.export(form, tmp_path / "out")
    assert ("--model" in (caught.value.hint or "")) == (reason == "before the final norm")
    assert not (tmp_path / "out").exists()
    assert lab.fetched() == 0


def test_a_norm_is_applied_to_the_last_state_only_and_only_where_it_lacks() -> None:
    from durastore.integrations.forms import arrange

    shape = RunShape.of(json.loads(run_of(is_normed=False).text))
    recipe = plan_recipe(FORMS["specforge-eagle3"], shape, layers=None, has_norm=True, is_mask_filled=False)
    sample = Sample(id="x", tensors=tensors_of(0), meta={}, digest=SampleId("x").digest())
    found = arrange(states_of(sample, shape), recipe, norm=lambda states: states * 0 + 7)
    assert (found["hidden_state"] == 7).all()
    assert np.array_equal(found["aux_hidden_state"].reshape(T, 3, H), tensors_of(0)["hidden_states"][:, :3])


def test_what_a_form_fixes_is_required(lab: Lab, normed: Lab, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="exactly 3 layers"):
        normed.export("specforge-eagle3", tmp_path, layers=(2, 4))
    with pytest.raises(InvalidInput, match="layer 3 is not among the stored ones: 2, 4, 6"):
        lab.export("vllm", tmp_path, layers=(2, 3))
    with pytest.raises(ConfigError, match="numbers of rows"):
        lab.export("speculators", tmp_path, is_number_from_id=False)
    with pytest.raises(InvalidInput, match="unknown format"):
        ExportRequest(form="parquet", out=tmp_path)


def test_a_sample_without_what_the_form_needs_keeps_no_other(normed: Lab, tmp_path: Path) -> None:
    bare = tensors_of(7)
    del bare["loss_mask"]
    short = tensors_of(8)
    short["hidden_states"] = short["hidden_states"][:, :2]
    normed.put({"doc-7": bare, "doc-8": short, "doc-9": {"hidden_states": bare["hidden_states"]}})
    report = normed.export("specforge-eagle3", tmp_path)
    assert (report.written, report.exit_code) == (3, 3)
    reasons = {each.id: each.error.message for each in report.failed}
    assert reasons.keys() == {"doc-7", "doc-8", "doc-9"}
    assert "no loss_mask" in reasons["doc-7"]
    assert "hidden_states is [5, 2, 4]" in reasons["doc-8"]
    assert "has no input_ids" in reasons["doc-9"]
    again = normed.export("specforge-eagle3", tmp_path, is_mask_filled=True)
    assert (again.written, again.present) == (1, 3)


def test_a_mask_is_filled_only_where_there_is_none(normed: Lab, tmp_path: Path) -> None:
    bare = tensors_of(7)
    del bare["loss_mask"]
    normed.put({"doc-7": bare})
    normed.export("specforge-dflash", tmp_path, is_mask_filled=True)
    masks = [torch.load(tmp_path / f"rows_0-2000/data_{n}.ckpt", weights_only=True)["loss_mask"] for n in (1, 7)]
    assert [mask.tolist() for mask in masks] == [[0, 1, 1, 0, 1], [1, 1, 1, 1, 1]]


def test_tensors_without_a_place_are_told(lab: Lab, tmp_path: Path) -> None:
    lab.put({"doc-7": tensors_of(7, scores=np.ones(3))})
    assert lab.export("vllm", tmp_path / "a").left_out == {"loss_mask", "scores"}
    found = lab.export("specforge-dflash", tmp_path / "b", layers=(2, 6)).left_out
    assert found == {"layer 4", "last state", "scores"}


@pytest.mark.parametrize(
    "adopted, form, is_refused",
    [
        ({"layout": "specforge-eagle3"}, "specforge-eagle3", False),
        ({"layout": "modelopt", "values": {"hidden_states_prenorm": True}}, "specforge-eagle3", True),
        ({"layout": "modelopt", "values": {"hidden_states_prenorm": False}}, "specforge-eagle3", False),
        ({"layout": "modelopt", "values": {}}, "specforge-eagle3", True),
        ({"layout": "modelopt", "values": {"hidden_states_prenorm": True}}, "speculators", False),
    ],
)
def test_an_adopted_last_layer_is_as_its_file_said(
    tmp_path: Path, adopted: dict[str, Any], form: str, is_refused: bool
) -> None:
    lab = Lab(is_normed=None, layers=(2, 4, 6))
    last = np.full((T, H), 3, ml_dtypes.bfloat16)
    lab.put({"doc-0": tensors_of(0, layers=3, last_hidden_states=last)}, meta={"adopted": adopted})
    report = lab.export(form, tmp_path)
    assert (len(report.failed), report.written) == ((1, 0) if is_refused else (0, 1))


def test_a_file_that_is_kept_as_it_was_is_no_sample(lab: Lab, tmp_path: Path) -> None:
    lab.run = Run.of({})
    lab.put({"plain-1": tensors_of(1)})
    report = lab.export("vllm", tmp_path)
    assert [each.id for each in report.failed] == ["plain-1"]


# --- names ---------------------------------------------------------------------------------------------------------


def test_ids_become_names_inside_the_folder(tmp_path: Path) -> None:
    lab = Lab(is_normed=False)
    lab.put({"a/b/doc.v1": tensors_of(0), ".hidden": tensors_of(1)})
    lab.export("vllm", tmp_path / "out")
    found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.safetensors")}
    assert found == {"out/a/b/doc%2Ev1.safetensors", "out/%2Ehidden.safetensors"}


def test_row_numbers_come_from_the_input_or_from_ids(tmp_path: Path) -> None:
    data = tmp_path / "train.jsonl"
    data.write_text('{"id": "b", "input_ids": [1]}\n\n{"id": "a", "input_ids": [2]}\n', encoding="utf-8")
    lab = Lab(is_normed=False)
    lab.put({"a": tensors_of(0), "b": tensors_of(1), "c": tensors_of(2)})
    report = lab.export("speculators", tmp_path / "out", data=data)
    assert [each.id for each in report.failed] == ["c"]
    found = safetensors.torch.load_file(tmp_path / "out/hs_1.safetensors")
    assert torch.equal(found["token_ids"], torch.arange(T))
    naming = Naming(form=FORMS["specforge-eagle3"], is_by_id=True)
    assert naming.path_of(SampleId("x/4321")) == "rows_4000-6000/data_4321.ckpt"
    with pytest.raises(InvalidInput, match="both are row 4321"):
        naming.path_of(SampleId("y-4321"))
    with pytest.raises(InvalidInput, match="does not end in a number"):
        naming.path_of(SampleId("4321-x"))
    assert naming.path_of(SampleId("x/4321")) == "rows_4000-6000/data_4321.ckpt"


# --- files ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["speculators", "specforge-dflash"])
def test_the_same_again_fetches_nothing(lab: Lab, tmp_path: Path, form: str) -> None:
    lab.export(form, tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    fetched = lab.fetched()
    report = lab.export(form, tmp_path)
    assert (report.written, report.present, report.bytes_written) == (0, 3, 0)
    assert lab.fetched() == fetched
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("form", ["speculators", "specforge-dflash"])
def test_files_without_a_record_are_compared_and_kept(lab: Lab, tmp_path: Path, form: str) -> None:
    """As a kill between the files and their record leaves them."""
    lab.export(form, tmp_path / "out")
    (tmp_path / "out" / EXPORT_RECORD_NAME).rename(tmp_path / "elsewhere")
    report = lab.export(form, tmp_path / "out")
    assert (report.written, report.present, report.exit_code) == (0, 3, 0)


def test_another_file_of_the_name_is_left_alone(lab: Lab, tmp_path: Path) -> None:
    # case B15
    other = safetensors.torch.save({"hidden_states": torch.ones(1), "token_ids": torch.ones(1)})
    for number, data in enumerate((b"mine", other)):
        (tmp_path / f"hs_{number}.safetensors").write_bytes(data)
    (tmp_path / "hs_2.safetensors").symlink_to(tmp_path / "nowhere")
    report = lab.export("speculators", tmp_path)
    assert (report.written, report.exit_code) == (0, 3)
    assert all("is there and is another file" in each.error.message for each in report.failed)
    assert (tmp_path / "hs_0.safetensors").read_bytes() == b"mine"
    assert (tmp_path / "hs_1.safetensors").read_bytes() == other
    assert not (tmp_path / "nowhere").exists()


def test_a_file_that_changed_since_is_not_taken_for_its_record(lab: Lab, tmp_path: Path) -> None:
    # case B73
    lab.export("speculators", tmp_path)
    path = tmp_path / "hs_1.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    report = lab.export("speculators", tmp_path)
    assert [each.id for each in report.failed] == ["doc-1"]


def test_another_choice_of_layers_is_another_file(lab: Lab, tmp_path: Path) -> None:
    lab.export("speculators", tmp_path)
    report = lab.export("speculators", tmp_path, layers=(2,))
    assert len(report.failed) == 3


def test_what_was_written_before_a_full_disk_is_on_record(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = publish

    def full(folder: Any, name: str, **asked: Any) -> Any:
        if name == "hs_2.safetensors":
            raise DiskFailed("no space", errno=28)
        return real(folder, name, **asked)

    monkeypatch.setattr("durastore.integrations.exporting.publish", full)
    with pytest.raises(DiskFailed):
        lab.export("speculators", tmp_path)
    assert not (tmp_path / "hs_2.safetensors").exists()
    monkeypatch.undo()
    fetched = lab.fetched()
    report = lab.export("speculators", tmp_path)
    assert (report.written, report.present) == (1, 2)
    assert lab.fetched() == fetched + 1


def test_damage_in_the_bucket_makes_no_file(lab: Lab, tmp_path: Path) -> None:
    row = lab.bucket.view().row(SampleId("doc-1"))
    assert row is not None
    lab.bucket.damage(row.object.key, at=row.entry.offset + row.entry.length - 2)
    report = lab.export("vllm", tmp_path)
    assert [(each.id, each.error.code) for each in report.failed] == [("doc-1", "integrity")]
    assert sorted(path.name for path in tmp_path.glob("*.safetensors")) == ["doc-0.safetensors", "doc-2.safetensors"]


def test_a_dry_run_makes_nothing(lab: Lab, tmp_path: Path) -> None:
    report = lab.export("speculators", tmp_path / "out", is_dry_run=True, ids=["doc-1", "absent"])
    assert (report.written, [each.id for each in report.failed]) == (1, ["absent"])
    assert not (tmp_path / "out").exists()
    assert isinstance(report.failed[0].error, DurastoreError)


def test_the_command_line_offers_every_form() -> None:
    """Its list is written out, so that `--help` need not load the forms."""
    (form,) = [param for param in command.params if param.name == "form"]
    assert isinstance(form.type, click.Choice)
    assert list(form.type.choices) == list(FORMS)

"""The doctor beside real extractions: a small model, a real S3 server, the command line."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from durastore.doctor.stages import Status
from durastore.errors import PermissionRefused
from durastore.extract.failure_book import FailureBook
from durastore.extract.failure_teller import FailureTeller, opened_bucket
from durastore.extract.job_book import load_starts
from durastore.extract.rows import RowFailure
from durastore.model import Digest, SampleId
from durastore_cli.main import run as cli
from tests.integration.extract_lab import Job, extract_command, job, model_folder
from tests.unit.spool_lab import spool_at

__all__ = ["job", "model_folder"]  # fixtures

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


class Ward:
    """Types the commands of one job."""

    def __init__(self, job: Job, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.job = job
        self.model = model
        self._capsys = capsys

    def extract(self, *more: str) -> int:
        return cli(extract_command(self.job, self.model, *more))

    def doctor(self, *more: str, bucket: str | None = None) -> tuple[int, dict[str, Any]]:
        self._capsys.readouterr()
        place = ["--local", str(self.job.root), "--bucket", bucket or self.job.bucket]
        place += ["--endpoint-url", str(self.job.options["endpoint_url"]), "--addressing-style", "path"]
        code = cli(["doctor", *place, "--json", *more])
        report = json.loads(self._capsys.readouterr().out)
        return code, {stage["stage"]: stage for stage in report["stages"]} | {"resume command": report["resume"]}


@pytest.fixture
def ward(job: Job, model_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Ward:
    monkeypatch.setenv("DURASTORE_SEAL_AGE_S", "0.2")
    return Ward(job, model_folder, capsys)


def _counts(stages: dict[str, Any]) -> tuple[int, int, int, int]:
    facts = stages["inventory"]["facts"]
    assert facts["inputs"] == facts["done"] + facts["only_here"] + facts["failed"] + facts["missing"]
    return facts["done"], facts["only_here"], facts["failed"], facts["missing"]


def test_a_finished_extraction_an_edited_input_and_a_failure_are_told_apart(ward: Ward) -> None:
    job = ward.job
    rows: list[dict[str, Any] | str] = [{"id": f"s/{n}", "text": f"w{n} w1"} for n in range(6)]
    job.write(*rows, "{", {"id": "long", "text": "w1 " * 60})
    assert ward.extract() == 3
    code, stages = ward.doctor()
    assert code == 0, stages
    assert _counts(stages) == (6, 0, 2, 0), "as extract itself counts them"
    typed = ["durastore", *extract_command(job, ward.model)]
    assert stages["resume command"]["command"] == typed
    assert [list(start.command) for start in load_starts(job.root)] == [typed]
    # an edited and an appended row cost themselves; one that was left out costs nothing
    job.write({"id": "s/0", "text": "w9 w9"}, *rows[1:5], {"id": "new", "text": "w2"}, {"id": "sick", "text": "w4"})
    start = load_starts(job.root)[0]
    book = FailureBook(job.root, run=start.run, worker="lab", clock=_clock())
    book.add(RowFailure(line=7, sample_id=SampleId("sick"), stage="states", reason="has a NaN"))
    book.close()
    code, stages = ward.doctor()
    assert code == 0
    assert _counts(stages) == (4, 0, 1, 2)
    assert stages["inventory"]["facts"]["missing_ids"] == ["s/0", "new"]
    assert stages["inventory"]["facts"]["failures"] == ["sick: states: has a NaN (tried in 1 runs)"]
    # another input
    other = job.root.parent / "other.jsonl"
    other.write_text('{"id": "s/1", "text": "w1 w1"}\n', encoding="utf-8")
    _, stages = ward.doctor("--data", str(other))
    assert _counts(stages) == (1, 0, 0, 0)
    assert ward.extract() == 0
    assert _counts(ward.doctor()[1]) == (7, 0, 0, 0)


def test_what_failed_on_another_machine_is_not_missing(ward: Ward) -> None:
    job = ward.job
    job.write(*({"id": f"s/{n}", "text": f"w{n} w1"} for n in range(3)))
    assert ward.extract() == 0
    run = load_starts(job.root)[0].run
    book = FailureBook(job.root.parent, run=run, worker="lab", clock=_clock())
    for name in ("s/0", "sick"):
        book.add(RowFailure(line=4, sample_id=SampleId(name), stage="states", reason="has a NaN"))
    FailureTeller(book, partial(opened_bucket, job.request()), run=Digest(run)).tell()
    book.close()
    job.write(*({"id": f"s/{n}", "text": f"w{n} w1"} for n in range(3)), {"id": "sick", "text": "w4"})
    code, stages = ward.doctor()
    assert code == 0
    assert _counts(stages) == (3, 0, 1, 0), "s/0 is done, whatever a list says"
    (why,) = stages["inventory"]["facts"]["failures"]
    assert why.startswith("sick: states: has a NaN (tried in 1 runs, on ")


def test_what_others_say_of_a_sample_never_makes_it_done(ward: Ward) -> None:
    job = ward.job
    job.write({"id": "s/0", "text": "w0 w1"}, "{")
    assert ward.extract() == 3
    assert ward.doctor()[1]["resume"]["summary"] == "the same command goes on with what is not done"
    book = FailureBook(job.root.parent, run=load_starts(job.root)[0].run, worker="lab", clock=_clock())
    for name, digest in (("same", None), ("edited", Digest.of(b"what it was"))):
        sample_id = SampleId(name)
        book.add(RowFailure(line=2, sample_id=sample_id, stage="states", reason="has a NaN", input_digest=digest))
    FailureTeller(book, partial(opened_bucket, job.request()), run=Digest(load_starts(job.root)[0].run)).tell()
    book.close()
    job.write({"id": "s/0", "text": "w0 w1"}, {"id": "same", "text": "w4"})
    stages = ward.doctor()[1]
    assert _counts(stages) == (1, 0, 1, 0)
    assert stages["resume"]["summary"] == "the same command goes on with what is not done"
    job.write({"id": "s/0", "text": "w0 w1"}, {"id": "edited", "text": "w4"})
    assert _counts(ward.doctor()[1]) == (1, 0, 0, 1), "nobody tried this input of that name"


def test_an_inventory_needs_nobodys_history(ward: Ward, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise PermissionRefused("may not list failures/")

    ward.job.write(*({"id": f"s/{n}", "text": f"w{n} w1"} for n in range(3)))
    assert ward.extract() == 0
    monkeypatch.setattr("durastore.doctor.inventory.fetch_told", refused)
    code, stages = ward.doctor()
    assert (code, _counts(stages)) == (0, (3, 0, 0, 0))
    assert any("may not list failures/" in note for note in stages["inventory"]["lines"])


def _clock() -> Any:
    from durastore.clock import SYSTEM_CLOCK

    return SYSTEM_CLOCK


def test_what_a_killed_extraction_left_is_only_here(ward: Ward) -> None:
    job = ward.job
    job.write(*({"id": f"s/{n}", "text": f"w{n} w2"} for n in range(5)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("durastore.store.store.Store.flush", lambda *_, **__: None)
        patch.setattr("durastore.store.lane.Lane._step", lambda _: False)  # nothing is sent before the end comes
        assert ward.extract() in (0, 3)
    job.write(*({"id": f"s/{n}", "text": f"w{n} w2"} for n in range(7)))
    code, stages = ward.doctor()
    assert code == 0, stages
    assert _counts(stages) == (0, 5, 0, 2)
    with spool_at(job.root, prefix="run"):
        code, stages = ward.doctor()
    assert code == 11, "somebody is at work: nothing is to be resumed"
    assert stages["resume"]["status"] == Status.BLOCKED.value
    assert stages["resume command"] is None


def test_another_bucket_another_run_and_no_bucket_stop_it(
    ward: Ward, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("durastore.doctor.bucket._PATIENCE_S", 0.5)
    job = ward.job
    job.write({"id": "a", "text": "w1"})
    assert ward.extract() == 0
    code, stages = ward.doctor(bucket=f"{job.bucket}-not")
    assert (code, stages["bucket"]["status"]) == (10, "failed")
    assert stages["inventory"]["status"] == stages["resume"]["status"] == "blocked"
    code, stages = ward.doctor("--region", "nowhere", "--endpoint-url", "http://127.0.0.1:9")
    assert (code, stages["bucket"]["status"]) == (20, "failed")
    other = [*extract_command(job, model_folder), "--normed-last", "--local", str(job.root.parent / "spool2")]
    assert cli([*other, "--bucket", f"{job.bucket}2"]) == 0
    job.root = job.root.parent / "spool2"
    code, stages = ward.doctor()
    assert (code, stages["bucket"]["status"]) == (12, "failed"), "the spool was filled for another durastore"


def test_what_cannot_be_tokenised_without_a_start_is_said(ward: Ward) -> None:
    job = ward.job
    job.write({"id": "a", "text": "w1"})
    assert ward.extract() == 0
    (job.root / "extract.sqlite").rename(job.root.parent / "elsewhere")
    for side in job.root.glob("extract.sqlite-*"):
        side.rename(job.root.parent / side.name)
    code, stages = ward.doctor()
    assert (code, stages["inventory"]["status"], stages["resume"]["status"]) == (0, "skipped", "note")
    code, stages = ward.doctor("--data", str(job.input))
    assert (code, stages["inventory"]["status"]) == (2, "failed")
    assert "no start on record" in stages["inventory"]["summary"]
    job.write({"id": "a", "input_ids": [4]})
    code, stages = ward.doctor("--data", str(job.input))
    assert code == 0
    assert _counts(stages) == (1, 0, 0, 0), "w1 is token 4: of the same tokens, so done"

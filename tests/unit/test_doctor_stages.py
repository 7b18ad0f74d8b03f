"""Stages that rest on each other."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from durastore.doctor.report import DoctorReport
from durastore.doctor.stages import Stage, StageReport, Status, Verdict, run_stages
from durastore.errors import DurastoreError, EndpointUnreachable, StoreMissing


def _says(status: Status, *, exit_code: int = 0) -> Callable[[], Verdict]:
    return lambda: Verdict(status=status, summary=f"it is {status.value}", exit_code=exit_code)


def _raises(error: Exception) -> Callable[[], Verdict]:
    def look() -> Verdict:
        raise error

    return look


def _run(*stages: tuple[str, tuple[str, ...], Callable[[], Verdict]]) -> dict[str, StageReport]:
    reports = run_stages([Stage(name=name, needs=needs, look=look) for name, needs, look in stages])
    assert [report.name for report in reports] == [name for name, _, _ in stages]
    return {report.name: report for report in reports}


def test_a_failed_stage_blocks_what_rests_on_it_and_nothing_else() -> None:
    looked = []

    def look(name: str) -> Callable[[], Verdict]:
        def seen() -> Verdict:
            looked.append(name)
            return Verdict(status=Status.OK, summary="well")

        return seen

    found = _run(
        ("disk", (), _says(Status.FAILED, exit_code=12)),
        ("packs", ("disk",), look("packs")),
        ("inventory", ("packs",), look("inventory")),
        ("server", (), look("server")),
    )
    assert looked == ["server"]
    assert found["packs"].status is found["inventory"].status is Status.BLOCKED
    assert found["packs"].verdict.summary == "not looked at: disk first"
    assert found["inventory"].verdict.summary == "not looked at: packs first"


@pytest.mark.parametrize("status", [Status.NOTE, Status.SKIPPED, Status.OK])
def test_a_note_or_a_stage_that_was_not_asked_for_blocks_nothing(status: Status) -> None:
    found = _run(("server", (), _says(status)), ("resume", ("server",), _says(Status.OK)))
    assert found["resume"].status is Status.OK


@pytest.mark.parametrize(
    "error, code",
    [
        (EndpointUnreachable("no answer", hint="start it"), 20),
        (StoreMissing("none there"), 10),
        (DurastoreError("odd"), 1),
        (OSError(5, "Input/output error", "/dev/x"), 12),
    ],
)
def test_what_a_stage_raises_is_its_verdict(error: Exception, code: int) -> None:
    found = _run(("bucket", (), _raises(error)), ("host", (), _says(Status.OK)))
    assert found["bucket"].status is Status.FAILED
    assert found["bucket"].verdict.exit_code == code
    assert found["host"].status is Status.OK
    if isinstance(error, EndpointUnreachable):
        assert found["bucket"].verdict.lines == ("start it",)


def _report(*reports: StageReport) -> DoctorReport:
    return DoctorReport(root="/spool", bucket="s3://b/p", stages=reports, is_applied=False)


def test_the_exit_code_is_that_of_the_first_stage_that_failed() -> None:
    line = {"line": "cd /work && durastore extract"}
    resume = StageReport(name="resume", verdict=Verdict(status=Status.OK, summary="go", facts=line))
    noted = StageReport(name="host", verdict=_says(Status.NOTE)())
    down = StageReport(name="bucket", verdict=_says(Status.FAILED, exit_code=20)())
    cut = StageReport(name="server", verdict=_says(Status.FAILED, exit_code=12)())
    well = _report(noted, resume)
    assert (well.exit_code, well.resume) == (0, line)
    assert list(well.lines())[-1].strip() == line["line"]
    ill = _report(noted, down, cut, resume)
    assert ill.exit_code == 20
    assert ill.resume is None, "no command is offered while something failed"
    assert list(ill.lines())[-1] == "not yet safe to go on: bucket, server; then the same command again"

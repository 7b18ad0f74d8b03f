"""The book of a root's extractions: every start, and how far each job is, read from outside."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from durastore.clock import SYSTEM_CLOCK
from durastore.errors import DiskFailed, StoreMissing
from durastore.extract.job_book import Jobs, JobStanding, KnownJob, begin_job, end_job, load_starts, note_found
from durastore.extract.leases import LeaseQueue, Task
from durastore.extract.starts import Start
from durastore.extract.tally import Counts
from durastore.extract.work_db import WORK_FILE


def _start(pid: int = 7) -> Start:
    return Start(
        stamp=SYSTEM_CLOCK.stamp(),
        pid=pid,
        command=("durastore", "extract"),
        folder="/work",
        environment={"DURASTORE_SEAL_AGE_S": "2"},
        run="0" * 32,
        bucket="s3://b/p",
        local="spool",
        input="train it.jsonl",
        model="m",
        max_tokens=40,
    )


def _job(name: str = "j", *, pid: int = 7, workers: int = 0) -> KnownJob:
    return KnownJob(job=name, start=_start(pid), workers=workers, inputs=10)


def _standing(root: Path) -> list[JobStanding]:
    with closing(Jobs(root)) as jobs:
        return jobs.standing()


@dataclass(frozen=True)
class _Report:
    counts: Counts
    exit_code: int


# --- starts ----------------------------------------------------------------------------------------------------------


def test_starts_come_back_the_newest_first(tmp_path: Path) -> None:
    assert load_starts(tmp_path) == []
    assert list(tmp_path.iterdir()) == [], "a look makes no file"
    jobs = [_job(pid=number) for number in range(3)]
    for job in jobs:
        begin_job(tmp_path, job)
    assert load_starts(tmp_path) == [job.start for job in jobs[::-1]]


def test_what_cannot_be_read_hides_no_other_start(tmp_path: Path) -> None:
    begin_job(tmp_path, _job())
    with closing(sqlite3.connect(tmp_path / WORK_FILE)) as conn, conn:
        for facts in ("{", "[]", '{"stamp": 3}'):
            conn.execute("INSERT INTO start (time_ns, facts) VALUES (1, ?)", (facts,))
        text = json.dumps({**json.loads(_start().render()), "of a newer version": 1})
        conn.execute("INSERT INTO start (time_ns, facts) VALUES (1, ?)", (text,))
    assert [start.pid for start in load_starts(tmp_path)] == [7, 7]


def test_a_file_of_an_older_version_has_no_starts_and_no_jobs(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / WORK_FILE)) as conn, conn:
        conn.execute("CREATE TABLE failure (run TEXT)")
    assert load_starts(tmp_path) == []
    assert _standing(tmp_path) == []


# --- jobs ------------------------------------------------------------------------------------------------------------


def test_a_root_without_an_extraction_has_no_book(tmp_path: Path) -> None:
    with pytest.raises(StoreMissing):
        Jobs(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_job_that_is_started_again_is_one_job_of_the_last_start(tmp_path: Path) -> None:
    begin_job(tmp_path, _job("other"))
    begin_job(tmp_path, _job(pid=1))
    end_job(tmp_path, "j", report=_Report(Counts(inputs=10, ok=4, failed=1), 3), clock=SYSTEM_CLOCK)
    (ended, _) = _standing(tmp_path)
    assert (ended.ok, ended.failed, ended.done, ended.job.exit_code, ended.job.ended_ns is None) == (4, 1, 5, 3, False)
    begin_job(tmp_path, _job(pid=2))
    (begun, other) = _standing(tmp_path)
    assert (begun.job.job, begun.job.pid, begun.job.input, begun.done) == ("j", 2, "train it.jsonl", 0)
    assert (begun.job.exit_code, begun.job.ended_ns) == (None, None)
    assert other.job.job == "other"
    assert len(load_starts(tmp_path)) == 3


def test_between_start_and_end_the_queue_tells_what_is_done(tmp_path: Path) -> None:
    begin_job(tmp_path, _job(workers=2))
    with closing(LeaseQueue(tmp_path, job="j", clock=SYSTEM_CLOCK, lease_s=60)) as queue:
        queue.add([_task(f"s{number}") for number in range(6)])
        queue.found_done(["s0", "s1"])  # as an earlier run left them
        note_found(tmp_path, "j", counts=Counts(inputs=10, skipped=3, failed=1), done_before=2)
        queue.stored("s2", input_digest="d", tensor_bytes=1)
        (standing,) = _standing(tmp_path)
    assert (standing.ok, standing.skipped, standing.failed, standing.done) == (1, 3, 1, 5)


def test_an_end_that_cannot_be_noted_fails_no_run_and_a_start_does(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / WORK_FILE).write_bytes(b"no database" * 100)
    end_job(tmp_path, "j", report=_Report(Counts(inputs=10), 0), clock=SYSTEM_CLOCK)
    assert "progress is not told" in caplog.text
    with pytest.raises(DiskFailed):
        begin_job(tmp_path, _job())


def test_a_job_of_a_newer_version_hides_no_other(tmp_path: Path) -> None:
    begin_job(tmp_path, _job("older"))
    begin_job(tmp_path, _job("newer"))
    with closing(sqlite3.connect(tmp_path / WORK_FILE)) as conn, conn:
        conn.execute("UPDATE start SET facts = '{}' WHERE id = (SELECT start FROM job WHERE job = 'newer')")
    assert [standing.job.job for standing in _standing(tmp_path)] == ["older"]


def _task(name: str) -> Task:
    return Task(sample_id=name, input_digest="d", line=1, offset=0, size_bytes=10, tokens=5)

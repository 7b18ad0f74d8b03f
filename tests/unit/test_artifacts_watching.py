"""Pushing by the clock, and beside a training loop: what is tried again, what is told, what ends it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import durastore
from durastore.artifacts import watching
from durastore.artifacts.request import PushReport, PushRequest
from durastore.artifacts.watching import Artifacts, watch
from durastore.clock import ManualClock
from durastore.errors import CredentialsRefused, DurastoreError, EndpointUnreachable, NotVerified
from durastore.formats.artifact_list import ArtifactName, ListRef
from durastore.manifest import marker_store
from durastore.model import ObjectKey
from durastore.objectstore.location import BucketUrl

REF = ListRef(name=ArtifactName("n"), seq=1, short_digest="0" * 16, key=ObjectKey("k"))


def request(folder: Path) -> PushRequest:
    return PushRequest(folder=folder, bucket=BucketUrl(kind="memory", bucket="lab"))


def run(folder: Path, outcomes: list[Any], *, every_s: float) -> tuple[int, list[float]]:
    """The exit code, and when each push began."""
    clock, begun = ManualClock(), []
    start_s = clock.monotonic()

    def take(_: PushRequest) -> PushReport:
        begun.append(clock.monotonic() - start_s)
        outcome = outcomes[len(begun) - 1]
        if isinstance(outcome, DurastoreError):
            raise outcome
        assert isinstance(outcome, PushReport)
        return outcome

    def should_stop() -> bool:
        return len(begun) == len(outcomes)

    return watch(request(folder), every_s=every_s, should_stop=should_stop, clock=clock, take=take), begun


def test_what_is_in_the_way_is_tried_again_soon_and_the_rest_by_the_clock(tmp_path: Path) -> None:
    good = PushReport(name="n", snapshot=REF)
    busy = PushReport(name="n", troubles={"a": "is open for writing"})
    code, begun = run(tmp_path, [good, busy, EndpointUnreachable("down"), good, good], every_s=1800)
    assert code == 0
    assert [round(at) for at in begun] == [0, 1800, 1860, 1920, 3720]
    assert run(tmp_path, [good, NotVerified("no")], every_s=5)[0] == NotVerified("").exit_code
    assert run(tmp_path, [busy], every_s=5)[0] == 3


def test_what_time_does_not_heal_ends_the_watch(tmp_path: Path) -> None:
    with pytest.raises(CredentialsRefused):
        run(tmp_path, [CredentialsRefused("no")], every_s=5)


class Panic(BaseException):
    """What Rust libraries raise for a panic is no `Exception`."""


class Loop:
    """`Artifacts` whose pushes a test lets go one by one."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = threading.Semaphore(0)
        self.let_go = threading.Semaphore(0)
        self.outcomes: list[Any] = []
        self.count = 0
        monkeypatch.setattr(watching, "push", self._push)
        self.artifacts = Artifacts(folder, bucket="memory://lab")

    def _push(self, _: PushRequest, *, state: Any) -> PushReport:
        assert state is not None
        self.count += 1
        self.begun.release()
        assert self.let_go.acquire(timeout=20)
        outcome = self.outcomes.pop(0) if self.outcomes else PushReport(name="n", snapshot=REF)
        if isinstance(outcome, BaseException):
            raise outcome
        assert isinstance(outcome, PushReport)
        return outcome


def test_a_loop_is_not_held_up_and_what_came_during_a_push_is_pushed_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = Loop(tmp_path, monkeypatch)
    loop.artifacts.saved()
    assert loop.begun.acquire(timeout=20)
    for _ in range(5):
        loop.artifacts.saved()  # returns although a push is under way
    loop.let_go.release(2)
    loop.artifacts.close()
    assert loop.count == 2
    assert loop.artifacts.last is not None
    loop.artifacts.close()
    loop.let_go.release()
    loop.artifacts.saved()  # also after it was closed
    loop.artifacts.close()
    assert loop.count == 3


def test_a_push_that_failed_is_told_at_the_next_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(tmp_path, monkeypatch)
    loop.outcomes = [
        PushReport(name="n", troubles={"w.pt": "changed meanwhile"}),
        EndpointUnreachable("down"),
        OSError("the disk went"),
    ]
    loop.let_go.release(4)
    loop.artifacts.saved()
    with pytest.raises(NotVerified, match=r"w\.pt changed meanwhile"):
        loop.artifacts.close()
    loop.artifacts.saved()
    with pytest.raises(EndpointUnreachable):
        loop.artifacts.close()
    loop.artifacts.saved()
    with pytest.raises(OSError, match="the disk went"):
        loop.artifacts.close()
    loop.outcomes = [Panic("a library's own")]
    loop.let_go.release()
    loop.artifacts.saved()
    with pytest.raises(DurastoreError, match="Panic: a library's own"):
        loop.artifacts.close()
    with pytest.raises(KeyError), loop.artifacts:  # what ends the loop is not hidden by what ends the push
        raise KeyError("the loop's own")


def test_a_training_loop_keeps_its_newest_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = marker_store._settled_marker

    def settled(store: Any, prefix: str, *, clock: Any, waits_s: Any) -> Any:
        return real(store, prefix, clock=clock, waits_s=[0.0] * len(waits_s))

    monkeypatch.setattr(marker_store, "_settled_marker", settled)
    folder = tmp_path / "out"
    place: dict[str, Any] = {"bucket": "memory://loop/run", "is_any_filesystem_allowed": True, "settle_s": 0}
    with durastore.Artifacts(folder, keep_last=1, **place) as artifacts:
        for step in (1, 2, 3):
            (folder / f"step-{step}").mkdir(parents=True)
            (folder / f"step-{step}" / "state.bin").write_bytes(b"%d" % step * 100)
            artifacts.push()
    assert sorted(str(path.relative_to(folder)) for path in folder.glob("step-*/*")) == ["step-3/state.bin"]
    report = durastore.Artifacts(folder, **place).push()
    assert (report.files, report.carried) == (3, 2)

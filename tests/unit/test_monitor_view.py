"""The view: rates, estimates, the stage that sets the pace, banners and deaths, in bounded memory."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace

import pytest
from rich.console import Console

from durastore.monitor import words
from durastore.monitor.as_json import render_view
from durastore.monitor.building import ViewBuilder
from durastore.monitor.facts import Liveness, RootFacts
from durastore.monitor.history import Counters, History
from durastore.monitor.terminal import render_screen
from durastore.monitor.view import View
from durastore.observe.status import Amount, AtRisk, PackAtRisk, Proofs, Stall
from tests.unit.monitor_lab import BEGUN_NS, S, root, spool, teller


def watched(facts: Iterable[RootFacts], builder: ViewBuilder | None = None, *, since_s: int = 0) -> View:
    builder, view = builder or ViewBuilder(), None
    for second, each in enumerate(facts, start=since_s):
        view = builder.build([each], now_s=float(second), now_ns=BEGUN_NS + second * S)
    assert view is not None
    return view


def test_rates_and_the_estimate_come_from_what_was_seen() -> None:
    view = watched(root(spool(0, 5000 + 10 * n), spool(1, 30 * n), inputs=10_000, ok=5000 + 40 * n) for n in range(60))
    assert view.rates.samples == pytest.approx(40)
    assert view.rates.put_bytes == pytest.approx(40e6)
    assert [worker.rates.samples for worker in view.workers] == [pytest.approx(10), pytest.approx(30)]
    job = view.job
    assert job is not None
    assert (job.done, job.inputs, job.state) == (7360, 10_000, "running")
    assert job.eta_s == pytest.approx((10_000 - 7360) / 40, rel=0.01)


def test_what_was_there_before_watching_is_no_speed() -> None:
    view = watched(root(spool(0, 1_000_000 + n)) for n in range(10))
    assert view.rates.samples == pytest.approx(1)
    assert max(point.samples_per_s for point in view.series) == pytest.approx(1)
    old = teller(1000, started_ns=BEGUN_NS - 10**9)
    late = watched(root(*([spool(0, 10**6 + n, teller=old)] if n > 2 else [])) for n in range(10))
    assert max(point.samples_per_s for point in late.series) == pytest.approx(1), "also of a spool that is seen later"


def test_a_process_that_takes_a_spool_over_is_no_fall() -> None:
    history = History()
    for second in range(20):
        key = (1, 0) if second < 10 else (2, 10 * S)
        samples = 100 * second if second < 10 else 100 * (second - 9)
        history.note("w-00", key, now=(float(second), Counters(samples=samples)))
        history.tick(float(second), second * S)
    assert history.rates().samples == pytest.approx(100)


def test_ten_days_need_no_more_points_than_ten_minutes() -> None:
    history = History()
    for second in range(0, 864_000, 10):
        history.note("w-00", (1, 0), now=(float(second), Counters(samples=7 * second)))
        history.tick(float(second), second * S)
    points = history.series.points()
    assert 100 <= len(points) <= 240
    assert all(point.samples_per_s == pytest.approx(7) for point in points)


def test_a_queue_that_stays_names_the_stage_and_who_waits() -> None:
    view = watched(root(spool(0, 10 * n, waiting={"uploaded": 12})) for n in range(20))
    assert view.limit.stage == "uploaded"
    assert view.limit.starved == ("verified", "manifested", "reclaimed")
    assert "12 packs (120 MB) wait for it, 12 s at 10 MB/s" in view.limit.text
    assert not view.limit.held_up
    held = watched(root(spool(0, 10 * n, waiting={"uploaded": 12}, wait="spool full")) for n in range(20))
    assert held.limit.held_up == ("extracted", "encoded", "spooled")
    assert [banner.what for banner in held.banners] == ["put-waits"]


def test_bursts_are_no_queue_and_then_extraction_sets_the_pace() -> None:
    view = watched(root(spool(0, 10 * n, waiting={"uploaded": 3 * (n % 3 == 0)})) for n in range(20))
    assert view.limit.stage == "extracted"
    assert view.limit.starved[0] == "encoded"


def test_a_stall_of_many_processes_is_one_banner_with_stage_and_reason() -> None:
    stall = Stall(stage="uploaded", why="the endpoint does not answer: connection refused", since_ns=BEGUN_NS)
    view = watched([root(*(spool(n, 5, stall=stall) for n in range(64)))] * 13)
    (banner,) = view.banners
    assert (banner.severity, banner.what, banner.stage) == ("bad", "stall", "uploaded")
    assert banner.title == "Stalled at upload: the endpoint does not answer"
    assert "w-00, w-01, w-02 and 61 more, for 12 s" in banner.detail
    assert {worker.state for worker in view.workers} == {"stalled"}
    assert [event.what for event in view.events] == ["stall.begun"]


def test_a_death_is_told_once_also_if_only_its_successor_was_seen() -> None:
    builder = ViewBuilder()
    watched([root(spool(0, 5), spool(1, 5))] * 2, builder)
    dead = watched([root(spool(0, 5), spool(1, 5, liveness=Liveness.KILLED))] * 3, builder, since_s=2)
    assert [(worker.spool, worker.state) for worker in dead.workers] == [("w-00", "working"), ("w-01", "killed")]
    assert dead.deaths == 1
    assert "w-01 ended without saying so" in dead.banners[0].title
    after = spool(1, 0, pid=2000, teller=teller(2000, after_pid=1001))
    other = spool(0, 0, pid=3000, teller=teller(3000, after_pid=1000))
    view = watched([root(other, after)] * 2, builder, since_s=5)
    assert view.deaths == 2, "w-00's was not seen while it was dead"
    assert {stage.done.samples for stage in view.stages} == {10}, "what the dead ones did stays counted"
    told = [event.text for event in view.events if event.what.startswith("process.")]
    assert told == [
        "w-01: process 2000 goes on after 1001",
        "w-00: process 3000 goes on after 1000",
        "w-00: process 1000 ended without saying so",
        "w-01: process 1001 ended without saying so",
    ]


def test_a_stop_of_reclaiming_and_wrong_copies_are_told_at_once() -> None:
    proofs = Proofs(attested=5, mismatches=2)
    view = watched([root(spool(0, 5, stopped="pack p: other bytes", proofs=proofs), spool(1, 5))])
    assert [(banner.severity, banner.what) for banner in view.banners] == [
        ("bad", "reclaim-stopped"),
        ("bad", "mismatch"),
    ]
    assert "other bytes" in view.banners[0].detail
    assert view.banners[1].title == "2 copies in the bucket were found wrong"
    assert (view.proofs.attested, view.proofs.mismatches) == (5, 2)


def test_a_silent_process_in_the_disk_and_an_unreadable_root_are_named() -> None:
    silent = replace(spool(0, 5), liveness=Liveness.SILENT, silent_s=33.0, disk_wait="io_schedule")
    (banner,) = watched([root(silent)]).banners
    assert (banner.what, banner.stage) == ("silent", "spooled")
    assert "has said nothing for 33 s" in banner.title
    assert "io_schedule" in banner.detail
    (gone,) = watched([RootFacts(path="/gone", problem="no such directory")]).banners
    assert (gone.severity, gone.title) == ("bad", "/gone cannot be looked at")


def test_the_screen_and_the_json_show_the_same_and_no_text_steers_the_terminal() -> None:
    risk = AtRisk(
        total=Amount(samples=7, packs=1, size_bytes=9),
        shown=(PackAtRisk(name="p.tar", state="sealed", samples=7, size_bytes=9, since_ns=BEGUN_NS),),
    )
    stall = Stall(stage="uploaded", why="[bold]\x1b[31mred\x1b[0m", since_ns=BEGUN_NS)
    view = watched([root(spool(0, 5, at_risk=risk, stall=stall), inputs=10, ok=5)] * 5)
    console = Console(width=100, force_terminal=False)
    with console.capture() as captured:
        console.print(render_screen(view))
    text = captured.get()
    assert "\x1b" not in text
    assert "[bold]" in text
    assert "━" * 30 + "─" * 30 in text  # told without colours, too
    assert "50.0 %  5 of 10 (running)" in text
    assert "- ago" not in text
    assert "only here: 7 samples, the oldest for 4 s" in text
    facts = json.loads(json.dumps(render_view(view), allow_nan=False))
    assert facts["jobs"][0]["done"] == 5
    assert facts["risk"]["shown"] == [
        {"spool": "w-00", "name": "p.tar", "state": "sealed", "samples": 7, "size_bytes": 9, "since_ns": BEGUN_NS}
    ]


@pytest.mark.parametrize(
    "number, text",
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (1_180_000, "1.18 MB"), (999_999, "1 MB"), (2.3e12, "2.3 TB")],
)
def test_sizes(number: float, text: str) -> None:
    assert words.size(number) == text


def test_durations_shares_and_rates() -> None:
    shown = [words.duration(s) for s in (None, 0, 45, 200, 3600, 18_720, 187_200)]
    assert shown == ["-", "0 s", "45 s", "3 min 20 s", "1 h", "5 h 12 min", "2 d 4 h"]
    assert [words.share(s) for s in (0, 1e-9, 0.5, 0.99999, 1)] == ["0.0 %", "0.1 %", "50.0 %", "99.9 %", "100 %"]
    assert [words.rate(r) for r in (None, 0.0, 12.345, 1234.5)] == ["-", "0/s", "12.3/s", "1,234/s"]

"""Stalls are named: which stage, since when, why; and obstacles come from the events of requests."""

from __future__ import annotations

from durastore.clock import ManualClock
from durastore.observe.recent import Recent
from durastore.observe.stalls import STALL_AFTER_S, StageLook, StallWatch

S = 1_000_000_000


class Heard:
    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, object]]] = []

    def emit(self, name: str, **facts: object) -> None:
        self.events.append((name, facts))


def look(progress: int, *, waits: bool = True, obstacle: str | None = None, name: str = "uploaded") -> StageLook:
    return StageLook(name=name, is_waited_for=waits, progress=progress, obstacle=obstacle)


def test_a_known_obstacle_is_told_after_five_seconds_and_its_end_too() -> None:
    heard = Heard()
    watch = StallWatch(heard)
    assert watch.look([look(1)], now_ns=0) is None
    assert watch.look([look(1, obstacle="endpoint down")], now_ns=1 * S) is None
    assert watch.look([look(1, obstacle="endpoint down")], now_ns=5 * S) is None
    stall = watch.look([look(1, obstacle="endpoint down")], now_ns=6 * S)
    assert stall is not None
    assert (stall.stage, stall.why, stall.since_ns) == ("uploaded", "endpoint down", 0)
    watch.look([look(1, obstacle="endpoint down")], now_ns=7 * S)
    assert watch.look([look(2, obstacle="endpoint down")], now_ns=8 * S) is None, "something moved"
    assert [name for name, _ in heard.events] == ["stall.begun", "stall.ended"]
    assert heard.events[0][1] == {"stage": "uploaded", "why": "endpoint down"}
    assert heard.events[1][1] == {"stage": "uploaded", "lasted_s": 8.0}


def test_silence_is_a_stall_only_after_long_and_only_with_work_waiting() -> None:
    watch = StallWatch(Heard())
    for second in range(int(STALL_AFTER_S)):
        assert watch.look([look(1)], now_ns=second * S) is None
    assert watch.look([look(1)], now_ns=int(STALL_AFTER_S) * S) is not None
    assert watch.look([look(1, waits=False)], now_ns=200 * S) is None
    assert watch.look([look(1)], now_ns=201 * S) is None, "the wait begins now"


def test_the_last_stage_that_stalls_is_the_cause() -> None:
    watch = StallWatch(Heard())
    stages = [look(1, name="spooled", obstacle="spool full"), look(1, obstacle="endpoint down")]
    found = [watch.look(stages, now_ns=second * S) for second in (0, 1, 10)]
    assert found[-1] is not None
    assert found[-1].stage == "uploaded"
    behind = look(1, name="verified", obstacle="endpoint down")
    found = [watch.look([*stages, behind], now_ns=second * S) for second in (11, 12, 20)]
    assert found[-1] is not None
    assert found[-1].stage == "uploaded", "one endpoint stops both: the first is named"


def test_an_obstacle_lasts_until_a_request_gets_through() -> None:
    clock = ManualClock()
    recent = Recent(clock)
    recent.emit("upload.retry", what="PUT", error="endpoint-unreachable", attempt=1)
    first = recent.obstacle
    clock.advance(3)
    recent.emit("upload.retry", what="PUT", error="endpoint-overloaded", attempt=2)
    assert first is not None
    second = recent.obstacle
    assert second is not None
    assert (second.since_ns, second.text) == (first.since_ns, "endpoint-overloaded")
    recent.emit("upload.part", number=1, size_bytes=5)
    gone = recent.obstacle
    assert gone is None
    assert [h.what for h in recent.happenings()] == ["upload.retry", "upload.retry"]


def test_a_storm_of_retries_stays_small() -> None:
    clock = ManualClock()
    recent = Recent(clock)
    for number in range(10_000):
        recent.emit("upload.retry", what=f"PUT {number}", error="endpoint-unreachable", attempt=number)
    assert len(recent.happenings()) == 1
    for number in range(100):
        clock.advance(6)
        recent.emit("pack.trouble", pack=f"p{number}", error="EndpointUnreachable")
    assert len(recent.happenings()) == 12


def test_a_waiting_put_is_known_until_it_goes_on() -> None:
    recent = Recent(ManualClock())
    recent.emit("put.waits", cause="spool full")
    assert recent.wait == "spool full"
    recent.emit("put.resumed", waited_s=1.0)
    assert recent.wait is None

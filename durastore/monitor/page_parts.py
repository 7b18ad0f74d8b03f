"""The sections of the page. Each is built once for a browser, and then only changes what changed.

Duty: elements for a view, with names that a screen reader can tell. Text from data goes into labels and table cells,
which show it as text. No numbers are computed here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nicegui import ui

from durastore.monitor import words
from durastore.monitor.limits import NAMES
from durastore.monitor.view import Banner, RoomView, View
from durastore.observe.status import STAGES, Amount

__all__ = ["Banners", "Events", "Facts", "Failures", "Progress", "Risk", "Rooms", "Stages", "Workers", "card"]

_SHOWN_EVENTS = 15
_ORDER = {"killed": 0, "silent": 0, "stalled": 0, "ended": 2}
"""Of the workers' rows: who needs somebody first, who is done last."""


def card(title: str) -> Any:
    """A section with a heading; use it with `with`."""
    section = ui.element("section").classes("ds-card").props(f'aria-label="{title}"')
    with section:
        ui.label(title).classes("ds-h2").props('role="heading" aria-level="2"')
    return section


class _Fact:
    """A number with its name."""

    def __init__(self, name: str, *, marker: str) -> None:
        with ui.element("div").classes("ds-fact"):
            ui.label(name).classes("ds-soft")
            self._value = ui.label("-").classes("v").props(f'id="{marker}"')
            self._more = ui.label("").classes("ds-soft")

    def show(self, value: str, more: str = "") -> None:
        self._value.set_text(value)
        self._more.set_text(more)


class Banners:
    """What has to be seen first. Told by a screen reader when it changes."""

    def __init__(self) -> None:
        self._box = ui.element("div").props('role="status" aria-live="polite" aria-label="Alarms" id="banners"')
        self._shown: list[tuple[str, str]] | None = None
        self._details: list[ui.label] = []

    def show(self, banners: Sequence[Banner]) -> None:
        now = [(banner.severity, banner.title) for banner in banners]
        if now != self._shown:  # only ages change from look to look: the boxes stay, or they would be read out anew
            self._shown = now
            self._box.clear()
            with self._box:
                self._details = [self._banner(banner) for banner in banners]
        for label, banner in zip(self._details, banners, strict=True):
            label.set_text(banner.detail)

    @staticmethod
    def _banner(banner: Banner) -> ui.label:
        with ui.element("div").classes(f"ds-banner {banner.severity}"):
            ui.label(banner.title).classes("t")
            return ui.label(banner.detail).classes("ds-soft")


class Progress:
    """How far, how fast, when done."""

    def __init__(self) -> None:
        with card("Progress"):
            self._bar = ui.linear_progress(value=0.0, show_value=False, size="16px")
            self._bar.props('rounded instant-feedback aria-label="Share of the inputs that have an outcome"')
            with ui.element("div").classes("ds-grid"):
                self._share = _Fact("done", marker="share")
                self._count = _Fact("samples", marker="samples-done")
                self._eta = _Fact("left", marker="eta")
                self._speed = _Fact("speed", marker="speed")
                self._bytes = _Fact("to the spool", marker="put-rate")
                self._uploaded = _Fact("to the bucket", marker="upload-rate")
            self._line = ui.label("").classes("ds-soft")

    def show(self, view: View) -> None:
        job, rates = view.job, view.rates
        self._speed.show(words.rate(rates.samples), "samples, over 30 s")
        self._bytes.show(words.rate(rates.put_bytes, of_bytes=True))
        self._uploaded.show(words.rate(rates.uploaded_bytes, of_bytes=True))
        if job is None:
            put = next((s.done.samples for s in view.stages if s.name == "spooled"), 0)
            self._bar.set_visibility(False)
            self._share.show("-", "no extraction tells how much there is")
            self._count.show(words.count(put), "put in these sessions")
            return
        self._bar.set_visibility(True)
        self._bar.set_value(round(job.share, 4))
        self._share.show(words.share(job.share), job.state)
        self._count.show(words.count(job.done), f"of {words.count(job.inputs)}")
        self._eta.show(words.duration(job.eta_s) if job.eta_s is not None else "-", "at the speed of 5 min")
        ended = f"; exit code {job.exit_code}" if job.exit_code is not None else ""
        self._line.set_text(
            f"ok {words.count(job.ok)}, failed {words.count(job.failed)}, skipped {words.count(job.skipped)}"
            f"; {job.input}; begun {words.clock_time(job.started_ns)} UTC{ended}"
        )


class Stages:
    """The pipeline from left to right, and who waits for whom."""

    def __init__(self) -> None:
        self._boxes: dict[str, tuple[ui.element, ui.label, ui.label, ui.label, ui.label]] = {}
        self._marks: dict[str, str] = {}
        with card("Pipeline"):
            with ui.element("div").classes("ds-stages").props('role="list"'):
                for name in STAGES:
                    self._boxes[name] = self._box(name)
            self._text = ui.label("").classes("q-mt-sm").props('id="limit"')

    @staticmethod
    def _box(name: str) -> tuple[ui.element, ui.label, ui.label, ui.label, ui.label]:
        box = ui.element("div").classes("ds-stage").props(f'role="listitem" id="stage-{name}"')
        with box:
            ui.label(name).classes("n")
            done = ui.label("").classes("ds-num")
            size = ui.label("").classes("ds-soft ds-num")
            waiting = ui.label("").classes("ds-soft ds-num")
            mark = ui.label("").classes("m")
        return box, done, size, waiting, mark

    def show(self, view: View) -> None:
        stalled = {banner.stage for banner in view.banners if banner.what in ("stall", "silent")}
        for stage in view.stages:
            box, done, size, waiting, mark = self._boxes[stage.name]
            done.set_text(words.count(stage.done.samples))
            size.set_text(words.size(stage.done.size_bytes))
            waiting.set_text(_queue_text(stage.waiting))
            kind, text = _mark_of(stage.name, view, is_stalled=stage.name in stalled)
            mark.set_text(text)
            if self._marks.get(stage.name, "") != kind:
                box.classes(add=kind, remove=self._marks.get(stage.name, ""))
                self._marks[stage.name] = kind
        self._text.set_text(view.limit.text)


def _queue_text(waiting: Amount) -> str:
    if not waiting.packs and not waiting.samples:
        return "queue empty"
    number = f"{words.count(waiting.packs)} packs" if waiting.packs else f"{words.count(waiting.samples)} samples"
    return f"{number}, {words.size(waiting.size_bytes)} wait"


def _mark_of(name: str, view: View, *, is_stalled: bool) -> tuple[str, str]:
    if is_stalled:
        return "stalled", "stalled"
    if view.limit.stage == name:
        return "limit", "sets the pace"
    if name in view.limit.starved:
        return "starved", f"waits for {NAMES.get(view.limit.stage or '', '')}"
    return ("", "held up") if name in view.limit.held_up else ("", "")


class Workers:
    """A row for each spool."""

    _COLUMNS = (
        ("spool", "spool", ""),
        ("state", "state", ""),
        ("ok", "ok", ""),
        ("failed", "failed", ""),
        ("rate", "samples/s", ""),
        ("put", "MB/s", "wide"),
        ("fill", "spool fill", "wide"),
        ("local", "only local", ""),
        ("pid", "process", "wide"),
        ("says", "", "wide text"),
    )

    def __init__(self) -> None:
        with card("Workers"):
            self._table = _table("Workers", self._COLUMNS, page_rows=70)
        self._rows: list[dict[str, str]] = []

    def show(self, view: View) -> None:
        rows = [
            {
                "id": worker.spool,
                "spool": worker.spool,
                "state": worker.state,
                "ok": words.count(worker.ok),
                "failed": words.count(worker.failed),
                "rate": words.rate(worker.rates.samples).removesuffix("/s"),
                "put": "-" if worker.rates.put_bytes is None else f"{worker.rates.put_bytes / 1e6:.3g}",
                "fill": f"{worker.used_bytes / worker.high_bytes:.0%}" if worker.high_bytes else "-",
                "local": words.count(worker.only_local),
                "pid": str(worker.pid or "-"),
                "says": worker.says,
            }
            for worker in sorted(view.workers, key=lambda worker: (_ORDER.get(worker.state, 1), worker.spool))
        ]
        if rows != self._rows:
            self._rows = rows
            self._table.rows = rows


def _table(name: str, columns: Sequence[tuple[str, str, str]], *, page_rows: int = 10) -> ui.table:
    shown = [
        {
            "name": key,
            "label": label,
            "field": key,
            "align": "left" if "text" in classes or key in ("spool", "state", "name") else "right",
            "classes": classes,
            "headerClasses": classes,
            "sortable": False,
        }
        for key, label, classes in columns
    ]
    table = ui.table(rows=[], columns=shown, row_key="id", pagination=page_rows).classes("ds-table")
    return table.props(f'dense flat hide-bottom wrap-cells=false aria-label="{name}"')


class _Room:
    def __init__(self, root: str) -> None:
        ui.label(root).classes("ds-soft")
        with ui.element("div").classes("ds-meter"):
            self._bar = ui.linear_progress(value=0.0, show_value=False, size="14px")
            self._bar.props(f'rounded instant-feedback aria-label="Fill of the fullest spool of {_attribute(root)}"')
            self._mark = ui.element("div").classes("ds-mark").props('aria-hidden="true"')
        self._text = ui.label("").classes("ds-soft ds-num")
        self._disk = ui.label("").classes("ds-soft ds-num")
        self._low = -1.0

    def show(self, room: RoomView) -> None:
        self._bar.set_value(round(min(1.0, room.fill), 3))
        low = room.low_bytes / room.high_bytes if room.high_bytes else 0.0
        if abs(low - self._low) > 0.001:
            self._low = low
            self._mark.style(f"left: {low:.1%}")
        if room.fullest is None:
            self._text.set_text(f"no process is at work; all spools {words.size(room.used_bytes)}")
        else:
            self._text.set_text(self._marks_text(room))
        self._disk.set_text(
            f"disk: {words.size(room.free_bytes)} free of {words.size(room.disk_bytes)}, reserve"
            f" {words.size(room.reserve_bytes)}; quarantine {words.size(room.quarantined_bytes)}"
        )

    @staticmethod
    def _marks_text(room: RoomView) -> str:
        return (
            f"{room.fullest}: {words.size(room.fullest_bytes)}; low watermark {words.size(room.low_bytes)}, high"
            f" {words.size(room.high_bytes)}; all spools {words.size(room.used_bytes)}"
        )


def _attribute(text: str) -> str:
    """Fit to stand in double quotes."""
    return "".join(c if c.isalnum() or c in "/-_. " else "?" for c in text)


class Rooms:
    """Spools against their watermarks, and the disks."""

    def __init__(self) -> None:
        with card("Disk"):
            self._box = ui.element("div")
        self._rooms: dict[str, _Room] = {}

    def show(self, rooms: Sequence[RoomView]) -> None:
        for room in rooms:
            if room.root not in self._rooms:
                with self._box:
                    self._rooms[room.root] = _Room(room.root)
            self._rooms[room.root].show(room)


class Facts:
    """Requests and proofs."""

    def __init__(self) -> None:
        with card("Requests and proofs"), ui.element("div").classes("ds-grid"):
            self._retries = _Fact("retries", marker="retries")
            self._slowdowns = _Fact("SlowDowns", marker="slowdowns")
            self._proofs = _Fact("copies proven", marker="proofs")
            self._wrong = _Fact("copies wrong", marker="mismatches")
            self._last = _Fact("last proof", marker="last-proof")
            self._audited = _Fact("samples audited", marker="audited")
            self._probe = _Fact("endpoint", marker="probe")

    def show(self, view: View) -> None:
        transfers, proofs = view.transfers, view.proofs
        self._retries.show(words.count(transfers.retries), f"{words.count(transfers.stuck)} requests stuck")
        self._slowdowns.show(words.count(transfers.slowdowns))
        self._proofs.show(
            words.count(proofs.attested + proofs.read_back), f"{words.count(proofs.read_back)} read in full (audit)"
        )
        self._wrong.show(words.count(proofs.mismatches))
        age = words.age(proofs.last_ns, view.at_ns)
        self._last.show(f"{age} ago" if proofs.last_ns else "-", proofs.last_level or "")
        self._audited.show(words.count(view.audited), "twice through the model")
        probe = view.probes[0] if view.probes else None
        self._probe.show(probe.level if probe else "-", f"{probe.place}" if probe else "not probed")


class Risk:
    """What is only on this machine."""

    _COLUMNS = (("spool", "spool", ""), ("state", "state", ""), ("samples", "samples", ""), ("size", "size", ""),
                ("age", "age", ""), ("name", "pack", "wide text"))  # fmt: skip

    def __init__(self) -> None:
        with card("Only on this machine"):
            self._text = ui.label("").props('id="risk"')
            self._table = _table("Packs that are only on this machine, the oldest first", self._COLUMNS)

    def show(self, view: View) -> None:
        risk = view.risk
        oldest = f", the oldest for {words.age(risk.oldest_ns, view.at_ns)}" if risk.samples else ""
        self._text.set_text(f"{words.count(risk.samples)} samples in no manifest yet{oldest}")
        self._table.rows = [
            {
                "id": f"{spool} {pack.name}",
                "spool": spool,
                "state": pack.state,
                "samples": words.count(pack.samples),
                "size": words.size(pack.size_bytes),
                "age": words.age(pack.since_ns, view.at_ns),
                "name": pack.name,
            }
            for spool, pack in risk.shown
        ]


class Failures:
    """Samples and packs that could not be done, and why."""

    _COLUMNS = (("name", "sample or pack", "text"), ("where", "stage", ""), ("reason", "reason", "text"))

    def __init__(self) -> None:
        with card("Failures"):
            self._text = ui.label("").props('id="failures"')
            self._table = _table("Failures, the newest first", self._COLUMNS, page_rows=20)
        self._rows: list[dict[str, str]] = []

    def show(self, view: View) -> None:
        self._text.set_text(f"{words.count(view.failure_count)} recorded and not done since")
        rows = [
            {"id": f"{at}", "name": failure.name, "where": failure.where, "reason": failure.reason}
            for at, failure in enumerate(view.failures)
        ]
        if rows != self._rows:
            self._rows = rows
            self._table.rows = rows


class Events:
    """What happened last."""

    def __init__(self) -> None:
        with card("Events"):
            self._box = ui.element("div").props('role="log" aria-label="Events, the newest first" id="events"')
        self._shown: list[str] = []

    def show(self, view: View) -> None:
        lines = [f"{words.clock_time(e.at_ns)} {e.what}: {e.text}" for e in view.events[:_SHOWN_EVENTS]]
        if lines != self._shown:
            self._shown = lines
            self._box.clear()
            with self._box:
                for line in lines:
                    ui.label(line).classes("ds-event")

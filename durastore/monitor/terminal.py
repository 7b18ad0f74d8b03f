"""The view in a terminal, with rich: the same numbers as the page, narrow enough for 80 columns.

Duty: a renderable, and the loop of `durastore status --watch`. Text from data is shown as text, never as markup.
"""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from durastore.clock import Clock
from durastore.monitor import words
from durastore.monitor.limits import NAMES
from durastore.monitor.sampler import Sampler
from durastore.monitor.view import RoomView, View

__all__ = ["render_screen", "watch"]

_STYLES = {"bad": "bold red", "warn": "yellow", "info": "dim"}
_STATE_STYLES = {"killed": "bold red", "silent": "bold red", "stalled": "bold red", "waiting": "yellow", "ended": "dim"}
_EVENTS = 6
_ROWS = 20
_BAR = 60


def watch(sampler: Sampler, *, console: Console, clock: Clock, every_s: float, is_over: Callable[[], bool]) -> None:
    """Show the view of a started sampler until `is_over`: in place on a terminal, else one below the other."""
    if not console.is_terminal:
        while not is_over():
            console.print(render_screen(sampler.view), "")
            clock.sleep(every_s)
        return
    with Live(render_screen(sampler.view), console=console, auto_refresh=False, screen=False) as live:
        while not is_over():
            live.update(render_screen(sampler.view), refresh=True)
            clock.sleep(every_s)


def render_screen(view: View) -> RenderableType:
    """Everything, from what is gravest to what is finest."""
    return Group(
        *(
            Text.assemble((_plain(banner.title), _STYLES[banner.severity]), f": {_plain(banner.detail)}")
            for banner in view.banners
        ),
        *_progress(view),
        _stages(view),
        Text(_plain(view.limit.text), style="italic"),
        _workers(view),
        *_rooms(view),
        _risk(view),
        *_events(view),
    )


def _plain(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)


def _progress(view: View) -> list[RenderableType]:
    rates = view.rates
    speed = Text(
        f"{words.rate(rates.samples)} samples, {words.rate(rates.put_bytes, of_bytes=True)} put,"
        f" {words.rate(rates.uploaded_bytes, of_bytes=True)} uploaded"
    )
    job = view.job
    if job is None:
        return [speed]
    line = Text(
        f"{words.share(job.share)}  {words.count(job.done)} of {words.count(job.inputs)} ({job.state}):"
        f" ok {words.count(job.ok)}, failed {words.count(job.failed)}, skipped {words.count(job.skipped)};"
        f" eta {words.duration(job.eta_s)}"
    )
    filled = int(_BAR * job.share)
    return [Text.assemble(("━" * filled, "green"), ("─" * (_BAR - filled), "dim")), line, speed]


def _stages(view: View) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("stage", "samples", "bytes", "waiting", "bytes waiting", ""):
        table.add_column(name, justify="left" if name in ("stage", "") else "right")
    for stage in view.stages:
        waiting = stage.waiting.packs or stage.waiting.samples
        what = "packs" if stage.waiting.packs else "samples"
        is_limit = view.limit.stage == stage.name
        mark = "sets the pace" if is_limit else "waits for it" if stage.name in view.limit.starved else ""
        table.add_row(
            NAMES[stage.name],
            words.count(stage.done.samples),
            words.size(stage.done.size_bytes),
            f"{words.count(waiting)} {what}" if waiting else "-",
            words.size(stage.waiting.size_bytes) if waiting else "-",
            Text(mark, style="bold" if is_limit else "dim"),
        )
    return table


def _workers(view: View) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("spool", "process", "state", "ok", "failed", "samples/s", "spool fill", "only here", ""):
        table.add_column(name, justify="left" if name in ("spool", "state", "") else "right")
    order = sorted(view.workers, key=lambda worker: (worker.state == "ended", worker.spool))
    for worker in order[:_ROWS]:
        table.add_row(
            Text(worker.spool),
            str(worker.pid or "-"),
            Text(worker.state, style=_STATE_STYLES.get(worker.state, "green")),
            words.count(worker.ok),
            words.count(worker.failed),
            words.rate(worker.rates.samples).removesuffix("/s"),
            f"{worker.used_bytes / worker.high_bytes:.0%}" if worker.high_bytes else "-",
            words.count(worker.only_local),
            Text(_plain(worker.says)),
        )
    if len(view.workers) > _ROWS:
        table.add_row(f"… {len(view.workers) - _ROWS} more")
    return table


def _rooms(view: View) -> list[RenderableType]:
    return [
        Text(
            f"{room.root}: {words.size(room.used_bytes)} in spools; {_fullest(room)}disk {words.size(room.free_bytes)}"
            f" free of {words.size(room.disk_bytes)}"
            + (f" (reserve {words.size(room.reserve_bytes)})" if room.reserve_bytes else "")
        )
        for room in view.rooms
    ]


def _fullest(room: RoomView) -> str:
    """Empty while no process has told of a watermark."""
    return f"fullest {room.fullest} at {room.fill:.0%} of {words.size(room.high_bytes)}; " if room.fullest else ""


def _risk(view: View) -> Text:
    transfers, proofs, risk = view.transfers, view.proofs, view.risk
    oldest = f", the oldest for {words.age(risk.oldest_ns, view.at_ns)}" if risk.oldest_ns is not None else ""
    last = f", last {words.age(proofs.last_ns, view.at_ns)} ago" if proofs.last_ns is not None else ""
    return Text(
        f"only here: {words.count(risk.samples)} samples{oldest};"
        f" retries {transfers.retries}, slowdowns {transfers.slowdowns}; proofs: {proofs.attested} attested,"
        f" {proofs.read_back} read back, {proofs.mismatches} wrong{last};"
        f" failures {view.failure_count}; deaths {view.deaths}"
    )


def _events(view: View) -> list[RenderableType]:
    return [
        Text(f"{words.clock_time(event.at_ns)} {event.what}: {_plain(event.text)}", style="dim", overflow="ellipsis")
        for event in view.events[:_EVENTS]
    ]

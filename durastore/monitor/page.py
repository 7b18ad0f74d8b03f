"""The live page: one browser's copy of it is brought up to date whenever the sampler has looked again.

Duty: put the sections together and the routes beside them. Read-only; all assets come from the library's own package.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from nicegui import ui

from durastore.monitor import words
from durastore.monitor.as_json import render_view
from durastore.monitor.metrics import CONTENT_TYPE, render_metrics
from durastore.monitor.page_parts import (
    Banners,
    Events,
    Facts,
    Failures,
    Progress,
    Risk,
    Rooms,
    Stages,
    Workers,
    card,
)
from durastore.monitor.page_style import CSS
from durastore.monitor.sampler import Sampler
from durastore.monitor.view import View

__all__ = ["make_app"]

_LOOK_EVERY_S = 0.05
"""How soon a browser gets what the sampler saw; a look that finds nothing new costs microseconds."""
_ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><rect width="16" height="16" rx="4" fill="#1f5fbf"/>'
    '<path d="M4 11V8h2v3zm3 0V5h2v6zm3 0V7h2v4z" fill="#fff"/></svg>'
)


def make_app(sampler: Sampler) -> FastAPI:
    """Page, `/metrics`, `/healthz` and `/view.json` of one sampler."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

    @app.get("/metrics")
    def metrics() -> Response:
        return Response(render_metrics(sampler.view), media_type=CONTENT_TYPE)

    @app.get("/healthz")
    def healthz() -> Response:
        is_well = sampler.is_well
        text = "ok\n" if is_well else f"no look for {sampler.silent_s:.0f} s\n"
        return PlainTextResponse(text, status_code=200 if is_well else 503)

    @app.get("/view.json")
    def view_json() -> Response:
        return JSONResponse(render_view(sampler.view))

    def root() -> None:
        _Page(sampler)

    ui.run_with(
        app,
        root=root,
        title="durastore",
        favicon=_ICON,
        dark=None,
        tailwind=False,
        reconnect_timeout=10.0,
        show_welcome_message=False,
    )
    return app


class _Page:
    """One browser's."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._at_ns = 0
        ui.add_css(CSS)
        with ui.element("main").classes("nicegui-content-inner").style("display: grid; gap: 14px; min-width: 0"):
            with ui.element("div").classes("ds-top"):
                ui.label("durastore").classes("ds-h1").props('role="heading" aria-level="1"')
                self._where = ui.label("").classes("ds-soft")
                self._when = ui.label("").classes("ds-soft ds-num").props('id="updated"')
            self._banners = Banners()
            self._progress = Progress()
            self._stages = Stages()
            with ui.element("div").classes("ds-two"):
                self._samples = _Curve("Samples per second", ("samples/s",))
                self._bytes = _Curve("Megabytes per second", ("to the spool", "to the bucket"))
            with ui.element("div").classes("ds-two"):
                self._rooms, self._facts = Rooms(), Facts()
                self._risk, self._failures = Risk(), Failures()
            self._workers = Workers()
            self._events = Events()
        self._parts = (
            self._progress,
            self._stages,
            self._workers,
            self._facts,
            self._risk,
            self._failures,
            self._events,
        )
        self._update()
        ui.timer(_LOOK_EVERY_S, self._update)

    def _update(self) -> None:
        view = self._sampler.view
        if view.at_ns == self._at_ns and self._sampler.is_well:
            return
        self._at_ns = view.at_ns
        self._where.set_text(", ".join(view.roots))
        self._when.set_text(f"{words.clock_time(view.at_ns)} UTC")
        self._when.props(f'data-at="{view.at_ns // 1_000_000}"')
        self._banners.show(view.banners)
        for part in self._parts:
            part.show(view)
        self._rooms.show(view.rooms)
        points = view.series
        self._samples.show(view, [[(p.at_ns, p.samples_per_s) for p in points]])
        put = [(p.at_ns, p.put_bytes_per_s / 1e6) for p in points]
        self._bytes.show(view, [put, [(p.at_ns, p.uploaded_bytes_per_s / 1e6) for p in points]])


class _Curve:
    """Lines over time; what a screen reader gets is the last value, in words."""

    def __init__(self, title: str, names: tuple[str, ...]) -> None:
        self._names = names
        self._last = 0
        with card(title):
            self._chart = ui.echart(_options(names)).style("height: 190px; width: 100%")
            self._chart.props(f'role="img" aria-label="{title}"')
            self._words = ui.label("").classes("ds-soft ds-num")

    def show(self, view: View, lines: list[list[tuple[int, float]]]) -> None:
        last = lines[0][-1][0] if lines[0] else 0
        if last == self._last:
            return
        self._last = last
        for series, line in zip(self._chart.options["series"], lines, strict=True):
            series["data"] = [[at_ns // 1_000_000, float(f"{value:.3g}")] for at_ns, value in line]
        now = ", ".join(f"{name} {line[-1][1]:.3g}" for name, line in zip(self._names, lines, strict=True))
        since = words.age(lines[0][0][0], view.at_ns)
        self._words.set_text(f"now {now}; {since} shown")
        self._chart.update()


def _options(names: tuple[str, ...]) -> dict[str, Any]:
    grey = "#8794a1"  # readable on both papers
    colours = ("#3b82d6", "#d97706")
    return {
        "animation": False,
        "grid": {"left": 44, "right": 12, "top": 26 if len(names) > 1 else 10, "bottom": 24},
        "legend": {"show": len(names) > 1, "top": 0, "textStyle": {"color": grey}},
        "tooltip": {"trigger": "axis"},
        "xAxis": {"type": "time", "axisLabel": {"color": grey, "hideOverlap": True}},
        "yAxis": {"type": "value", "min": 0, "axisLabel": {"color": grey},
                  "splitLine": {"lineStyle": {"opacity": 0.25}}},
        "series": [
            {"name": name, "type": "line", "showSymbol": False, "lineStyle": {"width": 2, "color": colour},
             "itemStyle": {"color": colour}, "data": []}
            for name, colour in zip(names, colours, strict=False)
        ],
    }  # fmt: skip

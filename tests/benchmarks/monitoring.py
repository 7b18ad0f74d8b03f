"""The page of the monitor over 64 simulated workers and a million samples: first paint, updates, CPU and memory.

Needs the system's chromium and `durastore[browser]`. What it is compared with are its own limits.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.benchmarks.pairs import Line
from tests.benchmarks.simulated import SimulatedRun
from tests.integration.monitor_lab import Served, monitor

__all__ = ["monitoring_lines", "why_no_browser"]

_WORKERS = 64
_SAMPLES = 1_000_000
_WARM_S = 60.0
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_WATCH = """() => { window.late = [];
  new MutationObserver(() => window.late.push(Date.now() - Number(document.getElementById('updated').dataset.at)))
    .observe(document.getElementById('updated'), {attributes: true, attributeFilter: ['data-at']}); }"""


def why_no_browser() -> str | None:
    if shutil.which("chromium") is None:
        return "no chromium: the monitor's page is not measured"
    try:
        import playwright  # noqa: F401
    except ImportError:
        return "no playwright: the monitor's page is not measured"
    return None


def monitoring_lines(*, seconds: float, work: Path) -> Iterator[Line]:
    """`seconds`: how long the page is watched after a minute of warming up."""
    from playwright.sync_api import sync_playwright

    work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=work) as folder, sync_playwright() as play:
        run = SimulatedRun(Path(folder) / "root", workers=_WORKERS, samples=_SAMPLES)
        browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        with _beating(run), monitor(run.path, log=Path(folder) / "log") as served:
            yield _line("first contentful paint", _first_paint_s(browser, served), limit=2.0, unit="s")
            yield from _watched(browser, served, seconds)
        browser.close()


@contextmanager
def _beating(run: SimulatedRun) -> Iterator[None]:
    is_over = threading.Event()
    begun = time.monotonic()

    def beat() -> None:
        while not is_over.wait(1.0):
            run.beat(time.monotonic() - begun)

    run.beat(0.0)
    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        run.close()


def _first_paint_s(browser: Any, served: Served) -> float:
    """Of a browser that has nothing in its cache, the median of five."""
    found = []
    for _ in range(5):
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        page = context.new_page()
        page.goto(served.url)
        page.wait_for_selector("#share")
        script = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
        found.append(float(page.evaluate(script)) / 1e3)
        context.close()
    return statistics.median(found)


def _watched(browser: Any, served: Served, seconds: float) -> Iterator[Line]:
    page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    page.goto(served.url)
    page.wait_for_selector("#share")
    page.wait_for_timeout(_WARM_S * 1e3)
    assert page.locator("tbody tr").count() > _WORKERS
    page.evaluate(_WATCH)
    pid = served.process.pid
    cpu_s, size, begun = _cpu_s(pid), _rss_bytes(pid), time.monotonic()
    page.wait_for_timeout(seconds * 1e3)
    passed_s = time.monotonic() - begun
    share = (_cpu_s(pid) - cpu_s) / passed_s
    grown = (_rss_bytes(pid) - size) / 1e6
    late = [float(each) / 1e3 for each in page.evaluate("window.late")]
    assert len(late) > seconds / 3
    yield _line("from look to screen, p50", statistics.median(late), limit=0.2, unit="s")
    yield _line("from look to screen, p95", statistics.quantiles(late, n=20)[18], limit=0.2, unit="s")
    yield _line("server's CPU, of a core", share, limit=0.05, unit="share")
    yield _line(f"server's memory grew in {passed_s:.0f} s, from {size / 1e6:.0f} MB", grown, limit=5.0, unit="MB")


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _rss_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * _PAGE_BYTES


def _line(name: str, value: float, *, limit: float, unit: str) -> Line:
    return Line(
        name=f"monitor, 64 workers: {name}", durastore=value, peer=limit, peer_name="limit", unit=unit, goal="<= 1.0"
    )

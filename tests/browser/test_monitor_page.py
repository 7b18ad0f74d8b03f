"""The monitor's page in a browser, beside a real extraction by two workers: `make browser`.

Screenshots go to `build/browser`: look at them.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from durastore.demo.seaweed import SeaweedServer
from durastore.extract.crew_job import run_shared_extract
from durastore.extract.engine import Engine, Extracted, Refused
from durastore.extract.job import transformers_engine
from durastore.extract.layers import LayerPlan
from durastore.extract.model_identity import ModelSource
from durastore.extract.report import ExtractReport
from durastore.extract.rows import TokenRow
from durastore.extract.runner import RunnerLimits
from durastore.extract.transformers_engine import ModelSettings
from tests.integration.extract_lab import Job, model_folder
from tests.integration.monitor_lab import Served, monitor, until

__all__ = ["model_folder"]  # a fixture

CHROMIUM = next((path for name in ("chromium", "chromium-browser") if (path := shutil.which(name))), None)
SHOTS = Path(__file__).parents[2] / "build" / "browser"
SAMPLES = 400
PASS_S = 0.35


def _why_not() -> str | None:
    if CHROMIUM is None:
        return "no chromium is installed"
    try:
        import nicegui  # noqa: F401
        import playwright  # noqa: F401
    except ImportError as exc:
        return f"not installed: {exc.name}"
    return None


pytestmark = [
    pytest.mark.skipif(_why_not() is not None, reason=str(_why_not())),
    pytest.mark.exhaustive,
    pytest.mark.timeout(400),
]


class _Slow:
    """The real engine, slow enough to be watched."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def start(self) -> None:
        self._engine.start()

    def health(self) -> str | None:
        return self._engine.health()

    def close(self) -> None:
        self._engine.close()

    def extract(self, batch: list[TokenRow]) -> list[Extracted | Refused]:
        time.sleep(PASS_S)
        return self._engine.extract(batch)


def slow_engine(source: ModelSource, plan: LayerPlan, *, settings: ModelSettings) -> Engine:
    """For workers."""
    return _Slow(transformers_engine(source, plan, settings=settings))  # type: ignore[return-value]


@dataclass
class Run:
    """Two workers, in a thread of their own."""

    job: Job
    reports: list[ExtractReport] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        limits = RunnerLimits(batch_tokens=8)
        try:
            request = self.job.request(workers=2, limits=limits, grace_s=30.0)
            self.reports.append(run_shared_extract(request, engine_factory=slow_engine))
        except BaseException as exc:  # noqa: BLE001 - shown by the test
            self.errors.append(exc)

    def kill(self) -> None:
        """What a failed test leaves would wait for its endpoint for ever."""
        for child in multiprocessing.active_children():
            child.kill()

    def report(self) -> ExtractReport:
        self._thread.join(200)
        assert self.errors == []
        return self.reports[0]


@pytest.fixture
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        opened = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield opened
        finally:
            opened.close()


class Seen:
    """One page, and all that it asked of the network."""

    def __init__(self, browser: Any, served: Served, *, width: int = 1280, height: int = 900, scheme: str = "light"):
        self._context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        self.page = self._context.new_page()
        self.hosts: set[str] = set()
        self.faults: list[str] = []
        self.page.on("request", lambda request: self.hosts.add(request.url.split("/")[2]))
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("console", lambda m: self.faults.append(m.text) if m.type == "error" else None)
        self.page.goto(served.url)
        self.page.wait_for_selector("#share")

    def text(self, selector: str) -> str:
        return str(self.page.inner_text(selector))

    def done(self) -> int:
        return int(self.text("#samples-done").replace(",", "").replace("-", "0"))

    def rows(self) -> dict[str, list[str]]:
        table = self.page.locator('table:has(th:text-is("only local")) tbody tr')
        return {cells[0]: cells for row in table.all() if (cells := row.locator("td").all_inner_texts())}

    def states(self) -> list[str]:
        return [cells[1] for cells in self.rows().values()]

    def until(self, look: Callable[[], Any], *, within_s: float) -> float:
        """How long it took to see it."""
        begun = time.monotonic()
        until(look, within_s=within_s, every_s=0.2)
        return time.monotonic() - begun

    def shoot(self, name: str) -> None:
        SHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=str(SHOTS / f"{name}.png"), full_page=True)

    def close(self) -> None:
        self._context.close()


def test_a_run_is_watched_from_its_beginning_to_its_end(
    browser: Any, tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    folder, log = tmp_path / "server", tmp_path / "server-log"
    run: Run | None = None
    server = SeaweedServer.start(folder, log=log)
    try:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        job = Job(tmp_path, model_folder, server)
        job.write(*({"id": f"s/{n}", "text": f"w{n % 50} w{(n * 7) % 50} w{n % 3}"} for n in range(SAMPLES)), "{")
        run = Run(job)
        run.start()
        with monitor(job.root, log=tmp_path / "monitor-log") as served:
            seen = Seen(browser, served)
            _numbers_move(seen)
            _a_killed_worker_shows(seen)
            server = _a_stopped_endpoint_shows(seen, server, folder=folder, log=log)
            _the_end_shows(seen, run)
            _everybody_can_read_it(browser, served)
            assert seen.hosts == {served.url.split("/")[2]}, "no asset comes from elsewhere"
            assert seen.faults == []
    finally:
        if run is not None:
            run.kill()
        server.stop()


def _numbers_move(seen: Seen) -> None:
    seen.until(lambda: seen.states().count("working") == 2, within_s=90)
    first = seen.done()
    seen.until(lambda: seen.done() > first + 3, within_s=20)
    seen.until(lambda: float(seen.text("#speed").partition("/")[0]) > 0, within_s=20)
    assert "%" in seen.text("#share")
    seen.until(lambda: "extraction" in seen.text("#limit").lower(), within_s=30)
    seen.until(lambda: re.search(r"[1-9]", seen.text("#stage-uploaded")), within_s=20)
    seen.shoot("1-moving")


def _a_killed_worker_shows(seen: Seen) -> None:
    spool, cells = sorted(seen.rows().items())[-1]
    pid = int(cells[8])
    os.kill(pid, signal.SIGKILL)  # a worker of this test's own run
    took_s = seen.until(lambda: f"process {pid} ended without saying so" in seen.text("#events"), within_s=10)
    assert spool in seen.text("#events")
    print(f"killed worker shown after {took_s:.1f} s")  # noqa: T201 - a number for docs/benchmarks.md
    seen.shoot("2-killed")
    seen.until(lambda: seen.states().count("working") == 2, within_s=60)  # the crew started another


def _a_stopped_endpoint_shows(seen: Seen, server: SeaweedServer, *, folder: Path, log: Path) -> SeaweedServer:
    port = server.port
    server.stop()
    took_s = seen.until(lambda: "Stalled at upload" in seen.text("#banners"), within_s=15)
    assert "the endpoint does not answer" in seen.text("#banners")
    assert "stalled" in seen.text("#stage-uploaded")
    print(f"stopped endpoint shown after {took_s:.1f} s")  # noqa: T201 - as above
    seen.shoot("3-endpoint")
    again = SeaweedServer.start(folder, port=port, log=log)
    seen.until(lambda: "Stalled" not in seen.text("#banners"), within_s=90)
    return again


def _the_end_shows(seen: Seen, run: Run) -> None:
    seen.until(lambda: seen.text("#share") == "100 %", within_s=180)
    report = run.report()
    assert (report.counts.ok, report.counts.failed, report.local_only) == (SAMPLES, 1, ())
    seen.until(lambda: seen.done() == SAMPLES + 1, within_s=10)
    seen.until(lambda: seen.text("#risk").startswith("0 samples"), within_s=40)
    manifested = seen.text("#stage-manifested").split("\n")[1]
    assert int(manifested) == SAMPLES, "of all processes that were seen, the killed one's too"
    assert "1 recorded" in seen.text("#failures")
    seen.until(lambda: "exit code 3" in seen.text("section[aria-label=Progress]"), within_s=10)
    seen.shoot("4-finished")


def _everybody_can_read_it(browser: Any, served: Served) -> None:
    """At a phone's width, in the dark, and by a screen reader's names."""
    for name, width, scheme in (("5-phone", 390, "light"), ("6-phone-dark", 390, "dark"), ("7-dark", 1280, "dark")):
        other = Seen(browser, served, width=width, height=844, scheme=scheme)
        page = other.page
        page.wait_for_timeout(1500)
        overflow = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert overflow <= 0, f"{name} is wider than the screen"
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        lightness = sum(int(part) for part in re.findall(r"\d+", colour)[:3])
        assert (lightness < 150) == (scheme == "dark"), colour
        if name == "5-phone":
            _names(page)
        other.shoot(name)
        assert other.faults == []
        other.close()


def _names(page: Any) -> None:
    assert page.get_by_role("heading", level=1).inner_text() == "durastore"
    for section in ("Progress", "Pipeline", "Workers", "Failures", "Events", "Only on this machine"):
        assert page.get_by_role("region", name=section).count() == 1
        assert page.get_by_role("heading", level=2, name=section).count() == 1
    bar = page.get_by_role("progressbar", name="Share of the inputs that have an outcome")
    assert float(bar.get_attribute("aria-valuenow")) == 1
    assert page.get_by_role("status", name="Alarms").count() == 1
    assert page.get_by_role("log", name="Events, the newest first").count() == 1
    assert page.get_by_role("img", name="Samples per second").count() == 1
    assert page.get_by_role("list").count() >= 1

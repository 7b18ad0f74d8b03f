"""The monitor's server beside a store at work: numbers, metrics, health, and who may see it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

import durastore
from durastore.monitor.metrics import render_metrics
from durastore.monitor.sampler import Sampler
from durastore.monitor.view import Banner
from durastore.store.store import Store
from durastore.testing.strict_s3 import StrictS3
from durastore_cli.main import run as cli
from tests.integration.monitor_lab import ask, monitor, until

pytest.importorskip("nicegui", reason="the page's package is not installed: pip install 'durastore[monitor]'")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with durastore.open("memory://m", local=tmp_path / "root", reclaim="never", seal_age_s=0.2) as store:
        yield store


def test_the_page_its_numbers_and_nothing_that_changes_anything(store: Store, tmp_path: Path) -> None:
    with monitor(tmp_path / "root", tmp_path / "nowhere", log=tmp_path / "log") as served:
        store.put_many({f"s/{n}": {"x": np.arange(50)} for n in range(12)})
        store.flush()

        def samples() -> dict[str, float]:
            families = text_string_to_metric_families(served.get("/metrics")[1])
            return {
                sample.labels["stage"]: sample.value
                for family in families
                for sample in family.samples
                if sample.name == "durastore_stage_samples_total"
            }

        until(lambda: samples()["manifested"] == 12, within_s=10)
        view = json.loads(served.get("/view.json")[1])
        (worker,) = view["workers"]
        assert worker["spool"] == f"{tmp_path}/root/w-00", "several roots: the spool is named with its root"
        assert worker["pid"] == os.getpid()
        assert [banner["what"] for banner in view["banners"]] == ["root"], "the root that is not there is told"
        status, page, headers = served.get("/")
        assert (status, headers["content-type"].partition(";")[0]) == (200, "text/html")
        assert re.findall(r'(?:src|href)="(?:https?:)?//|from ["\']https?:', page) == [], "all assets are our own"
        assert served.get("/healthz")[:2] == (200, "ok\n")
        assert served.get("/", Host="attacker.example")[0] == 403
        assert served.get("/", Origin="https://attacker.example")[0] == 403
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            assert ask(f"{served.url}view.json", method=method)[0] == 405
        for path in ("/docs", "/openapi.json", "/redoc"):
            assert "swagger" not in served.get(path)[1].lower()
        for path in ("/nope", "/metric", "/metrics/x"):
            status, text, _ = served.get(path)
            assert (status, "/metrics" in text) == (404, True), "a mistyped address is not the page"
    log = (tmp_path / "log").read_text(encoding="utf-8").splitlines()
    assert len(log) == 2, "the address, and the root that is not there"
    assert f"{tmp_path}/nowhere does not exist (yet)" in log[1]


def test_another_address_than_loopback_needs_the_token(store: Store, tmp_path: Path) -> None:
    del store
    with monitor(tmp_path / "root", host="0.0.0.0", log=tmp_path / "log") as served:
        token = served.url.partition("?token=")[2]
        assert len(token) >= 32
        local = served.url.replace("0.0.0.0", "127.0.0.1").partition("?")[0]
        for path in ("", "metrics", "healthz", "view.json", "?token=wrong", "_nicegui_ws/socket.io/"):
            assert ask(local + path)[0] == 401
        status, _, headers = ask(f"{local}?token={token}")
        assert (status, headers["location"]) == (303, "/"), "the address bar must not keep it"
        cookie = headers["set-cookie"]
        assert {"HttpOnly", "SameSite=Lax"} <= set(cookie.split("; "))
        assert ask(local, Cookie=cookie.partition(";")[0])[0] == 200
        assert ask(f"{local}metrics", Authorization=f"Bearer {token}")[0] == 200
        assert ask(f"{local}metrics", Authorization="Bearer wrong")[0] == 401
        assert ask(local, Cookie="durastore_monitor=wrong")[0] == 401
        assert token not in ask(local, Cookie=cookie.partition(";")[0])[1]
    assert (tmp_path / "log").read_text(encoding="utf-8").count(token) == 1


def test_an_address_that_is_taken_and_json_without_a_server(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store.put("a", {"x": np.arange(5)})
    with monitor(tmp_path / "root", log=tmp_path / "log") as served:
        port = served.url.rstrip("/").rpartition(":")[2]
        assert cli(["monitor", "--local", str(tmp_path / "root"), "--port", port]) == 2
        assert f"127.0.0.1 port {port} cannot be had" in capsys.readouterr().err
    assert cli(["monitor", "--local", str(tmp_path / "root"), "--json"]) == 0
    view: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (view["workers"][0]["spool"], view["jobs"]) == ("w-00", [])


def test_a_ctrl_c_as_soon_as_the_address_is_told_is_not_lost(store: Store, tmp_path: Path) -> None:
    """As in a finaliser, an exception that its handler raises just there would go nowhere."""
    store.put("a", {"x": np.arange(5)})
    script = f"""
import contextlib, os, pathlib, signal
from durastore.monitor.serving import serve

def told(address):
    with contextlib.suppress(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
serve([pathlib.Path({str(tmp_path / "root")!r})], port=0, told=told)
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr


def test_an_endpoint_that_goes_away_is_named_in_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with StrictS3() as server:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", server.access_key)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", server.secret_key)
        options: dict[str, Any] = {"endpoint_url": server.endpoint_url, "addressing_style": "path", "probe": "never"}
        store = durastore.open(f"s3://{server.make_bucket()}/p", local=tmp_path / "root", seal_age_s=0.1, **options)
        try:
            store.put("a", {"x": np.arange(9)})
            store.flush()
            server.stop()
            store.put("b", {"x": np.arange(9)})
            with Sampler([tmp_path / "root"]) as sampler:

                def stall() -> Banner | None:
                    return next((banner for banner in sampler.look().banners if banner.what == "stall"), None)

                banner = until(stall, within_s=15)
                assert banner.title == "Stalled at upload: the endpoint does not answer"
                assert (banner.severity, banner.stage) == ("bad", "uploaded")
                assert b'durastore_stage_is_stalled{stage="uploaded"} 1.0' in render_metrics(sampler.view)
                assert sampler.view.risk.samples == 1
        finally:
            store.abandon()

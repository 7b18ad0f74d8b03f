"""`durastore status --watch`: the monitor's numbers in a terminal, and as JSON lines, beside a store at work."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import durastore
from durastore.store.store import Store

ROOT = Path(__file__).parents[2]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with durastore.open(f"memory://{tmp_path.name}", local=tmp_path / "root", reclaim="never", seal_age_s=0.2) as store:
        yield store


def watching(tmp_path: Path, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "durastore_cli.main", "status", "--local", str(tmp_path / "root"), "--watch"]
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'cli'}", "COLUMNS": "110"}
    return subprocess.Popen([*command, *more], env=env, stdout=subprocess.PIPE, text=True)


def test_json_lines_follow_the_store_until_interrupted(store: Store, tmp_path: Path) -> None:
    def facts(view: dict[str, Any]) -> tuple[int, int]:
        done = {stage["name"]: stage["done"] for stage in view["stages"]}
        return done["spooled"]["samples"], done["manifested"]["samples"]

    with watching(tmp_path, "--json", "--every", "0.2") as process:
        assert process.stdout is not None
        try:
            lines = (json.loads(line) for line in process.stdout)
            assert facts(next(lines)) == (0, 0)
            store.put_many({f"s/{n}": {"x": np.arange(50)} for n in range(40)})
            store.flush()
            view = next(view for view in lines if facts(view) == (40, 40))
            (worker,) = view["workers"]
            assert (worker["spool"], worker["pid"], worker["state"]) == ("w-00", os.getpid(), "storing")
            assert view["risk"]["samples"] == 0
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0


def test_the_terminal_shows_the_same(store: Store, tmp_path: Path) -> None:
    store.put_many({f"s/{n}": {"x": np.arange(50)} for n in range(7)})
    store.flush()
    with watching(tmp_path) as process:
        assert process.stdout is not None
        try:
            shown = [0]
            while shown != [7]:
                line = process.stdout.readline()
                assert line
                if line.startswith("the manifest "):
                    shown = [int(line.split()[2])]
        finally:
            process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.wait(10) == 0

"""`durastore demo --serve`: a newcomer's server, what it says and writes, and that it is the demo's."""

from __future__ import annotations

import os
import random
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from durastore.demo.serve import DEMO_BUCKET
from durastore_cli.main import run

ROOT = Path(__file__).parents[2]
# Shells start background jobs with SIGINT ignored, and children inherit that: a test run in the background, too.
_INTERRUPTIBLE = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
    "from durastore_cli.main import main; main()"
)


def _free_port() -> int:
    """One whose gRPC twin, 10,000 above, is free too; both below the kernel's ephemeral range."""
    for port in random.sample(range(22_000, 22_700), 100):
        try:
            for number in (port, port + 10_000):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", number))
        except OSError:
            continue
        return port
    raise AssertionError("no free port")


@contextmanager
def _serving(folder: Path, port: int) -> Iterator[list[str]]:
    """What it says until it is interrupted, which has to be its good end."""
    command = [sys.executable, "-c", _INTERRUPTIBLE, "demo", "--serve", "--keep", str(folder), "--port", str(port)]
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'cli'}", "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("Ctrl-C"):
                break
        try:
            yield lines
        except BaseException:
            process.kill()
            raise
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


def _in_shell(environment: Path, command: str) -> str:
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'cli'}"}
    script = f'. "{environment}"\n{command}'
    return subprocess.run(["sh", "-ec", script], env=env, capture_output=True, text=True, check=True, timeout=60).stdout


def test_what_it_says_is_enough_to_use_it_and_shows_no_secret(tmp_path: Path) -> None:
    folder, port = tmp_path / "a demo's folder", _free_port()
    environment = folder / f"s3-{port}.env"
    put = (
        "import durastore, numpy as np\n"
        f"with durastore.open('s3://{DEMO_BUCKET}/mine', local='{tmp_path}/spool') as store:\n"
        "    store.put('a/0', {'x': np.arange(4)})\n"
        "    store.flush()\n"
    )
    with _serving(folder, port) as lines:
        assert f"S3 server on http://127.0.0.1:{port}, bucket s3://{DEMO_BUCKET}" in lines[0]
        assert any(str(folder).replace("'", "'\"'\"'") in line and line.startswith("  . '") for line in lines)
        assert stat.S_IMODE(environment.stat().st_mode) == 0o600
        secret = next(line for line in environment.read_text().splitlines() if "SECRET" in line).partition("=")[2]
        assert len(secret) >= 30
        assert not any(secret.strip("'") in line for line in lines)
        _in_shell(environment, f'{sys.executable} - <<"E"\n{put}E')
    before = environment.read_text()
    with _serving(folder, port):  # the same again: the same keys, the same bucket
        listed = _in_shell(environment, f"{sys.executable} -m durastore_cli.main ls --bucket s3://{DEMO_BUCKET}/mine")
        assert listed.split() == ["a/0"]
    assert environment.read_text() == before


@pytest.mark.parametrize("more", [["--serve", "--bucket", "s3://b"], ["--port", "9000"]])
def test_what_does_not_go_together_is_said(more: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["demo", *more]) == 2
    assert "--serve" in capsys.readouterr().err

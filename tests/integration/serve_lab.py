"""`durastore demo --serve` in a process of its own, and shells that use what it writes."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Shells start background jobs with SIGINT ignored, and children inherit that: a test run in the background, too.
_INTERRUPTIBLE = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
    "from durastore_cli.main import main; main()"
)


def free_port() -> int:
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
def serving(folder: Path, port: int) -> Iterator[list[str]]:
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


def in_shell(environment: Path, command: str) -> str:
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'cli'}"}
    script = f'. "{environment}"\n{command}'
    return subprocess.run(["sh", "-ec", script], env=env, capture_output=True, text=True, check=True, timeout=60).stdout

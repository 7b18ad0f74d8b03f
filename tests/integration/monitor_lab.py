"""`durastore monitor` in a process of its own, and what it answers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
ROOT = Path(__file__).parents[2]


@dataclass
class Served:
    """A running monitor."""

    url: str
    process: subprocess.Popen[str]

    def get(self, path: str, **headers: str) -> tuple[int, str, Mapping[str, str]]:
        """Status, body and headers; redirects are not followed."""
        return ask(self.url.partition("?")[0].rstrip("/") + path, **headers)


class _Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        return None


def ask(url: str, *, method: str = "GET", **headers: str) -> tuple[int, str, Mapping[str, str]]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(url, headers=named, method=method)
    try:
        with urllib.request.build_opener(_Stay).open(request, timeout=10) as answer:
            return answer.status, answer.read().decode(), _plain(answer.headers)
    except urllib.error.HTTPError as exc:
        with exc:
            return exc.code, exc.read().decode(), _plain(exc.headers)


def _plain(headers: Message[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


@contextmanager
def monitor(*roots: Path, host: str = "127.0.0.1", log: Path) -> Iterator[Served]:
    """Until the block ends; then it has to end well, as after Ctrl-C. What it printed is in `log`."""
    command = [sys.executable, "-m", "durastore_cli.main", "monitor", "--port", "0", "--host", host]
    for root in roots:
        command += ["--local", str(root)]
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'cli'}"}
    with log.open("w", encoding="utf-8") as out:
        process = subprocess.Popen(command, env=env, stdout=out, stderr=subprocess.STDOUT, text=True)
    try:
        url = until(lambda: _url_in(log), within_s=60)
        yield Served(url, process)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0, log.read_text(encoding="utf-8")
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(10)


def _url_in(log: Path) -> str | None:
    words = log.read_text(encoding="utf-8").split()
    return next((word for word in words if word.startswith("http://")), None)


def until(look: Callable[[], T | None], *, within_s: float, every_s: float = 0.1) -> T:
    """The first thing that `look` finds (anything but None and False)."""
    give_up = time.monotonic() + within_s
    while time.monotonic() < give_up:
        found = look()
        if found is not None and found is not False:
            return found
        time.sleep(every_s)
    raise AssertionError(f"not seen within {within_s:g} s")

"""One S3 server for all processes of a test run: each would start its own and keep it idle.

As a program it is that server's keeper: it starts the server on a folder, writes down where it listens, and stops it
when no process of the run uses it any more, however these ended.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from durastore.demo.seaweed import SeaweedServer

ROOT = Path(__file__).parents[1]
_USERS, _WHERE, _LOG = "users.lock", "where.json", "log"
_START_LIMIT_S = 100.0  # below the time limit of the test that waits


class SharedServer:
    """A server that somebody else keeps. What a test may ask of it, it answers as `SeaweedServer` does."""

    environment = SeaweedServer.environment
    client = SeaweedServer.client
    make_bucket = SeaweedServer.make_bucket

    def __init__(self, told: dict[str, Any]) -> None:
        self.port = int(told["port"])
        self.pid = int(told["pid"])
        self.endpoint_url = str(told["endpoint_url"])
        self.region = str(told["region"])
        self.access_key = str(told["access_key"])
        self.secret_key = str(told["secret_key"])
        self._client: Any = None


@contextmanager
def shared_server(folder: Path) -> Iterator[SharedServer]:
    """The server on `folder`, started by whoever comes first."""
    folder.mkdir(mode=0o700, exist_ok=True)
    # A lock of the process (POSIX): unlike flock's, no forked child that a test left behind can go on holding it.
    with (folder / _USERS).open("a+b") as users:
        fcntl.lockf(users, fcntl.LOCK_SH)
        with (folder / "start.lock").open("a+b") as start:
            fcntl.flock(start, fcntl.LOCK_EX)
            if not (folder / _WHERE).exists():
                _start_keeper(folder)
        yield SharedServer(json.loads((folder / _WHERE).read_bytes()))


def _start_keeper(folder: Path) -> None:
    with (folder / _LOG).open("ab") as log:
        keeper = subprocess.Popen(
            [sys.executable, "-m", "tests.shared_server", str(folder)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.fspath(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C is for the tests: their last requests still need the server
        )
    deadline_s = time.monotonic() + _START_LIMIT_S
    while not (folder / _WHERE).exists():
        if keeper.poll() is not None or time.monotonic() > deadline_s:
            keeper.kill()
            raise RuntimeError(f"the shared S3 server did not start:\n{(folder / _LOG).read_text()}")
        time.sleep(0.05)
    keeper.returncode = 0  # nobody waits for it: it outlives this process, and is no resource left open


def _keep(folder: Path) -> None:
    with SeaweedServer.start(folder / "server", log=folder / _LOG) as server, (folder / _USERS).open("r+b") as users:
        names = ("port", "pid", "endpoint_url", "region", "access_key", "secret_key")
        written = folder / f"{_WHERE}.new"
        written.touch(mode=0o600)
        written.write_text(json.dumps({name: getattr(server, name) for name in names}))
        written.rename(folder / _WHERE)
        while True:
            try:
                fcntl.lockf(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                time.sleep(0.5)
            else:
                return


if __name__ == "__main__":
    _keep(Path(sys.argv[1]))

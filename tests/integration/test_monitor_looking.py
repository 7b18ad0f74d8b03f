"""What a look says of a process that is gone: one whose store was closed said goodbye, one that was killed did not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from durastore.clock import Stamp, SystemClock
from durastore.monitor.facts import Liveness, SpoolFacts
from durastore.monitor.looking import RootLook

ROOT = Path(__file__).parents[2]
LIFE = """
import os, sys
import numpy as np
import durastore
def live(end):
    with durastore.open(sys.argv[1] + "/bucket", local=sys.argv[1] + "/root", reclaim="never") as store:
        store.put("a", {"x": np.arange(9)})
        if end == "exception":
            raise KeyError("of the block")
        if end in ("killed", "killed-with-a-child"):
            if end == "killed-with-a-child" and os.fork() == 0:
                sys.stdin.read()
                os._exit(0)
            print("ready", flush=True)
            sys.stdin.read()
try:
    live(sys.argv[2])
except KeyError:
    pass
print("ready", flush=True)
sys.stdin.read()
"""


class Later(SystemClock):
    """Ten seconds on: a record of now is an old one."""

    def stamp(self) -> Stamp:
        now = super().stamp()
        return replace(now, boottime_ns=now.boottime_ns + 10**10)


def after(end: str, place: Path) -> SpoolFacts:
    """What is seen of the one spool once its process is gone."""
    (place / "bucket").mkdir()
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'cli'}"}
    command = [sys.executable, "-W", "ignore", "-c", LIFE, str(place), end]
    process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGKILL)
        process.wait()
        look = RootLook(place / "root", clock=Later())
        (spool,) = look.look().spools
        look.close()
        return spool
    finally:
        process.kill()
        process.wait()
        process.stdin.close()  # ends a child that it forked
        process.stdout.close()


@pytest.mark.parametrize(
    "end, liveness",
    [
        ("closed", Liveness.ENDED),
        ("exception", Liveness.ENDED),
        ("killed", Liveness.KILLED),
        ("killed-with-a-child", Liveness.KILLED),
    ],
)
def test_only_a_store_that_was_not_closed_ended_without_saying_so(tmp_path: Path, end: str, liveness: Liveness) -> None:
    spool = after(end, tmp_path)
    assert spool.liveness is liveness
    assert spool.store is not None
    assert spool.store.teller.is_ended == (liveness is Liveness.ENDED)

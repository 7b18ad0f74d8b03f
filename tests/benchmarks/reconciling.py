"""Inventories at size: a million rows against a million objects, and a folder of 100,000 files beside `rclone check`.

The million comes from the strict server, which makes keys as they are asked for; its own time is in the wall time. The
folder is compared on SeaweedFS with `rclone check` of the same files under the names they have, both as whole processes
on a warm cache, client CPU only.
"""

from __future__ import annotations

import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from durastore.clock import SYSTEM_CLOCK
from durastore.demo.seaweed import SeaweedServer
from durastore.formats.file_keys import file_key
from durastore.formats.keys import segment_key
from durastore.formats.segment import arrow_schema
from durastore.manifest.marker_store import ensure_marker
from durastore.model import Digest, Run, SampleId, WriterId
from durastore.objectstore.location import BucketUrl, S3Options, open_object_store
from durastore.spool.root import SpoolRoot
from durastore.testing.strict_s3 import StrictS3
from tests.benchmarks.pairs import Line
from tests.benchmarks.peers import install_peers

__all__ = [
    "Ended",
    "durastore_command",
    "environment_of",
    "inventory_lines",
    "million_line",
    "reconciling_lines",
    "run_process",
]

LOGGER = logging.getLogger(__name__)
_CODE = "from durastore_cli.main import main; main()"
_PREFIX = "p"
_ROWS_A_SEGMENT = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """One process that ended."""

    wall_s: float
    cpu_s: float
    peak_mb: float
    output: bytes
    code: int


def run_process(command: Sequence[str], environment: dict[str, str]) -> Ended:
    """Run to the end; CPU and memory of this process and its own children only."""
    started = time.perf_counter()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.DEVNULL)
        peak = _Peak(process.pid)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        return Ended(
            wall_s=time.perf_counter() - started,
            cpu_s=usage.ru_utime + usage.ru_stime,
            peak_mb=peak.end(),
            output=output.read(),
            code=process.returncode,
        )


class _Peak:
    """The most memory that a process had resident, as the kernel tells it while it lives. What `wait4` tells after it
    ended begins with the memory of the process that started it.
    """

    def __init__(self, pid: int) -> None:
        self._path = Path(f"/proc/{pid}/status")
        self._peak_kb = 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def end(self) -> float:
        """Megabytes (1024 kB each); what was reached in the last 20 ms may lack."""
        self._is_over.set()
        self._thread.join()
        return self._peak_kb / 1024

    def _watch(self) -> None:
        while not self._is_over.wait(0.02):
            try:
                lines = self._path.read_text().splitlines()
            except OSError:
                return  # it has ended
            self._peak_kb = max([self._peak_kb, *(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))])


def durastore_command(arguments: Sequence[str]) -> list[str]:
    """The command line of this copy of durastore."""
    return [sys.executable, "-c", _CODE, *arguments]


def _reconcile(arguments: Sequence[str]) -> list[str]:
    return durastore_command(["reconcile", *arguments])


def environment_of(extra: dict[str, str]) -> dict[str, str]:
    """For processes that use this copy of durastore, with `extra` set."""
    root = str(Path(__file__).resolve().parents[2])
    return {**os.environ, **extra, "PYTHONPATH": f"{root}{os.pathsep}{root}/cli"}


def reconciling_lines(*, turns: int, work: Path, count: int = 100_000) -> Iterator[Line]:
    """All of them. Raw numbers of each turn go to the log."""
    work.mkdir(exist_ok=True)
    yield from million_line()
    yield from inventory_lines(count=count, turns=turns, work=work)


# --- a million ---------------------------------------------------------------------------------------------------


def million_line(count: int = 1_000_000) -> tuple[Line, Line]:
    """Wall seconds and peak megabytes of finding three differences."""
    with StrictS3() as server, tempfile.TemporaryDirectory() as folder:
        os.environ.update(server.environment())
        bucket = server.make_bucket()
        lead, suffix = f"{_PREFIX}/packs/{'ab' * 8}/", f"-{'0' * 16}.tar"
        server.populate(bucket, lead, count=count, size_bytes=100, suffix=suffix)
        keys = [f"{lead}{number:012d}{suffix}" for number in range(1, count)]  # the last object has no row
        sizes = np.full(count, 100, dtype=np.int64)
        sizes[count // 2] += 1  # one object has another size
        keys.append(f"{lead}{count + 1:012d}{suffix}")  # one row has no object
        _put_manifest(server, bucket, keys=keys, sizes=sizes)
        SpoolRoot.open(Path(folder) / "root", is_any_filesystem_allowed=True).close()
        where = ["--local", f"{folder}/root", "--bucket", f"s3://{bucket}/{_PREFIX}", "--endpoint-url"]
        ended = run_process(_reconcile([*where, server.endpoint_url, "--json"]), environment_of(server.environment()))
    found = json.loads(ended.output)
    differences = {finding["kind"]: finding["count"] for finding in found["findings"]}
    if (differences, found["sums_agree"]) != ({"orphan": 1, "divergent": 1, "dangling": 1}, True):
        raise AssertionError(f"not the three differences: {differences}")
    name = f"{count:,} rows x {count:,} objects, 3 differences"
    return (
        Line(name=name, durastore=ended.wall_s, peer=60.0, peer_name="goal", unit="s", goal="<= 1.0"),
        Line(name=name, durastore=ended.peak_mb, peer=500.0, peer_name="goal", unit="MB", goal="<= 1.0"),
    )


def _put_manifest(server: StrictS3, bucket: str, *, keys: list[str], sizes: np.ndarray[Any, Any]) -> None:
    s3 = S3Options(endpoint_url=server.endpoint_url)
    store = open_object_store(BucketUrl.parse(f"s3://{bucket}"), s3=s3)
    run = Run.of({})
    ensure_marker(store, _PREFIX, run=run, clock=SYSTEM_CLOCK, settle_s=0.0)
    writer = WriterId.mint()
    for seq, start in enumerate(range(0, len(keys), _ROWS_A_SEGMENT), start=1):
        data = _segment(keys[start : start + _ROWS_A_SEGMENT], sizes[start : start + _ROWS_A_SEGMENT], start=start)
        key = segment_key(_PREFIX, writer, seq=seq, digest=Digest.of(data))
        store.put(key, data, crc64nvme=None, metadata={})
    store.close()


def _segment(
    keys: list[str],
    sizes: np.ndarray[Any, Any],
    *,
    start: int,
    ids: list[str] | None = None,
    digests: list[bytes] | None = None,
) -> bytes:
    """The bytes of a segment with one sample an object, made column by column."""
    count = len(keys)
    rng = np.random.default_rng(start)

    held = pa.array(digests or list(_chunks(rng.bytes(16 * count))), pa.binary(16))
    columns: dict[str, Any] = {
        "kind": pa.array(["row"] * count),
        "sample_id": pa.array(ids or [f"sample-{number:09d}" for number in range(start, start + count)]),
        "key": pa.array(keys),
        "offset": pa.array(np.zeros(count, dtype=np.int64)),
        "length": pa.array(sizes),
        "header_length": pa.array(np.full(count, 16, dtype=np.int64)),
        "header_digest": held,
        "object_size": pa.array(sizes),
        "object_digest": held,
        "crc64nvme": pa.array([f"{number:011d}=" for number in range(start, start + count)]),
        "etag": pa.array([f'"{number:032x}"' for number in range(start, start + count)]),
        "version_id": pa.nulls(count, pa.string()),
        "writer": pa.array(["ab" * 8] * count),
        "schema": pa.array(['[["x","F32",[4,4],"raw"]]'] * count),
        "meta": pa.array(["{}"] * count),
        "run": pa.array([bytes.fromhex(Run.of({}).digest.hex)] * count, pa.binary(16)),
        "input_digest": pa.nulls(count, pa.binary(16)),
        "provenance": pa.array(["computed"] * count),
        "time_ns": pa.array(np.arange(start, start + count, dtype=np.int64)),
        "reason": pa.nulls(count, pa.string()),
    }
    schema = arrow_schema()
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, schema, compression="zstd", store_schema=False) as target:
        target.write_table(pa.Table.from_arrays([columns[name] for name in schema.names], schema=schema))
        target.add_key_value_metadata(
            {"durastore.format": "1", "durastore.runs": json.dumps([Run.of({}).text]), "durastore.covers": "[]"}
        )
    return bytes(sink.getvalue())


def _chunks(data: bytes) -> Iterator[bytes]:
    return (data[at : at + 16] for at in range(0, len(data), 16))


# --- 100,000 files beside rclone -----------------------------------------------------------------------------------


def inventory_lines(*, count: int, turns: int, work: Path) -> Iterator[Line]:
    """Wall and CPU of `reconcile` and `rclone check` over the same files, by size and by content: medians of turns."""
    with (
        tempfile.TemporaryDirectory(dir=work) as folder,
        SeaweedServer.start(Path(folder) / "server", log=Path(folder) / "log") as server,
    ):
        environment = environment_of(server.environment())
        data, stage = Path(folder) / "data", Path(folder) / "stage"
        bucket, plain = server.make_bucket(), server.make_bucket()
        rows = _make_files(data, count, stage=stage)
        remote = f":s3,provider=Other,env_auth=true,endpoint='{server.endpoint_url}',force_path_style=true:"
        rclone = [str(install_peers(work / "peers") / "rclone"), "--config", os.devnull]
        for source, target in ((stage, f"{bucket}/{_PREFIX}"), (data, plain)):  # quicker than sending each file proven
            copied = run_process([*rclone, "copy", "--transfers", "16", str(source), f"{remote}{target}"], environment)
            if copied.code:
                raise AssertionError(f"rclone copy ended with {copied.code}")
        os.environ.update(server.environment())
        _put_files_manifest(server, bucket, rows=rows)
        where = ["--local", str(data), "--bucket", f"s3://{bucket}/{_PREFIX}", "--endpoint-url", server.endpoint_url]
        hashed = run_process(_reconcile([*where, "--apply", "--json"]), environment)  # as every folder was, once
        if hashed.code:
            raise AssertionError(f"reconcile --apply ended with {hashed.code}")
        flat = ["check", str(data), f"{remote}{plain}", "--exclude", "/.durastore/**", "--fast-list"]
        for name, ours, theirs, wall, cpu in (
            ("by size", [], ["--size-only"], "<= 0.8", "<= 0.5"),
            ("by content", ["--deep"], [], "<= 1.0", "<= 1.0"),
        ):
            commands = [_reconcile([*where, *ours, "--json"]), [*rclone, *flat, *theirs]]
            mine, others = _in_turns(commands, environment, turns=turns)
            for unit, goal, value in (("s", wall, "wall_s"), ("CPU-s", cpu, "cpu_s")):
                yield Line(
                    name=f"inventory of {count:,} files, {name}",
                    durastore=statistics.median(getattr(each, value) for each in mine),
                    peer=statistics.median(getattr(each, value) for each in others),
                    peer_name="rclone check",
                    unit=unit,
                    goal=goal,
                )


def _in_turns(commands: Sequence[Sequence[str]], environment: dict[str, str], *, turns: int) -> list[list[Ended]]:
    """Each command's runs, after one that does not count. Who begins changes from turn to turn."""
    found: list[list[Ended]] = [[] for _ in commands]
    for turn in range(turns + 1):
        at = turn % len(commands)
        for side in [*range(at, len(commands)), *range(at)]:
            ended = run_process(commands[side], environment)
            if ended.code:
                raise AssertionError(f"a difference where there is none: {ended.code} of {commands[side][:4]}")
            LOGGER.info("%d: %.2f s, %.2f CPU-s, %.0f MB", side, ended.wall_s, ended.cpu_s, ended.peak_mb)
            if turn:
                found[side].append(ended)
    return found


@dataclass(slots=True)
class _Rows:
    """Columns of the rows of files."""

    paths: list[str]
    keys: list[str]
    sizes: list[int]
    digests: list[bytes]


def _make_files(folder: Path, count: int, *, stage: Path) -> _Rows:
    """Whole .npy files of 256 bytes, 1,000 a folder; `stage` has them once more under the names of their objects."""
    values = np.zeros(16, dtype=np.float64)
    rows = _Rows(paths=[], keys=[], sizes=[], digests=[])
    for number in range(count):
        path = f"rows_{number // 1000:05d}/data_{number}.npy"
        if number % 1000 == 0:
            (folder / path).parent.mkdir(parents=True)
        values[0], values[-1] = number + 1, 1.0
        np.save(folder / path, values)
        data = (folder / path).read_bytes()
        digest = Digest.of(data)
        key = file_key(_PREFIX, SampleId(path), digest=digest).text
        staged = stage / key.removeprefix(f"{_PREFIX}/")
        staged.parent.mkdir(parents=True, exist_ok=True)
        os.link(folder / path, staged)
        rows.paths.append(path)
        rows.keys.append(key)
        rows.sizes.append(len(data))
        rows.digests.append(bytes.fromhex(digest.hex))
    return rows


def _put_files_manifest(server: SeaweedServer, bucket: str, *, rows: _Rows) -> None:
    s3 = S3Options(endpoint_url=server.endpoint_url)
    store = open_object_store(BucketUrl.parse(f"s3://{bucket}"), s3=s3)
    ensure_marker(store, _PREFIX, run=None, clock=SYSTEM_CLOCK, settle_s=0.0)
    data = _segment(rows.keys, np.array(rows.sizes), start=0, ids=rows.paths, digests=rows.digests)
    key = segment_key(_PREFIX, WriterId.mint(), seq=1, digest=Digest.of(data))
    store.put(key, data, crc64nvme=None, metadata={})
    store.close()

"""`python -m tests.benchmarks.inventory [--rows N]`: listing and compacting a manifest of N rows, each in a process of
its own: seconds, CPU seconds and peak memory.

The manifest is made up (random digests, 100 samples a pack, 50,000 rows a segment, a distinct meta each) and lies in a
directory, so that what is measured is this side only.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from durastore.clock import SYSTEM_CLOCK
from durastore.formats.keys import segment_key
from durastore.formats.segment import arrow_schema, render_segment_table
from durastore.manifest.marker_store import ensure_marker
from durastore.model import Digest, Run, WriterId
from durastore.objectstore.directory import DirectoryStore

ROWS_A_SEGMENT = 50_000
ROWS_A_PACK = 100
SCHEMA = '[["hidden_states","BF16",[256,4,576],"planes-zstd"],["input_ids","I64",[256],"raw"]]'
RUN = Run.of({"model": "m", "layers": [2, 15, 27]})


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.inventory", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--work", default=None, help="where the bucket is made (default: a temporary directory)")
    given = parser.parse_args()
    bucket = Path(given.work or tempfile.mkdtemp(prefix="durastore-inventory-"))
    bucket.mkdir(parents=True, exist_ok=True)
    make_manifest(bucket, rows=given.rows)
    for arguments in (
        ["ls"],
        ["ls", "--json"],
        ["ls", "--json", "--meta"],
        ["ls", "doc/000000"],
        ["manifest", "compact", "--json"],
        ["ls"],
    ):
        say(f"{' '.join(arguments):24} {measured([*arguments, '--bucket', str(bucket)])}")
    say(f"made in {bucket}: {given.rows} rows")


def make_manifest(bucket: Path, *, rows: int) -> None:
    """Segments of one writer, 1, 2, 3 ..., each put as a real one is."""
    store = DirectoryStore(bucket)
    ensure_marker(store, "", run=RUN, clock=SYSTEM_CLOCK, settle_s=0)
    writer = WriterId.mint()
    for seq, table in enumerate(tables(rows, writer=writer), start=1):
        data = render_segment_table(table, runs=[RUN], covers=[])
        key = segment_key("", writer, seq=seq, digest=Digest.of(data))
        store.put(key, data, crc64nvme=None, metadata={})
    store.close()


def tables(rows: int, *, writer: WriterId) -> Iterator[pa.Table]:
    rng = np.random.default_rng(1)
    # scattered ids: a writer's segments are not sorted against each other
    order = rng.permutation(rows)
    for start in range(0, rows, ROWS_A_SEGMENT):
        numbers = order[start : start + ROWS_A_SEGMENT]
        count = len(numbers)
        packs = (start + np.arange(count)) // ROWS_A_PACK
        digests = pa.array([rng.bytes(16) for _ in range(count)], type=pa.binary(16))
        values: dict[str, Any] = {
            "kind": ["row"] * count,
            "sample_id": [f"doc/{number:010d}" for number in numbers],
            "key": [f"packs/{writer.hex}/{pack:012d}-{pack:016x}.tar" for pack in packs],
            "offset": (np.arange(count) % ROWS_A_PACK) * 700_000,
            "length": np.full(count, 690_000),
            "header_length": np.full(count, 2_048),
            "header_digest": digests,
            "object_size": np.full(count, 70_000_000),
            "object_digest": [bytes(8) + int(pack).to_bytes(8, "big") for pack in packs],
            "crc64nvme": ["AAAAAAAAAAA="] * count,
            "etag": [f'"{pack:032x}"' for pack in packs],
            "writer": [writer.hex] * count,
            "schema": [SCHEMA] * count,
            "meta": [f'{{"line":{number},"n_tokens":{number % 4096}}}' for number in numbers],
            "run": [bytes.fromhex(RUN.digest.hex)] * count,
            "input_digest": digests,
            "provenance": ["computed"] * count,
            "time_ns": np.full(count, 1_700_000_000_000_000_000),
        }
        schema = arrow_schema()
        empty = [None] * count
        columns = [pa.array(values.get(field.name, empty), type=field.type) for field in schema]
        yield pa.Table.from_arrays(columns, schema=schema)


def measured(arguments: list[str]) -> str:
    """One run of the command, its output thrown away."""
    started = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "durastore_cli.main", *arguments], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    wall_s = time.perf_counter() - started
    code = os.waitstatus_to_exitcode(status)
    cpu_s = usage.ru_utime + usage.ru_stime
    return f"exit {code}  {wall_s:7.1f} s  {cpu_s:7.1f} CPU-s  {usage.ru_maxrss / 1024:8.0f} MB peak"


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()

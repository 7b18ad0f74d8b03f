"""Peak memory of a long run beside that of a short one: with a spool of 256 MiB, four times the data may cost no more.

Each run is a process of its own against one SeaweedFS: samples of 1.2 MB of random bf16, put one by one, freed as soon
as they are proven, waited for at the high watermark. Run as a program: `python -m tests.benchmarks.memory URL LOCAL
COUNT` with the server's address and credentials in the environment; prints one JSON line.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch

import durastore
from durastore.demo.seaweed import SeaweedServer
from tests.benchmarks.pairs import Line

__all__ = ["memory_lines"]

BUDGET_BYTES = 256 << 20
SAMPLE_SHAPE = (586, 1024)
SAMPLE_BYTES = 2 * SAMPLE_SHAPE[0] * SAMPLE_SHAPE[1]
_MORE_MB = 50
_GB = 10**9


def memory_lines(*, work: Path, sizes_gb: tuple[int, int] = (1, 4)) -> Iterator[Line]:
    work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=work) as folder:
        place = Path(folder)
        with SeaweedServer.start(place / "server", log=place / "log") as server:
            short, long = (_peak_mb(server, place / f"spool-{size_gb}", size_gb=size_gb) for size_gb in sizes_gb)
    yield Line(
        name=f"peak memory of a {sizes_gb[1]} GB run, spool of 256 MiB",
        durastore=long,
        peer=short,
        peer_name=f"a {sizes_gb[0]} GB run",
        unit="MB",
        goal=f"<= {1 + _MORE_MB / short:.4f}",
    )


def _peak_mb(server: SeaweedServer, local: Path, *, size_gb: int) -> float:
    arguments = [f"s3://{server.make_bucket()}/run", str(local), str(size_gb * _GB // SAMPLE_BYTES)]
    child = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.memory", *arguments],
        env={**os.environ, **server.environment(), "DURASTORE_ENDPOINT_URL": server.endpoint_url},
        stdout=subprocess.PIPE,
        check=True,
    )
    facts = json.loads(child.stdout)
    sys.stderr.write(f"{size_gb} GB: {facts}\n")
    return float(facts["peak_mb"])


def main() -> None:
    url, local, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    begun = time.monotonic()
    generator = torch.Generator().manual_seed(7)
    with durastore.open(
        url,
        local=local,
        reclaim="eager",
        settle_s=0.0,
        high_watermark_bytes=BUDGET_BYTES,
        low_watermark_bytes=BUDGET_BYTES // 2,
        reserve_bytes=0,
    ) as store:
        opened_mb = _peak_so_far_mb()
        for number in range(count):
            words = torch.randint(-(1 << 15), 1 << 15, SAMPLE_SHAPE, generator=generator, dtype=torch.int16)
            store.put(f"sample-{number}", {"h": words.view(torch.bfloat16)})
        store.drain(600)
        failures = store.status().failures
    facts = {
        "peak_mb": _peak_so_far_mb(),
        "opened_mb": opened_mb,
        "samples": count,
        "seconds": round(time.monotonic() - begun, 1),
        "failures": failures,
    }
    sys.stdout.write(json.dumps(facts) + "\n")


def _peak_so_far_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


if __name__ == "__main__":
    main()

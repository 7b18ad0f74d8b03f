"""`python -m tests.benchmarks.uploading LOAD PLACE ...`: durastore's side of an upload, in a process of its own.

Opens the store, puts every sample, waits until all are MANIFESTED; prints wall and CPU seconds of that as JSON. The
prefix was made and the endpoint probed before, by another store: what counts is a day of a run, not its start.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

import durastore
from durastore.store.store import Store
from tests.benchmarks.material import LOADS, Load, tensors_of

__all__ = ["main"]

_THREADS = 4


def _put_all(store: Store, samples: list[tuple[str, torch.Tensor]], load: Load) -> None:
    groups = [samples[at : at + load.group] for at in range(0, len(samples), load.group)]

    def put(group: list[tuple[str, torch.Tensor]]) -> None:
        store.put_many({name: {"h": tensor} for name, tensor in group})

    with ThreadPoolExecutor(_THREADS) as pool:
        for _ in pool.map(put, groups):
            pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("load", choices=sorted(LOADS))
    parser.add_argument("--place", required=True, help="bucket/prefix")
    parser.add_argument("--endpoint-url", required=True)
    parser.add_argument("--local", type=Path, required=True)
    parser.add_argument("--states", type=Path, required=True)
    parser.add_argument("--compress", default="auto")
    parser.add_argument("--count", type=int)
    given = parser.parse_args()
    load = LOADS[given.load] if given.count is None else LOADS[given.load].shortened(given.count)
    samples = list(tensors_of(load, torch.load(given.states, weights_only=True)))
    options = {"endpoint_url": given.endpoint_url, "compress": given.compress, "reclaim": "lazy"}
    with durastore.open(f"s3://{given.place}", local=given.local, **options) as store:
        store.put("first", {"h": torch.zeros(8)}).wait()
    begun, cpu = time.perf_counter(), time.process_time()
    with durastore.open(f"s3://{given.place}", local=given.local, **options) as store:
        _put_all(store, samples, load)
        store.flush()
        found = {"wall_s": time.perf_counter() - begun, "cpu_s": time.process_time() - cpu}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()

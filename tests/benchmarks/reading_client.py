"""`python -m tests.benchmarks.reading_client LOADER ...`: one epoch of one loader, in a process of its own.

Runs in the loader's own environment, so it imports nothing of ours but, for durastore's sides, the package. Prints what
was read as JSON: samples, wall and CPU seconds of this process and its workers (from opening the data set to the
workers' end; imports do not count), and a sum over parts of every sample, by which wrong bytes show.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from importlib.metadata import version
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate

from tests.benchmarks.reading_material import touched
from tests.benchmarks.reading_peers import without_vision

BATCH = 8
WORKERS = 2
SEED = 17
_ROW = (4, 576)

Batches = Iterable[Any]


def _tensor(data: Any) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.bfloat16).reshape(-1, *_ROW)


def _loader(dataset: Any, **more: Any) -> Batches:
    return DataLoader(dataset, batch_size=BATCH, num_workers=WORKERS, **more)


def _states(samples: list[Any]) -> Any:
    return importlib.import_module("durastore").stacked([sample.tensors["h"] for sample in samples])


def _durastore(given: argparse.Namespace) -> Any:
    return importlib.import_module("durastore").Dataset(f"s3://{given.place}", endpoint_url=given.endpoint_url)


def _durastore_threads(given: argparse.Namespace) -> Batches:
    """Without worker processes: threads fetch, check and decode ahead."""
    stream = _durastore(given).iterable(shuffle=SEED, batch_size=BATCH, block=given.block)
    return DataLoader(stream, batch_size=BATCH, collate_fn=_states)


def _durastore_map(given: argparse.Namespace) -> Batches:
    dataset = _durastore(given)
    return _loader(dataset, sampler=dataset.sampler(shuffle=SEED), collate_fn=_states)


def _durastore_stream(given: argparse.Namespace) -> Batches:
    stream = _durastore(given).iterable(shuffle=SEED, batch_size=BATCH, block=given.block)
    return _loader(stream, collate_fn=_states)


def _read_bytes(item: Any) -> torch.Tensor:
    return _tensor(item.read())


def _s3torchconnector(given: argparse.Namespace) -> Batches:
    package = importlib.import_module("s3torchconnector")
    config = package.S3ClientConfig(force_path_style=True)
    dataset = package.S3MapDataset.from_prefix(
        f"s3://{given.place}/",
        region=os.environ["AWS_DEFAULT_REGION"],
        endpoint=given.endpoint_url,
        transform=_read_bytes,
        s3client_config=config,
    )
    return _loader(dataset, shuffle=True)


def _column(samples: list[Any]) -> Any:
    return default_collate([_tensor(sample["h"]) for sample in samples])


def _mosaicml(given: argparse.Namespace) -> Batches:
    os.environ["S3_ENDPOINT_URL"] = given.endpoint_url
    dataset = importlib.import_module("streaming").StreamingDataset(
        remote=f"s3://{given.place}", local=given.cache, shuffle=True, batch_size=BATCH, shuffle_seed=SEED
    )
    return _loader(dataset, collate_fn=_column)


def _litdata(given: argparse.Namespace) -> Batches:
    package = importlib.import_module("litdata")
    # Its fast client refuses an endpoint without TLS, and there is no option for it.
    importlib.import_module("litdata.streaming.downloader")._OBSTORE_CLIENT_OPTIONS["allow_http"] = True
    dataset = package.StreamingDataset(
        f"s3://{given.place}",
        cache_dir=given.cache,
        shuffle=True,
        seed=SEED,
        storage_options={"endpoint_url": given.endpoint_url},
    )
    return package.StreamingDataLoader(dataset, batch_size=BATCH, num_workers=WORKERS, collate_fn=_column)  # type: ignore[no-any-return]


def _webdataset(given: argparse.Namespace) -> Batches:
    package = importlib.import_module("webdataset")
    shards = [
        f"pipe:{given.s5cmd} --endpoint-url {given.endpoint_url} cat s3://{given.place}/{number:06d}.tar"
        for number in range(given.shards)
    ]
    samples: IterableDataset[Any] = package.WebDataset(shards, shardshuffle=len(shards), seed=SEED, empty_check=False)
    return _loader(samples.shuffle(256), collate_fn=_column)  # type: ignore[attr-defined]


LOADERS: dict[str, tuple[str, str, Callable[[argparse.Namespace], Batches]]] = {
    "durastore": ("durastore", "durastore", _durastore_threads),
    "durastore, 2 workers": ("durastore", "durastore", _durastore_stream),
    "durastore, 2 workers, map": ("durastore", "durastore", _durastore_map),
    "s3torchconnector": ("s3torchconnector", "s3torchconnector", _s3torchconnector),
    "mosaicml": ("mosaicml-streaming", "streaming", _mosaicml),
    "litdata": ("litdata", "litdata", _litdata),
    "webdataset": ("webdataset", "webdataset", _webdataset),
}
"""Package, what is imported of it, and what opens it."""


def _cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def _until(batches: Batches, limit_s: float) -> Iterator[torch.Tensor]:
    end = time.perf_counter() + limit_s
    for batch in batches:
        yield batch
        if time.perf_counter() > end:
            return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("loader", choices=sorted(LOADERS))
    parser.add_argument("--place", required=True, help="bucket/prefix")
    parser.add_argument("--endpoint-url", required=True)
    parser.add_argument("--cache", required=True, help="an empty folder for loaders that fetch whole shards")
    parser.add_argument("--block", type=int, required=True, help="of durastore's streams")
    parser.add_argument("--shards", type=int, default=0)
    parser.add_argument("--s5cmd", default="s5cmd")
    parser.add_argument("--limit-s", type=float, required=True, help="an epoch that takes longer is cut here")
    given = parser.parse_args()
    package, imported, open_loader = LOADERS[given.loader]
    without_vision()
    importlib.import_module(imported)
    for lazy in ("boto3", "pyarrow.parquet"):  # who needs them imports them late; others do not have them
        with suppress(ImportError):
            importlib.import_module(lazy)
    torch.set_num_threads(1)
    begun, cpu_s = time.perf_counter(), _cpu_s()
    loader = open_loader(given)
    samples, total = 0, 0
    for batch in _until(loader, given.limit_s):
        samples += len(batch)
        total += touched(batch)
    wall_s = time.perf_counter() - begun
    del loader  # ends and reaps the workers
    found = {"samples": samples, "sum": total, "wall_s": wall_s, "cpu_s": _cpu_s() - cpu_s}
    sys.stdout.write(json.dumps({**found, "version": version(package)}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()

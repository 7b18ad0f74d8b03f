"""`python -m tests.benchmarks.reading_write LOADER LOAD STATES FOLDER`: the samples in a loader's own format, as files.

Runs in the loader's own environment.
"""

from __future__ import annotations

import importlib
import sys
import tarfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import torch

from tests.benchmarks.reading_material import READ_LOADS, ReadLoad, samples_of
from tests.benchmarks.reading_peers import without_vision

__all__ = ["main"]

_SHARD_BYTES = 64 << 20

Samples = Iterator[tuple[str, bytes]]


def _bytes_of(load: ReadLoad, states: Path) -> Samples:
    for name, tensor in samples_of(load, states):
        yield Path(name).name, tensor.view(torch.uint8).numpy().tobytes()


def _objects(samples: Samples, folder: Path) -> None:
    for name, data in samples:
        (folder / name).write_bytes(data)


def _mosaicml(samples: Samples, folder: Path) -> None:
    without_vision()
    streaming = importlib.import_module("streaming")
    with streaming.MDSWriter(out=str(folder), columns={"h": "bytes"}, size_limit=_SHARD_BYTES) as writer:
        for _, data in samples:
            writer.write({"h": data})


def _litdata(samples: Samples, folder: Path) -> None:
    cache = importlib.import_module("litdata.streaming.cache").Cache(str(folder), chunk_bytes=_SHARD_BYTES)
    for number, (_, data) in enumerate(samples):
        cache[number] = {"h": data}
    cache.done()
    cache.merge()


def _webdataset(samples: Samples, folder: Path) -> None:
    """Shards of up to 64 MiB, as its own writer makes them."""
    shard, number, size = None, 0, 0
    for name, data in samples:
        if shard is None or size + len(data) > _SHARD_BYTES:
            if shard is not None:
                shard.close()
            shard = tarfile.open(folder / f"{number:06d}.tar", "w")  # noqa: SIM115 - closed with the next one
            number, size = number + 1, 0
        member = tarfile.TarInfo(f"{name}.h")
        member.size = len(data)
        shard.addfile(member, BytesIO(data))
        size += len(data)
    if shard is not None:
        shard.close()


WRITERS = {"s3torchconnector": _objects, "mosaicml": _mosaicml, "litdata": _litdata, "webdataset": _webdataset}


def main() -> None:
    loader, load, states, folder, count = sys.argv[1:]
    samples = _bytes_of(READ_LOADS[load].shortened(int(count)), Path(states))
    WRITERS[loader](samples, Path(folder))


if __name__ == "__main__":
    main()

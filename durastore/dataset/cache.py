"""A cache of samples on a disk of the training node, shared by its processes.

Duty: keep stored bytes of samples whose every chunk matched, and give them back to be checked again. A damaged file is
told of, dropped, and its sample fetched anew. Must never hold what the bucket does not, and never stop a training run
for what a cache cannot do.

Each sample of a shuffled epoch is read once, so what was cached last is no more likely to be read soon than anything
else: dropping samples of the dataset for others of it would cost writes and win nothing. So a full cache keeps what
it has, and drops only files that are no samples of the dataset that is read, the oldest first.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np

from durastore.clock import SYSTEM_CLOCK
from durastore.errors import ConfigError, DiskFailed, IntegrityError
from durastore.formats.spool_root import ROOT_MARKER_NAME
from durastore.fsio.evict import CacheFolder
from durastore.manifest.view import ResolvedView
from durastore.model import ManifestRow
from durastore.observe.events import LOGGER
from durastore.texts import expanded, parse_size

__all__ = ["NodeCache", "SampleShelf"]

_NAME = re.compile(r"[0-9a-f]{32}")
_OVERHEAD_BYTES = 64 << 10  # the folder itself, its ledger and marker


class NodeCache:
    """Where samples are cached, and how many bytes of disk that may take in all: `NodeCache("/nvme/cache", 50 << 30)`.

    The folder is empty, new, or such a cache of the same limit; every process of the node names the same one.
    """

    def __init__(self, folder: str | Path, limit_bytes: int | str) -> None:
        """`limit_bytes`: bytes, or a size such as "50 GiB". It has to hold the largest sample for each process of the
        node: the dataset that is given the cache raises `ConfigError` where it does not, or where the folder is
        something else. `ConfigError` for what is no size.
        """
        self.folder = expanded(folder)
        self.limit_bytes = _size(limit_bytes)

    def __repr__(self) -> str:
        return f"NodeCache({str(self.folder)!r}, {self.limit_bytes})"


def _size(limit: object) -> int:
    try:
        size = parse_size(limit) if isinstance(limit, str) else limit
    except ValueError:
        size = None
    if not isinstance(size, int) or isinstance(size, bool) or size <= 0:
        raise ConfigError(f"the limit of a cache is {limit!r}", hint='give bytes, or a size such as "50 GiB"')
    return size


class SampleShelf:
    """The cache as one dataset reads it. Thread-safe, picklable, usable after fork."""

    def __init__(self, cache: NodeCache, view: ResolvedView) -> None:
        """Raises `ConfigError` where the folder is something else, or the limit cannot hold the largest samples."""
        self._cache = cache
        self._largest = _largest(view)
        self._check_limit(_processes_of_node())
        _refuse_spools(cache.folder)
        self._files = CacheFolder(cache.folder, limit_bytes=cache.limit_bytes, clock=SYSTEM_CLOCK)
        self._known = np.sort(np.concatenate([np.empty(0, np.uint64), *_prefixes(view)]))
        self._checked_pid: int | None = None
        self._told: set[str] = set()
        self.damaged: list[str] = []
        """Files that this process found damaged, dropped and read from the bucket instead."""

    def has(self, row: ManifestRow) -> bool:
        self._check_process()
        return self._files.has(_name(row))

    def take(self, row: ManifestRow) -> bytes | None:
        self._check_process()
        return self._files.read(_name(row), size_bytes=row.entry.length)

    def offer(self, row: ManifestRow, data: memoryview) -> None:
        try:
            self._files.keep(_name(row), data, is_spare=self._is_spare)
        except DiskFailed as exc:
            if exc.message not in self._told:  # once: it may be so for every sample
                self._told.add(exc.message)
                LOGGER.warning("sample %r is not kept, nor others while this is so: %s", row.entry.sample_id.text, exc)

    def reject(self, row: ManifestRow, fault: IntegrityError) -> None:
        path = self._cache.folder / _name(row)
        LOGGER.warning(
            "cache file %s of sample %r is damaged, it is read from the bucket: %s",
            path,
            row.entry.sample_id.text,
            fault.message,
        )
        self.damaged.append(str(path))
        try:
            self._files.forget(path.name)
        except DiskFailed as exc:
            LOGGER.warning("cache file %s cannot be dropped: %s", path, exc)

    def _is_spare(self, name: str) -> bool:
        """Whether a file is no sample of this dataset. A stranger whose name begins like one of ours stays."""
        if _NAME.fullmatch(name) is None:
            return False  # somebody else's: not ours to judge
        prefix = np.uint64(int(name[:16], 16))
        at = int(np.searchsorted(self._known, prefix))
        return at == len(self._known) or self._known[at] != prefix

    def _check_process(self) -> None:
        """Once in each process: in a loader's worker it is known how many share the limit."""
        if self._checked_pid != os.getpid():
            self._check_limit(_processes_of_node())
            self._checked_pid = os.getpid()

    def _check_limit(self, processes: int) -> None:
        need = self._largest * processes + _OVERHEAD_BYTES
        if self._cache.limit_bytes < need:
            raise ConfigError(
                f"a cache of {self._cache.limit_bytes} bytes cannot hold the largest sample ({self._largest} bytes) "
                f"for each of {processes} processes",
                hint=f"allow at least {need} bytes, or leave the cache out",
            )

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_checked_pid": None, "_told": set(), "damaged": []}


def _name(row: ManifestRow) -> str:
    """The header's digest: it covers every byte of the sample, so equal names are equal samples."""
    return row.entry.header_digest.hex


def _largest(view: ResolvedView) -> int:
    sizes = [int(batch.column("length").to_numpy().max()) for batch in view.batches(["length"]) if len(batch)]
    return max(sizes, default=0)


def _prefixes(view: ResolvedView) -> list[Any]:
    """The first 8 bytes of each header digest: 8 bytes a sample in memory."""
    found = []
    for batch in view.batches(["header_digest"]):
        values: list[Any] = batch.column("header_digest").to_pylist()
        found.append(np.array([int.from_bytes(value[:8], "big") for value in values], np.uint64))
    return found


def _processes_of_node() -> int:
    """Processes that read at once on this node, as far as this one can tell: loader workers times local ranks."""
    data = sys.modules.get("torch.utils.data")
    worker = data.get_worker_info() if data is not None else None
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return (1 if worker is None else int(worker.num_workers)) * (int(ranks) if ranks.isdecimal() else 1)


def _refuse_spools(folder: Path) -> None:
    for parent in (folder.absolute(), *folder.absolute().parents):
        if (parent / ROOT_MARKER_NAME).exists():
            raise ConfigError(f"{folder} lies in the spool root {parent}", hint="a cache needs a folder of its own")

"""What five million puts leave behind: the cost of the next durable put, the journal's size, memory per sample id.

The bucket is a directory on the same disk under another failure domain: in memory it would not fit, and what is
measured is the writing side. Groups of samples of 256 bytes of payload; packs are freed as soon as they are proven.
"""

from __future__ import annotations

import gc
import logging
import os
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import durastore
from durastore.objectstore.directory import DirectoryStore
from durastore.store.store import Store
from tests.benchmarks.pairs import Line, in_turns, wall_s

__all__ = ["SCALE_PUTS", "scale_lines"]

SCALE_PUTS = 5_000_000
_GROUP = 2_000
_REPORT_EVERY = 1_000_000
_JOURNAL_GOAL = 64 << 20
_TELL = logging.getLogger("benchmarks")


class OtherDisk(DirectoryStore):
    """A directory that says it is on another disk: a copy here proves nothing, and nothing of it is kept."""

    @property
    def failure_domain(self) -> str:
        return "disk:another"


def scale_lines(*, puts: int, turns: int, work: Path) -> Iterator[Line]:
    work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=work) as folder:
        yield from _lines(Path(folder), puts=puts, turns=turns)


def _lines(place: Path, *, puts: int, turns: int) -> Iterator[Line]:
    aged, fresh = _open(place, "aged"), _open(place, "fresh")
    try:
        journal_most, growth = _fill(aged, place / "aged", puts=puts)
        aged.drain()
        numbers = iter(range(1_000_000_000))
        put_s, fresh_s = in_turns(
            lambda: aged.put(f"timed/{next(numbers)}", _tensors(1)),
            lambda: fresh.put(f"timed/{next(numbers)}", _tensors(1)),
            measure=wall_s,
            n=turns,
        )
        journal_now = _journal_bytes(place / "aged")
    finally:
        aged.close()
        fresh.close()
    millions = f"{puts / 1e6:g} million"
    yield Line(
        name=f"durable put after {millions} puts, p50",
        durastore=put_s * 1e3,
        peer=fresh_s * 1e3,
        peer_name="a fresh spool, in turns",
        unit="ms",
        goal="<= 1.2",
    )
    for when, size in (("at most while", journal_most), ("after", journal_now)):
        yield Line(
            name=f"journal with its WAL {when} {millions} puts",
            durastore=size / 1e6,
            peer=_JOURNAL_GOAL / 1e6,
            peer_name="64 MiB",
            unit="MB",
            goal="<= 1.0",
        )
    yield Line(
        name=f"resident memory per million ids ({millions})",
        durastore=growth / 1e6,
        peer=33.0,
        peer_name="33 bytes an id",
        unit="MB",
        goal="<= 2.0",
    )


def _open(place: Path, name: str) -> Store:
    bucket = place / f"{name}-bucket"
    bucket.mkdir()
    return durastore.open(
        f"file://{bucket}", local=place / name, objects=OtherDisk(bucket), reclaim="eager", settle_s=0.0
    )


def _tensors(number: int) -> dict[str, np.ndarray]:
    return {"h": np.arange(number, number + 64, dtype=np.float32)}


def _fill(store: Store, spool: Path, *, puts: int) -> tuple[int, float]:
    """Put them all; returns the most bytes the journal had, and the growth of resident memory per million ids."""
    most, begun, at_first = 0, time.monotonic(), 0
    for start in range(0, puts, _GROUP):
        store.put_many({f"shard-{n >> 16}/sample-{n}": _tensors(n & 0xFFFF) for n in range(start, start + _GROUP)})
        done = start + _GROUP
        if done % (10 * _GROUP) == 0:
            most = max(most, _journal_bytes(spool))
        if done % _REPORT_EVERY == 0 or done == puts:
            store.flush()
            gc.collect()
            rss = _resident_bytes()
            at_first = at_first or rss
            _TELL.info(
                "%d puts, %.0f a second, resident %.0f MB, journal %.1f MB at most",
                done, done / (time.monotonic() - begun), rss / 1e6, most / 1e6,
            )  # fmt: skip
    beyond_first = (puts - _REPORT_EVERY) / 1e6
    return most, (_resident_bytes() - at_first) / beyond_first if beyond_first > 0 else float(at_first)


def _journal_bytes(root: Path) -> int:
    return sum(path.stat().st_size for path in root.glob("w-*/journal-*.sqlite*"))


def _resident_bytes() -> int:
    if sys.platform != "linux":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")

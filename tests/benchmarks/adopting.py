"""Adopting files as they are, beside `rclone copy` and `rclone check` of the same files: whole processes, client CPU.

What each side has done at its end is not the same. durastore has looked into every file, sent it, read its object back
in full and hashed it, listed it in a manifest segment that was read back too, and put its digest on record; rclone has
sent the files and compared the MD5 of each with the one that the server tells.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from durastore.demo.seaweed import SeaweedServer
from tests.benchmarks.pairs import Line
from tests.benchmarks.peers import install_peers
from tests.benchmarks.reconciling import Ended, durastore_command, environment_of, run_process

__all__ = ["adopting_lines"]

LOGGER = logging.getLogger(__name__)
_FILES_A_FOLDER = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Load:
    count: int
    size_bytes: int

    @property
    def name(self) -> str:
        return f"adopt {self.count:,} x {self.size_bytes / 1e6:g} MB"


_LOADS = (_Load(count=10_000, size_bytes=64_000), _Load(count=100, size_bytes=20_000_000))


def adopting_lines(*, turns: int, work: Path) -> Iterator[Line]:
    """Files a second, client CPU and peak memory, medians of turns. Raw numbers of each turn go to the log."""
    work.mkdir(exist_ok=True)
    rclone = [str(install_peers(work / "peers") / "rclone"), "--config", os.devnull]
    for load in _LOADS:
        mine: list[Ended] = []
        others: list[Ended] = []
        for turn in range(turns):  # a server and files of its own each time: nothing is there already
            mine_ended, other = _turn(load, work=work, rclone=rclone, is_first=turn % 2 == 0)
            LOGGER.info("%s: %s, rclone %s", load.name, _shown(mine_ended), _shown(other))
            mine.append(mine_ended)
            others.append(other)
        yield from _compare(load, mine, others)


def _compare(load: _Load, mine: list[Ended], others: list[Ended]) -> Iterator[Line]:
    def median(of: list[Ended], what: str) -> float:
        return float(statistics.median(getattr(each, what) for each in of))

    for unit, what in (("s", "wall_s"), ("CPU-s", "cpu_s"), ("MB", "peak_mb")):
        yield Line(
            name=load.name,
            durastore=median(mine, what),
            peer=median(others, what),
            peer_name="rclone copy, rclone check",
            unit=unit,
        )


def _shown(ended: Ended) -> str:
    return f"{ended.wall_s:.2f} s, {ended.cpu_s:.2f} CPU-s, {ended.peak_mb:.0f} MB"


def _turn(load: _Load, *, work: Path, rclone: list[str], is_first: bool) -> tuple[Ended, Ended]:
    """One run of each, `is_first`: durastore's first; both on a warm cache."""
    with (
        tempfile.TemporaryDirectory(dir=work) as folder,
        SeaweedServer.start(Path(folder) / "server", log=Path(folder) / "log") as server,
    ):
        data = Path(folder) / "data"
        _make_files(data, load)
        environment = environment_of(server.environment())
        sides: list[Callable[[], Ended]] = [
            lambda: _adopt(data, server, environment=environment, count=load.count),
            lambda: _copy(data, server, environment=environment, rclone=rclone),
        ]
        ended = [side() for side in (sides if is_first else sides[::-1])]
        return (ended[0], ended[1]) if is_first else (ended[1], ended[0])


def _adopt(data: Path, server: SeaweedServer, *, environment: dict[str, str], count: int) -> Ended:
    where = ["--bucket", f"s3://{server.make_bucket()}/p", "--endpoint-url", server.endpoint_url]
    ended = run_process(durastore_command(["adopt", str(data), *where, "--json"]), environment)
    if ended.code or json.loads(ended.output)["applied"]["uploaded"] != count:
        raise AssertionError(f"durastore adopt ended with {ended.code}")
    shutil.rmtree(data / ".durastore")  # of this benchmark's own folder, for the other side
    return ended


def _copy(data: Path, server: SeaweedServer, *, environment: dict[str, str], rclone: list[str]) -> Ended:
    remote = f":s3,provider=Other,env_auth=true,endpoint='{server.endpoint_url}',force_path_style=true:"
    target = f"{remote}{server.make_bucket()}"
    copied = run_process([*rclone, "copy", "--transfers", "16", str(data), target], environment)
    checked = run_process([*rclone, "check", "--checkers", "16", "--fast-list", str(data), target], environment)
    if copied.code or checked.code:
        raise AssertionError(f"rclone ended with {copied.code}, {checked.code}")
    return replace(
        copied,
        wall_s=copied.wall_s + checked.wall_s,
        cpu_s=copied.cpu_s + checked.cpu_s,
        peak_mb=max(copied.peak_mb, checked.peak_mb),
    )


def _make_files(folder: Path, load: _Load) -> None:
    """Whole .npy files of random bytes, of which no two are equal."""
    rng = np.random.default_rng(7)
    for number in range(load.count):
        path = folder / f"rows_{number // _FILES_A_FOLDER:03d}" / f"data_{number}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, rng.integers(0, 256, load.size_bytes - 128, dtype=np.uint8))

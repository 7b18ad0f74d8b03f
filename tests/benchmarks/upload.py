"""From `put` to MANIFESTED beside tools that copy ready files, on one SeaweedFS server, in turns.

The peers read files that lie in the page cache and answer for nothing. durastore opens a spool, encodes, writes, syncs,
uploads, proves each copy by another request, publishes the manifest and reads it back. Both begin with their client's
start, but for the interpreter's own.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import torch

from durastore.demo.seaweed import SeaweedServer
from tests.benchmarks.material import LOADS, Load, write_files
from tests.benchmarks.pairs import Line
from tests.benchmarks.peers import PEERS, Cost, install_peers, run_peer

__all__ = ["upload_lines"]

_QUICK = {"16KB": 5_000, "1.2MB": 150, "64MB": 4}
_GOALS = {"16KB": ">= 5.0", "1.2MB": ">= 1.0", "64MB": ">= 1.0"}
_OPPONENTS = {"16KB": ("s5cmd 2.3",), "1.2MB": tuple(PEERS), "64MB": tuple(PEERS)}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bench:
    server: SeaweedServer
    bucket: str
    work: Path
    states: Path
    programs: Path
    places: Iterator[int]

    def theirs(self, name: str) -> Cost:
        place = f"{self.bucket}/{next(self.places)}"
        return run_peer(name, self.work / "files", place=place, server=self.server, programs=self.programs)

    def ours(self, load: Load, *, compress: str) -> Cost:
        """In a process of its own, so that its CPU seconds are its own."""
        spool = self.work / "spool"
        command = [
            *(sys.executable, "-m", "tests.benchmarks.uploading", load.name, "--count", str(load.count)),
            *("--place", f"{self.bucket}/{next(self.places)}", "--endpoint-url", self.server.endpoint_url),
            *("--local", str(spool), "--states", str(self.states), "--compress", compress),
        ]
        environment = {**os.environ, **self.server.environment()}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, text=True)
        shutil.rmtree(spool)
        return Cost(**json.loads(done.stdout.splitlines()[-1]))


def upload_lines(states: Path, *, turns: int, is_quick: bool, only: Sequence[str] = tuple(LOADS)) -> Iterator[Line]:
    """Three loads; for 64 MB also without compression, CPU against CPU."""
    programs = install_peers(states.parent / "peers")
    for name in only:
        load = LOADS[name].shortened(_QUICK[name]) if is_quick else LOADS[name]
        with tempfile.TemporaryDirectory(dir=states.parent) as folder:
            work = Path(folder)
            write_files(load, torch.load(states, weights_only=True), work / "files")
            with SeaweedServer.start(work / "server", log=work / "server.log") as server:
                bench = _Bench(
                    server=server,
                    bucket=server.make_bucket(),
                    work=work,
                    states=states,
                    programs=programs,
                    places=count(1),
                )
                yield from _lines(bench, load, turns=turns)


def _lines(bench: _Bench, load: Load, *, turns: int) -> Iterator[Line]:
    ours: list[Cost] = []
    plain: list[Cost] = []
    theirs: dict[str, list[Cost]] = {name: [] for name in _OPPONENTS[load.name]}
    for _ in range(turns):
        for name, costs in theirs.items():
            costs.append(bench.theirs(name))
        ours.append(bench.ours(load, compress="auto"))
        if load.name == "64MB":
            plain.append(bench.ours(load, compress="none"))
    what = f"{load.count} x {load.size_bytes / 1e6:.2f} MB to MANIFESTED"
    yield _speed_line(what, ours, theirs=theirs, load=load)
    if plain:
        yield _speed_line(f"{what}, uncompressed", plain, theirs=theirs, load=load)
        yield _cpu_line(f"{what}, uncompressed, client CPU", plain, theirs=theirs["s5cmd 2.3"], load=load)


def _speed_line(name: str, ours: Sequence[Cost], *, theirs: Mapping[str, Sequence[Cost]], load: Load) -> Line:
    """Against the fastest of them."""
    fastest = min(theirs, key=lambda peer: _wall_s(theirs[peer]))
    return Line(
        name=name,
        durastore=load.count / _wall_s(ours),
        peer=load.count / _wall_s(theirs[fastest]),
        peer_name=fastest,
        unit="samples/s",
        goal=_GOALS[load.name],
    )


def _wall_s(costs: Sequence[Cost]) -> float:
    return statistics.median(cost.wall_s for cost in costs)


def _cpu_line(name: str, ours: Sequence[Cost], *, theirs: Sequence[Cost], load: Load) -> Line:
    def per_gb(costs: Sequence[Cost]) -> float:
        return statistics.median(cost.cpu_s for cost in costs) / load.total_bytes * 1e9

    return Line(
        name=name,
        durastore=per_gb(ours),
        peer=per_gb(theirs),
        peer_name="s5cmd 2.3",
        unit="CPU-s per GB",
        goal="<= 1.0",
    )

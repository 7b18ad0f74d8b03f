"""An epoch through durastore's loaders and others', from one SeaweedFS server, in turns.

Each reads the same samples, which a step before wrote in its own format, with two `DataLoader` workers in batches of 8,
shuffled where it can; durastore also without workers, in threads alone. Nothing of it is on the reader's disk before
(first epoch). Each is read over loopback, and by way of a proxy that adds 20 ms to each request. CPU is the loader's
process and its workers, not server and proxy. durastore checks the digest of every header and chunk before a sample is
handed out; the others check none. The proxy also tells the bytes of all answers: beside those of the samples read they
say what a loader fetches in vain, or spares by compression.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import durastore
from durastore.demo.seaweed import SeaweedServer
from tests.benchmarks.pairs import Line
from tests.benchmarks.peers import install_peers
from tests.benchmarks.reading_material import READ_LOADS, ReadLoad, samples_of, touched
from tests.benchmarks.reading_peers import RANDOM_ACCESS, install_readers

__all__ = ["reading_lines"]

DELAY_S = 0.02
_LIMIT_S = 15.0
_PATIENCE_S = 60.0
_OURS = ("durastore", "durastore, 2 workers", "durastore, 2 workers, map")
_BLOCK_BYTES = 2 << 20
_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Epoch:
    """What one epoch took."""

    samples: int
    wall_s: float
    cpu_s: float
    is_wrong: bool
    """The samples are not those that were written: lost, doubled or damaged without an error."""
    fetched_bytes: int = 0
    """Of all answers, HTTP's headers too; 0 where nobody counted."""

    @property
    def rate(self) -> float:
        return self.samples / self.wall_s

    @property
    def cpu_ms(self) -> float:
        return self.cpu_s / self.samples * 1e3


@dataclass(slots=True, kw_only=True)
class _Bench:
    server: SeaweedServer
    bucket: str
    work: Path
    states: Path
    programs: Path
    pythons: Mapping[str, Path]
    load: ReadLoad
    expected: int = 0
    versions: dict[str, str] = field(default_factory=dict)

    def write(self) -> None:
        """The samples in each loader's format into the bucket, and the sum that an epoch has to come to."""
        self.expected = sum(touched(tensor[None]) for _, tensor in samples_of(self.load, self.states))
        os.environ.update(self.server.environment())
        _put_all(f"s3://{self.bucket}/durastore", self)
        for name, python in self.pythons.items():
            folder = self.work / name
            folder.mkdir()
            arguments = [name, self.load.name, str(self.states), str(folder), str(self.load.count)]
            self._run([python, "-m", "tests.benchmarks.reading_write", *arguments])
            copy = [self.programs / "s5cmd", "--endpoint-url", self.server.endpoint_url, "cp", f"{folder}/*"]
            self._run([*copy, f"s3://{self.bucket}/{name}/"])
            shutil.rmtree(folder)

    def read(self, name: str, *, way: _Way) -> _Epoch | None:
        """One epoch in a process of its own; None where another's loader fails. `SystemExit` where ours does."""
        with tempfile.TemporaryDirectory(dir=self.work, ignore_cleanup_errors=True) as cache:
            place = f"{self.bucket}/{'durastore' if name in _OURS else name}"
            command = [
                *(self.pythons.get(name, Path(sys.executable)), "-m", "tests.benchmarks.reading_client", name),
                *("--place", place, "--endpoint-url", way.url, "--cache", cache),
                *("--shards", self._shards, "--s5cmd", self.programs / "s5cmd", "--limit-s", _LIMIT_S),
                *("--block", max(1, _BLOCK_BYTES // self.load.size_bytes)),
            ]
            before = way.answered_bytes()
            try:
                found = json.loads(self._run(command, limit_s=_PATIENCE_S).splitlines()[-1])
            except (SystemExit, subprocess.TimeoutExpired) as exc:
                if name in _OURS:
                    raise
                sys.stderr.write(f"{name} failed: {str(exc).splitlines()[-1][:200]}\n")
                return None
        self.versions[name] = found["version"]
        is_wrong = found["samples"] >= self.load.count and found["sum"] != self.expected
        if is_wrong and name in _OURS:
            raise SystemExit(f"{name} gave {found['samples']} samples, and wrong bytes")
        fetched = way.answered_bytes() - before
        given = {member: found[member] for member in ("samples", "wall_s", "cpu_s")}
        return _Epoch(**given, is_wrong=is_wrong, fetched_bytes=fetched)

    @property
    def _shards(self) -> int:
        per_shard = (64 << 20) // self.load.size_bytes
        return -(-self.load.count // per_shard)

    def _run(self, command: Sequence[object], *, limit_s: float | None = None) -> str:
        environment = {
            **os.environ,
            **self.server.environment(),
            "PYTHONPATH": f"{_ROOT}:{_ROOT / 'cli'}",
            "TMPDIR": str(self.work),
        }
        log = self.work / "client.log"
        with log.open("ab") as errors:
            done = subprocess.run(
                list(map(str, command)),
                check=False,
                timeout=limit_s,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=_ROOT,
            )
        if done.returncode:
            raise SystemExit(f"{command} ended with {done.returncode}:\n{log.read_text(errors='replace')[-3000:]}")
        return done.stdout


def _check_room(bench: _Bench) -> None:
    """A full disk would hurt others, and the server answers it with errors."""
    need = bench.load.total_bytes * (len(bench.pythons) + 4)
    if shutil.disk_usage(bench.work).free < need:
        raise SystemExit(f"{need >> 20} MB of disk are needed in {bench.work}")


def _put_all(url: str, bench: _Bench) -> None:
    group = max(1, (4 << 20) // bench.load.size_bytes)
    local = bench.work / "spool"
    with durastore.open(url, local=local, endpoint_url=bench.server.endpoint_url) as store:
        batch: dict[str, dict[str, object]] = {}
        for name, tensor in samples_of(bench.load, bench.states):
            batch[name] = {"h": tensor}
            if len(batch) == group:
                store.put_many(batch)
                batch = {}
        if batch:
            store.put_many(batch)
        store.flush()
    shutil.rmtree(local)


@dataclass(frozen=True, slots=True)
class _Way:
    """How a loader comes to the server."""

    url: str
    proxy: subprocess.Popen[str] | None = None

    def answered_bytes(self) -> int:
        """Of all answers so far; 0 without a proxy."""
        if self.proxy is None or self.proxy.stdin is None or self.proxy.stdout is None:
            return 0
        self.proxy.stdin.write("\n")
        self.proxy.stdin.flush()
        return int(self.proxy.stdout.readline())


@contextmanager
def _far_away(server: SeaweedServer) -> Iterator[_Way]:
    """To the server by the proxy."""
    command = [sys.executable, "-m", "tests.benchmarks.latency_proxy", str(server.port), str(DELAY_S)]
    proxy = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=_ROOT)
    try:
        if proxy.stdout is None or proxy.stdin is None:
            raise AssertionError("asked for pipes")
        yield _Way(f"http://127.0.0.1:{proxy.stdout.readline().strip()}", proxy)
    finally:
        proxy.communicate()


def _added_s(server: SeaweedServer, far_url: str) -> float:
    """What the proxy really adds to a small request: medians of 21, connections warm."""
    import boto3

    session = boto3.Session(server.access_key, server.secret_key, region_name=server.region)
    medians = []
    for url in (server.endpoint_url, far_url):
        client = session.client("s3", endpoint_url=url)
        times = []
        for _ in range(21):
            begun = time.perf_counter()
            client.list_buckets()
            times.append(time.perf_counter() - begun)
        medians.append(statistics.median(times))
    return medians[1] - medians[0]


def reading_lines(*, states: Path, turns: int, only: Sequence[str] = tuple(READ_LOADS)) -> Iterator[Line]:
    """For each load: CPU a sample and samples/s, against the best loader that offers random access."""
    pythons = install_readers(states.parent / "readers")
    programs = install_peers(states.parent / "peers")
    for name in only:
        with tempfile.TemporaryDirectory(dir=states.parent) as folder:
            work = Path(folder)
            with SeaweedServer.start(work / "server", log=work / "server.log") as server:
                bench = _Bench(
                    server=server,
                    bucket=server.make_bucket(),
                    work=work,
                    states=states,
                    programs=programs,
                    pythons=pythons,
                    load=READ_LOADS[name],
                )
                _check_room(bench)
                bench.write()
                yield from _lines(bench, turns=turns)


def _lines(bench: _Bench, *, turns: int) -> Iterator[Line]:
    names = (*_OURS, *bench.pythons)
    with _far_away(bench.server) as far:
        places = {"loopback": _Way(bench.server.endpoint_url), "20 ms": far}
        sys.stderr.write(f"the proxy adds {_added_s(bench.server, far.url) * 1e3:.1f} ms to a request\n")
        found: dict[tuple[str, str], list[_Epoch]] = {(place, name): [] for place in places for name in names}
        for turn in range(turns):
            for place, way in places.items():
                for name in names if turn % 2 else reversed(names):
                    epoch = bench.read(name, way=way)
                    if epoch is None:
                        continue
                    found[place, name].append(epoch)
                    wrong = ", WRONG BYTES" if epoch.is_wrong else ""
                    share = epoch.fetched_bytes / (epoch.samples * bench.load.size_bytes)
                    fetched = f", {share:.3f} of its bytes fetched" if share else ""
                    sys.stderr.write(
                        f"{bench.load.name} {place} {name} {bench.versions[name]}: {epoch.samples} samples,"
                        f" {epoch.rate:.0f}/s, {epoch.cpu_ms:.3f} CPU-ms each{fetched}{wrong}\n"
                    )
    for ours in _OURS:
        for place in places:
            yield _line(found, ours, place=place, load=bench.load, is_cpu=True)
            yield _line(found, ours, place=place, load=bench.load, is_cpu=False)


def _line(
    found: Mapping[tuple[str, str], Sequence[_Epoch]], ours: str, *, place: str, load: ReadLoad, is_cpu: bool
) -> Line:
    def median(name: str) -> float:
        return statistics.median(epoch.cpu_ms if is_cpu else epoch.rate for epoch in found[place, name])

    peers = [name for name in RANDOM_ACCESS if found.get((place, name))]
    best = min(peers, key=lambda name: median(name) if is_cpu else -median(name))
    return Line(
        name=f"{load.name}, {place}, {ours}",
        durastore=median(ours),
        peer=median(best),
        peer_name=best,
        unit="CPU-ms" if is_cpu else "samples/s",
        goal="<= 0.8" if is_cpu else ">= 1.3",
    )

"""Feeds jobs to a few fork servers at once, and judges what comes back.

The bucket lies on another file system than the spool (tmpfs), as a store demands before it reclaims.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

ROOT = Path(__file__).parents[2]
Job = dict[str, Any]
SERVERS = min(8, 2 * (os.cpu_count() or 1))  # a life waits about as long as it computes


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'cli'}"}


@contextmanager
def memory_folder() -> Iterator[Path]:
    """A folder on tmpfs for buckets and images; gone at the end."""
    folder = Path("/dev/shm") / f"durastore-crash-{os.getpid()}-{random.randrange(1 << 30):x}"
    folder.mkdir()
    try:
        yield folder
    finally:
        for line in Path("/proc/mounts").read_text().splitlines():
            mount = line.split()[1]
            if mount.startswith(f"{folder}/"):  # only after a failure: a server that died left it
                subprocess.run(["umount", "--lazy", mount], check=False)
        shutil.rmtree(folder, ignore_errors=True)


class _Server:
    """One fork server with its own two folders; takes the next job when it is through with one."""

    def __init__(self, script: Path, parents: tuple[Path, Path]) -> None:
        for parent in parents:
            parent.mkdir()
        self._folder = parents[1]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(script), *map(str, parents)],
                env=environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    @property
    def _log(self) -> Path:
        return self._folder / "log"

    def work(self, jobs: SimpleQueue[Job], results: list[dict[str, Any]]) -> None:
        """Until no job is left. A server that died leaves its job without a result."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._process:
            while True:
                try:
                    self._process.stdin.write(json.dumps(jobs.get_nowait()) + "\n")
                    self._process.stdin.flush()
                except (Empty, BrokenPipeError):
                    return
                line = self._process.stdout.readline()
                if not line:
                    return
                results.append(json.loads(line))

    def last_words(self) -> str:
        return self._log.read_text(errors="replace")[-2000:]

    def drop_folder(self) -> None:
        shutil.rmtree(self._folder)


def run_jobs(script: Path, jobs: Sequence[Job], *, spools: Path) -> list[dict[str, Any]]:
    """The result of every job, in no order. Fails if a server did not answer for one."""
    waiting: SimpleQueue[Job] = SimpleQueue()
    for job in jobs:
        waiting.put(job)
    results: list[dict[str, Any]] = []
    with memory_folder() as memory:
        names = [
            f"server-{number}" for number in range(min(SERVERS, -(-len(jobs) // 16)))
        ]  # one takes a second to start
        servers = [_Server(script, (memory / name, spools / name)) for name in names]
        threads = [threading.Thread(target=server.work, args=(waiting, results)) for server in servers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(results) == len(jobs), "\n".join(server.last_words() for server in servers)
    for server in servers:
        server.drop_folder()
    return results


def tell(numbers: str) -> None:
    """What a sweep showed, for whoever runs it (`pytest -s`)."""
    print(f"\n{numbers}")  # noqa: T201


def judge(results: Sequence[dict[str, Any]]) -> None:
    """Both oracles, and a recovery that came to its end, for every one of them."""
    bad = [result for result in results if result["faults"] or result["lost"] or not _is_settled(result)]
    shown = "\n".join(map(str, bad[:5]))
    assert not bad, f"{len(bad)} of {len(results)}; the first of them:\n{shown}"


def _is_settled(result: dict[str, Any]) -> bool:
    return bool(result["look_status"] == 0 and result["local_bytes"] == 0)

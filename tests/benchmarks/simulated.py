"""A spool root in which nothing works: status files and a queue as workers at work would leave them."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from durastore.clock import SYSTEM_CLOCK
from durastore.extract.job_book import KnownJob, begin_job
from durastore.extract.starts import Start
from durastore.extract.work_db import WorkDb
from durastore.formats.status import SLOT_BYTES, STORE_STATUS_NAME, WORKER_STATUS_NAME, render_slot
from durastore.fsio.folder import Folder
from durastore.fsio.status_file import StatusFile
from durastore.observe.status import (
    STAGES,
    Amount,
    AtRisk,
    Happening,
    PackAtRisk,
    Proofs,
    Room,
    Stage,
    StoreRecord,
    Teller,
    Transfers,
    WorkerRecord,
)
from durastore.spool.root import SpoolRoot

__all__ = ["SimulatedRun"]

_SAMPLE_BYTES = 1_180_000


class SimulatedRun:
    """`beat` writes what all workers would tell at a moment. Close it."""

    def __init__(self, path: Path, *, workers: int, samples: int, rate: float = 3.0) -> None:
        """`rate`: samples a second of each worker."""
        SpoolRoot.open(path, is_any_filesystem_allowed=True).close()
        self.path, self.workers, self.samples, self._rate = path, workers, samples, rate
        self._begun = SYSTEM_CLOCK.stamp()
        self._number = self._begun.wall_ns
        self._fill_queue()
        self._files: list[tuple[Folder, StatusFile, StatusFile]] = []
        with Folder.open(path) as root:
            for number in range(workers):
                folder = root.ensure_child(f"w-{number:02d}")
                store = StatusFile(folder, STORE_STATUS_NAME, slot_bytes=SLOT_BYTES)
                worker = StatusFile(folder, WORKER_STATUS_NAME, slot_bytes=SLOT_BYTES)
                self._files.append((folder, store, worker))

    def _fill_queue(self) -> None:
        db = WorkDb(self.path)
        with db.changing() as conn:
            conn.executemany(
                "INSERT INTO task (job, sample_id, input_digest, line, offset, size_bytes, tokens, state)"
                " VALUES ('j', ?, 'd', ?, 0, 100, ?, ?)",
                ((f"sample/{n:07d}", n, n % 4096, "stored" if n < self.samples // 3 else "open")
                 for n in range(self.samples)),
            )  # fmt: skip
        db.close()
        start = Start(
            stamp=self._begun, pid=os.getpid(), command=(), folder="/", run="r" * 32, bucket="s3://bucket/prefix",
            local=str(self.path), input="train.jsonl", model="m", max_tokens=None,
        )  # fmt: skip
        begin_job(self.path, KnownJob(job="j", start=start, workers=self.workers, inputs=self.samples))

    def beat(self, after_s: float) -> None:
        """How things stand so many seconds after the beginning; written as of now."""
        now = SYSTEM_CLOCK.stamp()
        self._number += 1
        for number, (_, store_file, worker_file) in enumerate(self._files):
            done = int(after_s * self._rate * (1 + 0.2 * (number % 5)))
            teller = Teller(
                pid=100_000 + number, host="simulated", boot_id=now.boot_id, started_ns=self._begun.wall_ns,
                written_ns=now.wall_ns, written_boottime_ns=now.boottime_ns,
            )  # fmt: skip
            store = _store(f"w-{number:02d}", teller, done=done, at_s=int(after_s))
            worker = WorkerRecord(
                teller=teller, spool=store.spool, number=number + 1, job="j", run="r" * 32, phase="extracting",
                ok=done, tokens=done * 900, tensor_bytes=done * _SAMPLE_BYTES, passes=done // 8, longest_pass_s=2.5,
                pass_s=0.7, queued=Amount(samples=3, size_bytes=3 * _SAMPLE_BYTES),
            )  # fmt: skip
            store_file.write(render_slot(store, number=self._number))
            worker_file.write(render_slot(worker, number=self._number))

    def end(self, after_s: float) -> None:
        """The processes say goodbye."""
        self.beat(after_s)

    def close(self) -> None:
        for folder, *files in self._files:
            for file in files:
                file.close()
            folder.close()


def _store(spool: str, teller: Teller, *, done: int, at_s: int) -> StoreRecord:
    amounts = {
        name: Amount(samples=max(0, done - 60 * at), packs=max(0, done - 60 * at) // 56,
                     size_bytes=max(0, done - 60 * at) * _SAMPLE_BYTES)
        for at, name in enumerate(STAGES[1:])
    }  # fmt: skip
    stages = tuple(
        Stage(name=name, done=amount, waiting=Amount(packs=at, samples=at * 56, size_bytes=at * 66_000_000))
        for at, (name, amount) in enumerate(amounts.items())
    )
    packs = tuple(
        PackAtRisk(name=f"0123456789abcdef-{done // 56 + n:012d}.tar", state="sealed", samples=56,
                   size_bytes=66_000_000, since_ns=teller.written_ns - (9 - n) * 10**9)
        for n in range(8)
    )  # fmt: skip
    record = StoreRecord(
        teller=teller, spool=spool, bucket="s3://bucket/prefix", run="r" * 32, stages=stages,
        room=Room(used_bytes=40 * 10**9 + at_s * 10**7, high_bytes=64 << 30, low_bytes=48 << 30, reserve_bytes=1 << 30,
                  free_bytes=10**12, disk_bytes=4 * 10**12),
        transfers=Transfers(retries=at_s // 10, slowdowns=at_s // 30, sent_bytes=done * _SAMPLE_BYTES),
        proofs=Proofs(attested=done // 56, read_back=done // 5600, last_pack="p", last_level="ATTESTED",
                      last_ns=teller.written_ns - 10**9),
        at_risk=AtRisk(total=Amount(samples=448, packs=8, size_bytes=8 * 66_000_000), shown=packs),
        happenings=tuple(Happening(at_ns=teller.written_ns - n * 10**10, what="upload.retry", text="what PUT, error"
                         " endpoint-overloaded, attempt 1") for n in range(8)),
    )  # fmt: skip
    return replace(record, wait=None)

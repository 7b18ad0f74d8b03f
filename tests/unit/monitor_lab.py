"""Facts for the monitor, made up: spools, jobs, time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from durastore.clock import Stamp
from durastore.extract.job_book import JobStanding, KnownJob
from durastore.extract.starts import Start
from durastore.monitor.facts import Liveness, RootFacts, SpoolFacts
from durastore.observe.status import (
    STAGES,
    Amount,
    Room,
    Stage,
    StoreRecord,
    Teller,
    WorkerRecord,
)

S = 1_000_000_000
BEGUN_NS = 1_700_000_000 * S


def teller(pid: int, **changes: Any) -> Teller:
    return replace(
        Teller(pid=pid, host="h", boot_id="b", started_ns=BEGUN_NS, written_ns=BEGUN_NS, written_boottime_ns=0),
        **changes,
    )


def stages(samples: int, *, waiting: dict[str, int] | None = None, size_bytes: int = 1_000_000) -> tuple[Stage, ...]:
    """`samples` through every stage, a pack of ten each; so many packs of 10 MB waiting."""
    queues = waiting or {}
    return tuple(
        Stage(
            name=name,
            done=Amount(samples=samples, packs=samples // 10, size_bytes=samples * size_bytes),
            waiting=Amount(packs=queues.get(name, 0), size_bytes=queues.get(name, 0) * 10_000_000),
        )
        for name in STAGES[1:]
    )


def spool(number: int, samples: int, *, liveness: Liveness = Liveness.LIVE, **changes: Any) -> SpoolFacts:
    name = f"w-{number:02d}"
    pid = changes.pop("pid", 1000 + number)
    store = StoreRecord(
        teller=changes.pop("teller", teller(pid)),
        spool=name,
        stages=stages(samples, waiting=changes.pop("waiting", None)),
        room=Room(used_bytes=samples * 1_000_000, high_bytes=10**11, low_bytes=10**10, free_bytes=10**12),
        **changes,
    )
    worker = WorkerRecord(teller=store.teller, spool=name, number=number, job="j", phase="extracting", ok=samples)
    return SpoolFacts(name=name, store=store, worker=worker, liveness=liveness, silent_s=0.4)


def root(*spools: SpoolFacts, inputs: int = 0, ok: int = 0, **changes: Any) -> RootFacts:
    start = Start(
        stamp=Stamp(boot_id="b", boottime_ns=0, wall_ns=BEGUN_NS),
        pid=99,
        command=(),
        folder="/",
        run="r",
        bucket="s3://b/p",
        local="/root",
        input="train.jsonl",
        model="m",
        max_tokens=None,
    )
    job = KnownJob(job="j", start=start, workers=max(1, len(spools)), inputs=inputs)
    jobs = (JobStanding(job=job, ok=ok, failed=0, skipped=0, leased=0),) if inputs else ()
    facts: dict[str, Any] = {"path": "/root", "spools": spools, "jobs": jobs, "living_pids": frozenset({99})}
    return RootFacts(**(facts | {"free_bytes": 10**12, "disk_bytes": 2 * 10**12} | changes))

"""The loss table: samples put through a store with eager reclaim while the server lies, judged from what it holds.

Duty: play one scene and say what became of each sample. A sample is *lost* if neither a local file nor the server
really has its bytes; it is *falsely reported* if a ticket, or the end of the run, said that the bucket has it and the
server has not. Nothing the library says is believed.
"""

from __future__ import annotations

import contextlib
import logging
import random
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import durastore
from durastore.errors import DurastoreError
from durastore.model import Digest
from durastore.objectstore.probe.result import ProbeResult
from durastore.observe.events import LOGGER
from durastore.spool.opened import save_probe_in_root
from durastore.spool.root import SpoolRoot
from durastore.store.store import Store
from durastore.store.tickets import Ticket
from durastore.testing.oracles import lost_samples
from durastore.testing.strict_s3 import StrictS3
from durastore.upload.engine import Uploader
from durastore.upload.job import UploadLimits
from tests.faults.loss_lies import SMALL_PARTS, Scene, When
from tests.faults.trial import SpeedClock, is_equal

__all__ = [
    "BUCKET",
    "FULL",
    "PREFIX",
    "QUICK",
    "SPEED",
    "Lab",
    "Outcome",
    "Stage",
    "Table",
    "environment",
    "judge",
    "put_all",
    "render_table",
    "samples_of",
]

KIB, MIB = 1 << 10, 1 << 20
BUCKET, PREFIX = "loss", "p"
SPEED = 4.0  # of the store's clock; the server's Date is the machine's, and may not drift far from ours


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The sizes of the samples; those above `part_bytes` go in parts."""

    sizes: tuple[int, ...]
    part_bytes: int
    quiet_s: float
    """A run that shows no progress for so long is ended, as an operator would."""


_FULL_SINGLE = (0, 1, 7, 100, 1000, 4 * KIB, 10_000, 64 * KIB, 64 * KIB + 1, 200_000, 900_000, 1_900_000)
_FULL_PARTS = (2 + 1 / MIB, 2.1, 2.2, 2.5, 3, 3.2, 3.5, 4 - 1 / MIB, 4, 4 + 1 / MIB, 5, 20)
_QUICK_SINGLE = (0, 1, 100, 4 * KIB, 10_000, 30_000, 50_000, 60_000)
_QUICK_PARTS = (64, 65, 80, 128, 192, 300, 900, 1500)
FULL = Table(sizes=(*_FULL_SINGLE, *(int(size * MIB) for size in _FULL_PARTS)), part_bytes=2 * MIB, quiet_s=5.0)
QUICK = Table(sizes=(*_QUICK_SINGLE, *(size * KIB for size in _QUICK_PARTS)), part_bytes=64 * KIB, quiet_s=2.0)


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What one scene came to."""

    scene: Scene
    put: int = 0
    stored: int = 0
    kept: int = 0
    freed: int = 0
    reported: int = 0
    lost: list[str] = field(default_factory=list)
    falsely_reported: list[str] = field(default_factory=list)
    """A ticket said that the bucket has it, and at that moment the server had not."""
    false_at_end: list[str] = field(default_factory=list)
    """The whole run ended as a success, and the server had not."""
    unreadable: dict[str, str] = field(default_factory=dict)
    end: str = ""
    """How the run ended: nothing, or the class of its error."""
    seconds: float = 0.0


@contextlib.contextmanager
def environment(server: StrictS3, table: Table) -> Iterator[None]:
    """The server's credentials, the table's part size, and a patience at closing that fits a test."""
    patient = Uploader.close
    with pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment().items():
            patch.setenv(name, value)
        limits = UploadLimits(part_bytes=table.part_bytes, multipart_above=table.part_bytes)
        patch.setattr("durastore.store.opening._LIMITS", limits)
        patch.setattr(Uploader, "close", lambda engine, timeout_s=30.0: patient(engine, min(timeout_s, 0.1)))
        yield


def samples_of(table: Table) -> dict[str, bytes]:
    return {f"s/{number:02d}": random.Random(number).randbytes(size) for number, size in enumerate(table.sizes)}


def _tensors(payload: bytes) -> dict[str, Any]:
    return {"h": np.frombuffer(payload, dtype=np.uint8)}


@dataclass(slots=True, kw_only=True)
class Stage:
    """One server, one spool root, and the samples: what every judgement looks at."""

    server: StrictS3
    local: Path
    samples: Mapping[str, bytes]
    clock: SpeedClock = field(default_factory=lambda: SpeedClock(speed=SPEED))
    settle_s: float = 1.0

    def open(self, *, reclaim: str) -> Store:
        """Every sample is a pack of its own."""
        return durastore.open(
            f"s3://{BUCKET}/{PREFIX}",
            local=self.local,
            endpoint_url=self.server.endpoint_url,
            reclaim=reclaim,
            settle_s=self.settle_s,
            pack_target_bytes=1,
            reserve_bytes=1,
            stall_s=20.0,
            connect_timeout_s=2.0,
            read_timeout_s=2.0,
            clock=self.clock,
        )

    def stored_under(self, key: str) -> set[str]:
        """The samples that the object really gives back: it has to hold what its key's digest says, to the last bit."""
        data = self.server.stored(BUCKET, key)
        if data is None or f"-{Digest.of(data).short}." not in key:
            return set()
        return _names_in(data, self.samples)

    def stored(self) -> set[str]:
        keys = [key for key in self.server.keys(BUCKET) if key.startswith(f"{PREFIX}/packs/")]
        return set[str]().union(*map(self.stored_under, keys))

    def held_locally(self) -> set[str]:
        files = [*self.local.glob("w-*/packs/*"), *self.local.glob("w-*/quarantine/*")]
        return set[str]().union(*(_names_in(path.read_bytes(), self.samples) for path in files))


def _names_in(data: bytes, samples: Mapping[str, bytes]) -> set[str]:
    """By the header, which is JSON in JSON, and the payload."""
    start = data[: 64 * KIB]
    return {name for name, payload in samples.items() if f'id\\":\\"{name}\\"'.encode() in start and payload in data}


@dataclass(slots=True, kw_only=True)
class Lab:
    """Plays scenes on one server, each with a bucket and a spool root of its own."""

    server: StrictS3
    folder: Path
    table: Table
    _probe: ProbeResult | None = None
    """What the honest server was found to guard; it spares the later scenes their probes, but for `When.START`."""

    def play(self, scene: Scene) -> Outcome:
        """Run the scene to its end, and a look at everything with the server honest again."""
        began = time.monotonic()
        self.server.script(SMALL_PARTS)
        self.server.make_bucket(BUCKET)
        local = self.folder / f"spool-{secrets.token_hex(4)}"
        stage = Stage(server=self.server, local=local, samples=samples_of(self.table))
        outcome = Outcome(scene=scene)
        acknowledged = self._run(stage, scene, outcome=outcome)
        judge(stage, acknowledged, outcome=outcome)
        outcome.seconds = time.monotonic() - began
        return outcome

    def _run(self, stage: Stage, scene: Scene, *, outcome: Outcome) -> set[str]:
        """The session under the lie. Returns what was acknowledged."""
        if scene.when is When.START:
            self.server.script(*scene.rules)
        elif self._probe is not None:
            SpoolRoot.open(stage.local).close()
            save_probe_in_root(stage.local, replace(self._probe, taken=stage.clock.stamp().render()))
        try:
            with _listening() as gossip:
                store = stage.open(reclaim="eager")
                _await_probe(store, gossip)
        except DurastoreError as exc:
            outcome.end = f"open: {type(exc).__name__}"
            return set()
        if scene.when is not When.START:
            self._probe = self._probe or store._parts.services.verifier._policy.probe
            self.server.script(*scene.rules)
        tickets = put_all(store, stage.samples, outcome=outcome)
        watch = Watch(stage=stage, store=store, outcome=outcome, waiting=dict(tickets))
        watch.follow(self.table.quiet_s)
        store.abandon()
        return set(tickets)


def put_all(store: Store, samples: Mapping[str, bytes], *, outcome: Outcome) -> dict[str, Ticket]:
    """The tickets of what was acknowledged."""
    tickets: dict[str, Ticket] = {}
    try:
        for name, payload in samples.items():
            tickets[name] = store.put(name, _tensors(payload))
    except DurastoreError as exc:  # credentials, say: what was acknowledged before is what has to survive
        outcome.end = f"put: {type(exc).__name__}"
    outcome.put = len(tickets)
    return tickets


class _Gossip(logging.Handler):
    """Hears whether the probe gave up."""

    def __init__(self) -> None:
        super().__init__()
        self.is_hopeless = False

    def emit(self, record: logging.LogRecord) -> None:
        self.is_hopeless |= "could not be probed" in record.getMessage()


@contextlib.contextmanager
def _listening() -> Iterator[_Gossip]:
    gossip = _Gossip()
    LOGGER.addHandler(gossip)
    try:
        yield gossip
    finally:
        LOGGER.removeHandler(gossip)


def _await_probe(store: Store, gossip: _Gossip, *, timeout_s: float = 40.0) -> None:
    """Until the endpoint is known, or is known not to be: everything is read back then."""
    deadline = time.monotonic() + timeout_s
    while store._parts.services.verifier._policy.probe is None and not gossip.is_hopeless:
        if time.monotonic() > deadline:
            return
        time.sleep(0.02)


@dataclass(slots=True, kw_only=True)
class Watch:
    """Asks the store again and again what has come of its samples, and checks each good answer at once."""

    stage: Stage
    store: Store
    outcome: Outcome
    waiting: dict[str, Ticket]

    def follow(self, quiet_s: float) -> None:
        """Until the store says that all is done, or nothing moves any more."""
        put = set(self.waiting)
        seen: tuple[Any, ...] = ()
        moved_at = time.monotonic()
        while time.monotonic() - moved_at < quiet_s:
            self._look_at_tickets()
            if self._is_drained():
                self._look_at_tickets()
                self.outcome.reported = len(put)
                self.outcome.false_at_end = sorted(put - self.stage.stored())
                return
            status = self.store.status()
            now = (status.packs_by_state, status.bytes_uploaded, status.bytes_freed, len(self.waiting))
            if now != seen:
                seen, moved_at = now, time.monotonic()
            time.sleep(0.05)

    def _look_at_tickets(self) -> None:
        for name, ticket in list(self.waiting.items()):
            try:
                evidence = ticket.wait(0)
            except (DurastoreError, TimeoutError):
                continue
            del self.waiting[name]
            self.outcome.reported += 1
            if name not in self.stage.stored_under(evidence.key.text):
                self.outcome.falsely_reported.append(name)

    def _is_drained(self) -> bool:
        try:
            self.store.drain(0)
        except (DurastoreError, TimeoutError) as exc:
            self.outcome.end = type(exc).__name__
            return False
        self.outcome.end = ""
        return True


def judge(stage: Stage, acknowledged: set[str], *, outcome: Outcome) -> None:
    stored, local = stage.stored() & acknowledged, stage.held_locally() & acknowledged
    outcome.stored, outcome.kept, outcome.freed = len(stored), len(local), len(acknowledged - local)
    outcome.lost = sorted(acknowledged - stored - local)
    if not acknowledged:
        return
    stage.server.script(SMALL_PARTS)
    try:
        store = stage.open(reclaim="never")
    except DurastoreError as exc:
        outcome.unreadable = dict.fromkeys(sorted(acknowledged), f"open: {type(exc).__name__}: {exc}")
        return
    try:
        tensors = {name: _tensors(stage.samples[name]) for name in sorted(acknowledged)}
        outcome.unreadable = lost_samples(tensors, store.get, is_equal=is_equal)
    finally:
        store.abandon()


def render_table(outcomes: Sequence[Outcome]) -> str:
    """The table and its totals."""
    width = max(len(outcome.scene.name) for outcome in outcomes)
    head = f"{'lie':{width}}  when   put  lost  false  at end  unread  kept  freed  reported  stored      s  end"
    lines = [head, "-" * len(head)]
    lines += [
        f"{o.scene.name:{width}}  {o.scene.when.value:5} {o.put:4} {len(o.lost):5} {len(o.falsely_reported):6}"
        f" {len(o.false_at_end):7} {len(o.unreadable):7} {o.kept:5} {o.freed:6} {o.reported:9} {o.stored:7}"
        f" {o.seconds:6.1f}  {o.end}"
        for o in outcomes
    ]
    lines.append(_totals(outcomes))
    return "\n".join(lines)


def _totals(outcomes: Sequence[Outcome]) -> str:
    lies = len({outcome.scene.name for outcome in outcomes} - {"honest"})
    put, lost = sum(o.put for o in outcomes), sum(len(o.lost) for o in outcomes)
    later = sum(len(o.falsely_reported) for o in outcomes if o.scene.is_taken_away_later)
    false = sum(len(o.falsely_reported) for o in outcomes) - later
    at_end, unread = sum(len(o.false_at_end) for o in outcomes), sum(len(o.unreadable) for o in outcomes)
    kept, freed = sum(o.kept for o in outcomes), sum(o.freed for o in outcomes)
    return (
        f"{lies} lies, {len(outcomes)} scenes, {put} samples put: {lost} lost; {false} falsely reported by a ticket"
        f" ({later} more that the server took away by the look that found them), {at_end} by the end of the run;"
        f" {unread} not readable afterwards; {kept} kept, {freed} freed"
    )

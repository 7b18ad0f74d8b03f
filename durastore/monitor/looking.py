"""Looking at a spool root from outside, once a second, at a cost that does not grow with the packs or the samples.

Duty: read status files; ask the kernel about a process that went silent; open the journals of spools at rest now and
then; read the extraction's shared file as often as that stays cheap. Takes no lock, writes nothing, and a root that
cannot be read is a problem to be shown, never an error.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from durastore.clock import Clock, Stamp
from durastore.errors import DurastoreError, StoreMissing
from durastore.extract.failure_book import FailureReader, KnownFailure
from durastore.extract.job_book import Jobs, JobStanding
from durastore.extract.work_db import WORK_FILE
from durastore.formats.spool_root import LOCK_NAME, ROOT_MARKER_NAME, parse_spool_name
from durastore.fsio.folder import Folder
from durastore.fsio.lock import holders
from durastore.fsio.space import disk_bytes, free_bytes
from durastore.monitor.facts import Liveness, RootFacts, SpoolFacts
from durastore.monitor.liveness import pulse_of
from durastore.observe.status import StoreRecord, Teller, WorkerRecord
from durastore.spool.glance import RootGlance, SpoolGlance, look_at_root
from durastore.spool.last_words import load_last_record
from durastore.spool.opened import refuse_unfinished

__all__ = ["RootLook"]

_SILENT_S = 3.5
_SLOWED_S = 12.0
_GLANCE_EVERY_S = 30.0
_SHARE = 0.02
"""Of the time, for what may be large: the queue of an extraction."""
_SHOWN_FAILURES = 20


@dataclass(slots=True)
class _Due:
    """When something that costs is due again: so late that it takes a fiftieth of the time."""

    least_s: float
    at_s: float = 0.0

    def note(self, clock: Clock, begun_s: float) -> None:
        now_s = clock.monotonic()
        self.at_s = now_s + max(self.least_s, (now_s - begun_s) / _SHARE)


@dataclass(slots=True)
class _Extraction:
    jobs: Jobs | None = None
    failures: FailureReader | None = None
    found: tuple[JobStanding, ...] = ()
    last: tuple[KnownFailure, ...] = ()
    count: int = 0
    due: _Due = field(default_factory=lambda: _Due(0.9))


class RootLook:
    """Looks at one root, again and again. Used by one thread."""

    def __init__(self, path: Path, *, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._glance: RootGlance | None = None
        self._glanced: frozenset[str] = frozenset()
        self._glance_due = _Due(_GLANCE_EVERY_S)
        self._extraction = _Extraction()

    def look(self) -> RootFacts:
        """How things are now. Raises nothing for what it finds."""
        now = self._clock.stamp()
        try:
            if not self._path.exists():
                raise StoreMissing(f"{self._path} does not exist (yet): check the path; is its disk mounted?")
            with Folder.open(self._path) as root:
                refuse_unfinished(root)
                if not root.has(ROOT_MARKER_NAME):
                    raise StoreMissing(f"{self._path} is no spool root (yet)")
                names = [name for name in root.names() if parse_spool_name(name) is not None]
                spools = [self._look_at(root, name, now=now) for name in names]
            glance = self._glanced_at(spools)
            free, size = free_bytes(self._path), disk_bytes(self._path)
            self._look_at_extraction()
        except (OSError, DurastoreError) as exc:
            return RootFacts(path=str(self._path), problem=str(exc))
        rest = {spool.name: spool for spool in glance.spools}
        extraction = self._extraction
        return RootFacts(
            path=str(self._path),
            spools=tuple(_with_glance(spool, rest) for spool in spools),
            jobs=extraction.found,
            failures=extraction.last,
            failure_count=extraction.count,
            free_bytes=free,
            disk_bytes=size,
            stops=tuple(stop.reason for stop in glance.stops),
            probes=glance.probes,
            living_pids=frozenset(s.job.pid for s in extraction.found if pulse_of(s.job.pid).is_there),
        )

    # --- spools ----------------------------------------------------------------------------------------------------

    def _look_at(self, root: Folder, name: str, *, now: Stamp) -> SpoolFacts:
        with root.child(name) as folder:
            store = load_last_record(folder, StoreRecord)
            worker = load_last_record(folder, WorkerRecord)
        if worker is not None and (store is None or worker.teller.pid != store.teller.pid):
            worker = worker if store is None else None  # of an earlier process of this spool
        teller = store.teller if store is not None else worker.teller if worker is not None else None
        if teller is None:
            liveness = Liveness.SILENT if self._holders(name) else Liveness.ENDED
            return SpoolFacts(name=name, store=None, worker=None, liveness=liveness, silent_s=0.0)
        liveness, silent_s, wait = self._liveness(name, teller, now=now)
        return SpoolFacts(name=name, store=store, worker=worker, liveness=liveness, silent_s=silent_s, disk_wait=wait)

    def _liveness(self, name: str, teller: Teller, *, now: Stamp) -> tuple[Liveness, float, str | None]:
        age_s = teller.age_s(now)
        if teller.is_ended:
            return Liveness.ENDED, age_s or 0.0, None
        if age_s is not None and age_s < (_SLOWED_S if teller.is_slowed else _SILENT_S):
            return Liveness.LIVE, age_s, None
        process = pulse_of(teller.pid)
        holders = self._holders(name)
        # held by another: the next process of this spool has not said anything yet
        if age_s is None or not holders or (teller.pid not in holders and not process.is_there):
            return Liveness.KILLED, age_s or 0.0, None
        return Liveness.SILENT, age_s, process.disk_wait

    def _holders(self, name: str) -> list[int]:
        """By the kernel's word; a lock of another PID namespace shows as held by nobody, or by another number."""
        try:
            return holders(self._path / name / LOCK_NAME)
        except OSError:
            return []

    def _glanced_at(self, spools: list[SpoolFacts]) -> RootGlance:
        """Journals of spools at rest: when one came to rest, and now and then."""
        drained = {name for s in spools if s.liveness is Liveness.LIVE and s.store for name in s.store.drains}
        at_rest = frozenset(
            s.name for s in spools if s.liveness in (Liveness.ENDED, Liveness.KILLED) and s.name not in drained
        )
        now_s = self._clock.monotonic()
        if self._glance is None or at_rest != self._glanced or now_s >= self._glance_due.at_s:
            self._glance = look_at_root(self._path, is_wanted=at_rest.__contains__)
            self._glanced = at_rest
            self._glance_due.note(self._clock, now_s)
        return self._glance

    # --- the extraction --------------------------------------------------------------------------------------------

    def _look_at_extraction(self) -> None:
        extraction, now_s = self._extraction, self._clock.monotonic()
        if now_s < extraction.due.at_s or not (self._path / WORK_FILE).is_file():
            return
        try:
            if extraction.jobs is None:
                extraction.jobs = Jobs(self._path)
                extraction.failures = FailureReader(self._path)
            assert extraction.failures is not None
            extraction.found = tuple(extraction.jobs.standing())
            extraction.count, extraction.last = extraction.failures.last(_SHOWN_FAILURES)
        except DurastoreError:
            self.close()  # busy, or moved away: it is opened anew at the next look
        extraction.due.note(self._clock, now_s)

    def close(self) -> None:
        """Safe to repeat."""
        for opened in (self._extraction.jobs, self._extraction.failures):
            if opened is not None:
                opened.close()
        self._extraction.jobs = self._extraction.failures = None


def _with_glance(spool: SpoolFacts, glances: dict[str, SpoolGlance]) -> SpoolFacts:
    glance = glances.get(spool.name)
    return spool if glance is None else replace(spool, glance=glance)

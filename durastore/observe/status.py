"""What a process tells of itself once a second, as values: the content of its status file.

Duty: frozen records, the same for whoever writes them and whoever shows them. No I/O. All counts are of this process
since it opened its spool; all times are Unix nanoseconds unless a name says otherwise. For people: nothing may ever be
decided by them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from durastore.clock import Stamp

__all__ = [
    "STAGES",
    "Amount",
    "AtRisk",
    "Happening",
    "PackAtRisk",
    "Proofs",
    "Room",
    "Stage",
    "Stall",
    "StoreRecord",
    "Teller",
    "Transfers",
    "WorkerRecord",
    "clipped",
]

STAGES = ("extracted", "encoded", "spooled", "uploaded", "verified", "manifested", "reclaimed")
"""The way of a sample, in order. `extracted` is told by an extraction's worker, the rest by its store."""
_TEXT_LIMIT = 300


def clipped(text: str) -> str:
    """The text on one line, and not longer than a status file has room for."""
    line = " ".join(text.split())
    return line if len(line) <= _TEXT_LIMIT else line[: _TEXT_LIMIT - 1] + "…"


@dataclass(frozen=True, slots=True, kw_only=True)
class Teller:
    """Who wrote a record, and when."""

    pid: int
    host: str
    boot_id: str
    started_ns: int
    written_ns: int
    written_boottime_ns: int
    is_ended: bool = False
    """It said goodbye. A record that does not say so, of a process that is gone, is that of one which was killed."""
    after_pid: int | None = None
    """The process that had this spool before, if it ended without saying so."""
    is_slowed: bool = False
    """Looking took so long that it is done less often than once a second."""

    def age_s(self, now: Stamp) -> float | None:
        """Seconds since it was written; None after a reboot."""
        if self.boot_id != now.boot_id:
            return None
        return max(0.0, (now.boottime_ns - self.written_boottime_ns) / 1e9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """So much of something. What a stage does not count is 0."""

    samples: int = 0
    packs: int = 0
    size_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stage: what went through it in this session, and what waits before it now."""

    name: str
    done: Amount
    waiting: Amount


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """The spool against its watermarks, and the disk under it. Bytes."""

    used_bytes: int = 0
    high_bytes: int = 0
    low_bytes: int = 0
    reserve_bytes: int = 0
    free_bytes: int = 0
    disk_bytes: int = 0
    quarantined_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfers:
    """Requests of uploads."""

    retries: int = 0
    slowdowns: int = 0
    """Answers that asked for less (503 SlowDown and its like)."""
    stuck: int = 0
    failed: int = 0
    """Uploads given up for now; their packs are tried again."""
    sent_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Proofs:
    """Looks at the bucket."""

    attested: int = 0
    read_back: int = 0
    """Copies read in full: by policy, or as an audit."""
    mismatches: int = 0
    """Copies found wrong, by whichever look."""
    last_pack: str | None = None
    last_level: str | None = None
    last_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PackAtRisk:
    """A pack whose samples are in no manifest segment yet."""

    name: str
    state: str
    samples: int
    size_bytes: int
    since_ns: int | None
    """When the first of its samples was put."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AtRisk:
    """All of them; `shown` are the oldest."""

    total: Amount = field(default_factory=Amount)
    shown: tuple[PackAtRisk, ...] = ()

    @property
    def oldest_ns(self) -> int | None:
        return min((p.since_ns for p in self.shown if p.since_ns is not None), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """Something that a person may want to know of."""

    at_ns: int
    what: str
    """The event's name."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """Nothing moves at a stage, and why."""

    stage: str
    why: str
    since_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreRecord:
    """What an open store tells."""

    teller: Teller
    spool: str
    drains: tuple[str, ...] = ()
    """Other spools that it works off; they are part of all numbers here."""
    bucket: str = ""
    run: str = ""
    stages: tuple[Stage, ...] = ()
    room: Room = field(default_factory=Room)
    transfers: Transfers = field(default_factory=Transfers)
    proofs: Proofs = field(default_factory=Proofs)
    at_risk: AtRisk = field(default_factory=AtRisk)
    wait: str | None = None
    """Why puts wait now."""
    stopped: str | None = None
    """Why nothing is reclaimed."""
    is_probing: bool = False
    failure_count: int = 0
    failures: tuple[str, ...] = ()
    """Of packs that cannot get on in this session."""
    happenings: tuple[Happening, ...] = ()
    """The last ones, oldest first."""
    stall: Stall | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRecord:
    """What one process of an extraction tells."""

    teller: Teller
    spool: str
    number: int = 0
    """Of the worker in its queue; 0 for a process that works alone."""
    job: str = ""
    run: str = ""
    phase: str = ""
    """`starting`, `loading`, `extracting`, `flushing` or `ended`."""
    inputs: int = 0
    """What this process was given to do; 0 where workers take from a common queue."""
    ok: int = 0
    failed: int = 0
    skipped: int = 0
    tokens: int = 0
    tensor_bytes: int = 0
    queued: Amount = field(default_factory=Amount)
    """Extracted, and not handed to the store yet."""
    passes: int = 0
    pass_s: float | None = None
    """How long the model has been in the pass under way; None between two."""
    longest_pass_s: float = 0.0
    audited: int = 0
    happenings: tuple[Happening, ...] = ()
    stall: Stall | None = None

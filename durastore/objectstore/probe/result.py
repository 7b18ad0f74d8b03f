"""What a probe of an endpoint found: a value that is stored, shown, and named in receipts.

Duty: the checks, what each means, and the evidence level of each write path; their JSON form, strictly parsed. Must
never decide a level (`judge` does), and never hold ATTESTED without the checksum that carries it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from durastore.clock import Stamp
from durastore.errors import FormatUnsupported, IntegrityError, InvalidInput
from durastore.model import EvidenceLevel, parse_json, render_json

__all__ = ["MAX_RESULT_BYTES", "ChecksumKind", "Outcome", "ProbeCheck", "ProbeResult", "WritePath"]

RESULT_FORMAT = 1
MAX_RESULT_BYTES = 1 << 20
_MAX_SKEW_S = 1e12
_ID = re.compile(r"[0-9a-f]{16}")
_TARGET = re.compile(r"[0-9a-f]{32}")


class WritePath(Enum):
    """The two ways in which an object comes to be; endpoints guard them differently."""

    SINGLE = "single"
    MULTIPART = "multipart"


class ChecksumKind(Enum):
    """A checksum an endpoint may guard."""

    CRC64NVME = "crc64nvme"
    CRC32 = "crc32"
    SHA256 = "sha256"
    CONTENT_MD5 = "content-md5"
    """Refused when wrong, but nothing can be looked at later."""
    ETAG_MD5 = "etag-md5"
    """The etag is the server's own MD5 (of the body, or of the parts' MD5s), and Content-MD5 is checked."""


# The checksums that the uploader sends and that a later HEAD can be compared with.
_ATTESTING = frozenset((ChecksumKind.CRC64NVME, ChecksumKind.ETAG_MD5))
# Checks that can raise a level.
_DECIDING = frozenset(
    (
        "get.whole",
        "get.range",
        "put.crc64nvme",
        "put.crc32",
        "put.sha256",
        "put.content-md5",
        "put.returned",
        "put.etag",
        "part.crc64nvme",
        "part.content-md5",
        "complete.crc64nvme",
        "complete.returned",
        "complete.etag",
    )
)


class Outcome(Enum):
    """What came of one check."""

    REFUSED = "refused"
    """Wrong every time refused, right accepted."""
    IGNORED = "ignored"
    """Wrong was stored; the endpoint does not look at it."""
    ECHOED = "echoed"
    """Wrong was stored and is returned as if the endpoint knew it: what it returns proves nothing."""
    INCONSISTENT = "inconsistent"
    """The same lie was sometimes refused and sometimes not."""
    UNSUPPORTED = "unsupported"
    """Refused also when right, so a refusal says nothing."""
    HONOURED = "honoured"
    NOT_ENFORCED = "not enforced"
    """Accepted without effect."""
    RETURNED = "returned"
    NOT_RETURNED = "not returned"
    WRONG = "wrong"
    """Answered, but with a value that does not fit the bytes."""
    MD5 = "md5"
    OPAQUE = "opaque"
    PRESENT = "present"
    ABSENT = "absent"
    BLOCKING = "blocking"
    """Objects stored here do not stay as they were written: nothing may be reclaimed."""
    UNKNOWN = "unknown"
    """No clear answer, not permitted, or not run: counts as the worse case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeCheck:
    """One question put to the endpoint."""

    name: str
    outcome: Outcome
    detail: str
    """What was seen."""
    meaning: str
    """What that means for whoever stores data there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """All that one probe found out. Checks itself: `InvalidInput` where fields contradict each other."""

    id: str
    """16 random hex digits; named in evidence and receipts."""
    target: str
    """Digest of endpoint, bucket, prefix and access key id: what the result is about."""
    taken: str
    """`Stamp.render()` of the moment the probe ended."""
    endpoint: str
    bucket: str
    prefix: str
    checks: tuple[ProbeCheck, ...]
    level_single: EvidenceLevel
    level_multipart: EvidenceLevel
    checksum_single: ChecksumKind | None
    """What to send on this path; with level ATTESTED also what to compare."""
    checksum_multipart: ChecksumKind | None
    absent_is_404: bool | None
    is_create_only_enforced: bool | None
    is_if_match_enforced: bool | None
    """For GET, where the spot read uses it."""
    is_versioned: bool | None
    clock_skew_s: float | None
    """Server clock minus ours."""
    expiring_rule: str | None
    """The lifecycle rule that expires our prefix: blocks reclaiming."""
    request_count: int
    is_by_person: bool = False
    """Whether a person asked (`durastore probe`), not a store by itself."""
    answers_stops: tuple[str, ...] = ()
    """Ids of the stops of reclaiming that the person had before them when the probe began: it lifts these only."""

    def __post_init__(self) -> None:
        if not _ID.fullmatch(self.id) or not _TARGET.fullmatch(self.target):
            raise InvalidInput("a probe result's id or target is malformed")
        try:
            Stamp.parse(self.taken)
        except ValueError as exc:
            raise InvalidInput("a probe result's time is malformed") from exc
        for path in WritePath:
            level, checksum = self.level_of(path), self.checksum_of(path)
            if level not in (EvidenceLevel.ATTESTED, EvidenceLevel.READ_BACK):
                raise InvalidInput(f"a probe cannot choose {level.name}")
            if level is EvidenceLevel.ATTESTED and checksum not in _ATTESTING:
                raise InvalidInput(f"nothing attests {path.value} writes")
        if self.clock_skew_s is not None and not -_MAX_SKEW_S < self.clock_skew_s < _MAX_SKEW_S:  # NaN is neither
            raise InvalidInput("a probe result's clock skew is no number")
        if self.request_count < 0:
            raise InvalidInput("a probe result's request count is negative")
        if any(_ID.fullmatch(stop) is None for stop in self.answers_stops):
            raise InvalidInput("a probe result answers something that is no stop")
        if self.answers_stops and not self.is_by_person:
            raise InvalidInput("only a person's probe answers a stop")

    @property
    def level(self) -> EvidenceLevel:
        """The evidence that every write path can give. READ_BACK where one of them has to be read back in full."""
        # A stronger demand means a weaker endpoint: READ_BACK is what is asked where nothing attests.
        return max(self.level_single, self.level_multipart)

    def level_of(self, path: WritePath) -> EvidenceLevel:
        return self.level_single if path is WritePath.SINGLE else self.level_multipart

    def checksum_of(self, path: WritePath) -> ChecksumKind | None:
        return self.checksum_single if path is WritePath.SINGLE else self.checksum_multipart

    def header_of(self, path: WritePath) -> str:
        """The checksum header to send on this path: `crc64nvme`, `md5` or `none` (case B160)."""
        kind = self.checksum_of(path)
        if kind is not None:
            return "crc64nvme" if kind is ChecksumKind.CRC64NVME else "md5"
        asked = ("put.crc64nvme",) if path is WritePath.SINGLE else ("part.crc64nvme", "complete.crc64nvme")
        found = [check.outcome for check in map(self.check, asked) if check is not None]
        return "none" if Outcome.UNSUPPORTED in found else "crc64nvme"

    @property
    def blocking(self) -> tuple[str, ...]:
        """Why nothing may be reclaimed here; empty where nothing forbids it."""
        return tuple(f"{c.name}: {c.detail}" for c in self.checks if c.outcome is Outcome.BLOCKING)

    @property
    def is_blocking(self) -> bool:
        return bool(self.blocking) or self.expiring_rule is not None

    @property
    def is_conclusive(self) -> bool:
        """False where an answer that did not come could have raised a level: such a result is worth little time."""
        is_open = any(c.outcome is Outcome.UNKNOWN and c.name in _DECIDING for c in self.checks)
        return not is_open or self.level is EvidenceLevel.ATTESTED

    def check(self, name: str) -> ProbeCheck | None:
        """The check of this name; None if the probe has none."""
        return next((c for c in self.checks if c.name == name), None)

    def render(self) -> bytes:
        """Canonical JSON and a newline: equal results give equal bytes."""
        facts: dict[str, Any] = {name: getattr(self, name) for name in _PLAIN}
        facts |= {
            "format": RESULT_FORMAT,
            "is_by_person": self.is_by_person,
            "answers_stops": list(self.answers_stops),
            "level_single": self.level_single.name,
            "level_multipart": self.level_multipart.name,
            "checksum_single": _value_of(self.checksum_single),
            "checksum_multipart": _value_of(self.checksum_multipart),
            "checks": [
                {"name": c.name, "outcome": c.outcome.value, "detail": c.detail, "meaning": c.meaning}
                for c in self.checks
            ],
        }
        return render_json(facts).encode() + b"\n"

    @classmethod
    def parse(cls, data: bytes) -> ProbeResult:
        """Inverse of `render`; unknown fields are ignored.

        `IntegrityError` on anything odd, `FormatUnsupported` for a newer format.
        """
        if len(data) > MAX_RESULT_BYTES:
            raise IntegrityError(f"a probe result has {len(data)} bytes (1 MiB is allowed)")
        facts = parse_json(data, what="probe result")
        if not isinstance(facts, dict):
            raise IntegrityError("a probe result is not a JSON object")
        version = _typed(facts, "format", kinds=(int,))
        if version > RESULT_FORMAT:
            raise FormatUnsupported(f"probe result format {version} is newer than {RESULT_FORMAT}")
        values: dict[str, Any] = {name: _typed(facts, name, kinds=kinds) for name, kinds in _PLAIN.items()}
        checks = _typed(facts, "checks", kinds=(list,))
        # without these fields it is of an older durastore, which did not tell who asked: then it was nobody
        asked = {"is_by_person": False, "answers_stops": []} | facts
        try:
            return cls(
                **values,
                level_single=EvidenceLevel[_typed(facts, "level_single", kinds=(str,))],
                level_multipart=EvidenceLevel[_typed(facts, "level_multipart", kinds=(str,))],
                checksum_single=_member(ChecksumKind, facts.get("checksum_single")),
                checksum_multipart=_member(ChecksumKind, facts.get("checksum_multipart")),
                checks=tuple(_parse_check(item) for item in checks),
                is_by_person=_typed(asked, "is_by_person", kinds=(bool,)),
                answers_stops=tuple(_parse_id(item) for item in _typed(asked, "answers_stops", kinds=(list,))),
            )
        except (InvalidInput, KeyError, ValueError) as exc:
            raise IntegrityError(f"a probe result is malformed: {str(exc)[:120]}") from exc


_Kinds = tuple[type, ...]
_NOTHING = type(None)
# Fields that JSON holds as they are, and the exact types they may have (a bool is no int here).
_PLAIN: dict[str, _Kinds] = {
    "id": (str,),
    "target": (str,),
    "taken": (str,),
    "endpoint": (str,),
    "bucket": (str,),
    "prefix": (str,),
    "absent_is_404": (bool, _NOTHING),
    "is_create_only_enforced": (bool, _NOTHING),
    "is_if_match_enforced": (bool, _NOTHING),
    "is_versioned": (bool, _NOTHING),
    "clock_skew_s": (int, float, _NOTHING),
    "expiring_rule": (str, _NOTHING),
    "request_count": (int,),
}
E = TypeVar("E", bound=Enum)


def _value_of(member: Enum | None) -> str | None:
    return None if member is None else str(member.value)


def _member(kind: type[E], value: object) -> E | None:
    return None if value is None else kind(value)


def _typed(facts: dict[str, Any], name: str, *, kinds: _Kinds) -> Any:
    value = facts.get(name, facts)  # `facts` itself is a dict, which no field may be: so a missing field is refused too
    if type(value) not in kinds:
        raise IntegrityError(f"a probe result's {name} is missing or of the wrong kind")
    return value


def _parse_id(item: object) -> str:
    if not isinstance(item, str):
        raise IntegrityError("a probe result answers something that is no text")
    return item


def _parse_check(item: object) -> ProbeCheck:
    if not isinstance(item, dict):
        raise IntegrityError("a probe result's check is not an object")
    texts = {name: _typed(item, name, kinds=(str,)) for name in ("name", "detail", "meaning")}
    return ProbeCheck(outcome=Outcome(_typed(item, "outcome", kinds=(str,))), **texts)

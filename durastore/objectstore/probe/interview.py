"""One probe under way: its requests counted and limited, its answers kept, its findings collected.

Duty: keep the probe under its limit of requests whatever the endpoint does; what is not asked any more counts as not
answered. Must never repeat a request to get a nicer answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from durastore.clock import Clock
from durastore.objectstore.probe.meanings import meaning_of
from durastore.objectstore.probe.port import (
    NO_CLAIMS,
    NO_CONDITION,
    Answer,
    Claims,
    Condition,
    ListQuery,
    PartClaim,
    ProbePort,
    WholeClaim,
)
from durastore.objectstore.probe.result import ChecksumKind, Outcome, ProbeCheck

__all__ = ["REQUEST_LIMIT", "Interview"]

REQUEST_LIMIT = 59
NOT_RUN = Answer(status=None, code="NotRun")
_SILENCE_LIMIT = 3
_OUR_SILENCE = frozenset(("CutOff", "NotThroughProxy"))


class Interview:
    """The endpoint as the checks see it. Every call is one request, or `NOT_RUN` once the limit is reached.

    For each upload begun, one request is kept back, so that it can always be completed or given up.
    """

    def __init__(self, port: ProbePort, *, base: str, clock: Clock) -> None:
        self._port = port
        self._clock = clock
        self._open_uploads: dict[str, str] = {}
        self._checks: dict[str, ProbeCheck] = {}
        self._skews_s: list[float] = []
        self._silences = 0
        self.base = base
        """The prefix of every key this probe writes, ending in a slash; random, so that nobody else's key is met."""
        self.request_count = 0
        self.expirations: list[str] = []
        self.stored: set[str] = set()
        """Keys whose PUT was acknowledged."""
        self.version_ids: list[str] = []

    @property
    def checks(self) -> tuple[ProbeCheck, ...]:
        return tuple(self._checks.values())

    @property
    def open_uploads(self) -> dict[str, str]:
        """Uploads neither completed nor given up: id -> key."""
        return dict(self._open_uploads)

    def note(self, name: str, outcome: Outcome, *, detail: str) -> Outcome:
        """Record what came of the check `name`; returns the outcome."""
        self._checks[name] = ProbeCheck(name=name, outcome=outcome, detail=detail, meaning=meaning_of(name, outcome))
        return outcome

    def outcome(self, name: str) -> Outcome:
        """`UNKNOWN` for a check that was not run."""
        check = self._checks.get(name)
        return Outcome.UNKNOWN if check is None else check.outcome

    @property
    def is_caught(self) -> bool:
        """The endpoint was already caught in a lie, so nothing more can raise a level."""
        return any(c.outcome in (Outcome.ECHOED, Outcome.INCONSISTENT) for c in self._checks.values())

    def clock_skew_s(self) -> tuple[float | None, float]:
        """The server's clock minus ours (median), and how far its answers differ among themselves."""
        if not self._skews_s:
            return None, 0.0
        return median(self._skews_s), max(self._skews_s) - min(self._skews_s)

    def put(self, key: str, body: bytes, *, claims: Claims = NO_CLAIMS, condition: Condition = NO_CONDITION) -> Answer:
        if not self._take():
            return NOT_RUN
        answer = self._kept(self._port.put(key, body, claims=claims, condition=condition))
        if answer.is_success:
            self.stored.add(key)
        return answer

    def put_truncated(self, key: str, body: bytes, *, sent_bytes: int) -> Answer:
        return self._kept(self._port.put_truncated(key, body, sent_bytes=sent_bytes)) if self._take() else NOT_RUN

    def head(self, key: str) -> Answer:
        return self._kept(self._port.head(key)) if self._take() else NOT_RUN

    def get(self, key: str, *, span: tuple[int, int] | None = None, condition: Condition = NO_CONDITION) -> Answer:
        return self._kept(self._port.get(key, span=span, condition=condition)) if self._take() else NOT_RUN

    def create_upload(self, key: str, *, kind: ChecksumKind | None) -> Answer:
        if not self._take(reserve=1):
            return NOT_RUN
        answer = self._kept(self._port.create_upload(key, kind=kind))
        if answer.upload_id:
            self._open_uploads[answer.upload_id] = key
        return answer

    def upload_part(self, key: str, upload_id: str, *, number: int, body: bytes, claims: Claims) -> Answer:
        if not self._take():
            return NOT_RUN
        answer = self._kept(self._port.upload_part(key, upload_id, number=number, body=body, claims=claims))
        if answer.code == "NoSuchUpload":
            self._open_uploads.pop(upload_id, None)
        return answer

    def complete_upload(self, key: str, upload_id: str, *, parts: Sequence[PartClaim], whole: WholeClaim) -> Answer:
        if not self._take():
            return NOT_RUN
        answer = self._kept(self._port.complete_upload(key, upload_id, parts=parts, whole=whole))
        if answer.is_success or answer.code == "NoSuchUpload":
            self._open_uploads.pop(upload_id, None)
        return answer

    def give_up_uploads(self) -> None:
        """Give up every upload that is still open; one that cannot be given up stays in `open_uploads`."""
        for upload_id, key in self.open_uploads.items():
            self.request_count += 1  # kept back for this when it was begun
            answer = self._kept(self._port.abort_upload(key, upload_id))
            if answer.is_success or answer.code == "NoSuchUpload":
                self._open_uploads.pop(upload_id)

    def list_page(self, query: ListQuery) -> Answer:
        return self._kept(self._port.list_page(query)) if self._take() else NOT_RUN

    def fetch_versioning(self) -> Answer:
        return self._kept(self._port.fetch_versioning()) if self._take() else NOT_RUN

    def fetch_lifecycle(self) -> Answer:
        return self._kept(self._port.fetch_lifecycle()) if self._take() else NOT_RUN

    def _take(self, *, reserve: int = 0) -> bool:
        if self._silences >= _SILENCE_LIMIT:
            return False  # a dead endpoint would cost a timeout for every question still to come
        if self.request_count + len(self._open_uploads) + 1 + reserve > REQUEST_LIMIT:
            return False
        self.request_count += 1
        return True

    def _kept(self, answer: Answer) -> Answer:
        is_silent = answer.status is None and answer.code not in _OUR_SILENCE
        self._silences = self._silences + 1 if is_silent else 0
        if answer.server_time_s is not None:
            # A Date has whole seconds, cut off, and was written somewhere within the round trip.
            sent_s = self._clock.now_ns() / 1e9 - answer.round_trip_s / 2
            self._skews_s.append(answer.server_time_s + 0.5 - sent_s)
        if answer.expiration:
            self.expirations.append(answer.expiration)
        if answer.version_id and answer.version_id != "null":
            self.version_ids.append(answer.version_id)
        return answer

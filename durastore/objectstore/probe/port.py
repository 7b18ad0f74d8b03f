"""What the probe asks of an endpoint: requests with values chosen by us, wrong ones too, and plain answers.

Duty: the protocol between the checks and the wire, and the values that cross it. No call here raises for what the
endpoint says or fails to say: the answer carries it. There is no call that takes an object away.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from durastore.objectstore.probe.result import ChecksumKind

__all__ = [
    "NO_CLAIMS",
    "NO_CONDITION",
    "Answer",
    "Claims",
    "Condition",
    "ExpiryRule",
    "ListQuery",
    "ListedPage",
    "PartClaim",
    "ProbePort",
    "WholeClaim",
]

Claims = Mapping[ChecksumKind, str]
"""Checksums to send with a body, base64, right or wrong."""
NO_CLAIMS: Claims = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedPage:
    """One page of a listing, keys decoded, in the order they came."""

    keys: tuple[str, ...]
    is_truncated: bool
    next_token: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiryRule:
    """One enabled lifecycle rule that takes objects away or moves them to another class."""

    name: str
    prefix: str
    is_expiring: bool
    """True: objects go. False: they only change their class."""
    is_tagged: bool
    """True if it applies to tagged objects only (ours carry no tags)."""
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back. Everything but `status` is what a parser could find, and is absent where it found nothing."""

    status: int | None
    """None: no answer at all (no connection, cut off, timed out)."""
    code: str = ""
    """S3's error code, or the kind of the failure where no answer came."""
    etag: str = ""
    """As sent, quotes included."""
    size_bytes: int | None = None
    checksums: Claims = field(default_factory=dict)
    """Checksums the endpoint tells about the object, base64."""
    checksum_type: str = ""
    """The endpoint's word for what its checksums cover; empty where it says nothing."""
    version_id: str | None = None
    server_time_s: float | None = None
    round_trip_s: float = 0.0
    expiration: str | None = None
    """The lifecycle's own announcement about this object."""
    content_range: str | None = None
    body: bytes = b""
    upload_id: str | None = None
    page: ListedPage | None = None
    versioning: str | None = None
    """The bucket's versioning word, empty where it was never switched on; None where the answer does not say."""
    rules: tuple[ExpiryRule, ...] | None = None

    @property
    def is_success(self) -> bool:
        return self.status is not None and 200 <= self.status < 300

    @property
    def is_whole_object(self) -> bool:
        """False where it says its checksums are composed of the parts' checksums."""
        return self.checksum_type in ("", "FULL_OBJECT")

    @property
    def is_refusal(self) -> bool:
        """The endpoint looked at this very request and refused its content: 400, nothing about time, place or rights.

        403, 404, 408, 429, 5xx and cut connections refuse for reasons of their own, so they show nothing.
        """
        return self.status == 400 and self.code not in _OTHER_REASONS

    def shown(self) -> str:
        """Status and code, for a detail."""
        if self.status is None:
            return f"no answer ({self.code})" if self.code else "no answer"
        return f"{self.status} {self.code}".rstrip()


# 400s that say nothing about the checksum, size or condition that was sent.
_OTHER_REASONS = frozenset(
    [
        "RequestTimeout",
        "ExpiredToken",
        "InvalidToken",
        "TokenRefreshRequired",
        "AuthorizationHeaderMalformed",
        "AuthorizationQueryParametersError",
        "InvalidBucketName",
        "MissingSecurityHeader",
        "RequestTimeTooSkewed",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "RequestLimitExceeded",
        "ServerBusy",
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A condition to send with a request."""

    is_create_only: bool = False
    if_match: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartClaim:
    """One part as Complete lists it."""

    number: int
    etag: str
    claims: Claims = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeClaim:
    """What Complete claims about the whole object. None: not sent."""

    crc64nvme: str | None = None
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListQuery:
    """Which page of which keys."""

    prefix: str
    max_keys: int
    token: str | None = None
    start_after: str | None = None


NO_CONDITION = Condition()


class ProbePort(Protocol):
    """One bucket, spoken to in single requests that are never repeated on their own. Each call is one request."""

    @property
    def endpoint(self) -> str: ...

    @property
    def bucket(self) -> str: ...

    @property
    def account(self) -> str:
        """A digest of the access key id: tells whether the credentials changed, and nothing else."""
        ...

    def put(
        self, key: str, body: bytes, *, claims: Claims = NO_CLAIMS, condition: Condition = NO_CONDITION
    ) -> Answer: ...

    def put_truncated(self, key: str, body: bytes, *, sent_bytes: int) -> Answer:
        """Announce all of `body`, send `sent_bytes` of it, and end the connection's sending side."""
        ...

    def head(self, key: str) -> Answer:
        """On a connection that no write of this port used."""
        ...

    def get(self, key: str, *, span: tuple[int, int] | None = None, condition: Condition = NO_CONDITION) -> Answer:
        """`span` is (start, stop)."""
        ...

    def create_upload(self, key: str, *, kind: ChecksumKind | None) -> Answer:
        """`kind`: the checksum the upload is declared to use; None: undeclared."""
        ...

    def upload_part(self, key: str, upload_id: str, *, number: int, body: bytes, claims: Claims) -> Answer: ...

    def complete_upload(self, key: str, upload_id: str, *, parts: Sequence[PartClaim], whole: WholeClaim) -> Answer: ...

    def abort_upload(self, key: str, upload_id: str) -> Answer:
        """Give up an upload of our own. No object changes."""
        ...

    def list_page(self, query: ListQuery) -> Answer: ...

    def fetch_versioning(self) -> Answer: ...

    def fetch_lifecycle(self) -> Answer: ...

    def close(self) -> None: ...

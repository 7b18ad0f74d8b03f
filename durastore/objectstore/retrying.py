"""The only home of retries: when a failed call may be made again, and after how long.

Duty: full jitter within a time budget, for calls whose repetition is harmless. Must never retry a mismatch, a refused
precondition, refused credentials or a cancellation, and must never turn an unclear outcome into a clear one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from durastore.clock import SYSTEM_CLOCK, Clock
from durastore.errors import (
    AmbiguousWrite,
    DurastoreError,
    EndpointUnreachable,
    ObjectExists,
    OverloadedEndpoint,
    RequestRefused,
    UnknownAnswer,
)
from durastore.model import ObjectKey
from durastore.objectstore.columns import ColumnLister, ColumnPage, column_page
from durastore.objectstore.folders import FolderLister, FolderPage
from durastore.objectstore.listing import Listing, pages_of
from durastore.objectstore.port import (
    Body,
    ListPage,
    ObjectReader,
    ObjectStat,
    ObjectStore,
    OpenUpload,
    PartReply,
    WriteReply,
)
from durastore.objectstore.ranges import RangesReader, Span
from durastore.objectstore.whole import WholeObject, fetch_whole

__all__ = ["RetryPolicy", "RetryingReader", "RetryingStore"]

T = TypeVar("T")

_DAMAGED_ON_THE_WAY = frozenset(("BadDigest", "XAmzContentChecksumMismatch"))
_DAMAGED_ATTEMPTS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How patient to be. Immutable and shared freely; the caller counts attempts and watches `budget_s`."""

    budget_s: float = 120.0
    """No further attempt later than this after the first failure."""
    base_s: float = 0.2
    cap_s: float = 20.0
    max_attempts: int = 10
    jitter: Callable[[], float] = random.random
    """A number from 0 to 1; tests put in their own."""

    def delay_s(self, attempt: int, error: BaseException) -> float | None:
        """Seconds to wait after the `attempt`-th failure (1 for the first), or None: give up and raise `error`."""
        if attempt >= self.max_attempts or not _is_retryable(attempt, error):
            return None
        base_s = self.base_s * (4 if isinstance(error, OverloadedEndpoint) else 1)
        return self.jitter() * min(self.cap_s, base_s * 2.0 ** min(attempt - 1, 30))


def _is_retryable(attempt: int, error: BaseException) -> bool:
    if isinstance(error, EndpointUnreachable | UnknownAnswer):
        return True
    # The endpoint found other bytes than we hashed. Once that can be a bit lost on the way; again it is our own bytes.
    is_damaged = isinstance(error, RequestRefused) and error.facts.get("server_code") in _DAMAGED_ON_THE_WAY
    return is_damaged and attempt < _DAMAGED_ATTEMPTS


@dataclass(slots=True)
class _Attempts:
    """One call's attempts."""

    policy: RetryPolicy
    clock: Clock
    count: int = 0
    is_unclear: bool = False
    """An earlier attempt may have taken effect."""
    _deadline: float | None = None

    def wait_after(self, error: DurastoreError) -> None:
        """Sleep before the next attempt, or raise `error`."""
        now = self.clock.monotonic()
        if self._deadline is None:
            self._deadline = now + self.policy.budget_s
        self.count += 1
        self.is_unclear = self.is_unclear or isinstance(error, EndpointUnreachable | UnknownAnswer)
        delay_s = self.policy.delay_s(self.count, error)
        if delay_s is None or now + delay_s > self._deadline:
            raise error
        self.clock.sleep(delay_s)


def _call(action: Callable[[], T], attempts: _Attempts) -> T:
    while True:
        try:
            return action()
        except DurastoreError as exc:
            attempts.wait_after(exc)


class RetryingReader:
    """`ObjectReader` that asks again."""

    def __init__(self, reader: ObjectReader, policy: RetryPolicy, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._reader = reader
        self._policy = policy
        self._clock = clock

    def __repr__(self) -> str:
        return f"RetryingReader({self._reader!r})"

    def _attempts(self) -> _Attempts:
        return _Attempts(self._policy, self._clock)

    def head(self, key: ObjectKey) -> ObjectStat:
        return _call(lambda: self._reader.head(key), self._attempts())

    def fetch(
        self,
        key: ObjectKey,
        *,
        offset: int = 0,
        length: int | None = None,
        if_match: str | None = None,
        version_id: str | None = None,
    ) -> bytes:
        return _call(
            lambda: self._reader.fetch(key, offset=offset, length=length, if_match=if_match, version_id=version_id),
            self._attempts(),
        )

    def fetch_chunks(
        self, key: ObjectKey, *, chunk_bytes: int = 1 << 20, version_id: str | None = None
    ) -> Iterator[bytes]:
        """After a break the object is read from its start again and what was handed out is passed over.

        The caller checks the digest of the whole, as of any read, so bytes of two objects cannot pass for one.
        """
        attempts, handed_out = self._attempts(), 0
        while True:
            try:
                position = 0
                for chunk in self._reader.fetch_chunks(key, chunk_bytes=chunk_bytes, version_id=version_id):
                    fresh = chunk[max(0, handed_out - position) :]
                    position += len(chunk)
                    if fresh:
                        handed_out = position
                        yield fresh
                return
            except DurastoreError as exc:
                attempts.wait_after(exc)

    def fetch_whole(self, key: ObjectKey, *, size_bytes: int) -> WholeObject | None:
        """See `objectstore.whole`."""
        return _call(lambda: fetch_whole(self._reader, key, size_bytes=size_bytes), self._attempts())

    def close(self) -> None:
        self._reader.close()


class RetryingStore:
    """`ObjectStore` that makes calls again. Repeating is harmless: reads by nature, writes because of INV-4."""

    def __init__(self, store: ObjectStore, policy: RetryPolicy, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._store = store
        self._policy = policy
        self._clock = clock
        self._reader = RetryingReader(store, policy, clock=clock)

    def __repr__(self) -> str:
        return f"RetryingStore({self._store!r})"

    @property
    def url(self) -> str:
        return self._store.url

    @property
    def failure_domain(self) -> str:
        return self._store.failure_domain

    def fresh_reader(self) -> ObjectReader:
        return RetryingReader(self._store.fresh_reader(), self._policy, clock=self._clock)

    def close(self) -> None:
        self._store.close()

    def check_bucket(self) -> None:
        _call(self._store.check_bucket, self._attempts())

    def head(self, key: ObjectKey) -> ObjectStat:
        return self._reader.head(key)

    def fetch(
        self,
        key: ObjectKey,
        *,
        offset: int = 0,
        length: int | None = None,
        if_match: str | None = None,
        version_id: str | None = None,
    ) -> bytes:
        return self._reader.fetch(key, offset=offset, length=length, if_match=if_match, version_id=version_id)

    def fetch_chunks(
        self, key: ObjectKey, *, chunk_bytes: int = 1 << 20, version_id: str | None = None
    ) -> Iterator[bytes]:
        return self._reader.fetch_chunks(key, chunk_bytes=chunk_bytes, version_id=version_id)

    def fetch_ranges(self, key: ObjectKey, spans: Sequence[Span]) -> Sequence[memoryview]:
        """See `objectstore.ranges`."""
        store = self._store
        if not isinstance(store, RangesReader):  # each with a budget of its own
            return [memoryview(self.fetch(key, offset=start, length=stop - start)) for start, stop in spans]
        return _call(lambda: store.fetch_ranges(key, spans), self._attempts())

    def list(self, prefix: str, *, start_after: str | None = None) -> Iterator[ListPage]:
        """Each page has a budget of its own; a page that failed is asked for again where it was."""
        source = _call(lambda: self._store.list(prefix, start_after=start_after), self._attempts())
        if not isinstance(source, Listing):
            return source  # an iterator of unknown make would look finished after an error, so it is not asked again
        return pages_of(_Pages(source, self._attempts), prefix=prefix, start_after=start_after)

    def list_columns(self, prefix: str) -> Iterator[ColumnPage]:
        """See `objectstore.columns`. Each page has a budget of its own, as in `list`."""
        if not isinstance(self._store, ColumnLister):
            yield from map(column_page, self.list(prefix))
            return
        source = self._store.list_columns(prefix)
        while True:
            try:
                columns = _call(source.__next__, self._attempts())
            except StopIteration:
                return
            yield columns

    def list_folder(self, prefix: str) -> FolderPage | None:
        """See `objectstore.folders`."""
        store = self._store
        return _call(lambda: store.list_folder(prefix), self._attempts()) if isinstance(store, FolderLister) else None

    def put(
        self, key: ObjectKey, body: Body, *, crc64nvme: str | None, metadata: Mapping[str, str], if_absent: bool = False
    ) -> WriteReply:
        attempts = self._attempts()

        def put() -> WriteReply:
            try:
                return self._store.put(key, body, crc64nvme=crc64nvme, metadata=metadata, if_absent=if_absent)
            except ObjectExists as exc:
                if not attempts.is_unclear:
                    raise
                # It may be our own earlier attempt that is in the way (case B98): only reading back can tell.
                raise _Settled(f"put {key}: it exists, after an attempt whose answer was lost") from exc

        return _call_settled(put, attempts)

    def create_upload(self, key: ObjectKey, *, metadata: Mapping[str, str]) -> str:
        return _call(lambda: self._store.create_upload(key, metadata=metadata), self._attempts())

    def upload_part(self, key: ObjectKey, upload_id: str, *, number: int, body: Body, crc64nvme: str) -> PartReply:
        return _call(
            lambda: self._store.upload_part(key, upload_id, number=number, body=body, crc64nvme=crc64nvme),
            self._attempts(),
        )

    def complete_upload(
        self, key: ObjectKey, upload_id: str, *, parts: Sequence[PartReply], size_bytes: int, crc64nvme: str
    ) -> WriteReply:
        attempts = self._attempts()

        def complete() -> WriteReply:
            try:
                return self._store.complete_upload(
                    key, upload_id, parts=parts, size_bytes=size_bytes, crc64nvme=crc64nvme
                )
            except RequestRefused as exc:
                if not attempts.is_unclear or exc.facts.get("server_code") != "NoSuchUpload":
                    raise
                # An earlier attempt completed it (case B99), or it was aborted: only reading back can tell.
                raise _Settled(f"complete {key}: the upload is gone, after an attempt whose answer was lost") from exc

        return _call_settled(complete, attempts)

    def abort_upload(self, key: ObjectKey, upload_id: str) -> None:
        _call(lambda: self._store.abort_upload(key, upload_id), self._attempts())

    def list_parts(self, key: ObjectKey, upload_id: str) -> tuple[PartReply, ...]:
        return _call(lambda: self._store.list_parts(key, upload_id), self._attempts())

    def list_uploads(self, prefix: str) -> tuple[OpenUpload, ...]:
        if not hasattr(self._store, "list_uploads"):
            return ()  # a caller's own adapter, made for an older port: what it cannot tell of is left alone
        return _call(lambda: self._store.list_uploads(prefix), self._attempts())

    def _attempts(self) -> _Attempts:
        return _Attempts(self._policy, self._clock)


class _Settled(Exception):
    """Ends the attempts of a write whose outcome further attempts cannot make clear."""


def _call_settled(action: Callable[[], T], attempts: _Attempts) -> T:
    try:
        return _call(action, attempts)
    except _Settled as exc:
        raise AmbiguousWrite(str(exc), hint="read it back: by digest or write id") from exc.__cause__


class _Pages(Iterator[ListPage]):
    """The pages of a listing, each asked for until it comes or the policy gives up."""

    def __init__(self, source: Listing, attempts: Callable[[], _Attempts]) -> None:
        self._source = source
        self._attempts = attempts

    def __next__(self) -> ListPage:
        return _call(lambda: next(self._source), self._attempts())

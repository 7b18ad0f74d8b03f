"""From one request to one answer.

Duty: the order in which S3 looks at a request (signature, body, owner, operation), with each kind of lie at its place
in that order; and the record of what was asked.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from http import HTTPMethod

from durastore.clock import SYSTEM_CLOCK
from durastore.testing.strict_s3 import buckets, lifecycle, listing, multipart, objects
from durastore.testing.strict_s3.answers import Answer, S3Refusal, error_answer
from durastore.testing.strict_s3.before import (
    RateLimit,
    as_kept,
    check_late_refusal,
    check_refusals,
    odd_answer,
    slow_down,
)
from durastore.testing.strict_s3.bending import bent, delivered, odd_completion
from durastore.testing.strict_s3.conditions import check_owner
from durastore.testing.strict_s3.payload import checked_payload
from durastore.testing.strict_s3.request import Request, parse_request
from durastore.testing.strict_s3.rules import Lie, RuleBook
from durastore.testing.strict_s3.seen import SeenRequest
from durastore.testing.strict_s3.sigv4 import Signer
from durastore.testing.strict_s3.storage import Bucket, Storage
from durastore.testing.strict_s3.wire import Connection, HttpHead

__all__ = ["Service"]

_REMEMBERED = 200_000
_ON_KEYS: Mapping[str, Callable[[Storage, Request], Answer]] = {
    "put": objects.put,
    "get": objects.get,
    "head": objects.head,
    "delete": objects.take_away,
    "copy": objects.copy,
    "create_upload": multipart.create_upload,
    "upload_part": multipart.upload_part,
    "copy_part": multipart.copy_part,
    "complete_upload": multipart.complete_upload,
    "abort_upload": multipart.abort_upload,
    "list_parts": multipart.list_parts,
    "list_buckets": buckets.list_buckets,
    "create_bucket": buckets.create_bucket,
}
_ON_BUCKETS: Mapping[str, Callable[[Bucket, Request], Answer]] = {
    "list": listing.list_v2,
    "list_v1": listing.list_v1,
    "list_versions": listing.list_versions,
    "list_uploads": listing.list_uploads,
    "head_bucket": buckets.head_bucket,
    "get_location": buckets.get_location,
    "get_versioning": buckets.get_versioning,
    "put_versioning": buckets.put_versioning,
    "get_lifecycle": lifecycle.get_lifecycle,
    "put_lifecycle": lifecycle.put_lifecycle,
}


class Service:
    """The server's state and what it does with a request. Thread-safe."""

    def __init__(self, signer: Signer) -> None:
        self.storage = Storage()
        self.rules = RuleBook()
        self.on_restart: Callable[[], None] = lambda: None
        self._signer = signer
        self._rate = RateLimit()
        self._turns = itertools.count()
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        self.seen: deque[SeenRequest] = deque(maxlen=_REMEMBERED)
        self.busy = 0
        self.peak = 0

    def restart_losing(self, seconds: float) -> None:
        """What a power cut does: writes of the last `seconds` are gone, and so is every connection."""
        self.storage.lose_since(SYSTEM_CLOCK.monotonic() - seconds)
        self.on_restart()

    def answer(self, head: HttpHead, connection: Connection) -> Answer:
        """The answer to one request; reads its body from `connection`."""
        request = None
        try:
            request = self._open(parse_request(head))
        except S3Refusal as refusal:
            return error_answer(refusal, resource=head.path, has_body=True)
        with self._lock:
            self.busy += 1
            self.peak = max(self.peak, self.busy)
        try:
            answer = self._answer(request, connection)
        finally:
            with self._lock:
                self.busy -= 1
        self._record(request, answer, connection=connection)
        return answer

    def _open(self, request: Request) -> Request:
        """Count it, and find out what is due in it."""
        with self._lock:
            self.counts[request.op] += 1
        told = self.rules.due(request.op, request.key)
        skew = told.get(Lie.CLOCK_SKEW)
        offset = 0.0 if skew is None else 3600.0 if skew.amount is None else skew.amount
        is_other = Lie.LAGGING_REPLICA in told and next(self._turns) % 2 == 1
        now_s = SYSTEM_CLOCK.now_ns() / 1e9 + offset
        return replace(request, told=told, is_other_turn=is_other, now_s=now_s)

    def _record(self, request: Request, answer: Answer, *, connection: Connection) -> None:
        self.seen.append(
            SeenRequest(
                op=request.op,
                bucket=request.bucket,
                key=request.key,
                status=0 if answer.is_lost else answer.status,
                connection=connection.number,
                at_s=SYSTEM_CLOCK.now_ns() / 1e9,
                has_version="versionId" in request.query,
                prefix=request.query.get("prefix", ""),
            )
        )

    def _answer(self, request: Request, connection: Connection) -> Answer:
        told = request.told
        odd = odd_answer(told)
        if odd is not None:
            return odd
        if Lie.CUT_REQUEST in told:
            connection.read_body(request.head, limit=(request.head.content_length() or 0) // 2)
            return Answer(is_lost=True)
        try:
            answer = self._carry_out(self._checked(request, connection))
            check_late_refusal(told)
        except S3Refusal as refusal:
            has_body = request.head.method != HTTPMethod.HEAD
            answer = error_answer(refusal, resource=request.resource, has_body=has_body)
            answer = replace(answer, is_last=refusal.code == "IncompleteBody")
        if Lie.VOLATILE in told:
            self.restart_losing(5.0 if told[Lie.VOLATILE].amount is None else told[Lie.VOLATILE].amount or 0.0)
            return Answer(is_lost=True)
        return delivered(answer, told)

    def _checked(self, request: Request, connection: Connection) -> Request:
        """The request with its body, signed and whole; `S3Refusal` where it is not to be carried out."""
        limit = request.told.get(Lie.RATE_LIMIT)
        if limit is not None and self._rate.is_over(limit.amount or 100.0):
            raise slow_down()
        signature = self._signer.check(request.head, now_s=request.now_s)
        throttle = request.told.get(Lie.THROTTLE)
        pace = None if throttle is None else throttle.amount or 1024.0
        body = connection.read_body(request.head, bytes_per_s=pace)
        content, trailers = checked_payload(request.head, body, signature=signature, told=request.told)
        request = as_kept(replace(request, body=content, trailers=trailers))
        check_refusals(request)
        return request

    def _carry_out(self, request: Request) -> Answer:
        if Lie.RECREATED_BUCKET in request.told:
            self.storage.make_bucket(request.bucket)
        if request.op == "complete_upload" and (odd := odd_completion(request.told, is_done=False)) is not None:
            return odd
        on_keys = _ON_KEYS.get(request.op)
        if on_keys is not None:
            if request.op not in ("list_buckets", "create_bucket"):
                with self.storage.lock:
                    check_owner(self.storage.bucket(request.bucket), request)
            return bent(on_keys(self.storage, request), request, whole=lambda: self._whole(request))
        on_bucket = _ON_BUCKETS.get(request.op)
        if on_bucket is None:
            raise S3Refusal("NotImplemented", "This server does not implement that.", status=501)
        with self.storage.lock:
            bucket = self.storage.bucket(request.bucket)
            check_owner(bucket, request)
            return on_bucket(bucket, request)

    def _whole(self, request: Request) -> bytes:
        with self.storage.lock:
            version = self.storage.bucket(request.bucket).latest(request.key)
        return b"" if version is None else version.remains()

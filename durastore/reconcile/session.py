"""What a reconcile works with: the bucket, an uploader, a verifier, the options. Opened once, closed at the end.

Duty: the composition of the lower layers for one run. Must never open a spool.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from durastore.clock import SYSTEM_CLOCK, Clock
from durastore.config import StoreOptions
from durastore.errors import ConfigError
from durastore.objectstore.fate import refuse_same_fate
from durastore.objectstore.location import BucketUrl, S3Options, open_object_store
from durastore.objectstore.port import ObjectStore
from durastore.objectstore.retrying import RetryingStore, RetryPolicy
from durastore.observe.events import Observer, Silent

if TYPE_CHECKING:  # imported where they are used: a look without --apply neither sends nor proves
    from durastore.upload.engine import Uploader
    from durastore.verify.verifier import Verifier

__all__ = ["ReconcileRequest", "Session", "opened_session"]

_FOREIGN_SETTLE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileRequest:
    """What one run is asked to do."""

    local: Path
    bucket: BucketUrl
    options: StoreOptions = field(default_factory=StoreOptions)
    is_deep: bool = False
    is_applied: bool = False
    is_reclaiming: bool = False
    """Proven files leave the folder, proven packs the spools. Means nothing without `is_applied`."""
    is_burying: bool = False
    """Rows whose pack is gone are taken out, for good. Without it they are findings."""
    are_zeros_data: bool = False
    """Files that end in zeros which nothing says are lost pages are whole: the operator answers for it."""
    is_adopting: bool = False
    """Only the folder's own files are sent: nothing is set aside, and nothing mended that they do not need."""
    settle_s: float | None = None
    """Seconds between upload and reclaim: 60 for files that durastore did not write, the option's for packs."""
    hash_bytes_per_s: int = 0
    """Limit of hashing; 0: none."""

    def __post_init__(self) -> None:
        if self.settle_s is not None and not 0 <= self.settle_s < math.inf:
            raise ConfigError(f"the settle time is {self.settle_s} s", hint="give --settle seconds, 0 or more")

    @property
    def foreign_settle_s(self) -> float:
        return _FOREIGN_SETTLE_S if self.settle_s is None else self.settle_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """Open connections of one run."""

    request: ReconcileRequest
    objects: ObjectStore
    prefix: str
    s3: S3Options
    open_uploader: Callable[[], Uploader]
    """Opened at the first call, the same at every further one, closed with the session."""
    clock: Clock
    observer: Observer
    bare: ObjectStore
    is_own_adapter: bool
    """`bare` is the caller's, not what the URL names."""

    def verifier(self, store_id: str) -> Verifier:
        """A verifier for files of others: every copy is read back in full, whatever the endpoint attests."""
        from durastore.upload.job import UploadLimits
        from durastore.verify.policy import ProofPolicy
        from durastore.verify.verifier import BucketIdentity, Verifier

        request = self.request
        policy = ProofPolicy(
            evidence_ttl_s=request.options.evidence_ttl_s,
            settle_s=request.foreign_settle_s,
            receipt_ttl_s=request.options.receipt_ttl_s,
            part_bytes=UploadLimits().part_bytes,
        )
        bucket = BucketIdentity(prefix=self.prefix, store_id=store_id)
        return Verifier(self.objects, bucket=bucket, policy=policy, clock=self.clock, observer=self.observer)

    def refuse_same_fate(self) -> None:
        """`SameFailureDomain` where files would be reclaimed for a copy on their own disk, or in memory."""
        is_allowed = self.is_own_adapter or self.request.options.is_any_filesystem_allowed
        refuse_same_fate(self.objects, self.request.local, is_allowed=is_allowed)


@contextmanager
def opened_session(
    request: ReconcileRequest,
    *,
    objects: ObjectStore | None = None,
    clock: Clock = SYSTEM_CLOCK,
    observer: Observer | None = None,
) -> Iterator[Session]:
    """Open the bucket and check that it answers. `objects`: an adapter of the caller's own, which stays open.

    `BucketMissing`, `CredentialsRefused`, `EndpointUnreachable` and their like pass.
    """
    with ExitStack() as stack:
        s3 = S3Options.of(request.options)
        bare = objects
        if bare is None:
            bare = open_object_store(request.bucket, s3=s3)
            stack.callback(bare.close)
        store = RetryingStore(bare, RetryPolicy(budget_s=30.0), clock=clock)
        store.check_bucket()
        heard = observer if observer is not None else Silent()

        @cache
        def open_uploader() -> Uploader:
            from durastore.upload.engine import Uploader
            from durastore.upload.job import UploadLimits
            from durastore.upload.transports import choose_transport

            limits = UploadLimits()
            transport = choose_transport(bare, request.options.transport, s3=s3, max_requests=limits.max_requests)
            uploader = Uploader(transport, limits=limits, policy=RetryPolicy(), clock=clock, observer=heard)
            stack.callback(uploader.close, 2.0)
            return uploader

        yield Session(
            request=request,
            objects=store,
            prefix=request.bucket.prefix,
            s3=s3,
            open_uploader=open_uploader,
            clock=clock,
            observer=heard,
            bare=bare,
            is_own_adapter=objects is not None,
        )

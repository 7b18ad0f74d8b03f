"""Failures on their way to the bucket, so that they are known without this machine.

Duty: a thread that tells the bucket what the book holds and the bucket does not know: at the start (what an earlier
process could not tell), now and then, and at the end. Must never make the extraction wait or fail: what cannot be told
stays in the book for the next time. Must never say that a sample is stored: it only says which failures to look up.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Protocol

from durastore.clock import SYSTEM_CLOCK
from durastore.errors import DurastoreError
from durastore.extract.failure_book import FailureBook
from durastore.extract.held import plain_options
from durastore.extract.shared_failures import fetch_latest, heard_failures
from durastore.formats.failure_list import MAX_LIST_ROWS, FailedSample, FailureList, SettledFailure, render_failure_list
from durastore.manifest.failure_lists import publish_failures
from durastore.model import Digest, WriterId
from durastore.objectstore.location import BucketUrl, S3Options, open_object_store
from durastore.objectstore.port import ObjectStore
from durastore.objectstore.retrying import RetryingStore, RetryPolicy
from durastore.observe.events import LOGGER
from durastore.spool.root import SpoolRoot
from durastore.store.opening import OptionOverrides
from durastore.store.probing import choose_headers

__all__ = ["FailureTeller", "hear_failures", "opened_bucket", "telling_failures"]

_PATIENCE_S = 20.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 60.0, 3600.0
"""Each pause is twice the last: a run of ten days makes 250 lists at most."""
_LAST_WORDS_S, _LAST_WORDS_OF_A_STOP_S = 30.0, 5.0
_LOOK_S = 0.2

OpenBucket = Callable[[], AbstractContextManager[tuple[ObjectStore, str]]]


class FailureTeller:
    """Tells the failures of one run. `tell` is for one thread at a time."""

    def __init__(self, book: FailureBook, bucket: OpenBucket, *, run: Digest) -> None:
        self._book = book
        self._bucket = bucket
        self._run = run
        self._writer = WriterId.mint()  # of this process: numbers of its own, without a hole
        self._seq = 0

    def tell(self) -> int:
        """Put what the bucket does not know into lists, read them back, and only then note them as told (INV-2).

        The number of rows. Raises what the bucket and the book raise. A kill in between costs a list that says the same
        again, and equal rows count once.
        """
        host, count = socket.gethostname(), 0
        while rows := self._book.untold(host=host, limit=MAX_LIST_ROWS):
            data = render_failure_list(_list_of(rows, run=self._run))
            with self._bucket() as (store, prefix):
                publish_failures(store, data, prefix=prefix, writer=self._writer, seq=self._seq + 1)
            self._seq += 1
            self._book.told(rows)
            count += len(rows)
        return count


def _list_of(rows: list[FailedSample | SettledFailure], *, run: Digest) -> FailureList:
    return FailureList(
        run=run,
        failed=tuple(row for row in rows if isinstance(row, FailedSample)),
        settled=tuple(row for row in rows if isinstance(row, SettledFailure)),
    )


@contextmanager
def telling_failures(
    teller: FailureTeller, *, is_stopping: Callable[[], bool], is_out_of_time: Callable[[], bool] = lambda: False
) -> Iterator[None]:
    """Tell while the block runs and once more after it, for 30 s at most (5 s after a stop or an error, also one that
    comes meanwhile, and no longer than its grace time). Raises for nothing of its own.
    """
    over = threading.Event()
    thread = threading.Thread(target=_go_on, args=(teller, over), name="durastore-failures", daemon=True)
    thread.start()
    is_in_order = False
    try:
        yield
        is_in_order = True
    finally:
        over.set()
        started_s = SYSTEM_CLOCK.monotonic()
        while thread.is_alive() and not is_out_of_time():
            # Looked at again and again: whoever stops the command now waits for its report.
            patience_s = _LAST_WORDS_S if is_in_order and not is_stopping() else _LAST_WORDS_OF_A_STOP_S
            left_s = patience_s - (SYSTEM_CLOCK.monotonic() - started_s)
            if left_s <= 0:
                break
            thread.join(min(left_s, _LOOK_S))
        if thread.is_alive():
            LOGGER.warning("the bucket was not told of all failures in time: the next run tells it")


def _go_on(teller: FailureTeller, over: threading.Event) -> None:
    pause_s = _FIRST_PAUSE_S
    is_last = False
    while not is_last:
        is_last = over.is_set()
        try:
            teller.tell()
        except Exception as exc:  # noqa: BLE001 - history that could not be told must cost nothing else
            LOGGER.warning("the bucket was not told of failures, which is done later: %s", _words_of(exc))
        if not is_last:
            over.wait(pause_s)
            pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s)


def _words_of(exc: Exception) -> str:
    return exc.message if isinstance(exc, DurastoreError) else f"{type(exc).__name__}: {exc}"


def hear_failures(book: FailureBook, bucket: OpenBucket, *, run: Digest) -> None:
    """Note what the bucket calls failed, whoever told it, for `--retry-failed`. Raises for nothing of the bucket's.

    Where it cannot be asked, the book's own failures are all that is known.
    """
    try:
        with bucket() as (store, prefix):
            latest, lists = fetch_latest(store, prefix, run=run)
        if lists.ignored:
            first = lists.ignored[0]
            LOGGER.warning("%d failure lists are not read, e.g. %s: %s", len(lists.ignored), first.key, first.reason)
        book.hear(heard_failures(latest))
    except Exception as exc:  # noqa: BLE001 - history that could not be heard must cost nothing else
        LOGGER.warning("what failed elsewhere could not be heard of: %s", _words_of(exc))


class BucketRequest(Protocol):
    """What of a request says where the bucket is."""

    @property
    def bucket(self) -> str: ...

    @property
    def local(self) -> Path: ...

    @property
    def options(self) -> OptionOverrides: ...


@contextmanager
def opened_bucket(request: BucketRequest) -> Iterator[tuple[ObjectStore, str]]:
    """The request's bucket and prefix, on connections of their own, with the headers that its probe chose."""
    place, options = BucketUrl.parse(request.bucket), plain_options(request.options)
    own: ObjectStore | None = request.options.get("objects")
    if own is not None:
        yield RetryingStore(own, RetryPolicy(budget_s=_PATIENCE_S), clock=SYSTEM_CLOCK), place.prefix
        return
    s3 = S3Options.of(options)
    if place.kind == "s3" and options.probe == "auto":
        with closing(
            SpoolRoot.open(request.local, is_any_filesystem_allowed=options.is_any_filesystem_allowed)
        ) as root:
            choose_headers(place, s3, root=root)
    with closing(open_object_store(place, s3=s3)) as bare:
        yield RetryingStore(bare, RetryPolicy(budget_s=_PATIENCE_S), clock=SYSTEM_CLOCK), place.prefix

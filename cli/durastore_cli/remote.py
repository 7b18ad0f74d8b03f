"""Opening the remote side for commands that only need the bucket.

Duty: options resolved by precedence -> an object store that repeats failed calls, closed at the end. Opens no spool.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from durastore.clock import SYSTEM_CLOCK
from durastore.config import resolve_options
from durastore.errors import EndpointUnreachable
from durastore.observe.events import LOGGER

if TYPE_CHECKING:
    from durastore.objectstore.port import ObjectStore

__all__ = ["opened_remote"]


@contextmanager
def opened_remote(bucket: str, given: Mapping[str, Any]) -> Iterator[tuple[ObjectStore, str]]:
    """The bucket's object store and the prefix in it. Raises `ConfigError`, `BucketMissing` and network errors."""
    from durastore.objectstore.location import BucketUrl, S3Options, open_object_store
    from durastore.objectstore.retrying import RetryingStore, RetryPolicy

    options = resolve_options(given)
    s3 = S3Options.of(options)
    url = BucketUrl.parse(bucket)
    objects = open_object_store(url, s3=s3)
    try:
        store = RetryingStore(objects, RetryPolicy(), clock=SYSTEM_CLOCK)
        _check_bucket(objects, store)
        yield store, url.prefix
    finally:
        objects.close()


def _check_bucket(objects: ObjectStore, store: ObjectStore) -> None:
    """Once, and if nobody answers, say so before going on with patience: else half a minute passes in silence."""
    try:
        objects.check_bucket()
    except EndpointUnreachable as exc:
        LOGGER.warning("%s; asked again for a while", exc.message)
        store.check_bucket()

"""Which transport carries the uploads of a store.

Duty: `choose_transport`. Must never guess an endpoint: the aio client is made only from the options the store itself
was opened with.
"""

from __future__ import annotations

from importlib.util import find_spec

from durastore.errors import ConfigError
from durastore.objectstore.location import BucketUrl, S3Options
from durastore.objectstore.port import ObjectStore
from durastore.upload.aio import aio_transport
from durastore.upload.port import TransportFactory
from durastore.upload.threads import threads_transport

__all__ = ["choose_transport"]


def choose_transport(
    store: ObjectStore, name: str, *, s3: S3Options | None = None, max_requests: int = 32
) -> TransportFactory:
    """`auto`: aio for an S3 store where aioboto3 is installed and `s3` is given, else threads. Opens nothing yet.

    `store` is the bare adapter, not a retrying one: the engine retries. `s3` are the options it was opened with; `aio`
    without them, or for a store that is not S3, is a `ConfigError`. `max_requests` as in the engine's limits.
    """
    if name not in ("auto", "aio", "threads"):
        raise ConfigError(f"transport is {name!r}", hint="use auto, aio or threads")
    place = BucketUrl.parse(store.url)
    if name == "threads" or (name == "auto" and (place.kind != "s3" or s3 is None or find_spec("aioboto3") is None)):
        return threads_transport(store, max_requests=max_requests)
    if place.kind != "s3" or s3 is None:
        raise ConfigError(f"transport aio is for S3 only, and {store.url} is not", hint="set transport=auto or threads")
    return aio_transport(place.bucket, options=s3, max_requests=max_requests)

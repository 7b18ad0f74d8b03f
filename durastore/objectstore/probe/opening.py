"""The probe's port for what a bucket URL names.

Duty: choose the adapter, as `open_object_store` does for the store itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from durastore.errors import BucketMissing, DurastoreError
from durastore.formats.stop import Place
from durastore.objectstore.location import BucketUrl, S3Options, open_object_store
from durastore.objectstore.port import ObjectStore
from durastore.objectstore.probe.port import ProbePort
from durastore.objectstore.probe.saved import target_of

__all__ = ["opened_probe_port", "probed_place", "require_bucket"]


@contextmanager
def opened_probe_port(url: BucketUrl, *, s3: S3Options, via: ObjectStore | None = None) -> Iterator[ProbePort]:
    """A port with connections of its own, closed at the end. Sends nothing by itself. `via`: the store of this URL and
    these options, where one is open: its session and its clients are used, not its connections.

    Raises `ConfigError`, `CredentialsRefused` or `BucketMissing` as `open_object_store` does.
    """
    if url.kind == "s3":
        from durastore.objectstore.probe.s3_wire import S3Wire
        from durastore.objectstore.s3 import S3Store

        wire = S3Wire(url.bucket, options=s3, connector=via.connector if isinstance(via, S3Store) else None)
        try:
            yield wire
        finally:
            wire.close()
        return
    from durastore.objectstore.probe.store_port import StorePort

    store = open_object_store(url, s3=s3)
    try:
        yield StorePort(store)
    finally:
        store.close()


def require_bucket(url: BucketUrl, *, s3: S3Options) -> None:
    """Raise `BucketMissing` where the endpoint says that there is no such bucket: some make one at the first write, so
    that a probe of a mistyped name would go well. Whatever else stands in the way is for the probe to meet.
    """
    store = open_object_store(url, s3=s3)
    try:
        store.check_bucket()
    except BucketMissing:
        raise
    except DurastoreError:
        return  # such as: no right to look at the bucket, which a probe does without
    finally:
        store.close()


def probed_place(url: BucketUrl, *, s3: S3Options, via: ObjectStore | None = None) -> tuple[Place, str]:
    """What a probe result about this bucket is about: the place in words, and the digest with the account. Sends
    nothing. Takes and raises what `opened_probe_port` does.
    """
    with opened_probe_port(url, s3=s3, via=via) as port:
        place = Place(endpoint=port.endpoint, bucket=port.bucket, prefix=url.prefix)
        return place, target_of(endpoint=port.endpoint, bucket=port.bucket, prefix=url.prefix, account=port.account)

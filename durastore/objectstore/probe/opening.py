"""The probe's port for what a bucket URL names.

Duty: choose the adapter, as `open_object_store` does for the store itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from durastore.objectstore.location import BucketUrl, S3Options, open_object_store
from durastore.objectstore.probe.port import ProbePort

__all__ = ["opened_probe_port"]


@contextmanager
def opened_probe_port(url: BucketUrl, *, s3: S3Options) -> Iterator[ProbePort]:
    """A port with connections of its own, closed at the end. Sends nothing by itself.

    Raises `ConfigError`, `CredentialsRefused` or `BucketMissing` as `open_object_store` does.
    """
    if url.kind == "s3":
        from durastore.objectstore.probe.s3_wire import S3Wire

        wire = S3Wire(url.bucket, options=s3)
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

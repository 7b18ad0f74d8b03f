"""Small ranged reads through obstore: a fifteenth of boto3's CPU for each.

Duty: hand out exactly the range asked for, or an error. obstore runs on threads of one runtime per process, which a
forked child does not have and cannot make again: there, nothing here may be used (`is_usable`), or it would hang.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from durastore.clock import SYSTEM_CLOCK
from durastore.errors import ConfigError, CredentialsRefused, DurastoreError, IntegrityError, RequestRefused
from durastore.model import ObjectKey
from durastore.objectstore.classify import classify
from durastore.objectstore.ranges import Span
from durastore.objectstore.s3_client import Connector
from durastore.objectstore.whole import WholeObject

if TYPE_CHECKING:
    from obstore.store import S3Credential

__all__ = ["RangedReads", "is_usable"]

_REQUEST_LIMIT_S = 900.0
_CREDENTIAL_TTL = timedelta(minutes=5)
_WRONG_RANGE = ("Received non-partial response", "Requested ", "Content-Range header", "CONTENT_RANGE header")
_NOT_IN_OBJECT = 416

_is_runtime_lost = False


def _note_fork() -> None:
    """Whoever imported obstore may have started its runtime; the child cannot tell, so it must not touch it."""
    global _is_runtime_lost
    _is_runtime_lost = _is_runtime_lost or "obstore" in sys.modules


os.register_at_fork(after_in_child=_note_fork)


def is_usable() -> bool:
    """False in a process forked from one that had loaded obstore."""
    return not _is_runtime_lost


class RangedReads:
    """obstore's client for one bucket, for the process that made it. Thread-safe."""

    def __init__(self, connector: Connector, client: Any) -> None:
        """`client` is the boto3 client whose endpoint and region are used; nothing is sent."""
        self._reader = _open(connector, client)

    def fetch(self, key: ObjectKey, asked: tuple[int, int], *, if_match: str | None, version_id: str | None) -> bytes:
        """The bytes of the object from start to stop, as `asked`; `IntegrityError` if the answer is anything else."""
        import obstore

        start, stop = asked
        given = {"range": asked, "if_match": if_match, "version": version_id}
        options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        try:
            result = obstore.get(self._reader, key.text, options=options)  # type: ignore[arg-type]  # a TypedDict
            data, span = bytes(result.bytes()), result.range
        except Exception as exc:  # noqa: BLE001  # every one is classified and raised
            error = _error_of(exc, key, start=start)
            raise error from _cause(exc, error)
        if span != asked or len(data) != stop - start:
            raise IntegrityError(f"get {key}: {len(data)} bytes came instead of {stop - start} at offset {start}")
        return data

    def fetch_whole(self, key: ObjectKey, *, size_bytes: int) -> WholeObject | None:
        """See `objectstore.whole`."""
        import obstore

        try:
            result = obstore.get(self._reader, key.text)
            meta = result.meta
            data = memoryview(result.bytes()) if meta["size"] == size_bytes else None
        except Exception as exc:  # noqa: BLE001  # every one is classified and raised
            error = _error_of(exc, key, start=0)
            raise error from _cause(exc, error)
        if data is None or len(data) != size_bytes:
            raise IntegrityError(f"get {key}: an object of {meta['size']} bytes came instead of {size_bytes}")
        etag = meta["e_tag"]
        return WholeObject(data=data, etag=etag, version_id=meta["version"]) if etag else None

    def fetch_ranges(self, key: ObjectKey, spans: Sequence[Span]) -> Sequence[memoryview]:
        """See `objectstore.ranges`: one call of obstore's costs half of as many calls as spans, and copies nothing."""
        import obstore

        starts, stops = zip(*spans, strict=True)
        try:
            # Only what touches is joined: who asks has said which holes are worth reading.
            pieces = obstore.get_ranges(self._reader, key.text, starts=starts, ends=stops, coalesce=0)
        except Exception as exc:  # noqa: BLE001  # every one is classified and raised
            error = _error_of(exc, key, start=starts[0])
            raise error from _cause(exc, error)
        found = [memoryview(piece) for piece in pieces]
        for (start, stop), data in zip(spans, found, strict=True):
            if len(data) != stop - start:
                raise IntegrityError(f"get {key}: {len(data)} bytes came instead of {stop - start} at offset {start}")
        return found


def _error_of(exc: Exception, key: ObjectKey, *, start: int) -> DurastoreError:
    text = str(exc).partition("\n\n")[0]
    if "S3 error: " in text and any(mark in text for mark in _WRONG_RANGE) and "Server returned" not in text:
        return IntegrityError(f"get {key}: the answer covers another range than was asked for")
    error = classify(exc, write=False, what="get", key=key)
    if isinstance(error, RequestRefused) and error.facts.get("status") == _NOT_IN_OBJECT:
        return IntegrityError(f"get {key}: the object ends before byte {start}")
    return error


def _cause(exc: Exception, error: DurastoreError) -> Exception | None:
    """None where the client's exception quotes an answer that quotes the request's signature."""
    return None if isinstance(error, CredentialsRefused) else exc


def _open(connector: Connector, client: Any) -> Any:
    from obstore.store import S3Store

    options = connector.options
    endpoint = str(client.meta.endpoint_url)
    is_virtual = not connector.is_path_style(client)
    if is_virtual:
        scheme, _, host = endpoint.partition("://")
        endpoint = f"{scheme}://{connector.bucket}.{host}"
    transport: dict[str, Any] = {
        "allow_http": endpoint.startswith("http://"),
        "connect_timeout": timedelta(seconds=options.connect_timeout_s),
        "read_timeout": timedelta(seconds=options.read_timeout_s),
        "timeout": timedelta(seconds=_REQUEST_LIMIT_S),
        "user_agent": "durastore",
        # Bytes as they are stored, also behind a proxy that likes to compress (case B169).
        "default_headers": {"Accept-Encoding": "identity"},
    }
    authority = connector.ca_bundle()
    if authority and endpoint.startswith("https://"):
        transport["root_certificate"] = _load_certificates(authority)
    return S3Store(
        connector.bucket,
        config={
            # All of these, so that no AWS_* variable meant for another tool changes where we read from.
            "endpoint": endpoint,
            "aws_endpoint_url_s3": endpoint,
            "region": client.meta.region_name or "us-east-1",
            "virtual_hosted_style_request": is_virtual,
            "skip_signature": False,
            "s3_express": False,
            "unsigned_payload": True,
        },
        client_options=transport,  # type: ignore[arg-type]  # a TypedDict there, built key by key here
        retry_config={"max_retries": 0},
        credential_provider=_CredentialDoor(connector.credentials()),
    )


def _load_certificates(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as exc:
        raise ConfigError(f"ca_bundle {path} cannot be read: {exc.strerror}") from exc


class _CredentialDoor:
    """Hands obstore botocore's present credentials whenever it asks; keeps none."""

    __slots__ = ("_source",)

    def __init__(self, source: Any) -> None:
        self._source = source

    def __call__(self) -> S3Credential:
        frozen = self._source.get_frozen_credentials()  # refreshes them where they are about to expire
        # A short life makes obstore come back here, so that a rotated key reaches it.
        expires_at = datetime.fromtimestamp(SYSTEM_CLOCK.now_ns() / 1e9, UTC) + _CREDENTIAL_TTL
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": expires_at,
        }

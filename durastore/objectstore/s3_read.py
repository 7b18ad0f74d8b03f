"""Reading single objects from S3: HEAD and whole objects through boto3, small ranges through obstore.

Duty: say what the endpoint said, hand out exactly the bytes asked for, and call a key absent only where the endpoint
named it so. Must never retry: `retrying` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Any

from durastore.errors import ObjectAbsent, RequestRefused, UnknownAnswer
from durastore.model import ObjectKey
from durastore.objectstore.classify import classify
from durastore.objectstore.per_process import PerProcess
from durastore.objectstore.port import ObjectStat
from durastore.objectstore.ranges import Span
from durastore.objectstore.s3_body import open_body
from durastore.objectstore.s3_client import Connector
from durastore.objectstore.s3_ranged import RangedReads, is_usable
from durastore.objectstore.whole import WholeObject

__all__ = ["S3Reader", "is_archived", "server_time_of"]

_NOT_IN_OBJECT = 416
_ARCHIVES = frozenset(("GLACIER", "DEEP_ARCHIVE"))


class S3Reader:
    """`ObjectReader` over clients of its own, made at first use in each process. Thread-safe."""

    def __init__(self, connector: Connector) -> None:
        self._connector = connector
        self._bucket = connector.bucket
        self._clients: PerProcess[Any] = PerProcess(connector.connect)
        self._ranged: PerProcess[RangedReads] = PerProcess(lambda: RangedReads(connector, self.client()))

    def __repr__(self) -> str:
        return f"S3Reader(s3://{self._bucket})"

    def client(self) -> Any:
        """This process's boto3 client; for the writing and listing sides of the same store."""
        return self._clients.get()

    def close(self) -> None:
        self._ranged.take()
        client = self._clients.take()
        if client is not None:
            self._connector.give_back(client)

    def head(self, key: ObjectKey) -> ObjectStat:
        client = self.client()
        try:
            answer = client.head_object(Bucket=self._bucket, Key=key.text, ChecksumMode="ENABLED")
        except Exception as exc:
            error = classify(exc, write=False, what="head", key=key)
            if isinstance(error, ObjectAbsent) and not error.facts.get("is_delete_marker"):
                self._confirm_absence(client, key)
            raise error from exc
        return _stat_of(key, answer)

    def _confirm_absence(self, client: Any, key: ObjectKey) -> None:
        """A HEAD's 404 has no body, so it cannot say whether key or bucket lacks, nor who speaks: ask again by GET."""
        try:
            answer = client.get_object(Bucket=self._bucket, Key=key.text, Range="bytes=0-0")
        except Exception as exc:
            error = classify(exc, write=False, what="head", key=key)
            if isinstance(error, ObjectAbsent):
                return
            if error.facts.get("status") != _NOT_IN_OBJECT:  # that would be an empty object, so it does exist
                raise error from exc
        else:
            answer["Body"].close()
        raise UnknownAnswer(f"head {key}: HEAD calls it absent, GET finds it", hint="ask again later")

    def fetch(
        self,
        key: ObjectKey,
        *,
        offset: int = 0,
        length: int | None = None,
        if_match: str | None = None,
        version_id: str | None = None,
    ) -> bytes:
        if offset < 0 or (length is not None and length < 0):
            raise RequestRefused(f"get {key}: negative offset or length")
        if length == 0:
            return b""
        if length is not None and is_usable():
            span = (offset, offset + length)
            return self._ranged.get().fetch(key, span, if_match=if_match, version_id=version_id)
        # Whole objects come by boto3, for which size costs little, and so that a process that only reads manifests does
        # not start obstore's runtime: children forked from it can then still use theirs.
        stop = None if length is None else offset + length
        given = {"IfMatch": if_match, "VersionId": version_id}
        conditions = {name: value for name, value in given.items() if value is not None}
        return open_body(self.client(), key, bucket=self._bucket, span=(offset, stop), conditions=conditions).read()

    def fetch_ranges(self, key: ObjectKey, spans: Sequence[Span]) -> Sequence[memoryview]:
        """See `objectstore.ranges`."""
        if is_usable():
            return self._ranged.get().fetch_ranges(key, spans)
        return [memoryview(self.fetch(key, offset=start, length=stop - start)) for start, stop in spans]

    def fetch_whole(self, key: ObjectKey, *, size_bytes: int) -> WholeObject | None:
        """See `objectstore.whole`."""
        return self._ranged.get().fetch_whole(key, size_bytes=size_bytes) if is_usable() else None

    def fetch_chunks(
        self, key: ObjectKey, *, chunk_bytes: int = 1 << 20, version_id: str | None = None
    ) -> Iterator[bytes]:
        conditions = {"VersionId": version_id} if version_id is not None else {}
        body = open_body(self.client(), key, bucket=self._bucket, span=(0, None), conditions=conditions)
        # pieces of 8 MiB are new memory each, and pass through the CPU's caches twice: half as much CPU again
        yield from body.chunks(chunk_bytes)


def _stat_of(key: ObjectKey, answer: Mapping[str, Any]) -> ObjectStat:
    modified = answer.get("LastModified")
    checksum = answer.get("ChecksumCRC64NVME")
    return ObjectStat(
        key=key,
        # A length that was not sent is unknown, never 0 (case B64).
        size_bytes=answer["ContentLength"] if "content-length" in _headers(answer) else None,
        etag=answer.get("ETag", ""),
        version_id=answer.get("VersionId"),
        crc64nvme=checksum if checksum and answer.get("ChecksumType", "FULL_OBJECT") == "FULL_OBJECT" else None,
        metadata=tuple(sorted((name.lower(), value) for name, value in answer.get("Metadata", {}).items())),
        storage_class=answer.get("StorageClass"),
        is_readable=not is_archived(
            answer.get("StorageClass"), answer.get("ArchiveStatus"), restore=answer.get("Restore")
        ),
        server_time_s=server_time_of(answer),
        last_modified_s=modified.timestamp() if modified is not None else None,
    )


def is_archived(storage_class: str | None, archive_status: str | None = None, *, restore: str | None = None) -> bool:
    """True where HEAD succeeds but a GET would be refused: an archived object without a finished restore."""
    if restore is not None and 'ongoing-request="false"' in restore:
        return False
    return storage_class in _ARCHIVES or bool(archive_status)


def server_time_of(answer: Mapping[str, Any]) -> float | None:
    """The Date header of a botocore answer as Unix seconds; None where it lacks or is no date."""
    text = _headers(answer).get("date")
    if not text:
        return None
    try:
        return parsedate_to_datetime(text).timestamp()
    except ValueError:
        return None


def _headers(answer: Mapping[str, Any]) -> Mapping[str, str]:
    headers: Mapping[str, str] = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    return headers

"""One bucket on any S3 endpoint.

Duty: the S3 form of the port: explicit CRC64NVME on every body, unsigned payload, timeouts, no retry of its own, and
an honest error for every unclear answer. Credentials come by the standard AWS chain; must never hold or show them.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from durastore.errors import AmbiguousWrite, BucketMissing, ObjectAbsent, RequestRefused, UnknownAnswer
from durastore.model import ObjectKey
from durastore.objectstore.classify import classify
from durastore.objectstore.columns import ColumnListing
from durastore.objectstore.folders import FolderPage
from durastore.objectstore.listing import Listing
from durastore.objectstore.location import S3Options
from durastore.objectstore.port import Body, ObjectReader, ObjectStat, OpenUpload, PartReply, WriteReply
from durastore.objectstore.ranges import Span
from durastore.objectstore.s3_client import Connector
from durastore.objectstore.s3_list import fetch_folder, open_columns, open_listing
from durastore.objectstore.s3_read import S3Reader, server_time_of

__all__ = ["S3Store"]

_ENDPOINT_HINT = "endpoint_url is given without the bucket, in its path as in its host: http(s)://host[:port]"


class S3Store:
    """`ObjectStore` for an S3 bucket. Thread-safe; after a fork the child gets clients of its own."""

    def __init__(self, bucket: str, *, options: S3Options) -> None:
        self._bucket = bucket
        self._options = options
        self._sent = options.sent
        self._connector = Connector(bucket, options)
        self._reader = S3Reader(self._connector)

    def __repr__(self) -> str:
        return f"S3Store({self.url!r})"

    @property
    def connector(self) -> Connector:
        """For others that ask the same bucket with the same options: making a session takes longer than a request."""
        return self._connector

    @property
    def url(self) -> str:
        return f"s3://{self._bucket}"

    @property
    def failure_domain(self) -> str:
        return f"host:{self._connector.endpoint_url().rstrip('/')}"

    def fresh_reader(self) -> ObjectReader:
        return S3Reader(self._connector)

    def close(self) -> None:
        self._reader.close()

    def check_bucket(self) -> None:
        # A listing of one key, not HeadBucket: its refusal has a body, which tells a wrong key from a missing right.
        try:
            self._client().list_objects_v2(Bucket=self._bucket, MaxKeys=1)
        except Exception as exc:
            what = f"looking at bucket {self._bucket}"
            error = classify(exc, write=False, what=what)
            if isinstance(error, ObjectAbsent):  # the path named an object: it had one part too many
                raise BucketMissing(f"{what}: the endpoint looked for an object", hint=_ENDPOINT_HINT) from exc
            if isinstance(error, BucketMissing) and urlsplit(self._connector.endpoint_url()).path.strip("/"):
                error.hint = f"{_ENDPOINT_HINT}; durastore never creates a bucket"
            raise error from exc

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

    def fetch_ranges(self, key: ObjectKey, spans: Sequence[Span]) -> Sequence[memoryview]:
        """See `objectstore.ranges`."""
        return self._reader.fetch_ranges(key, spans)

    def fetch_chunks(
        self, key: ObjectKey, *, chunk_bytes: int = 1 << 20, version_id: str | None = None
    ) -> Iterator[bytes]:
        return self._reader.fetch_chunks(key, chunk_bytes=chunk_bytes, version_id=version_id)

    def list(self, prefix: str, *, start_after: str | None = None) -> Listing:
        return open_listing(self._reader, self._bucket, prefix=prefix, start_after=start_after)

    def list_columns(self, prefix: str) -> ColumnListing:
        """See `objectstore.columns`."""
        return open_columns(self._reader, self._bucket, prefix=prefix)

    def list_folder(self, prefix: str) -> FolderPage:
        """See `objectstore.folders`."""
        return fetch_folder(self._reader, self._bucket, prefix=prefix)

    def put(
        self, key: ObjectKey, body: Body, *, crc64nvme: str | None, metadata: Mapping[str, str], if_absent: bool = False
    ) -> WriteReply:
        arguments = {**self._creation(metadata), **_body(body, crc64nvme, kind=self._sent.single)}
        if if_absent:
            arguments["IfNoneMatch"] = "*"
        return _reply(self._write("put_object", key, what="put", arguments=arguments), f"put {key}")

    def create_upload(self, key: ObjectKey, *, metadata: Mapping[str, str]) -> str:
        arguments, kind = self._creation(metadata), self._sent.multipart
        if kind == "crc64nvme":
            arguments |= {"ChecksumAlgorithm": "CRC64NVME", "ChecksumType": "FULL_OBJECT"}
        answer = self._write("create_multipart_upload", key, what="create upload of", arguments=arguments)
        upload_id = answer.get("UploadId")
        if not upload_id:
            raise UnknownAnswer(f"create upload of {key}: the answer carries no upload id")
        self._sent.begin(str(upload_id), kind=kind)
        return str(upload_id)

    def upload_part(self, key: ObjectKey, upload_id: str, *, number: int, body: Body, crc64nvme: str) -> PartReply:
        content = _body(body, crc64nvme, kind=self._sent.of(upload_id))
        arguments = {"UploadId": upload_id, "PartNumber": number, **content}
        answer = self._write("upload_part", key, what=f"upload part {number} of", arguments=arguments)
        reply = _reply(answer, f"upload part {number} of {key}")
        return PartReply(number=number, etag=reply.etag, size_bytes=memoryview(body).nbytes, crc64nvme=crc64nvme)

    def complete_upload(
        self, key: ObjectKey, upload_id: str, *, parts: Sequence[PartReply], size_bytes: int, crc64nvme: str
    ) -> WriteReply:
        has_checksum = self._sent.of(upload_id) == "crc64nvme"
        listed = [_listed_part(part, has_checksum=has_checksum) for part in parts]
        arguments: dict[str, Any] = {"UploadId": upload_id, "MultipartUpload": {"Parts": listed}}
        if has_checksum:
            arguments |= {"ChecksumCRC64NVME": crc64nvme, "ChecksumType": "FULL_OBJECT", "MpuObjectSize": size_bytes}
        answer = self._write("complete_multipart_upload", key, what="complete", arguments=arguments)
        # A 200 whose body is empty or speaks of something else parses to an answer without these (case B53).
        if answer.get("Key") not in (key.text, None) or not answer.get("ETag"):
            raise AmbiguousWrite(f"complete {key}: answered 200 without naming the object", status=200)
        self._sent.end(upload_id)
        return _reply(answer, f"complete {key}")

    def abort_upload(self, key: ObjectKey, upload_id: str) -> None:
        try:
            self._write("abort_multipart_upload", key, what="abort upload of", arguments={"UploadId": upload_id})
        except RequestRefused as exc:
            if exc.facts.get("server_code") != "NoSuchUpload":
                raise
        self._sent.end(upload_id)

    def list_parts(self, key: ObjectKey, upload_id: str) -> tuple[PartReply, ...]:
        client, found, marker = self._client(), list[PartReply](), 0
        while True:
            try:
                answer = client.list_parts(
                    Bucket=self._bucket, Key=key.text, UploadId=upload_id, PartNumberMarker=marker
                )
            except Exception as exc:
                raise classify(exc, write=False, what="list parts of", key=key) from exc
            parts = answer.get("Parts", [])
            found += [_found_part(part) for part in parts]
            if answer.get("IsTruncated") is False:
                return tuple(found)
            following = int(answer.get("NextPartNumberMarker") or 0)
            if following <= marker:
                raise UnknownAnswer(f"list parts of {key}: the answer does not say where it goes on")
            marker = following

    def list_uploads(self, prefix: str) -> tuple[OpenUpload, ...]:
        client, found, arguments = self._client(), list[OpenUpload](), dict[str, str]()
        while True:
            try:
                answer = client.list_multipart_uploads(Bucket=self._bucket, Prefix=prefix, **arguments)
            except Exception as exc:
                raise classify(exc, write=False, what=f"list uploads of {prefix!r}") from exc
            now_s = server_time_of(answer)
            found += [_open_upload(each, now_s) for each in answer.get("Uploads", []) if each["Key"].startswith(prefix)]
            if answer.get("IsTruncated") is False:
                return tuple(found)
            following = {
                "KeyMarker": answer.get("NextKeyMarker") or "",
                "UploadIdMarker": answer.get("NextUploadIdMarker") or "",
            }
            if not following["KeyMarker"] or following == arguments:
                raise UnknownAnswer(f"list uploads of {prefix!r}: the answer does not say where it goes on")
            arguments = following

    def _client(self) -> Any:
        return self._reader.client()

    def _write(self, operation: str, key: ObjectKey, *, what: str, arguments: dict[str, Any]) -> dict[str, Any]:
        client = self._client()
        try:
            answer: dict[str, Any] = getattr(client, operation)(Bucket=self._bucket, Key=key.text, **arguments)
        except Exception as exc:
            raise classify(exc, write=True, what=what, key=key) from exc
        return answer

    def _creation(self, metadata: Mapping[str, str]) -> dict[str, Any]:
        options = self._options
        arguments: dict[str, Any] = {"Metadata": dict(metadata)} if metadata else {}
        if options.storage_class:
            arguments["StorageClass"] = options.storage_class
        if options.sse:
            arguments["ServerSideEncryption"] = options.sse
        if options.kms_key:
            arguments["SSEKMSKeyId"] = options.kms_key
        return arguments


def _body(body: Body, crc64nvme: str | None, *, kind: str) -> dict[str, Any]:
    # Bytes, never a stream: a request sent again starts at their beginning by construction (case B50).
    data = bytes(body) if isinstance(body, memoryview) else body
    if kind == "crc64nvme" and crc64nvme:
        return {"Body": data, "ChecksumCRC64NVME": crc64nvme}
    if kind == "md5":
        digest = hashlib.md5(data, usedforsecurity=False).digest()
        return {"Body": data, "ContentMD5": base64.b64encode(digest).decode("ascii")}
    return {"Body": data}


def _reply(answer: Mapping[str, Any], title: str) -> WriteReply:
    etag = answer.get("ETag")
    if not etag:
        raise AmbiguousWrite(f"{title}: answered success without an etag", status=200)
    return WriteReply(etag=etag, version_id=answer.get("VersionId"), server_time_s=server_time_of(answer))


def _listed_part(part: PartReply, *, has_checksum: bool) -> dict[str, Any]:
    listed: dict[str, Any] = {"PartNumber": part.number, "ETag": part.etag}
    if has_checksum and part.crc64nvme:
        listed["ChecksumCRC64NVME"] = part.crc64nvme
    return listed


def _open_upload(upload: Mapping[str, Any], now_s: float | None) -> OpenUpload:
    begun = upload.get("Initiated")
    return OpenUpload(
        key=ObjectKey(upload["Key"]),
        upload_id=str(upload["UploadId"]),
        initiated_s=begun.timestamp() if begun is not None else None,
        server_time_s=now_s,
    )


def _found_part(part: Mapping[str, Any]) -> PartReply:
    return PartReply(
        number=part["PartNumber"],
        etag=part["ETag"],
        size_bytes=part["Size"],
        crc64nvme=part.get("ChecksumCRC64NVME", ""),
    )

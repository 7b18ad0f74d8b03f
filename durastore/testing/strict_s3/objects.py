"""PUT, GET, HEAD, DELETE and COPY of single objects.

Duty: S3's behaviour for one key, checksums and conditions included. What is bent is bent in `committing` and `bending`.
"""

from __future__ import annotations

from email.utils import formatdate
from urllib.parse import unquote

from durastore.testing.strict_s3.answers import Answer, S3Refusal, tag, xml_answer
from durastore.testing.strict_s3.checksums import ALGORITHMS, checksum_headers, checksum_of, md5_of, tested_claims
from durastore.testing.strict_s3.committing import ARCHIVES, commit, content_headers, etag_of, storage_class_of
from durastore.testing.strict_s3.conditions import check_read_conditions, check_write_conditions, parse_range
from durastore.testing.strict_s3.lifecycle import expiration_header
from durastore.testing.strict_s3.listing import iso_time
from durastore.testing.strict_s3.lookup import find_version
from durastore.testing.strict_s3.request import Request
from durastore.testing.strict_s3.rules import Lie
from durastore.testing.strict_s3.storage import Bucket, Storage, Version

__all__ = ["copy", "get", "head", "put", "source_bytes", "take_away", "write_headers"]


def put(storage: Storage, request: Request) -> Answer:
    if request.head.content_length() is None:
        raise S3Refusal("MissingContentLength", "You must provide the Content-Length HTTP header.", status=411)
    claims = tested_claims(request)
    is_kms = request.headers.get("x-amz-server-side-encryption", "").startswith("aws:kms")
    version = Version(
        body=request.body,
        size_bytes=len(request.body),
        etag=etag_of(claims.md5, request=request, is_kms=is_kms),
        checksums=claims.checksums,
        headers=content_headers(request),
        storage_class=storage_class_of(request),
    )
    with storage.lock:
        bucket = storage.bucket(request.bucket)
        check_write_conditions(bucket, request)
        version = commit(bucket, request, version=version)
        return Answer(headers={"ETag": version.etag, **write_headers(bucket, request, version=version)})


def write_headers(bucket: Bucket, request: Request, *, version: Version) -> dict[str, str]:
    headers = {} if Lie.HIDE_CHECKSUM in request.told else checksum_headers(version.checksums, version.checksum_type)
    if bucket.versioning:
        headers["x-amz-version-id"] = version.version_id
    headers |= expiration_header(bucket, request)
    headers |= {name: value for name, value in version.headers.items() if name.startswith("x-amz-server-side")}
    return headers


def copy(storage: Storage, request: Request) -> Answer:
    body, source = source_bytes(storage, request)
    is_replaced = request.headers.get("x-amz-metadata-directive") == "REPLACE"
    algorithm = request.headers.get("x-amz-checksum-algorithm", "CRC64NVME").lower()
    if algorithm not in ALGORITHMS:
        raise S3Refusal("InvalidRequest", "Checksum algorithm provided is unsupported.")
    version = Version(
        body=body,
        size_bytes=len(body),
        etag=etag_of(md5_of(body), request=request),
        checksums={algorithm: checksum_of(algorithm, body)},
        headers=content_headers(request) if is_replaced else source.headers,
        storage_class=storage_class_of(request),
    )
    with storage.lock:
        bucket = storage.bucket(request.bucket)
        check_write_conditions(bucket, request)
        version = commit(bucket, request, version=version)
        inner = tag("LastModified", iso_time(version.modified_s)) + f"<ETag>{version.etag}</ETag>"
        headers = {"x-amz-version-id": version.version_id} if bucket.versioning else {}
        return xml_answer("CopyObjectResult", inner, headers=headers)


def source_bytes(storage: Storage, request: Request) -> tuple[bytes, Version]:
    """The bytes that x-amz-copy-source names (and x-amz-copy-source-range narrows)."""
    text, _, version_id = request.headers["x-amz-copy-source"].partition("?versionId=")
    name, _, key = unquote(text.removeprefix("/")).partition("/")
    with storage.lock:
        source = find_version(storage.bucket(name), key, version_id=version_id or None)
    span = request.headers.get("x-amz-copy-source-range")
    if span is None:
        return source.remains(), source
    start, _, end = span.removeprefix("bytes=").partition("-")
    if not (start.isdigit() and end.isdigit()) or int(end) >= source.size_bytes:
        raise S3Refusal("InvalidArgument", "The x-amz-copy-source-range value must be within the source")
    return source.remains()[int(start) : int(end) + 1], source


def head(storage: Storage, request: Request) -> Answer:
    with storage.lock:
        bucket = storage.bucket(request.bucket)
        version = find_version(bucket, request.key, version_id=request.query.get("versionId"), request=request)
        check_read_conditions(version, request)
        span = parse_range(request, version.size_bytes)
        answer = _described(bucket, request, version=version, span=span)
        _count_head(bucket, request.key, version=version)
    length = version.size_bytes if span is None else span[1] - span[0]
    return Answer(status=200 if span is None else 206, headers=answer, said_length=length)


def get(storage: Storage, request: Request) -> Answer:
    if "partNumber" in request.query:
        raise S3Refusal("NotImplemented", "partNumber is not implemented", status=501)
    with storage.lock:
        bucket = storage.bucket(request.bucket)
        version = find_version(bucket, request.key, version_id=request.query.get("versionId"), request=request)
        check_read_conditions(version, request)
        if version.is_hollow:
            raise S3Refusal("NoSuchKey", "The specified key does not exist.", status=404)
        if version.storage_class in ARCHIVES:
            message = "The operation is not valid for the object's storage class"
            raise S3Refusal("InvalidObjectState", message, status=403, more=tag("StorageClass", version.storage_class))
        span = parse_range(request, version.size_bytes)
        headers = _described(bucket, request, version=version, span=span)
    start, stop = span or (0, version.size_bytes)
    status = 200 if span is None else 206
    body = memoryview(version.body)[start:stop]
    cut = version.lost_span[0] if version.lost_span is not None else len(version.body)
    if cut >= stop:
        return Answer(status=status, headers=headers, body=body)
    # The length was promised; then the bytes are not there.
    return Answer(status=status, headers=headers, body=body, said_length=stop - start, sent_bytes=max(0, cut - start))


def _described(bucket: Bucket, request: Request, *, version: Version, span: tuple[int, int] | None) -> dict[str, str]:
    headers = {
        "ETag": version.etag,
        "Last-Modified": formatdate(version.modified_s, usegmt=True),
        "Accept-Ranges": "bytes",
        **{name: value for name, value in version.headers.items() if value},
    }
    if span is not None:
        headers["Content-Range"] = f"bytes {span[0]}-{span[1] - 1}/{version.size_bytes}"
    elif request.headers.get("x-amz-checksum-mode", "").upper() == "ENABLED" and Lie.HIDE_CHECKSUM not in request.told:
        headers |= checksum_headers(version.checksums, version.checksum_type)
    if bucket.versioning:
        headers["x-amz-version-id"] = version.version_id
    if version.storage_class != "STANDARD":
        headers["x-amz-storage-class"] = version.storage_class
    return headers | expiration_header(bucket, request)


def _count_head(bucket: Bucket, key: str, *, version: Version) -> None:
    """A HEAD was answered well: let what a rule foretold happen afterwards."""
    if version.heads_left is None:
        return
    version.heads_left -= 1
    if version.heads_left > 0:
        return
    version.heads_left = None
    if version.fate == "vanish":
        bucket.vanish(key)
        return
    sizes = version.part_sizes or (len(version.body) // 2, len(version.body) - len(version.body) // 2)
    version.lost_span = (version.size_bytes - sizes[-1], version.size_bytes)


def take_away(storage: Storage, request: Request) -> Answer:
    """DELETE of a key, or of one of its versions. The library never asks for it; tests do, and strangers."""
    with storage.lock:
        bucket = storage.bucket(request.bucket)
        version_id = request.query.get("versionId")
        if version_id is not None:
            history = bucket.histories.get(request.key, [])
            kept = [version for version in history if version.version_id != version_id]
            if kept:
                bucket.histories[request.key] = kept
            else:
                bucket.forget(request.key)
            return Answer(status=204, headers={"x-amz-version-id": version_id})
        if not bucket.versioning:
            if bucket.is_there(request.key):
                bucket.vanish(request.key)
            return Answer(status=204)
        marker = bucket.add(
            request.key, Version(body=b"", size_bytes=0, etag="", is_marker=True, modified_s=request.now_s)
        )
        return Answer(status=204, headers={"x-amz-delete-marker": "true", "x-amz-version-id": marker.version_id})

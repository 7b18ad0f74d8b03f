"""Uploads in parts.

Duty: S3's rules of parts (ascending, held as listed, 5 MiB but for the last, whole checksum and size on Complete).
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Sequence
from xml.etree import ElementTree as ET

from durastore.testing.strict_s3.answers import Answer, S3Refusal, tag, xml_answer
from durastore.testing.strict_s3.checksums import (
    ALGORITHMS,
    PREFIX,
    checksum_headers,
    checksum_of,
    md5_of,
    named_checksums,
    tested_claims,
)
from durastore.testing.strict_s3.committing import commit, content_headers, etag_of, storage_class_of
from durastore.testing.strict_s3.conditions import check_write_conditions
from durastore.testing.strict_s3.lifecycle import expiration_header
from durastore.testing.strict_s3.listing import iso_time
from durastore.testing.strict_s3.objects import source_bytes
from durastore.testing.strict_s3.request import Request
from durastore.testing.strict_s3.rules import Lie
from durastore.testing.strict_s3.storage import Bucket, Part, Storage, Upload, Version

__all__ = ["abort_upload", "complete_upload", "copy_part", "create_upload", "list_parts", "upload_part"]

_PART_LIMIT = 10_000
_LEAST_PART = 5 << 20
_PAGE = 1000
_FULL_ONLY = frozenset(("crc64nvme",))
_FULL_OR_COMPOSITE = frozenset(("crc32", "crc32c"))
_ELEMENTS = {f"checksum{name}": name for name in ALGORITHMS}


def create_upload(storage: Storage, request: Request) -> Answer:
    named = request.headers.get("x-amz-checksum-algorithm")
    algorithm = (named or "crc64nvme").lower()
    if algorithm not in ALGORITHMS:
        raise S3Refusal("InvalidRequest", "Checksum algorithm provided is unsupported.")
    kind = request.headers.get("x-amz-checksum-type") or ("FULL_OBJECT" if algorithm in _FULL_ONLY else "COMPOSITE")
    is_full = kind == "FULL_OBJECT"
    if is_full != (algorithm in _FULL_ONLY) and algorithm not in _FULL_OR_COMPOSITE:
        raise S3Refusal("InvalidRequest", f"The {kind} checksum type cannot be used with the {algorithm} algorithm.")
    with storage.lock:
        bucket = storage.bucket(request.bucket)
        upload = Upload(
            upload_id=secrets.token_urlsafe(36),
            key=request.key,
            headers=content_headers(request),
            storage_class=storage_class_of(request),
            algorithm=algorithm,
            checksum_type=kind,
            is_explicit=named is not None,
            is_kms=request.headers.get("x-amz-server-side-encryption", "").startswith("aws:kms"),
            initiated_s=request.now_s,
        )
        bucket.uploads[upload.upload_id] = upload
    inner = tag("Bucket", request.bucket) + tag("Key", request.key) + tag("UploadId", upload.upload_id)
    headers = {"x-amz-checksum-algorithm": algorithm.upper(), "x-amz-checksum-type": kind} if named else {}
    return xml_answer("InitiateMultipartUploadResult", inner, headers=headers)


def _find(bucket: Bucket, request: Request) -> Upload:
    upload = bucket.uploads.get(request.query["uploadId"])
    if upload is None or upload.key != request.key or Lie.LOSE_UPLOAD in request.told:
        raise S3Refusal("NoSuchUpload", "The specified multipart upload does not exist.", status=404)
    return upload


def upload_part(storage: Storage, request: Request) -> Answer:
    with storage.lock:
        algorithm = _check_part(storage, request)
    claims = tested_claims(request, default=algorithm)
    etag = etag_of(claims.md5, request=request)
    part = Part(
        number=int(request.query["partNumber"]),
        body=request.body,
        etag=etag,
        md5=claims.md5,
        checksums=claims.checksums,
        modified_s=request.now_s,
    )
    _keep(storage, request, part=part)
    headers = {} if Lie.HIDE_CHECKSUM in request.told else checksum_headers(claims.checksums, "")
    headers.pop("x-amz-checksum-type", None)
    return Answer(headers={"ETag": etag, **headers})


def _check_part(storage: Storage, request: Request) -> str:
    """The upload's algorithm, if the part may come at all."""
    number = request.number("partNumber", default=0)
    if not 1 <= number <= _PART_LIMIT:
        message = f"Part number must be an integer between 1 and {_PART_LIMIT}, inclusive"
        raise S3Refusal("InvalidArgument", message)
    upload = _find(storage.bucket(request.bucket), request)
    named = {**named_checksums(request.headers), **named_checksums(request.trailers)}
    if upload.is_explicit and named and upload.algorithm not in named:
        message = (
            f"Checksum Type mismatch occurred, expected checksum Type: {upload.algorithm}, actual: {next(iter(named))}"
        )
        raise S3Refusal("InvalidRequest", message)
    return upload.algorithm


def _keep(storage: Storage, request: Request, *, part: Part) -> None:
    with storage.lock:
        upload = _find(storage.bucket(request.bucket), request)
        earlier = upload.parts.get(part.number)
        if earlier is not None and Lie.LEAK_PARTS in request.told:
            upload.leaked.append(earlier)
        upload.parts[part.number] = part


def copy_part(storage: Storage, request: Request) -> Answer:
    with storage.lock:
        algorithm = _check_part(storage, request)
    body, _ = source_bytes(storage, request)
    stored = body[: len(body) // 2] if Lie.COPY_LOSES_RANGE in request.told else body
    etag = etag_of(md5_of(body), request=request)
    part = Part(
        number=int(request.query["partNumber"]),
        body=stored,
        etag=etag,
        md5=md5_of(body),
        checksums={algorithm: checksum_of(algorithm, body)},
        modified_s=request.now_s,
    )
    _keep(storage, request, part=part)
    return xml_answer("CopyPartResult", tag("LastModified", iso_time(request.now_s)) + f"<ETag>{etag}</ETag>")


def complete_upload(storage: Storage, request: Request) -> Answer:
    """The parts become the object, all at once, or nothing changes."""
    with storage.lock:
        bucket = storage.bucket(request.bucket)
        upload = _find(bucket, request)
        listed = _parse_listed(request.body)
        parts = [_checked_part(upload, row) for row in listed]
        _check_sizes(parts, request)
        body = b"".join(part.body for part in parts)
        md5 = md5_of(b"".join(part.md5 for part in parts))
        version = Version(
            body=body,
            size_bytes=len(body),
            etag=etag_of(md5, request=request, is_kms=upload.is_kms, parts=len(parts)),
            checksums=_whole_checksums(upload, request, parts=parts, body=body),
            checksum_type=upload.checksum_type,
            headers=upload.headers,
            storage_class=upload.storage_class,
            part_sizes=tuple(len(part.body) for part in parts),
        )
        check_write_conditions(bucket, request)
        version = commit(bucket, request, version=version)
        del bucket.uploads[upload.upload_id]
        return _completed(bucket, request, version=version)


def _completed(bucket: Bucket, request: Request, *, version: Version) -> Answer:
    inner = tag("Location", f"http://localhost/{request.bucket}/{request.key}") + tag("Bucket", request.bucket)
    inner += tag("Key", request.key) + f"<ETag>{version.etag}</ETag>"
    if Lie.HIDE_CHECKSUM not in request.told:
        inner += "".join(tag(f"Checksum{name.upper()}", value) for name, value in version.checksums.items())
        inner += tag("ChecksumType", version.checksum_type) if version.checksums else ""
    headers = {"x-amz-version-id": version.version_id} if bucket.versioning else {}
    return xml_answer("CompleteMultipartUploadResult", inner, headers=headers | expiration_header(bucket, request))


def _parse_listed(body: bytes) -> list[dict[str, str]]:
    """The rows of a CompleteMultipartUpload document: number, etag and checksums by algorithm."""
    malformed = S3Refusal("MalformedXML", "The XML you provided was not well-formed or did not validate")
    try:
        root = ET.fromstring(body)  # noqa: S314  # expat limits entity growth itself, and resolves no external one
    except ET.ParseError:
        raise malformed from None
    rows = [
        {child.tag.rpartition("}")[2].lower(): (child.text or "").strip() for child in part}
        for part in root.findall("{*}Part")
    ]
    if root.tag.rpartition("}")[2] != "CompleteMultipartUpload" or not rows or len(rows) > _PART_LIMIT:
        raise malformed
    numbers = [row.get("partnumber", "") for row in rows]
    if not all(number.isdigit() and row.get("etag") for number, row in zip(numbers, rows, strict=True)):
        raise malformed
    if [int(number) for number in numbers] != sorted({int(number) for number in numbers}):
        raise S3Refusal("InvalidPartOrder", "The list of parts was not in ascending order.")
    return rows


def _checked_part(upload: Upload, row: dict[str, str]) -> Part:
    part = upload.parts.get(int(row["partnumber"]))
    missing = S3Refusal("InvalidPart", f"Part {row['partnumber']} could not be found, or its ETag did not match.")
    if part is None or part.etag.strip('"') != row["etag"].strip('"'):
        raise missing
    given = {_ELEMENTS[name]: value for name, value in row.items() if name in _ELEMENTS}
    if any(part.checksums.get(name, value) != value for name, value in given.items()):
        raise missing
    if upload.is_explicit and upload.checksum_type == "COMPOSITE" and upload.algorithm not in given:
        message = f"The upload was created using a {upload.algorithm} checksum; the request must include each part's."
        raise S3Refusal("InvalidRequest", message)
    return part


def _check_sizes(parts: Sequence[Part], request: Request) -> None:
    sizes = [len(part.body) for part in parts]
    if Lie.SMALL_PARTS not in request.told and any(size < _LEAST_PART for size in sizes[:-1]):
        raise S3Refusal("EntityTooSmall", "Your proposed upload is smaller than the minimum allowed size")
    if Lie.EQUAL_PARTS in request.told and (len(set(sizes[:-1])) > 1 or sizes[-1] > sizes[0]):
        raise S3Refusal("InvalidPart", "All non-trailing parts must have the same length.")
    said = request.headers.get("x-amz-mp-object-size")
    if said is not None and said != str(sum(sizes)) and Lie.IGNORE_SIZE not in request.told:
        message = (
            f"The provided 'x-amz-mp-object-size' header value {said} does not match what was computed: {sum(sizes)}"
        )
        raise S3Refusal("InvalidRequest", message)


def _whole_checksums(upload: Upload, request: Request, *, parts: Sequence[Part], body: bytes) -> dict[str, str]:
    named = named_checksums(request.headers)
    if Lie.ECHO_CHECKSUM in request.told:
        return named
    if Lie.IGNORE_CHECKSUM in request.told:
        return {}
    asked = request.headers.get("x-amz-checksum-type")
    if asked is not None and asked != upload.checksum_type:
        message = f"The upload was created using the {upload.checksum_type} checksum mode, not {asked}."
        raise S3Refusal("InvalidRequest", message)
    algorithm = upload.algorithm
    if upload.checksum_type == "FULL_OBJECT":
        value = checksum_of(algorithm, body)
    elif upload.is_explicit:
        digests = b"".join(base64.b64decode(part.checksums[algorithm]) for part in parts)
        value = f"{checksum_of(algorithm, digests)}-{len(parts)}"
    else:
        return {}
    given = named.get(algorithm)
    if given is not None and given != value:
        raise S3Refusal("BadDigest", f"The {PREFIX}{algorithm} you specified did not match the calculated checksum.")
    if named and given is None:
        raise S3Refusal("InvalidRequest", f"The upload was created using a {algorithm} checksum.")
    return {algorithm: value}


def abort_upload(storage: Storage, request: Request) -> Answer:
    with storage.lock:
        bucket = storage.bucket(request.bucket)
        upload = _find(bucket, request)
        if Lie.LEAK_PARTS not in request.told or not upload.leaked:
            del bucket.uploads[upload.upload_id]
        return Answer(status=204)


def list_parts(storage: Storage, request: Request) -> Answer:
    with storage.lock:
        upload = _find(storage.bucket(request.bucket), request)
        rule = request.told.get(Lie.PAGE_SIZE)
        most = int(rule.amount) if rule is not None and rule.amount else _PAGE
        limit = min(request.number("max-parts", default=most), most)
        after = request.number("part-number-marker", default=0)
        found = sorted([*upload.parts.values(), *upload.leaked], key=lambda part: part.number)
    found = [part for part in found if part.number > after]
    page = found[:limit]
    inner = tag("Bucket", request.bucket) + tag("Key", request.key) + tag("UploadId", upload.upload_id)
    inner += tag("StorageClass", upload.storage_class) + tag("PartNumberMarker", after) + tag("MaxParts", limit)
    inner += tag("IsTruncated", str(len(page) < len(found)).lower())
    inner += tag("NextPartNumberMarker", page[-1].number) if page else ""
    if upload.is_explicit:
        inner += tag("ChecksumAlgorithm", upload.algorithm.upper()) + tag("ChecksumType", upload.checksum_type)
    for part in page:
        row = tag("PartNumber", part.number) + tag("LastModified", iso_time(part.modified_s))
        row += f"<ETag>{part.etag}</ETag>" + tag("Size", len(part.body))
        row += "".join(tag(f"Checksum{name.upper()}", value) for name, value in part.checksums.items())
        inner += f"<Part>{row}</Part>"
    return xml_answer("ListPartsResult", inner)

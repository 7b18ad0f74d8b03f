"""Operations on buckets themselves.

Duty: make, look, versioning and lifecycle. There is none that takes a bucket away.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

from durastore.testing.strict_s3.answers import Answer, S3Refusal, tag, xml_answer
from durastore.testing.strict_s3.listing import iso_time
from durastore.testing.strict_s3.request import Request
from durastore.testing.strict_s3.storage import ACCOUNT, REGION, Bucket, Storage

__all__ = ["create_bucket", "get_location", "get_versioning", "head_bucket", "list_buckets", "put_versioning"]

_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


def list_buckets(storage: Storage, request: Request) -> Answer:
    del request
    with storage.lock:
        found = sorted(storage.buckets.values(), key=lambda bucket: bucket.name)
    rows = "".join(
        f"<Bucket>{tag('Name', bucket.name)}{tag('CreationDate', iso_time(bucket.created_s))}</Bucket>"
        for bucket in found
        if bucket.owner == ACCOUNT
    )
    return xml_answer("ListAllMyBucketsResult", f"<Owner>{tag('ID', ACCOUNT)}</Owner><Buckets>{rows}</Buckets>")


def create_bucket(storage: Storage, request: Request) -> Answer:
    if not _NAME.fullmatch(request.bucket):
        raise S3Refusal("InvalidBucketName", "The specified bucket is not valid.")
    with storage.lock:
        found = storage.buckets.get(request.bucket)
        if found is not None:
            code = "BucketAlreadyOwnedByYou" if found.owner == ACCOUNT else "BucketAlreadyExists"
            raise S3Refusal(code, "The requested bucket name is not available.", status=409)
        storage.make_bucket(request.bucket)
    return Answer(headers={"Location": f"/{request.bucket}"})


def head_bucket(bucket: Bucket, request: Request) -> Answer:
    del bucket, request
    return Answer(headers={"x-amz-bucket-region": REGION}, said_length=0)


def get_location(bucket: Bucket, request: Request) -> Answer:
    del bucket, request
    return xml_answer("LocationConstraint", "")


def get_versioning(bucket: Bucket, request: Request) -> Answer:
    del request
    return xml_answer("VersioningConfiguration", tag("Status", bucket.versioning) if bucket.versioning else "")


def put_versioning(bucket: Bucket, request: Request) -> Answer:
    try:
        status = ET.fromstring(request.body).findtext("{*}Status")  # noqa: S314  # expat limits entity growth itself
    except ET.ParseError:
        status = None
    if status not in ("Enabled", "Suspended"):
        raise S3Refusal("MalformedXML", "The XML you provided was not well-formed or did not validate")
    bucket.versioning = status
    return Answer()

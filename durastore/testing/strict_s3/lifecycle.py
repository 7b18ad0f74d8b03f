"""Lifecycle rules: kept as they were put, and told of in each answer about an object they expire.

Duty: enough to warn a client whose objects are going to be expired. Nothing is ever expired here.
"""

from __future__ import annotations

from email.utils import formatdate
from xml.etree import ElementTree as ET

from durastore.testing.strict_s3.answers import Answer, S3Refusal
from durastore.testing.strict_s3.request import Request
from durastore.testing.strict_s3.rules import Lie, Rule
from durastore.testing.strict_s3.storage import Bucket

__all__ = ["expiration_header", "get_lifecycle", "put_lifecycle"]

_DAY_S = 86_400
_NAME = "expire-soon"


def get_lifecycle(bucket: Bucket, request: Request) -> Answer:
    rule = request.told.get(Lie.LIFECYCLE_RULE)
    body = _scripted(rule) if rule is not None else bucket.lifecycle
    if body is None:
        message = "The lifecycle configuration does not exist"
        raise S3Refusal("NoSuchLifecycleConfiguration", message, status=404)
    return Answer(headers={"Content-Type": "application/xml"}, body=body)


def put_lifecycle(bucket: Bucket, request: Request) -> Answer:
    _expirations(request.body)
    bucket.lifecycle = request.body
    return Answer()


def expiration_header(bucket: Bucket, request: Request) -> dict[str, str]:
    """x-amz-expiration for the key, where a rule expires it."""
    rule = request.told.get(Lie.LIFECYCLE_RULE)
    body = _scripted(rule) if rule is not None else bucket.lifecycle
    if body is None:
        return {}
    for name, prefix, days in _expirations(body):
        if request.key.startswith(prefix):
            date = formatdate(request.now_s + days * _DAY_S, usegmt=True)
            return {"x-amz-expiration": f'expiry-date="{date}", rule-id="{name}"'}
    return {}


def _scripted(rule: Rule) -> bytes:
    days = int(rule.amount or 1)
    return (
        f"<LifecycleConfiguration><Rule><ID>{_NAME}</ID><Filter><Prefix>{rule.text}</Prefix></Filter>"
        f"<Status>Enabled</Status><Expiration><Days>{days}</Days></Expiration></Rule></LifecycleConfiguration>"
    ).encode()


def _expirations(body: bytes) -> list[tuple[str, str, int]]:
    """Id, prefix and days of each enabled rule that expires objects; `MalformedXML` on what is no configuration."""
    try:
        root = ET.fromstring(body)  # noqa: S314  # expat limits entity growth itself, and resolves no external one
    except ET.ParseError:
        raise S3Refusal("MalformedXML", "The XML you provided was not well-formed") from None
    if root.tag.rpartition("}")[2] != "LifecycleConfiguration":
        raise S3Refusal("MalformedXML", "not a LifecycleConfiguration")
    found = []
    for rule in root.findall("{*}Rule"):
        days = rule.findtext("{*}Expiration/{*}Days")
        if days is None or not days.isdigit() or rule.findtext("{*}Status") != "Enabled":
            continue
        prefix = rule.findtext("{*}Filter/{*}Prefix") or rule.findtext("{*}Prefix") or ""
        found.append((rule.findtext("{*}ID") or "", prefix, int(days)))
    return found

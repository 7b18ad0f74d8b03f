"""Which state of a key a reader gets to see.

Duty: the newest one, or the version asked for; an older one only where a rule makes the reader look through a stale
index or a lagging replica.
"""

from __future__ import annotations

from durastore.clock import SYSTEM_CLOCK
from durastore.testing.strict_s3.answers import S3Refusal
from durastore.testing.strict_s3.request import Request
from durastore.testing.strict_s3.rules import Lie
from durastore.testing.strict_s3.storage import Bucket, Version

__all__ = ["find_version"]


def find_version(bucket: Bucket, key: str, *, version_id: str | None, request: Request | None = None) -> Version:
    """The state of `key`; `NoSuchKey`, `NoSuchVersion`, or `MethodNotAllowed` for a marker by its id. Hold the lock."""
    history = bucket.history(key)
    if version_id is not None:
        return _by_id(bucket, history, version_id=version_id)
    if request is not None:
        history = _as_seen(history, request)
    if not history or history[-1].is_marker:
        headers = {}
        if history and bucket.versioning:
            headers = {"x-amz-delete-marker": "true", "x-amz-version-id": history[-1].version_id}
        if request is not None and Lie.ABSENT_IS_403 in request.told:
            raise S3Refusal("AccessDenied", "Access Denied", status=403)
        raise S3Refusal("NoSuchKey", "The specified key does not exist.", status=404, headers=headers)
    return history[-1]


def _by_id(bucket: Bucket, history: list[Version], *, version_id: str) -> Version:
    found = [version for version in history if version.version_id == version_id]
    if not bucket.versioning:
        found = [version for version in found[-1:] if not version.is_marker]
    if not found:
        raise S3Refusal("NoSuchVersion", "The specified version does not exist.", status=404)
    if found[-1].is_marker:
        headers = {"x-amz-delete-marker": "true", "x-amz-version-id": version_id}
        raise S3Refusal("MethodNotAllowed", "The specified method is not allowed", status=405, headers=headers)
    return found[-1]


def _as_seen(history: list[Version], request: Request) -> list[Version]:
    if Lie.STALE_HEAD in request.told:
        return history[:-1]
    if (rule := request.told.get(Lie.LAGGING_REPLICA)) is not None and request.is_other_turn:
        moment = SYSTEM_CLOCK.monotonic() - (10.0 if rule.amount is None else rule.amount)
        return [version for version in history if version.stored_at <= moment]
    return history

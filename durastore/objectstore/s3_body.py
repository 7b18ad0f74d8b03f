"""One GET through boto3, and its body read to the announced end.

Duty: check that an answer is what was asked for before its bytes are used: status, Content-Range, Content-Length, and
that as many bytes come. Must never turn a broken connection into an end of data.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from durastore.errors import IntegrityError, RequestRefused, UnknownAnswer
from durastore.model import ObjectKey
from durastore.objectstore.classify import classify

__all__ = ["OpenBody", "open_body"]

_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_NOT_IN_OBJECT = 416


class OpenBody:
    """An open answer whose body is announced to have `size_bytes`. Reading it to the end closes it."""

    def __init__(self, key: ObjectKey, stream: Any, *, size_bytes: int) -> None:
        self._key = key
        self._stream = stream
        self.size_bytes = size_bytes

    def chunks(self, chunk_bytes: int) -> Iterator[bytes]:
        """The announced bytes; an error, never an early end, if fewer come."""
        left = self.size_bytes
        try:
            while left:
                try:
                    chunk = self._stream.read(min(chunk_bytes, left))
                except Exception as exc:
                    raise classify(exc, write=False, what="get", key=self._key) from exc
                if not chunk:
                    raise IntegrityError(f"get {self._key}: the body lacks its last {left} bytes")
                left -= len(chunk)
                yield chunk
        finally:
            self._stream.close()

    def read(self) -> bytes:
        return b"".join(self.chunks(max(self.size_bytes, 1)))


def open_body(
    client: Any, key: ObjectKey, *, bucket: str, span: tuple[int, int | None], conditions: Mapping[str, str]
) -> OpenBody:
    """Send one GET for the bytes `span` (start, stop; None: to the end). `conditions` are IfMatch and VersionId.

    Raises as `ObjectReader.fetch` does. Safe to repeat.
    """
    start, stop = span
    arguments = {"Bucket": bucket, "Key": key.text, **conditions}
    is_ranged = start > 0 or stop is not None
    if is_ranged:
        arguments["Range"] = f"bytes={start}-" + ("" if stop is None else str(stop - 1))
    try:
        answer = client.get_object(**arguments)
    except Exception as exc:
        error = classify(exc, write=False, what="get", key=key)
        if isinstance(error, RequestRefused) and error.facts.get("status") == _NOT_IN_OBJECT:
            raise IntegrityError(f"get {key}: the object ends before byte {start}") from exc
        raise error from exc
    try:
        return OpenBody(
            key, answer["Body"], size_bytes=_announced(answer, key, start=start, stop=stop, is_ranged=is_ranged)
        )
    except BaseException:
        answer["Body"].close()
        raise


def _announced(answer: Mapping[str, Any], key: ObjectKey, *, start: int, stop: int | None, is_ranged: bool) -> int:
    meta = answer["ResponseMetadata"]
    length_text = meta["HTTPHeaders"].get("content-length")
    if length_text is None:
        raise UnknownAnswer(f"get {key}: the answer does not say how long it is")
    length = int(length_text)
    if not is_ranged:
        if meta["HTTPStatusCode"] != 200:
            raise UnknownAnswer(f"get {key}: the endpoint answered {meta['HTTPStatusCode']}")
        return length
    match = _CONTENT_RANGE.fullmatch(answer.get("ContentRange", ""))
    if meta["HTTPStatusCode"] != 206 or match is None:
        raise IntegrityError(f"get {key}: the answer covers another range than was asked for")
    first, last, total = (int(number) for number in match.groups())
    if first != start or last + 1 != (total if stop is None else stop) or length != last + 1 - first:
        raise IntegrityError(f"get {key}: the answer covers another range than was asked for")
    return length

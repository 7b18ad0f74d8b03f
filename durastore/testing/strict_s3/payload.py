"""The body as the client meant it: whole, agreeing with its signature, and taken out of aws-chunked framing.

Duty: refuse an incomplete or wrongly signed body. Must never hand framing on as content, unless a rule says to.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

from durastore.testing.strict_s3.answers import S3Refusal
from durastore.testing.strict_s3.rules import Lie, Rule
from durastore.testing.strict_s3.sigv4 import EMPTY_SHA256, Signature
from durastore.testing.strict_s3.wire import HttpHead

__all__ = ["checked_payload"]

_CHUNK = re.compile(rb"([0-9a-fA-F]{1,8})(?:;chunk-signature=([0-9a-f]{64}))?")


def checked_payload(
    head: HttpHead, body: bytes, *, signature: Signature, told: Mapping[Lie, Rule]
) -> tuple[bytes, dict[str, str]]:
    """Content and trailers of a body as it came over the wire. Raises `S3Refusal`."""
    length = head.content_length() or 0
    if len(body) != length and Lie.ACCEPT_SHORT_BODY not in told:
        message = "You did not provide the number of bytes specified by the Content-Length HTTP header"
        raise S3Refusal("IncompleteBody", message)
    if signature.payload.startswith("STREAMING-"):
        if Lie.STORES_AWS_CHUNKED_RAW in told:
            return body, {}
        content, trailers = _Frames(body, signature).read()
        if head.headers.get("x-amz-decoded-content-length") != str(len(content)):
            raise S3Refusal("IncompleteBody", "x-amz-decoded-content-length does not match the content")
        return content, trailers
    is_signed = signature.payload != "UNSIGNED-PAYLOAD" and Lie.ACCEPT_SHORT_BODY not in told
    if is_signed and (hashlib.sha256(body).hexdigest() if body else EMPTY_SHA256) != signature.payload:
        message = "The provided 'x-amz-content-sha256' header does not match what was computed."
        raise S3Refusal("XAmzContentSHA256Mismatch", message)
    return body, {}


class _Frames:
    """Reads aws-chunked framing, checking the chain of chunk signatures where there is one."""

    def __init__(self, body: bytes, signature: Signature) -> None:
        self._body = body
        self._at = 0
        self._signature = signature
        self._previous = signature.value
        self._is_signed = "UNSIGNED" not in signature.payload

    def read(self) -> tuple[bytes, dict[str, str]]:
        pieces = []
        while True:
            size, given = self._size_line()
            piece = self._take(size)
            self._check(piece, given)
            if not size:
                break
            if self._take(2) != b"\r\n":
                raise _incomplete()
            pieces.append(piece)
        trailers = self._trailers() if self._signature.payload.endswith("-TRAILER") else {}
        return b"".join(pieces), trailers

    def _size_line(self) -> tuple[int, str | None]:
        match = _CHUNK.fullmatch(self._line())
        if match is None or (match[2] is None) == self._is_signed:
            raise _incomplete()
        return int(match[1], 16), match[2].decode() if match[2] else None

    def _line(self) -> bytes:
        end = self._body.find(b"\r\n", self._at)
        if end < 0:
            raise _incomplete()
        line, self._at = self._body[self._at : end], end + 2
        return line

    def _take(self, size: int) -> bytes:
        piece = self._body[self._at : self._at + size]
        if len(piece) != size:
            raise _incomplete()
        self._at += size
        return piece

    def _check(self, piece: bytes, given: str | None) -> None:
        if not self._is_signed:
            return
        digest = hashlib.sha256(piece).hexdigest()
        self._chain("AWS4-HMAC-SHA256-PAYLOAD", f"{EMPTY_SHA256}\n{digest}", given=given)

    def _chain(self, kind: str, last_lines: str, *, given: str | None) -> None:
        signature = self._signature
        text = f"{kind}\n{signature.time}\n{signature.scope}\n{self._previous}\n{last_lines}"
        self._previous = signature.sign(text)
        if self._previous != given:
            raise S3Refusal("SignatureDoesNotMatch", "A chunk's signature does not match.", status=403)

    def _trailers(self) -> dict[str, str]:
        found: dict[str, str] = {}
        while line := self._line():
            name, _, value = line.decode("latin-1").partition(":")
            found[name.lower().strip()] = value.strip()
        given = found.pop("x-amz-trailer-signature", None)
        if self._is_signed:
            text = "".join(f"{name}:{value}\n" for name, value in sorted(found.items()))
            self._chain("AWS4-HMAC-SHA256-TRAILER", hashlib.sha256(text.encode()).hexdigest(), given=given)
        return found


def _incomplete() -> S3Refusal:
    return S3Refusal("IncompleteBody", "The request body terminated unexpectedly")

"""What the server says: an answer with everything that may be odd about its delivery, and refusals in S3's own form.

Duty: values and XML text. Must never decide whether an answer is true.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

__all__ = ["NO_LENGTH", "XMLNS", "Answer", "S3Refusal", "error_answer", "tag", "xml_answer"]

XMLNS = "http://s3.amazonaws.com/doc/2006-03-01/"
NO_LENGTH = -1
"""As `Answer.said_length`: no Content-Length at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One HTTP answer, and how it is delivered."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | memoryview = b""
    said_length: int | None = None
    """What Content-Length says where that is not the body's length."""
    sent_bytes: int | None = None
    """The connection closes after so many bytes of the body."""
    is_lost: bool = False
    """The connection closes and nothing is said."""
    is_last: bool = False
    """The connection closes afterwards."""
    white_space_s: float = 0.0
    """So long, white space is streamed between the XML declaration and the rest of the body."""
    delay_s: float = 0.0
    bytes_per_s: float | None = None
    clock_offset_s: float = 0.0
    has_date: bool = True


class S3Refusal(Exception):
    """An error answer of S3: status, code and message; some carry headers or more elements."""

    def __init__(
        self,
        code: str,
        message: str = "",
        *,
        status: int = 400,
        headers: Mapping[str, str] | None = None,
        more: str = "",
    ) -> None:
        super().__init__(code)
        self.code = code
        self.message = message or code
        self.status = status
        self.headers = dict(headers or {})
        self.more = more


def tag(name: str, value: object) -> str:
    """One XML element with `value` as its text."""
    return f"<{name}>{escape(str(value))}</{name}>"


def xml_answer(name: str, inner: str, *, headers: Mapping[str, str] | None = None) -> Answer:
    text = f'<?xml version="1.0" encoding="UTF-8"?>\n<{name} xmlns="{XMLNS}">{inner}</{name}>'
    return Answer(status=200, headers={"Content-Type": "application/xml", **(headers or {})}, body=text.encode())


def error_answer(refusal: S3Refusal, *, resource: str, has_body: bool) -> Answer:
    """The answer for a refusal; one to a HEAD has no body, so its code is lost on the way, as in S3."""
    if not has_body or refusal.status == 304:
        length = NO_LENGTH if refusal.status == 304 else 0
        return Answer(status=refusal.status, headers=refusal.headers, said_length=length)
    inner = tag("Code", refusal.code) + tag("Message", refusal.message) + tag("Resource", resource) + refusal.more
    text = f'<?xml version="1.0" encoding="UTF-8"?>\n<Error>{inner}</Error>'
    headers = {"Content-Type": "application/xml", **refusal.headers}
    return Answer(status=refusal.status, headers=headers, body=text.encode())

"""Which checksum headers go with the bodies that are sent to an endpoint.

Duty: one choice for each write path, shared by everything that writes to one bucket, changed when a probe says better.
An upload in parts ends with what it began with. Must never decide what a copy is believed by: that is `verify`'s.
"""

from __future__ import annotations

from durastore.errors import ConfigError

__all__ = ["CHECKSUM_CHOICES", "SentChecksums"]

CHECKSUM_CHOICES = ("auto", "crc64nvme", "md5", "none")
"""`crc64nvme`; `md5`: Content-MD5; `none`; `auto`: crc64nvme until a probe of the endpoint chose."""
_MOST_UPLOADS = 10_000


class SentChecksums:
    """The choice as it stands: `crc64nvme`, `md5` or `none` for each path. Thread-safe without a lock, since
    options are pickled into worker processes: each method is one step of a dict or an attribute.
    """

    def __init__(self, choice: str = "auto") -> None:
        if choice not in CHECKSUM_CHOICES:
            raise ConfigError(f"checksum is {choice!r}", hint=f"use {', '.join(CHECKSUM_CHOICES)}")
        self._is_fixed = choice != "auto"
        self._single = self._multipart = choice if self._is_fixed else "crc64nvme"
        self._begun: dict[str, str] = {}

    @property
    def single(self) -> str:
        """For a body sent in one request."""
        return self._single

    @property
    def multipart(self) -> str:
        """For an upload that begins now."""
        return self._multipart

    def use(self, *, single: str, multipart: str) -> bool:
        """Send these from now on, unless the user chose; True if that changes anything."""
        if self._is_fixed or (single, multipart) == (self._single, self._multipart):
            return False
        self._single, self._multipart = single, multipart
        return True

    def begin(self, upload_id: str, *, kind: str) -> None:
        """An upload in parts began with `kind`: its parts and its end are sent with the same."""
        if len(self._begun) >= _MOST_UPLOADS:  # given up without an end, by a crash of their connection
            self._begun.pop(list(self._begun)[0], None)  # noqa: RUF015 - an iterator would not bear another thread
        self._begun[upload_id] = kind

    def of(self, upload_id: str) -> str:
        """What the upload began with; of one that an earlier process began, what is sent now."""
        return self._begun.get(upload_id, self._multipart)

    def end(self, upload_id: str) -> None:
        """The upload was completed or given up."""
        self._begun.pop(upload_id, None)

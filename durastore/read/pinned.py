"""The object of a manifest row, read by range and bound to what the row says of it.

Duty: ask for the row's version where it has one, and for its etag, so that ranges fetched at different times are of one
object. Neither proves a byte (digests do): where the bucket was copied, versions and etags are others, and what lies
under the key now is read instead.
"""

from __future__ import annotations

from durastore.errors import ObjectAbsent, RequestRefused
from durastore.model import ManifestRow
from durastore.objectstore.port import ObjectReader

__all__ = ["PinnedObject"]

_PRECONDITION = 412


class PinnedObject:
    """Ranges of one sample inside its object. One caller at a time."""

    def __init__(self, reader: ObjectReader, row: ManifestRow) -> None:
        self._reader = reader
        self._key = row.object.key
        self._start = row.entry.offset
        self._version_id = row.object.version_id
        self._etag: str | None = row.object.etag or None

    def fetch(self, offset: int, length: int) -> bytes:
        """These bytes of the sample (offset from its start). Raises as `ObjectReader.fetch`."""
        while True:
            try:
                return self._reader.fetch(
                    self._key,
                    offset=self._start + offset,
                    length=length,
                    if_match=self._etag,
                    version_id=self._version_id,
                )
            except ObjectAbsent:
                if self._version_id is None:
                    raise
                self._version_id = None
            except RequestRefused as exc:
                if not self._adopt_current(exc):
                    raise

    def _adopt_current(self, exc: RequestRefused) -> bool:
        """After a refusal: go on without the version, then with the etag that the object has now. False: give up."""
        if self._version_id is not None:  # some servers call an unknown version a bad request
            self._version_id = None
            return True
        etag = self._reader.head(self._key).etag or None if exc.facts.get("status") == _PRECONDITION else self._etag
        is_other = etag != self._etag
        self._etag = etag
        return is_other

"""Which durastore a folder is sent to that belongs to none yet.

Duty: begin with the prefix's marker as soon as a look allows it, and settle it before the first upload (DESIGN 5): what
it takes to settle passes while the folder is looked into. Must never write one where a marker was seen.
"""

from __future__ import annotations

from durastore.errors import NotVerified
from durastore.manifest.marker_store import MarkerBegun, begin_marker, recall_marker, settle_marker
from durastore.reconcile.session import Session

__all__ = ["Binding"]


class Binding:
    """Of one run that may send something."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._seen: str | None = None
        self._begun: MarkerBegun | None = None

    def begin(self, seen: str | None) -> None:
        """The folder belongs to no durastore yet. `seen`: the one that the prefix had, or None where a whole look
        found nothing of ours there: only then one is made.
        """
        objects, prefix, clock = self._session.objects, self._session.prefix, self._session.clock
        self._seen = seen
        if seen is None:
            self._begun = begin_marker(objects, prefix, run=None, clock=clock)
        else:  # perhaps of this moment, by another writer, and not the one that stays
            self._begun = recall_marker(objects, prefix, clock=clock)

    def settle(self, known: str | None) -> str:
        """Which durastore it is, for good. `known`: what the look saw, where the folder belonged to it before. Waits
        for what the marker still needs; `NotVerified` where it is not what was seen.
        """
        session = self._session
        if self._begun is None:
            assert known is not None
            return known
        store_id = settle_marker(session.objects, session.prefix, begun=self._begun, clock=session.clock).store_id
        if self._seen is not None and store_id != self._seen:
            raise NotVerified(
                "the durastore at this prefix is another one than was looked at",
                hint="several of them were made there at once; run the same command again",
            )
        return store_id

"""The stop switch for files of others: a wrong copy stops reclaiming in this folder until a person looked (DESIGN 6).

Duty: keep a stop in the folder's private root, in the form that spool roots have, and heed those that are there. Must
never lift one: `durastore probe --local DIR/.durastore`, run by a person, and a store opened there do.
"""

from __future__ import annotations

import secrets

from durastore.clock import Clock
from durastore.formats.stop import MAX_REASON, StopRecord
from durastore.fsio.folder import Folder
from durastore.observe.events import LOGGER
from durastore.spool.stops import stops_in_force, throw_stop
from durastore.verify.verifier import Verifier

__all__ = ["heed_stops"]


def heed_stops(verifier: Verifier, root: Folder, *, clock: Clock) -> None:
    """From now on the verifier keeps its stops in `root` and heeds those that are there. `SpoolUnreadable` passes."""

    def throw(reason: str) -> None:
        LOGGER.error("reclaiming is stopped, local files are kept: %s", reason)
        throw_stop(
            root,
            StopRecord(id=secrets.token_hex(8), thrown=clock.stamp().render(), reason=reason[:MAX_REASON], place=None),
        )

    def look() -> str | None:
        stops = stops_in_force(root)
        return stops[0].reason if stops else None

    verifier.on_distrust(throw, look=look)
    verifier.heed()

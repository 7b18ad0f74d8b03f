"""Which model server is asked, and how.

Duty: values that can be sent to worker processes. No I/O.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from durastore.extract.request_stream import Pace
from durastore.extract.staging_room import MOST_SHARE
from durastore.texts import checked_address

__all__ = ["ServerSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """One kind of server, wherever its copies are."""

    endpoints: tuple[str, ...] = ()
    """Asked in turn. Servers of one model, layers and dtype."""
    staging: Path | None = None
    """Where the server writes its files, as this machine sees it."""
    staging_limit_bytes: int | None = None
    """Of this process; by default `staging_share`."""
    staging_share: float = MOST_SHARE
    """Of what is free there at the start."""
    pace: Pace = field(default_factory=Pace)
    timeout_s: float = 120.0
    """For the answer to one request."""
    write_timeout_s: float = 30.0
    """For the file to be whole after the answer."""
    served_model: str | None = None
    """The name that the server has for the model; by default the only one it lists."""
    idle_s: float = 600.0
    """A folder without a server is given up when no entry comes for so long."""
    is_unverified_taken: bool = False
    """Take dumps that do not say which tokens they are of, and record that."""

    def __post_init__(self) -> None:
        for url in self.endpoints:  # before a start is put on record with it
            checked_address(url, name="--endpoint")

"""A request as the server saw it: what tests assert on. Must never hold headers, which carry signatures."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SeenRequest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenRequest:
    """`status` 0: no answer was sent. `connection` numbers the TCP connections in the order they were opened."""

    op: str
    bucket: str
    key: str
    status: int
    connection: int
    at_s: float
    has_version: bool
    """It asked for one version of the object."""
    prefix: str
    """Of a listing; empty where it asked for everything."""

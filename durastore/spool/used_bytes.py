"""How many bytes the pack files on record take, kept in memory: a put asks while another one's commit is being synced.

Duty: follow the journal's transactions. Must never count what a transaction that was undone would have added: puts
would wait for room that nothing takes.
"""

from __future__ import annotations

import sqlite3

from durastore.spool.journal_db import JournalDatabase
from durastore.spool.journal_rows import sum_sizes

__all__ = ["UsedBytes"]


class UsedBytes:
    """Changed inside of a transaction of `database` only, and in effect once that is committed."""

    def __init__(self, database: JournalDatabase, size_bytes: int) -> None:
        self._database = database
        self.size_bytes = size_bytes
        """As of the last commit. Read without a lock."""

    def grow(self, *, by_bytes: int) -> None:
        """The packs take so much more; less, if negative."""

        def note() -> None:
            self.size_bytes += by_bytes

        self._database.on_commit(note)

    def recount(self, conn: sqlite3.Connection) -> None:
        """As the record says now: `conn` is the transaction's. `IntegrityError` where it says no number."""
        self.grow(by_bytes=sum_sizes(conn) - self.size_bytes)

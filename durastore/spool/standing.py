"""How many packs stand where, and which samples are only on this machine: sums, for people.

Duty: a few cheap questions to a journal, whatever the number of packs. Decides nothing.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from durastore.errors import IntegrityError
from durastore.model import PackState
from durastore.observe.status import Amount, AtRisk, PackAtRisk
from durastore.spool.records import UNMANIFESTED

__all__ = ["Standing", "load_standing"]

_SHOWN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One moment of a journal."""

    states: dict[PackState, Amount]
    at_risk: AtRisk


def load_standing(conn: sqlite3.Connection) -> Standing:
    """Inside a transaction of the caller's. `IntegrityError` where a row is not as it should be."""
    sql = "SELECT state, count(*), coalesce(sum(sample_count), 0), coalesce(sum(size_bytes), 0) FROM packs GROUP BY 1"
    try:
        states = {
            PackState(state): Amount(packs=int(packs), samples=int(samples), size_bytes=int(size_bytes))
            for state, packs, samples, size_bytes in conn.execute(sql)
        }
    except (TypeError, ValueError) as exc:
        raise IntegrityError(f"a pack row of the journal cannot be read: {exc}") from exc
    found = [states[state] for state in UNMANIFESTED if state in states]
    total = Amount(
        packs=sum(each.packs for each in found),
        samples=sum(each.samples for each in found),
        size_bytes=sum(each.size_bytes for each in found),
    )
    return Standing(states=states, at_risk=AtRisk(total=total, shown=_oldest(conn)))


def _oldest(conn: sqlite3.Connection) -> tuple[PackAtRisk, ...]:
    """The packs of the lowest numbers; the first sample of a pack is its oldest."""
    marks = ", ".join("?" * len(UNMANIFESTED))
    sql = (
        "SELECT name, state, sample_count, size_bytes,"  # noqa: S608 - question marks
        " (SELECT time_ns FROM samples WHERE samples.pack_id = packs.pack_id ORDER BY offset LIMIT 1)"
        f" FROM packs WHERE state IN ({marks}) AND sample_count > 0 ORDER BY pack_id LIMIT {_SHOWN}"
    )
    rows = conn.execute(sql, [state.value for state in UNMANIFESTED]).fetchall()
    return tuple(
        PackAtRisk(
            name=str(name),
            state=str(state),
            samples=int(samples),
            size_bytes=int(size_bytes or 0),
            since_ns=since_ns if isinstance(since_ns, int) else None,
        )
        for name, state, samples, size_bytes, since_ns in rows
    )

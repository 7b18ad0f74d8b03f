"""The view as plain JSON values: what `--json` prints, and what other tools may rely on.

Duty: names and numbers as the view has them, and the few that it computes. Fields may be added, never renamed.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from durastore.monitor.view import View

__all__ = ["render_view"]


def render_view(view: View) -> dict[str, Any]:
    """The whole view; the series over time is left out."""
    facts = asdict(view)
    del facts["series"]
    for job, shown in zip(view.jobs, facts["jobs"], strict=True):
        shown |= {"done": job.done, "share": round(job.share, 6)}
    for room, shown in zip(view.rooms, facts["rooms"], strict=True):
        shown["fill"] = round(room.fill, 6)
    facts["risk"]["shown"] = [{"spool": spool, **asdict(pack)} for spool, pack in view.risk.shown]
    return facts

"""What a migration would do, and why it must not begin.

Pure: facts in, plan out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from durastore.fsio.folding import Folding, folded
from durastore.migrate.scan import Scan, SourceFile

__all__ = ["MigratePlan", "PlanFacts", "find_folded", "plan_migrate"]

_BLOCK_BYTES = 4096
_MAX_RESERVE_BYTES = 1 << 30
_RESERVE_SHARE = 50
_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFacts:
    """What was seen."""

    scan: Scan
    files: tuple[SourceFile, ...]
    """Those that are to be copied now, and are not there yet."""
    there: int
    """Files of which DST has the name already: looked at, not trusted."""
    waiting: tuple[SourceFile, ...]
    """Files of spools that a process works in."""
    folding: Folding
    free_bytes: int
    disk_bytes: int
    is_one_device: bool
    is_reclaiming: bool
    has_locks: bool
    problems: tuple[str, ...] = ()
    """Found by whoever looked: roots that are moved already, file systems that cannot hold a spool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MigratePlan:
    """Counts for people, and `problems`: with any of them nothing is begun."""

    files: int
    size_bytes: int
    there: int
    waiting: int
    waiting_bytes: int
    folders: int
    links: int
    hard_links: int
    sparse: int
    needed_bytes: int
    free_bytes: int
    reserve_bytes: int
    problems: tuple[str, ...]
    notes: tuple[str, ...]

    def facts(self) -> dict[str, object]:
        """As JSON has it."""
        names = (
            "files size_bytes there waiting waiting_bytes folders links hard_links sparse needed_bytes free_bytes "
            "reserve_bytes"
        )
        numbers: dict[str, object] = {name: getattr(self, name) for name in names.split()}
        return numbers | {"problems": list(self.problems), "notes": list(self.notes)}


def plan_migrate(facts: PlanFacts) -> MigratePlan:
    """The plan. What is on disk already counts for the room that is needed, what waits for a lock as well."""
    scan = facts.scan
    needed = sum(map(_room_of, (*facts.files, *facts.waiting)))
    needed += _BLOCK_BYTES * (len(scan.folders) + len(scan.links))
    reserve = min(_MAX_RESERVE_BYTES, facts.disk_bytes // _RESERVE_SHARE)
    return MigratePlan(
        files=len(facts.files),
        size_bytes=sum(file.identity.size_bytes for file in facts.files),
        there=facts.there,
        waiting=len(facts.waiting),
        waiting_bytes=sum(file.identity.size_bytes for file in facts.waiting),
        folders=len(scan.folders),
        links=len(scan.links),
        hard_links=sum(file.names > 1 for file in scan.files),
        sparse=sum(file.is_sparse for file in scan.files),
        needed_bytes=needed,
        free_bytes=facts.free_bytes,
        reserve_bytes=reserve,
        problems=(*facts.problems, *_problems(facts, needed_bytes=needed + reserve)),
        notes=tuple(_notes(facts)),
    )


def find_folded(scan: Scan, folding: Folding) -> str | None:
    """Names of SRC that are one on the file system of DST, as a reason not to begin; None if there are none."""
    paths = [*(f.path for f in scan.folders), *(f.path for f in scan.files), *(link.path for link in scan.links)]
    groups = _falling_together(paths, folding)
    if not groups:
        return None
    shown = "; ".join(" = ".join(map(ascii, group)) for group in list(groups.values())[:_SHOWN])
    return f"{len(groups)} names of SRC are one with others on the file system of DST: {shown}"


def _room_of(file: SourceFile) -> int:
    return -(-file.identity.size_bytes // _BLOCK_BYTES) * _BLOCK_BYTES


def _problems(facts: PlanFacts, *, needed_bytes: int) -> Iterable[str]:
    if needed_bytes > facts.free_bytes:
        yield (
            f"DST has {facts.free_bytes} bytes free, {needed_bytes} are needed (a reserve included): "
            f"{needed_bytes - facts.free_bytes} too few"
        )
    names = find_folded(facts.scan, facts.folding)
    if names is not None:
        yield names
    if facts.is_reclaiming and facts.is_one_device:
        yield "SRC and DST are on one device: a copy there frees no source"
    if facts.is_reclaiming and not facts.has_locks:
        yield "SRC cannot be locked: no source is freed there"


def _notes(facts: PlanFacts) -> Iterable[str]:
    if facts.is_one_device:
        yield "SRC and DST are on one device"
    if facts.folding.by_case is None:
        yield "whether DST tells upper and lower case apart is asked again before the first byte"


def _falling_together(paths: Iterable[str], folding: Folding) -> Mapping[str, list[str]]:
    if not (folding.by_case or folding.by_accent):
        return {}
    groups: dict[str, list[str]] = {}
    for path in paths:
        groups.setdefault(folded(path, folding), []).append(path)
    return {key: group for key, group in groups.items() if len(group) > 1}

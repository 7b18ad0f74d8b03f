"""The look before a migration: everything that the plan rests on, seen without writing anything.

Duty: scan, locks of spools, state of the roots, what DST has already, and the plan made of it.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import PurePosixPath

from durastore.errors import FormatUnsupported, IntegrityError, SpoolUnreadable
from durastore.formats.spool_root import ROOT_MARKER_NAME, parse_spool_name
from durastore.fsio.folder import Folder
from durastore.fsio.paths import open_folder
from durastore.fsio.space import Filesystem, disk_bytes, filesystem_of, free_bytes
from durastore.migrate.handover import RootState, find_state
from durastore.migrate.outcome import Item
from durastore.migrate.places import Trees, find_unwritable, refuse_inside
from durastore.migrate.plan import MigratePlan, PlanFacts, plan_migrate
from durastore.migrate.roots import Going, HeldRoot, find_roots, hold_root, root_of
from durastore.migrate.scan import Scan, SourceFile, SourceLink, scan_tree
from durastore.spool.nearby import looks_like_spool, root_above

__all__ = ["Look", "leads_out", "look_at"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What was seen, and the plan."""

    scan: Scan
    roots: tuple[HeldRoot, ...]
    states: dict[str, RootState]
    """Of each root, by its path."""
    items: tuple[Item, ...]
    waiting: tuple[SourceFile, ...]
    plan: MigratePlan

    def is_done(self, path: str) -> bool:
        """Whether the path lies in a spool root that is at work in DST: nothing is made or changed there any more."""
        root = root_of(self.roots, path)
        return root is not None and self.states.get(root.path) is RootState.DONE

    def is_wanted(self, path: str) -> bool:
        """Whether a file of this path is one that this run copies."""
        root = root_of(self.roots, path)
        if root is None:
            return True
        return self.states.get(root.path) is not RootState.DONE and root.going_of(path) is Going.NOW


def look_at(trees: Trees, *, stack: ExitStack, is_reclaiming: bool, is_any_filesystem_allowed: bool) -> Look:
    """Look at all of it. Locks are held until `stack` ends. `ConfigError` where the trees turn out to overlap,
    `SpoolUnreadable` where a root cannot be understood; OSError for the tree itself.
    """
    scan = scan_tree(trees.source)
    paths = find_roots(scan)
    roots = tuple(_held(trees.source, path, stack=stack) for path in paths)
    if roots:
        scan = scan_tree(trees.source)  # what was seen before the locks may have changed since
    refuse_inside(trees, scan)
    states, problems = _states(trees, roots)
    if (roots or is_reclaiming) and not is_any_filesystem_allowed:
        problems += _problems_of_kind(filesystem_of(trees.existing.path), has_roots=bool(roots))
    if is_reclaiming:
        problems += _problems_of_spools(trees, scan, roots=roots)
    problems += _problems_of_writing(trees, is_reclaiming=is_reclaiming)
    items, waiting = _sorted_out(scan, roots, states=states, is_reclaiming=is_reclaiming)
    there = _names_there(trees, scan)
    fresh = tuple(item.file for item in items if item.file.path not in there)
    facts = PlanFacts(
        scan=scan,
        files=fresh,
        there=len(items) - len(fresh),
        waiting=waiting,
        folding=trees.find_folding(),
        free_bytes=free_bytes(trees.existing.fd),
        disk_bytes=disk_bytes(trees.existing.fd),
        is_one_device=trees.is_one_device,
        is_reclaiming=is_reclaiming,
        has_locks=trees.is_source_locked,
        problems=tuple(problems),
    )
    return Look(scan=scan, roots=roots, states=states, items=items, waiting=waiting, plan=plan_migrate(facts))


def leads_out(link: SourceLink) -> bool:
    """Whether a link leads out of the tree, by its text alone. (One that leads nowhere is told by `stat`.)"""
    if link.target.startswith("/"):
        return True
    depth = len(PurePosixPath(link.path).parts) - 1
    for segment in link.target.split("/"):
        depth += -1 if segment == ".." else segment not in ("", ".")
        if depth < 0:
            return True
    return False


def _problems_of_kind(kind: Filesystem, *, has_roots: bool) -> list[str]:
    """Memory ends with the machine, an overlay with its container; a network or FUSE mount may lead anywhere."""
    if kind.is_local_disk:
        return []
    if has_roots:
        risk = f"DST is on {kind.type_name}, which may lose acknowledged data"
        return [f"SRC holds a spool root, and {risk} (--any-filesystem copies it all the same)"]
    return [f"DST is on {kind.type_name}, no local disk: a copy there frees no source without --any-filesystem"]


def _problems_of_writing(trees: Trees, *, is_reclaiming: bool) -> list[str]:
    """What the first thing that is made would say: a dry run has to know it as well."""
    problems = []
    what = "the folder of DST" if trees.is_new else "DST"
    if (why := find_unwritable(trees.existing)) is not None:
        problems.append(f"{what} {why}: nothing can be made there")
    if is_reclaiming and (why := find_unwritable(trees.source)) is not None:
        problems.append(f"SRC {why}: no source is freed there")
    return problems


def _problems_of_spools(trees: Trees, scan: Scan, *, roots: tuple[HeldRoot, ...]) -> list[str]:
    """Packs that a journal knows and that would go without it: whoever opens their root next would call them lost. Only
    a root that moves as a whole, under its locks, takes its journals along.
    """
    above = root_above(trees.source.path)
    if above is not None:
        return [f"SRC lies in the spool root {above}, whose journals know what is there: migrate the whole root"]
    problems = []
    for folder in scan.folders:
        at, _, name = folder.path.rpartition("/")
        if parse_spool_name(name) is None or root_of(roots, folder.path) is not None:
            continue
        with open_folder(trees.source, at) as parent:
            if looks_like_spool(parent, name):
                problems.append(f"{folder.path} looks like a spool, and there is no {ROOT_MARKER_NAME} beside it")
    return problems


def _held(source: Folder, path: str, *, stack: ExitStack) -> HeldRoot:
    try:
        return hold_root(source, path, stack=stack)
    except (IntegrityError, FormatUnsupported) as exc:
        raise SpoolUnreadable(f"spool root {source.path / path}: {exc.message}", hint=exc.hint) from exc


def _states(trees: Trees, roots: tuple[HeldRoot, ...]) -> tuple[dict[str, RootState], list[str]]:
    states: dict[str, RootState] = {}
    problems: list[str] = []
    for root in roots:
        target = None if trees.is_new else trees.existing
        found = find_state(target, root, source_path=trees.source.path, target_path=trees.target_path)
        if isinstance(found, str):
            problems.append(found)
        else:
            states[root.path] = found
    return states, problems


def _sorted_out(
    scan: Scan, roots: tuple[HeldRoot, ...], *, states: dict[str, RootState], is_reclaiming: bool
) -> tuple[tuple[Item, ...], tuple[SourceFile, ...]]:
    if not roots:
        return tuple(Item(file=file) for file in scan.files), ()
    items: list[Item] = []
    waiting: list[SourceFile] = []
    for file in scan.files:
        root = root_of(roots, file.path)
        if root is None:
            items.append(Item(file=file))
            continue
        going = root.going_of(file.path)
        if states.get(root.path) is RootState.DONE:
            if is_reclaiming and root.is_data(file.path):
                items.append(Item(file=file, seal=root.seals.get(file.path), may_copy=False))
            continue
        if going is Going.NOT:
            continue
        if going is Going.WAITING:
            waiting.append(file)
        else:
            items.append(Item(file=file, seal=root.seals.get(file.path), is_ours=True))
    return tuple(items), tuple(waiting)


def _names_there(trees: Trees, scan: Scan) -> set[str]:
    """Paths of DST below the folders of the scan. Nothing is believed of them."""
    found: set[str] = set()
    if trees.is_new:
        return found
    for folder in scan.folders:
        try:
            with open_folder(trees.existing, folder.path) as there:
                prefix = f"{folder.path}/" if folder.path else ""
                found |= {prefix + name for name in os.listdir(there.fd)}
        except OSError:
            continue  # not there, or not to be read: told when it is to be made
    return found

"""`migrate`: the one call, in the order of `docs/design/migrate.md`.

Duty: look, plan, copy, compare again, hand spool roots over, free sources where told. Must never free a source of which
anything is in doubt.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from durastore.clock import SYSTEM_CLOCK, Clock
from durastore.errors import DiskFailed, DurastoreError
from durastore.formats.spool_root import GOING_NAME, PRIVATE_ROOT_NAME
from durastore.fsio.folding import find_folding
from durastore.fsio.paths import open_folder
from durastore.fsio.rate import RateLimit
from durastore.fsio.space import filesystem_of
from durastore.fsio.sys import SYS
from durastore.migrate.copying import copy_files
from durastore.migrate.handover import RootState, begin_root, end_root, path_at_target
from durastore.migrate.looking import Look, leads_out, look_at
from durastore.migrate.metadata import finish_folders, make_folders, make_links, names_of
from durastore.migrate.outcome import Outcome, Progress, StopCopying
from durastore.migrate.places import Target, Trees, find_unwritable, hold_trees, make_target
from durastore.migrate.plan import find_folded
from durastore.migrate.reading import Formats, SourceReader
from durastore.migrate.record import Intents, Prior, ProvenLog, load_intents, load_proven
from durastore.migrate.report import MigrateReport, RootReport
from durastore.migrate.roots import HeldRoot, below, root_of
from durastore.migrate.scan import PRIVATE_NAME, SourceFolder, scan_tree
from durastore.migrate.tools import CopyTools
from durastore.observe.events import LOGGER
from durastore.reclaim.copied import CopiedPlace, reclaim_copied, restore_copied
from durastore.verify.copied import CopiedFile

__all__ = ["MigrateRequest", "migrate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrateRequest:
    """What is asked for."""

    source: Path
    target: Path
    is_dry: bool = False
    is_reclaiming: bool = False
    jobs: int = 4
    """Files read and written at once."""
    bytes_per_s: int = 0
    """Of the source, all jobs together; 0: as fast as it goes."""
    is_any_filesystem_allowed: bool = False


def migrate(
    request: MigrateRequest, *, formats: Formats, clock: Clock = SYSTEM_CLOCK, on_progress: Progress | None = None
) -> MigrateReport:
    """Copy SRC to DST and prove the copy. What could not be done is in the report, which has the exit code.

    `StoreMissing`, `ConfigError` (the trees overlap), `SpoolLocked` (another migrate), `SpoolUnreadable`; nothing was
    made then. Safe to repeat: the same call goes on where another one ended.
    """
    with ExitStack() as stack:
        trees = hold_trees(request.source, request.target, stack=stack)
        restored, aside = ([], []) if request.is_dry else _take_back(trees)
        look = look_at(
            trees,
            stack=stack,
            is_reclaiming=request.is_reclaiming,
            is_any_filesystem_allowed=request.is_any_filesystem_allowed,
        )
        report = _report_of(trees, look)
        report.restored = tuple(restored)
        if look.plan.problems or request.is_dry:
            report.failed |= look.scan.unreadable
            return report
        run = _Run(request, look, target=make_target(trees, stack=stack), formats=formats, clock=clock)
        run.fill(report, on_progress=on_progress)
        report.failed |= {f"{PRIVATE_NAME}/{GOING_NAME}/{name}": "moved aside by a run that ended" for name in aside}
        return report


def _take_back(trees: Trees) -> tuple[list[str], list[str]]:
    """What an interrupted reclaim moved aside in SRC: before anything is looked at."""
    with ExitStack() as held:
        try:
            private = held.enter_context(trees.source.child(PRIVATE_NAME))
            going = held.enter_context(private.child(GOING_NAME))
        except FileNotFoundError:
            return [], []
        paths = {}
        if not trees.is_new and trees.existing.has(PRIVATE_NAME):
            record = held.enter_context(trees.existing.child(PRIVATE_NAME))
            paths = load_intents(record, source=trees.source_id)
        restored, left = restore_copied(trees.source, going, paths=paths)
    for path in restored:
        LOGGER.warning("%s was moved for reclaiming by a run that ended, and is back", path)
    return restored, left


def _report_of(trees: Trees, look: Look) -> MigrateReport:
    scan = look.scan
    return MigrateReport(
        source=str(trees.source.path),
        target=str(trees.target_path),
        plan=look.plan,
        hard_links=tuple(file.path for file in scan.files if file.names > 1),
        sparse=tuple(file.path for file in scan.files if file.is_sparse),
        odd=dict(scan.odd),
        links_out=tuple(link.path for link in scan.links if leads_out(link) or _is_broken(trees, link.path)),
        notes=tuple(
            f"the journal of {trees.source.path / root.path / name} says nothing: {why}"
            for root in look.roots
            for name, why in root.unread.items()
        )
        + _note_on_marking(trees, look),
        roots=tuple(_root_report(trees, look, root=root, reason="not begun") for root in look.roots),
    )


def _scope_of(root: HeldRoot) -> str:
    """What goes over with it: the record of a folder of files goes with all of them. Whoever adopts what was left in
    SRC would be refused there for want of its record.
    """
    above, _, name = root.path.rpartition("/")
    return above if name == PRIVATE_ROOT_NAME else root.path


def _note_on_marking(trees: Trees, look: Look) -> tuple[str, ...]:
    """Copied all the same: what a failing disk still gives is worth having."""
    why = find_unwritable(trees.source)
    if why is None or all(look.states.get(root.path) is RootState.DONE for root in look.roots):
        return ()
    return (f"SRC {why}: a spool root in it cannot be marked as moved, so that the one in DST does not become active",)


def _is_broken(trees: Trees, path: str) -> bool:
    """By following it, for a message only."""
    return not os.path.exists(trees.source.path / path)


def _root_report(trees: Trees, look: Look, *, root: HeldRoot, reason: str | None) -> RootReport:
    is_active = look.states.get(root.path) is RootState.DONE or reason is None
    place = path_at_target(trees.target_path, root)
    busy = () if is_active else tuple(root.busy)
    return RootReport(path=root.path, target=str(place), is_active=is_active, busy=busy, reason=reason)


class _Run:
    """One execution of one plan."""

    def __init__(self, request: MigrateRequest, look: Look, *, target: Target, formats: Formats, clock: Clock) -> None:
        self._request = request
        self._look = look
        self._target = target
        self._formats = formats
        self._clock = clock

    def fill(self, report: MigrateReport, *, on_progress: Progress | None) -> None:
        """Do it, and say what came of it."""
        look, target = self._look, self._target
        outcome = Outcome(len(look.items), on_progress=on_progress)
        report.is_executed = True
        report.leftovers = tuple(f"{PRIVATE_NAME}/temp/{name}" for name in target.temps.names())
        outcome.failed |= look.scan.unreadable
        reasons = {root.path: "the copy was not finished" for root in look.roots}
        try:
            self._copy(outcome, report)
            if not outcome.is_stopped:
                self._compare_again(outcome)
                reasons = self._hand_over(outcome)
        except StopCopying as exc:
            outcome.stop(str(exc))
        except (DiskFailed, OSError) as exc:
            outcome.stop(exc.message if isinstance(exc, DurastoreError) else f"{exc.strerror or exc}")
        report.roots = tuple(
            _root_report(target.trees, look, root=root, reason=reasons.get(root.path)) for root in look.roots
        )
        self._tell(outcome, report)
        if self._request.is_reclaiming and not outcome.is_stopped:
            self._reclaim(outcome, report)

    def _copy(self, outcome: Outcome, report: MigrateReport) -> None:
        look, target = self._look, self._target
        self._refuse_folding()
        folders = [folder for folder in look.scan.folders if not look.is_done(folder.path)]
        for root in look.roots:  # what is in it comes after its mark: a spool without one would open
            if look.states[root.path] is RootState.FRESH:
                make_folders(target, [each for each in folders if below(root.path, each.path)], outcome=outcome)
                begin_root(target, root, source=target.trees.source.path)
        names = make_folders(target, folders, outcome=outcome)
        names |= names_of(target, [folder.path for folder in look.scan.folders if look.is_done(folder.path)])
        source_id = target.trees.source_id
        log = ProvenLog(target.private, source=source_id)
        try:
            tools = CopyTools(
                target=target,
                log=log,
                known=load_proven(target.private, source=source_id),
                names=names,
                reader=self._reader(is_over=lambda: outcome.is_stopped),
                jobs=self._request.jobs,
            )
            copy_files(tools, look.items, outcome=outcome)
        finally:
            log.close()
        if outcome.is_stopped:
            return
        links = [link for link in look.scan.links if not look.is_done(link.path)]
        report.links = make_links(target, links, outcome=outcome)
        finish_folders(target, folders, outcome=outcome)
        _sync_all(target, folders)

    def _reader(self, *, is_over: Callable[[], bool]) -> SourceReader:
        rate = RateLimit(self._request.bytes_per_s, clock=self._clock, is_over=is_over)
        is_local = filesystem_of(self._target.trees.source.path).is_local_disk
        return SourceReader(self._formats, rate=rate, is_local=is_local)

    def _refuse_folding(self) -> None:
        """Asked again with names of our own: before, DST may have had none to ask by (M7, case B127)."""
        problem = find_folded(self._look.scan, find_folding(self._target.private))
        if problem is not None:
            raise StopCopying(problem)

    def _compare_again(self, outcome: Outcome) -> None:
        """What SRC has now is what was copied (M5)."""
        look = self._look
        scan = scan_tree(self._target.trees.source)
        for file in scan.files:
            proven = outcome.proven.get(file.path)
            if proven is not None and proven.copied.source != file.identity:
                outcome.doubt(file.path, "it changed after it was copied")
            elif proven is not None and proven.has_writer:
                outcome.doubt(
                    file.path,
                    "somebody had it open for writing while it was copied (a monitor has extract.sqlite):"
                    " run it again after that",
                )
            elif proven is None and file.path not in outcome.failed and look.is_wanted(file.path):
                outcome.doubt(file.path, "it appeared while others were copied")
        known = {folder.path for folder in look.scan.folders} | {link.path for link in look.scan.links}
        for path in [*(folder.path for folder in scan.folders), *(link.path for link in scan.links)]:
            if path not in known and root_of(look.roots, path) is None:
                outcome.doubt(path, "it appeared while others were copied")
        outcome.failed.update({p: why for p, why in scan.unreadable.items() if p not in outcome.failed})

    def _hand_over(self, outcome: Outcome) -> dict[str, str]:
        """Root -> why it is not active yet; nothing for those that are."""
        reasons: dict[str, str] = {}
        for root in self._look.roots:
            if self._look.states[root.path] is RootState.DONE:
                continue
            why = self._why_not(root, outcome)
            if why is None:
                expected = [item.file.path for item in self._look.items if below(item.file.path, root.path)]
                try:
                    end_root(self._target, root, expected=expected, outcome=outcome)
                except (DurastoreError, OSError) as exc:
                    why = str(exc)
                    outcome.doubt(root.path or ".", f"the spool root was not handed over: {why}")
            if why is not None:
                reasons[root.path] = why
        return reasons

    def _why_not(self, root: HeldRoot, outcome: Outcome) -> str | None:
        here = self._target.trees.source.path / root.path
        if root.busy:
            return (
                f"{', '.join(root.busy)} in use; sealed packs were copied, the rest needs the lock: "
                f"durastore stop --local {here}, then the same command again"
            )
        failed = [path for path in outcome.failed if below(path, _scope_of(root)) and "/quarantine/" not in path]
        if failed:
            return (
                f"{len(failed)} of its files could not be copied; one that cannot be read at all may be moved into "
                "its spool's quarantine by hand"
            )
        return None

    def _tell(self, outcome: Outcome, report: MigrateReport) -> None:
        report.stopped = outcome.stopped
        report.copied, report.copied_bytes = outcome.copied, outcome.copied_bytes
        report.there_before = outcome.there_before
        report.failed |= outcome.failed
        report.mismatched = tuple(outcome.mismatched)
        report.damaged |= outcome.damaged()
        report.superseded |= outcome.superseded
        whole = [each for each in outcome.proven.values() if each.damage is None]
        report.prior = Counter(each.prior for each in whole)
        report.unproven_paths = tuple(each.copied.path for each in whole if each.prior is Prior.NONE)
        tried = outcome.proven.keys() | outcome.failed.keys()
        report.not_attempted = sum(item.file.path not in tried for item in self._look.items)

    # --- freeing sources -------------------------------------------------------------------------------------------

    def _reclaim(self, outcome: Outcome, report: MigrateReport) -> None:
        report.is_reclaiming = True
        files = list(self._freed(outcome, report))
        if not files:
            return
        target, trees = self._target, self._target.trees
        log = Intents(target.private, source=trees.source_id)
        try:
            with ExitStack() as held:
                held.callback(log.close)
                private = held.enter_context(trees.source.ensure_child(PRIVATE_NAME))
                going = held.enter_context(private.ensure_child(GOING_NAME))
                place = CopiedPlace(
                    source=trees.source,
                    target=target.folder,
                    going=going,
                    log=log,
                    check=target.check,
                    clock=self._clock,
                )
                freed = reclaim_copied(place, files)
                report.reclaimed, report.reclaimed_bytes = freed.files, freed.bytes_freed
                report.kept |= freed.kept
        except (DurastoreError, OSError) as exc:
            report.stopped = f"while sources were freed: {exc}"

    def _freed(self, outcome: Outcome, report: MigrateReport) -> Iterator[CopiedFile]:
        """What is proven and sound; of a spool root that was handed over, packs and quarantine."""
        report.kept |= dict.fromkeys(outcome.skipped, "DST has no copy of it any more")
        active = {root.path for root in report.roots if root.is_active}
        for path, proven in outcome.proven.items():
            root = root_of(self._look.roots, path)
            if proven.damage is not None:
                report.kept[path] = f"damaged: {proven.damage}"  # case B25: whoever salvages it may need both
            elif root is None or (root.path in active and root.is_data(path)):
                yield proven.copied


def _sync_all(target: Target, folders: list[SourceFolder]) -> None:
    """Links, modes and times too."""
    try:
        if target.has_syncfs and _is_synced_at_once(target):
            return
        for folder in folders:
            with open_folder(target.folder, folder.path) as made:
                made.sync()
    except OSError as exc:
        raise StopCopying.of(exc) from exc


def _is_synced_at_once(target: Target) -> bool:
    try:
        SYS.syncfs(target.folder.fd)
    except OSError as exc:
        if exc.errno != errno.ENOSYS:
            raise
        return False
    return True

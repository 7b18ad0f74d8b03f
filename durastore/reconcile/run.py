"""`reconcile`: look, plan, apply if told to, look again, report.

Duty: the one entry for a spool root or any folder. Without `is_applied` nothing changes anywhere. Must never report
what was true before it acted as what is true now.
"""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

from durastore.adopt.place import (
    FolderPlace,
    check_folder,
    hold_folder,
    opened_place,
    refuse_private_root,
    take_back,
)
from durastore.clock import SYSTEM_CLOCK, Clock
from durastore.errors import ConfigError, RootMismatch, StoreMissing
from durastore.formats.spool_root import ROOT_MARKER_NAME
from durastore.fsio.folder import Folder
from durastore.objectstore.port import ObjectStore
from durastore.observe.events import Observer
from durastore.reconcile.applied import Applied
from durastore.reconcile.findings import FindingSet
from durastore.reconcile.folder import FolderFacts, FolderPlan, adoption_of, plan_folder
from durastore.reconcile.folder_look import look_at_folder
from durastore.reconcile.local import case_collisions, is_empty_folder
from durastore.reconcile.report import ADOPTED, ReconcileReport, folder_counts, spool_counts
from durastore.reconcile.session import ReconcileRequest, Session, opened_session

__all__ = ["reconcile", "refuse_overlap"]


def reconcile(
    request: ReconcileRequest,
    *,
    objects: ObjectStore | None = None,
    clock: Clock = SYSTEM_CLOCK,
    observer: Observer | None = None,
) -> ReconcileReport:
    """Compare, and with `is_applied` mend. The report is of the state at the end.

    `StoreMissing` where the folder is not there, `RootMismatch` and `InventoryIncomplete` where nothing may be planned,
    `SpoolLocked` where another reconcile works there, `SameFailureDomain`, network and credential errors. Repeatable.
    """
    refuse_overlap(request)
    is_root = (Path(os.path.realpath(request.local)) / ROOT_MARKER_NAME).exists()
    if is_root and request.is_adopting:
        raise RootMismatch(
            f"{request.local} is a spool root: its packs are no files of others",
            hint="durastore drain brings what it holds to the bucket; nothing was changed",
        )
    with opened_session(request, objects=objects, clock=clock, observer=observer) as session:
        if is_root:
            refuse_private_root(request.local)
            return _reconcile_root(session)
        return _reconcile_folder(session)


def refuse_overlap(request: ReconcileRequest) -> None:
    """`ConfigError` for a bucket directory inside the folder, which would be taken for files to send, for ever."""
    if request.bucket.kind != "file":
        return
    bucket, local = Path(os.path.realpath(request.bucket.bucket)), Path(os.path.realpath(request.local))
    if bucket.is_relative_to(local) or local.is_relative_to(bucket):
        raise ConfigError(f"{local} and the bucket directory {bucket} lie in one another", hint="use two folders")


def _reconcile_root(session: Session) -> ReconcileReport:
    from durastore.reconcile.spool_run import execute_spools, look_at_root  # half of all modules: not for a folder
    from durastore.reconcile.spools import plan_spools
    from durastore.spool.root import SpoolRoot

    request = session.request
    root = SpoolRoot.open(
        request.local, is_any_filesystem_allowed=request.options.is_any_filesystem_allowed or not request.is_applied
    )
    with closing(root):
        facts, remote = look_at_root(session, root)
        plan = plan_spools(facts)
        applied: Applied | None = None
        before: tuple[FindingSet, ...] = ()
        if request.is_applied:
            before = plan.findings
            applied = execute_spools(session, root, plan=plan, remote=remote)
            facts, _ = look_at_root(session, root)
            plan = plan_spools(facts)
        counts, adds_up = spool_counts(facts)
        return ReconcileReport(
            root=str(root.path),
            bucket=request.bucket.render(),
            kind="spools",
            is_deep=request.is_deep,
            counts=counts,
            adds_up=adds_up,
            findings=plan.findings,
            before=before,
            applied=applied,
        )


def _reconcile_folder(session: Session) -> ReconcileReport:
    request = session.request
    with hold_folder(request.local) as folder:
        if not request.is_applied:
            return _report_folder(session, folder, applied=None, before=())
        _refuse_unmounted(folder)
        allowed = request.options.is_any_filesystem_allowed
        with opened_place(folder, clock=session.clock, is_any_filesystem_allowed=allowed) as place:
            return _apply_folder(session, place)


def _refuse_unmounted(folder: Folder) -> None:
    """Before anything is made in it: an empty folder that was never reconciled is most likely not mounted."""
    if is_empty_folder(folder):
        raise RootMismatch(
            f"{folder.path} is empty and was never reconciled: no disk is mounted, or another one",
            hint="mount it; nothing was changed",
        )


def _apply_folder(session: Session, place: FolderPlace) -> ReconcileReport:
    from durastore.reconcile.binding import Binding  # not for a look

    moved_back = take_back(place)
    binding = Binding(session)
    facts, remote = look_at_folder(session, place.folder, on_unbound=binding.begin)
    from durastore.reconcile.folder_apply import execute_folder  # takes a while, in which a new marker settles

    plan = _plan(session, facts)
    place.check()
    applied = execute_folder(session, place, plan=plan, remote=remote, binding=binding)
    applied.moved_back = moved_back
    return _report_folder(session, place.folder, applied=applied, before=plan.findings)


def _plan(session: Session, facts: FolderFacts) -> FolderPlan:
    plan = plan_folder(facts)
    return adoption_of(plan) if session.request.is_adopting else plan


def _report_folder(
    session: Session, folder: Folder, *, applied: Applied | None, before: tuple[FindingSet, ...]
) -> ReconcileReport:
    facts, remote = look_at_folder(session, folder)
    if remote.is_new and applied is None and session.request.is_reclaiming:
        raise StoreMissing(f"there is no durastore at {session.request.bucket.render()}", hint="--apply makes one")
    check_folder(folder)
    plan = _plan(session, facts)
    counts, adds_up = folder_counts(facts)
    return ReconcileReport(
        root=str(folder.path),
        bucket=session.request.bucket.render(),
        kind=ADOPTED if session.request.is_adopting else "folder",
        is_deep=session.request.is_deep,
        counts=counts,
        adds_up=adds_up,
        findings=plan.findings,
        before=before,
        applied=applied,
        case_collisions=case_collisions(facts.local.paths),
    )

"""Carrying out a folder's plan, in the order of `docs/operations/reconcile.md`.

Duty: each step checks again what it rests on, and leaves a state from which the same command goes on. Must never
unlink: `reclaim.foreign` does, one proven file after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import partial

from durastore.adopt.ledger import HashedEntry, save_ledger
from durastore.adopt.place import FolderPlace, put_aside
from durastore.adopt.sending import RowPublisher, Sender, hash_local
from durastore.adopt.stopping import StopWatch
from durastore.adopt.verbatim import as_listed, as_pack
from durastore.clock import least_age_s
from durastore.errors import DiskFailed, IntegrityError, NotVerified, ObjectAbsent, SpoolUnreadable
from durastore.formats.file_keys import parse_file_key
from durastore.model import Digest, ObjectKey, SampleId
from durastore.objectstore.port import ObjectReader
from durastore.observe.events import LOGGER
from durastore.reclaim.foreign import ForeignReclaimer
from durastore.reconcile.applied import Applied
from durastore.reconcile.binding import Binding
from durastore.reconcile.burying import TOO_MANY
from durastore.reconcile.columns import NONE, names_of, positions
from durastore.reconcile.folder import FolderPlan
from durastore.reconcile.hashing import look_into
from durastore.reconcile.local import texts
from durastore.reconcile.remote import RemoteLook
from durastore.reconcile.repair import bury_gone, list_orphan_files, rebuild_packs
from durastore.reconcile.session import Session
from durastore.spool.records import FACT_STORE_ID, PackRecord
from durastore.verify.remote import read_back
from durastore.verify.verifier import Verifier

__all__ = ["execute_folder", "reclaim_listed"]

_THREADS = 6


def execute_folder(
    session: Session, place: FolderPlace, *, plan: FolderPlan, remote: RemoteLook, binding: Binding
) -> Applied:
    """Do it all, once. `NotVerified`, `RootMismatch` and network errors end it where it is; repeat it then."""
    applied = Applied()
    if plan.uploads:
        session.open_uploader().start()  # its client takes a while, and so does a new marker
    store_id = binding.settle(remote.store_id)
    verifier = session.verifier(store_id)
    verifier.check_bucket()  # what the plan rests on is still there (case B164)
    place.spool.journal.set_fact(FACT_STORE_ID, store_id)
    publisher = RowPublisher(session.objects, session.prefix, spool=place.spool, check_bucket=verifier.check_bucket)
    _set_aside(place, plan, applied=applied)
    sent, unleased = _send(
        session, place, files=_destined(plan, remote, prefix=session.prefix), publisher=publisher, applied=applied
    )
    known = [*plan.hashed, *_entries(pack for pack in sent if pack.name not in unleased)]
    save_ledger(place.root.folder, known, writer=place.spool.writer)
    _repair(session, _without(plan, sent), remote=remote, publisher=publisher, applied=applied)
    if session.request.is_reclaiming:
        session.refuse_same_fate()
        listed = [*sent, *_look_at_listed(session, place, plan=plan, remote=remote, applied=applied)]
        reclaim_listed(session, place, listed=listed, verifier=verifier, applied=applied)
    elif session.request.is_deep:  # read every object that a file here rests on; what does not match is `unproven`
        _look_at_listed(session, place, plan=plan, remote=remote, applied=applied)
    return applied


def _entries(sent: Iterable[PackRecord]) -> list[HashedEntry]:
    return [
        HashedEntry(path=pack.name, identity=pack.identity, digest=pack.digest)
        for pack in sent
        if pack.identity is not None and pack.digest is not None
    ]


def _set_aside(place: FolderPlace, plan: FolderPlan, *, applied: Applied) -> None:
    for path, why in plan.quarantine.items():
        place.check()
        if next(look_into(place.folder, [path])).damage is None:
            applied.failed[path] = "is another file than was looked at"  # the plan is old: decide on what is there now
            continue
        try:
            applied.quarantined[path] = put_aside(place, path)
        except (OSError, DiskFailed) as exc:
            applied.failed[path] = f"could not be moved to quarantine: {exc}"
        else:
            LOGGER.warning("%s %s: moved to quarantine", path, why)


def _send(
    session: Session,
    place: FolderPlace,
    *,
    files: Mapping[SampleId, Sequence[ObjectKey]],
    publisher: RowPublisher,
    applied: Applied,
) -> tuple[list[PackRecord], set[str]]:
    session.observer.emit("adopt.begun", files=len(files))
    sender = Sender(
        place.folder, session.objects, prefix=session.prefix, uploader=session.open_uploader(), clock=session.clock
    )
    report = sender.send(
        files,
        publisher=publisher,
        journal=place.spool.journal,
        observer=session.observer,
        is_for_reclaim=session.request.is_reclaiming,
    )
    applied.uploaded += len(report.listed)
    applied.uploaded_bytes += report.sent_bytes
    applied.failed |= report.kept
    return report.listed, report.unleased


def _destined(plan: FolderPlan, remote: RemoteLook, *, prefix: str) -> dict[SampleId, list[ObjectKey]]:
    """The files to be sent. One whose bytes may be in an object without a row, as an interrupted run leaves them, goes
    to that object's key, so that it is not kept twice; whether they are its bytes is seen once it was hashed.
    """
    files = {SampleId(path): list(known) for path, known in plan.uploads.items()}
    orphans = names_of(remote.bucket.orphan_files.keys) if remote.bucket is not None and files else []
    for key in map(ObjectKey, orphans):
        parts = parse_file_key(prefix, key)
        if parts is not None and parts.path in files:
            files[parts.path].append(key)
    return files


def _without(plan: FolderPlan, sent: Sequence[PackRecord]) -> FolderPlan:
    """Orphans that were sent and listed just now are none any more."""
    if plan.orphan_files is None or not sent:
        return plan
    keys = texts([str(pack.key) for pack in sent])
    return replace(plan, orphan_files=plan.orphan_files.take(positions(plan.orphan_files.keys, keys) == NONE))


def _repair(
    session: Session, plan: FolderPlan, *, remote: RemoteLook, publisher: RowPublisher, applied: Applied
) -> None:
    if plan.orphan_packs is not None and (len(plan.orphan_packs) or not remote.manifest.is_whole):
        report = rebuild_packs(
            session.objects,
            session.prefix,
            manifest=remote.manifest,
            orphans=plan.orphan_packs,
            clock=session.clock,
        )
        applied.rows_rebuilt += report.rows_published
        applied.failed |= {finding.key.text: finding.detail for finding in report.findings}
    if plan.orphan_files is not None and len(plan.orphan_files):
        repair = list_orphan_files(
            session.objects,
            session.prefix,
            orphans=plan.orphan_files,
            publisher=publisher,
            clock=session.clock,
        )
        applied.rows_rebuilt += repair.listed
        applied.failed |= repair.kept
    applied.refused |= dict.fromkeys([key.text for key in plan.burial.too_many], TOO_MANY)
    stones = bury_gone(
        session.objects,
        plan.burial.bury,
        manifest=remote.manifest,
        publish=publisher.publish,
        clock=session.clock,
    )
    applied.rows_buried += len(stones)


# --- reclaim -----------------------------------------------------------------------------------------------------


def _look_at_listed(
    session: Session, place: FolderPlace, *, plan: FolderPlan, remote: RemoteLook, applied: Applied
) -> list[PackRecord]:
    """Files that rows named before this run: hashed now, their objects read back in full now. The rest of the proof
    comes `settle_s` later. What was known of them before counts for nothing.
    """
    found: list[PackRecord] = []
    with closing(session.objects.fresh_reader()) as reader, ThreadPoolExecutor(_THREADS, "durastore-look") as pool:
        look = partial(_look_at_one, session=session, place=place, remote=remote, reader=reader)
        listed = plan.reclaim
        for (path, _), seen in zip(listed, pool.map(look, listed), strict=True):
            if isinstance(seen, PackRecord):
                found.append(seen)
            else:
                applied.unproven[path] = seen
    return found


def _look_at_one(
    listed: tuple[str, int], *, session: Session, place: FolderPlace, remote: RemoteLook, reader: ObjectReader
) -> PackRecord | str:
    """The file as a listed pack, or why its copy is not proven."""
    path, row = listed
    files = remote.manifest.files
    try:
        file = hash_local(place.folder, SampleId(path))
        digest = Digest(files.digests[row].as_py().hex())
        key = ObjectKey(str(files.keys[row]))
        pack = as_pack(file, session.prefix, known=[key])
        if file.digest != digest or pack.key != key:
            return "its bytes are not those that its row names"
        is_for_reclaim = session.request.is_reclaiming
        evidence = read_back(reader, pack, clock=session.clock, is_for_reclaim=is_for_reclaim)
    except (NotVerified, ObjectAbsent, IntegrityError, SpoolUnreadable) as exc:
        return exc.message
    segment = remote.manifest.read[int(files.segments[row])]
    return as_listed(pack, evidence, segment=segment, seen_at=session.clock.stamp())


def reclaim_listed(
    session: Session, place: FolderPlace, *, listed: list[PackRecord], verifier: Verifier, applied: Applied
) -> None:
    """Free files that a segment lists and whose objects were read back: once they settled, each after its proof."""
    if not listed:
        return
    url = None if session.is_own_adapter else session.request.bucket
    StopWatch.of(place.root.folder, url, s3=session.s3, clock=session.clock).heed(verifier)
    _wait_settled(session, listed)
    reclaimer = ForeignReclaimer(place.foreign(), verifier, observer=session.observer)
    report = reclaimer.execute(sorted(listed, key=lambda pack: pack.name))
    applied.reclaimed += report.files
    applied.reclaimed_bytes += report.bytes_freed
    applied.unproven |= report.kept


def _wait_settled(session: Session, listed: Sequence[PackRecord]) -> None:
    """Servers forget what they acknowledged a moment ago: the look that frees a file comes this much later."""
    settle_s = session.request.foreign_settle_s
    while True:
        now = session.clock.stamp()
        ages = [least_age_s(pack.manifested_at, now) for pack in listed if pack.manifested_at is not None]
        if any(age is None for age in ages):
            raise NotVerified("the machine's clock went back while copies settled", hint="run the same command again")
        left_s = settle_s - min(age for age in ages if age is not None)
        if left_s <= 0:
            return
        LOGGER.info("%d files settle for another %.0f s before the last look", len(listed), left_s)
        session.clock.sleep(left_s + 0.05)

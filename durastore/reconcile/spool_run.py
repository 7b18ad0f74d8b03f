"""Looking at a spool root, and carrying out its plan through the store that it belongs to.

Duty: look read-only; then doubt what has to be doubted, and let `open_store` do what it does at every opening: recover,
salvage, send, prove, list, and with `is_reclaiming` free. Must never move a pack forward itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from typing import Any

from durastore.adopt.sending import RowPublisher
from durastore.errors import (
    CredentialsRefused,
    EndpointUnreachable,
    IntegrityError,
    NotVerified,
    ObjectAbsent,
    PackFailed,
    SpoolUnreadable,
    StoreMissing,
)
from durastore.formats.spool_root import PACKS_NAME
from durastore.fsio.rate import RateLimit
from durastore.model import PackState
from durastore.observe.events import LOGGER
from durastore.reconcile.applied import Applied
from durastore.reconcile.burying import TOO_MANY
from durastore.reconcile.hashing import hash_files
from durastore.reconcile.local import texts
from durastore.reconcile.remote import KnownKeys, RemoteLook, check_store_id, look_at_bucket
from durastore.reconcile.repair import bury_gone, list_orphan_files, rebuild_packs
from durastore.reconcile.session import Session
from durastore.reconcile.spools import SENT, WITH_FILE, SpoolFacts, SpoolPlan
from durastore.reconcile.strangers import strangers_in
from durastore.spool.look import SpoolLook, look_at_spool, spool_names
from durastore.spool.records import FACT_STORE_ID, PackRecord
from durastore.spool.root import SpoolRoot
from durastore.spool.spool import Spool, claim_idle_siblings
from durastore.store.opening import open_store
from durastore.verify.remote import read_back

__all__ = ["execute_spools", "look_at_root"]

_PAST = ("reclaimed", "quarantined")


def look_at_root(session: Session, root: SpoolRoot) -> tuple[SpoolFacts, RemoteLook]:
    """Facts about every spool of the root and about the bucket. `RootMismatch` where the root is no longer what was
    opened, `InventoryIncomplete` where the bucket is another one than the spools were filled for. Safe to repeat.
    """
    looks: list[SpoolLook] = []
    unreadable: dict[str, str] = {}
    for name in spool_names(root.folder):
        try:
            looks.append(look_at_spool(root.folder, name))
        except SpoolUnreadable as exc:
            unreadable[name] = exc.message
    spools = tuple(looks)
    remote = look_at_bucket(
        session.objects,
        session.prefix,
        known=_known_keys(spools),
        clock=session.clock,
    )
    for look in spools:
        if set(look.packs.states) & set(WITH_FILE):
            check_store_id(remote, look.facts.get(FACT_STORE_ID), what=f"spool {root.path / look.name}")
    root.check()
    facts = SpoolFacts(
        prefix=session.prefix,
        spools=spools,
        unreadable=unreadable,
        manifest=remote.manifest,
        bucket=remote.bucket,
        bucket_fault=remote.fault,
        missing=remote.missing,
        strangers=_strangers(root),
        damaged=_damaged(session, root, spools=spools) if session.request.is_deep else {},
        is_burying=session.request.is_burying,
    )
    return facts, remote


def _known_keys(spools: tuple[SpoolLook, ...]) -> KnownKeys:
    packs: list[str] = []
    sent, segments = set[str](), set[str]()
    past: dict[str, list[str]] = {}
    for look in spools:
        columns = look.packs
        for key, state, segment in zip(columns.keys, columns.states, columns.segments, strict=True):
            if not key:
                continue
            if segment and state in WITH_FILE:
                segments.add(segment)
            elif segment:
                past.setdefault(segment, []).extend([key] if state in _PAST else [])
            if not segment or state not in _PAST:
                packs.append(key)
            if state in SENT:
                sent.add(key)
    return KnownKeys(packs=texts(packs), sent=texts(sorted(sent)), segments=frozenset(segments), past=past)


def _strangers(root: SpoolRoot) -> tuple[str, ...]:
    return tuple(entry.path.decode("utf-8", "backslashreplace") for entry in strangers_in(root.folder))


def _damaged(session: Session, root: SpoolRoot, *, spools: tuple[SpoolLook, ...]) -> dict[str, str]:
    """Sealed packs whose bytes are not those that were sealed, each hashed now."""
    limit = RateLimit(session.request.hash_bytes_per_s, clock=session.clock)
    found: dict[str, str] = {}
    for look in spools:
        if look.is_held:
            continue
        digests = _sealed_digests(look)
        with root.folder.child(look.name) as folder, folder.child(PACKS_NAME) as packs:
            for seen in hash_files(packs, digests, limit=limit):
                if seen.digest is None:
                    found[f"{look.name}/{seen.path}"] = seen.unreadable or "was not read"
                elif seen.digest.hex() != digests[seen.path]:
                    found[f"{look.name}/{seen.path}"] = "does not match the journal's digest"
    return found


def _sealed_digests(look: SpoolLook) -> dict[str, str]:
    sizes = dict(zip(look.files.names, look.files.sizes, strict=True))
    packs = look.packs
    return {
        name: digest
        for name, state, size, digest in zip(packs.names, packs.states, packs.sizes, packs.digests, strict=True)
        if digest and state in WITH_FILE and sizes.get(name) == size
    }


def execute_spools(session: Session, root: SpoolRoot, *, plan: SpoolPlan, remote: RemoteLook) -> Applied:
    """Do it all, once. Network errors end it where it is; repeat it then. Spools of live processes stay untouched."""
    if remote.store_id is None:  # opening would make a marker, and fix the empty run for whoever comes first
        raise StoreMissing(
            f"there is no durastore at {session.request.bucket.render()} yet",
            hint="start the extraction: it makes the bucket's marker, with its run; nothing was changed",
        )
    applied = Applied()
    if session.request.is_reclaiming:
        session.refuse_same_fate()
    _doubt(session, root, plan=plan, applied=applied)
    is_whole = remote.manifest.is_whole
    if not is_whole:  # no store opens on a manifest with holes; what the journals hold of it is doubted by now
        _rebuild(session, plan=plan, remote=remote, applied=applied)
    _work(session, root, applied=applied)
    if is_whole:
        _rebuild(session, plan=plan, remote=remote, applied=applied)
    _repair(session, root, plan=plan, remote=remote, applied=applied)
    return applied


def _doubt(session: Session, root: SpoolRoot, *, plan: SpoolPlan, applied: Applied) -> None:
    if not (plan.doubted or plan.damaged or plan.lost_segments):
        return
    for spool in claim_idle_siblings(root, clock=session.clock):
        with closing(spool):
            spool.bind(session.prefix)
            damaged = [name.partition("/")[2] for name in plan.damaged if name.startswith(f"{spool.path.name}/")]
            for record in spool.journal.packs(*map(PackState, WITH_FILE)):
                reason = _doubt_of(record, plan)
                if reason is not None and record.state in (PackState.VERIFIED, PackState.MANIFESTED):
                    spool.journal.move_back(record.pack_id, PackState.UPLOADED, reason=reason)
                if record.name in damaged:
                    _settle_damaged(session, spool, pack_id=record.pack_id, applied=applied)


def _doubt_of(record: PackRecord, plan: SpoolPlan) -> str | None:
    if record.key is not None and record.key.text in plan.doubted:
        return "reconcile: its object is gone or another"
    if record.manifested_in is not None and record.manifested_in in plan.lost_segments:
        return "reconcile: the segment with its rows is gone or damaged"
    return None


def _settle_damaged(session: Session, spool: Spool, *, pack_id: int, applied: Applied) -> None:
    """As reclaim does it: put aside if the bucket has every byte and lists it, else what still matches is salvaged."""
    record = spool.journal.pack(pack_id)
    reason = "reconcile: its bytes are not those that were sealed"
    if spool.is_intact(record):
        return
    if record.state is PackState.MANIFESTED:
        try:
            with closing(session.objects.fresh_reader()) as reader:
                read_back(reader, record, clock=session.clock)
        except (ObjectAbsent, IntegrityError):
            pass
        except NotVerified as exc:
            applied.failed[record.name] = exc.message  # not knowing: the next run asks again
            return
        else:
            spool.quarantine(pack_id, reason=reason)
            applied.quarantined[record.name] = record.name
            return
    report = spool.salvage(pack_id, reason=reason)
    if report.quarantined is not None:
        applied.quarantined[record.name] = report.quarantined
    for lost in report.lost:
        LOGGER.error("sample %s of pack %s is LOST: %s", lost.sample_id, lost.pack_name, lost.reason)
    report.raise_unless_full()


def _work(session: Session, root: SpoolRoot, *, applied: Applied) -> None:
    """Open the store as any process would, and wait until all of it is in the manifest (and freed, if asked for)."""
    request = session.request
    overrides: dict[str, Any] = asdict(request.options)
    overrides["reclaim"] = "eager" if request.is_reclaiming else "never"
    if request.settle_s is not None:
        overrides["settle_s"] = request.settle_s
    if session.is_own_adapter:
        overrides["objects"] = session.bare
    store = open_store(
        request.bucket.render(), local=root.path, clock=session.clock, observer=session.observer, **overrides
    )
    try:
        if request.is_reclaiming:
            store.drain()
        else:
            store.flush()
    except (CredentialsRefused, EndpointUnreachable):
        raise
    except PackFailed as exc:
        applied.failed[exc.facts.get("pack") or "packs"] = exc.message
    finally:
        status = store.status()
        applied.uploaded_bytes += status.bytes_uploaded
        applied.reclaimed_bytes += status.bytes_freed
        store.abandon()


def _rebuild(session: Session, *, plan: SpoolPlan, remote: RemoteLook, applied: Applied) -> None:
    """Rows of orphan packs, and the holes of the manifest closed."""
    if plan.orphan_packs is None or not (len(plan.orphan_packs) or not remote.manifest.is_whole):
        return
    store, manifest = session.objects, remote.manifest
    report = rebuild_packs(store, session.prefix, manifest=manifest, orphans=plan.orphan_packs, clock=session.clock)
    applied.rows_rebuilt += report.rows_published
    applied.failed |= {finding.key.text: finding.detail for finding in report.findings}


def _repair(session: Session, root: SpoolRoot, *, plan: SpoolPlan, remote: RemoteLook, applied: Applied) -> None:
    store, prefix, clock = session.objects, session.prefix, session.clock
    has_files = plan.orphan_files is not None and len(plan.orphan_files)
    applied.refused |= dict.fromkeys([key.text for key in plan.burial.too_many], TOO_MANY)
    if not plan.burial.bury and not has_files:
        return
    assert remote.store_id is not None
    with _claimed(session, root) as spool:
        verifier = session.verifier(remote.store_id)
        publisher = RowPublisher(store, prefix, spool=spool, check_bucket=verifier.check_bucket)
        if plan.orphan_files is not None and has_files:
            repair = list_orphan_files(store, prefix, orphans=plan.orphan_files, publisher=publisher, clock=clock)
            applied.rows_rebuilt += repair.listed
            applied.failed |= repair.kept
        stones = bury_gone(store, plan.burial.bury, manifest=remote.manifest, publish=publisher.publish, clock=clock)
        applied.rows_buried += len(stones)


@contextmanager
def _claimed(session: Session, root: SpoolRoot) -> Iterator[Spool]:
    spool = Spool.claim(root, clock=session.clock)
    with closing(spool):
        spool.bind(session.prefix)
        spool.journal.announce_writer()
        yield spool

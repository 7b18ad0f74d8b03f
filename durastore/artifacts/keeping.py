"""`keep_last`: of numbered sub-folders the newest stay on this disk, the files of the others are freed.

Duty: choose (pure), then prove each file as `adopt --reclaim` does and free it through `reclaim`. Only files that the
newest snapshot names, with these very bytes. What cannot be proven stays and is named. Folders stay: no tree is ever
removed.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Sequence
from contextlib import closing

from durastore.adopt.place import FolderPlace
from durastore.adopt.sending import RowPublisher, Sender, hash_local
from durastore.adopt.verbatim import as_listed, as_pack
from durastore.errors import IntegrityError, NotVerified, ObjectAbsent, SpoolUnreadable
from durastore.formats.artifact_list import ArtifactFile
from durastore.model import ObjectKey, SampleId
from durastore.objectstore.port import ObjectReader
from durastore.reclaim.foreign import ForeignReport
from durastore.reconcile.applied import Applied
from durastore.reconcile.folder_apply import reclaim_listed
from durastore.reconcile.session import Session
from durastore.spool.records import PackRecord
from durastore.verify.remote import read_back
from durastore.verify.verifier import Verifier

__all__ = ["choose_older", "free_older", "freed_fact"]

_NUMBERED = re.compile(r"(.*?)(\d{1,18})", re.ASCII | re.DOTALL)


def choose_older(paths: Iterable[SampleId], *, keep_last: int) -> list[SampleId]:
    """The files in sub-folders `<stem><number>` but for the `keep_last` highest numbers of each stem.

    `checkpoint-900` is older than `checkpoint-1000`. Files in the folder itself, and in folders without a number, are
    never among them.
    """
    by_stem: dict[str, dict[int, list[SampleId]]] = {}
    for path in paths:
        top, slash, _ = path.text.partition("/")
        found = _NUMBERED.fullmatch(top) if slash else None
        if found is not None:
            by_stem.setdefault(found[1], {}).setdefault(int(found[2]), []).append(path)
    older: list[SampleId] = []
    for numbered in by_stem.values():
        for number in sorted(numbered)[:-keep_last]:
            older += numbered[number]
    return sorted(older)


def freed_fact(path: SampleId) -> str:
    """Under which it is on record, before it is freed, that a file may be: it then stays part of the snapshots."""
    return f"freed {path}"


def free_older(
    session: Session, place: FolderPlace, *, files: Sequence[ArtifactFile], keep_last: int, verifier: Verifier
) -> ForeignReport:
    """Free what `choose_older` names of the files that are here. `SameFailureDomain`, network errors pass."""
    local = {file.path: file for file in files if file.is_local}
    chosen = [local[path] for path in choose_older(local, keep_last=keep_last)]
    report = ForeignReport()
    if not chosen:
        return report
    session.refuse_same_fate()
    listed = _listed(session, place, chosen=chosen, verifier=verifier, report=report)
    for record in listed:
        assert record.digest is not None
        place.spool.journal.set_fact(freed_fact(SampleId(record.name)), record.digest.hex)  # INV-2: before it goes
    applied = Applied()
    reclaim_listed(session, place, listed=listed, verifier=verifier, applied=applied)
    report.files, report.bytes_freed = applied.reclaimed, applied.reclaimed_bytes
    report.kept |= applied.unproven
    return report


def _listed(
    session: Session,
    place: FolderPlace,
    *,
    chosen: Sequence[ArtifactFile],
    verifier: Verifier,
    report: ForeignReport,
) -> list[PackRecord]:
    """Each file as a pack that a segment lists, its object read back now."""
    found, lacking = [], []
    with closing(session.objects.fresh_reader()) as reader:
        for file in chosen:
            try:
                record = _look_at(session, place, file=file, reader=reader)
            except (NotVerified, ObjectAbsent, IntegrityError, SpoolUnreadable) as exc:
                if exc.facts.get("errno") != errno.ENOENT:  # somebody else took it away
                    report.kept[file.path.text] = exc.message
                continue
            if record is None:
                lacking.append(file.path)
            else:
                found.append(record)
    if lacking:  # its bytes lie under the key of another file: it is proven by an object of its own
        publisher = RowPublisher(session.objects, session.prefix, spool=place.spool, check_bucket=verifier.check_bucket)
        uploader = session.open_uploader()
        sender = Sender(place.folder, session.objects, prefix=session.prefix, uploader=uploader, clock=session.clock)
        wanted: dict[SampleId, list[ObjectKey]] = {path: [] for path in lacking}
        sent = sender.send(wanted, publisher=publisher, journal=place.spool.journal, observer=session.observer)
        found += sent.listed
        report.kept |= sent.kept
    return found


def _look_at(session: Session, place: FolderPlace, *, file: ArtifactFile, reader: ObjectReader) -> PackRecord | None:
    """None: the file has no object under a key of its own."""
    hashed = hash_local(place.folder, file.path)
    if hashed.digest != file.digest:
        raise NotVerified(f"{file.path} is another file than the snapshot holds")
    pack = as_pack(hashed, session.prefix)
    if pack.key != file.key:
        return None
    evidence = read_back(reader, pack, clock=session.clock)
    return as_listed(pack, evidence, segment=file.segment, seen_at=session.clock.stamp())

"""Every local pack against its journal, and what is doubtful put aside when told.

Duty: the packs stage. With `is_applied` idle spools go through recovery and salvage, as at every opening: what matches
is copied into a new pack, the damaged file moves to quarantine. Must never touch a spool that a live process holds, and
never settle here what only the bucket can tell.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

from durastore.doctor.hashed import HashedPacks
from durastore.doctor.pack_look import SpoolExam, examine_spool
from durastore.doctor.request import Examination
from durastore.doctor.stages import Status, Verdict
from durastore.errors import SpoolLocked
from durastore.model import PackState
from durastore.spool.look import spool_names
from durastore.spool.records import FACT_PREFIX
from durastore.spool.spool import Spool, claim_idle_siblings

__all__ = ["look_at_packs"]

_SHOWN = 20


def look_at_packs(seen: Examination) -> Verdict:
    """Fails where a pack is not what was sealed or acknowledged, or where a live process works in a spool."""
    exams = _examine(seen)
    done: tuple[str, ...] = ()
    if seen.request.is_applied and any(exam.faults or exam.problem or exam.strangers for exam in exams):
        done = tuple(_settle(seen, exams))
        exams = _examine(seen)
    for exam in exams:
        for run, samples in exam.only_local.items():
            seen.only_local.setdefault(run, set()).update(samples)
        if exam.store_id is not None:
            seen.store_ids[exam.name] = exam.store_id
    return _verdict(exams, done, is_applied=seen.request.is_applied)


def _examine(seen: Examination) -> list[SpoolExam]:
    root = seen.held_root()
    notes = HashedPacks(root.folder, clock=seen.clock)
    return [examine_spool(root.folder, name, notes=notes, clock=seen.clock) for name in spool_names(root.folder)]


def _verdict(exams: Sequence[SpoolExam], done: tuple[str, ...], *, is_applied: bool) -> Verdict:
    faults = list(_faults(exams, is_applied=is_applied))
    held = [f"{exam.name}: {_held(exam)}" for exam in exams if exam.held_by is not None]
    packs, size_bytes = sum(exam.packs for exam in exams), sum(exam.size_bytes for exam in exams)
    damaged = sum(len(exam.faults) for exam in exams)
    if held and not faults:
        summary = f"{len(held)} of {len(exams)} spools are in use: there is nothing to resume while they are"
        return Verdict(
            status=Status.FAILED,
            summary=summary,
            lines=(*held, "durastore stop asks these processes to end"),
            facts=_facts(exams, done),
            exit_code=SpoolLocked.exit_code,
        )
    summary = f"{packs} packs, {size_bytes} bytes, in {len(exams)} spools: "
    if any(exam.problem is not None for exam in exams):
        summary += "not all could be looked at"
    else:
        summary += f"{damaged} damaged" if damaged else "all as they were sealed or acknowledged"
    return Verdict.of_faults([*faults, *held], [*done, *_notes(exams)], summary=summary, facts=_facts(exams, done))


def _held(exam: SpoolExam) -> str:
    pids = ", ".join(map(str, exam.held_by or ())) or "a process that is not visible from here"
    return f"a live process works in it ({pids}): its packs were not looked at"


def _faults(exams: Sequence[SpoolExam], *, is_applied: bool) -> Iterator[str]:
    found = [str(fault) for exam in exams for fault in exam.faults]
    yield from found[:_SHOWN]
    if len(found) > _SHOWN:
        yield f"... and {len(found) - _SHOWN} more (--json names all)"
    for exam in exams:
        if exam.problem is not None:
            yield f"{exam.name}: its journal: {exam.problem}"
    if found and is_applied:
        yield "the bucket decides what becomes of these: durastore reconcile --deep --apply asks it"
    elif found or any(exam.problem is not None for exam in exams):
        yield "--apply reads lost journals back, copies what matches into new packs, moves the rest to quarantine"


def _notes(exams: Sequence[SpoolExam]) -> Iterator[str]:
    for exam in exams:
        if exam.questions:
            names = ", ".join(exam.questions[:3])
            yield f"{len(exam.questions)} packs without a file here: the next start asks the bucket for them: {names}"
        if exam.strangers:
            names = ", ".join(exam.strangers[:3])
            yield f"{exam.name}: {len(exam.strangers)} files that no pack on record names: {names}"
        if exam.quarantined:
            yield f"{exam.name}: {exam.quarantined} files in quarantine (durastore quarantine list)"


def _facts(exams: Sequence[SpoolExam], done: tuple[str, ...]) -> dict[str, Any]:
    return {
        "spools": [
            {
                "spool": exam.name,
                "held_by": list(exam.held_by) if exam.held_by is not None else None,
                "problem": exam.problem,
                "packs": exam.packs,
                "bytes": exam.size_bytes,
                "hashed_now": exam.hashed,
                "damaged": [
                    {"pack": f.pack, "reason": f.reason, "samples": f.samples, "is_only_copy": f.is_only_copy}
                    for f in exam.faults
                ],
                "asked_of_the_bucket": exam.questions,
                "untracked": exam.strangers,
                "quarantined": exam.quarantined,
            }
            for exam in exams
        ],
        "done": list(done),
    }


def _settle(seen: Examination, exams: Sequence[SpoolExam]) -> Iterator[str]:
    """Through the doors that every opening of a store goes through; a crash in between leaves what they leave."""
    faults = {exam.name: [fault.pack.partition("/")[2] for fault in exam.faults] for exam in exams}
    with ExitStack() as held:
        spools = claim_idle_siblings(seen.held_root(), clock=seen.clock)
        for spool in spools:
            held.callback(spool.close)
        for spool in spools:
            yield from _settle_spool(spool, faults.get(spool.path.name, []), prefix=seen.request.bucket.prefix)


def _settle_spool(spool: Spool, damaged: list[str], *, prefix: str) -> Iterator[str]:
    known = spool.journal.get_fact(FACT_PREFIX)
    spool.bind(known if known is not None else prefix)
    for line in spool.recover().lines():
        yield f"{spool.path.name}: {line}"
    # recovery believes a file whose inode, size and times are those on record; these were read
    for record in spool.journal.packs(PackState.SEALED):
        if record.name not in damaged or record.write_id is not None or spool.is_intact(record):
            continue
        report = spool.salvage(record.pack_id, reason="doctor: its bytes are not those that were sealed")
        counts = f"{report.saved} samples saved, {len(report.lost)} LOST"
        yield f"{spool.path.name}: {record.name} is in quarantine; {counts}"
        for lost in report.lost[:_SHOWN]:
            yield f"{spool.path.name}: LOST: {lost.sample_id} ({lost.reason}): the next run makes it again"
        report.raise_unless_full()

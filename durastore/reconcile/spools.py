"""Spools against manifest and bucket: what was seen, and from it alone what it means. Pure.

Duty: `plan_spools` turns facts into findings and a plan. Must never plan about a spool that a live process holds, nor
call a row LOST while a spool could not be read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from durastore.model import ObjectKey, PackState
from durastore.reconcile.bucket import ManifestFacts
from durastore.reconcile.burying import BurialPlan, plan_burial
from durastore.reconcile.columns import NONE, KeyTable, Mask, Rows, chosen, names_of, positions
from durastore.reconcile.compare import BucketComparison
from durastore.reconcile.findings import Action, FindingKind, FindingSet, Side
from durastore.reconcile.local import Texts, texts
from durastore.reconcile.missing import MissingKeys
from durastore.reconcile.remote_findings import find_remote
from durastore.reconcile.strangers import is_own_in_spool
from durastore.spool.look import SpoolLook
from durastore.spool.records import PackFile

__all__ = ["SENT", "WITH_FILE", "SpoolFacts", "SpoolPlan", "keys_in", "plan_spools"]

WITH_FILE = ("open", "sealed", "uploaded", "verified", "manifested", "unknown", "conflict")
"""States of packs whose file has to be there."""
SENT = ("uploaded", "verified", "manifested")
"""States of packs whose object was acknowledged."""
_SALVAGED = "put aside earlier; what matched was salvaged"
_STRANGE = "put aside earlier, and no pack on record: only here"
_NUMBERED = re.compile(r"\.[0-9]+$")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolFacts:
    """All that was seen of one root, its manifest and its bucket."""

    prefix: str
    spools: tuple[SpoolLook, ...]
    unreadable: Mapping[str, str]
    """Spools that could not be read, and why."""
    manifest: ManifestFacts
    bucket: BucketComparison | None
    bucket_fault: str | None
    missing: MissingKeys
    strangers: tuple[str, ...] = ()
    """Names in the root, and beside packs and journal, that durastore does not give."""
    damaged: Mapping[str, str] = field(default_factory=dict)
    """`w-NN/<pack>` -> why its bytes are not the sealed ones (only where they were hashed)."""
    is_burying: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolPlan:
    """What does not agree, and what `--apply` would do. Carried out once, by `spool_run`."""

    findings: tuple[FindingSet, ...]
    doubted: frozenset[str] = frozenset()
    """Keys of packs whose object is gone or another: UPLOADED again, to be looked at in full."""
    lost_segments: frozenset[ObjectKey] = frozenset()
    """Segments that are gone or damaged: packs whose rows were in them are listed anew."""
    damaged: Mapping[str, str] = field(default_factory=dict)
    orphan_packs: KeyTable | None = None
    orphan_files: KeyTable | None = None
    burial: BurialPlan = field(default_factory=BurialPlan)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Packs:
    """One spool's packs as columns, joined with its files."""

    look: SpoolLook
    names: Texts
    keys: Texts
    states: Texts
    sizes: Rows
    has_file: Mask
    file_sizes: Rows

    def are(self, *states: str) -> Mask:
        mask: Mask = positions(self.states, texts(list(states))) != NONE
        return mask

    def found(
        self, kind: FindingKind, mask: Mask, *, meaning: str, side: Side = Side.LOCAL, action: Action = Action.NOTHING
    ) -> FindingSet:
        names = [f"{self.look.name}/{name}" for name in names_of(chosen(self.names, mask))]
        return FindingSet(
            kind=kind, side=side, meaning=meaning, action=action, names=names, sizes=self.sizes[mask].tolist()
        )


def plan_spools(facts: SpoolFacts) -> SpoolPlan:
    """Findings and plan. The same facts give the same plan."""
    can_plan = facts.bucket is not None and not facts.missing.present
    gone = frozenset(facts.missing.absent)
    findings: list[FindingSet] = []
    doubted: set[str] = set()
    for look in facts.spools:
        packs = _joined(look)
        findings += _find_local(packs, facts)
        if can_plan:
            more, keys = _find_objects(packs, facts, gone=gone)
            findings += more
            if not look.is_held:
                doubted |= keys
    findings += [_unreadable(name, why) for name, why in facts.unreadable.items()]
    findings.append(
        FindingSet(
            kind=FindingKind.UNTRACKED,
            side=Side.LOCAL,
            meaning="nothing that durastore puts into a root: only here, as far as durastore knows",
            action=Action.NOTHING,
            names=facts.strangers,
        )
    )
    findings += find_remote(facts.bucket, facts.manifest, missing=facts.missing, fault=facts.bucket_fault)
    burial = _plan_burial(facts, gone, doubted=doubted, can_plan=can_plan)
    findings += burial.findings()
    found = tuple(finding for finding in findings if finding.names)
    if not can_plan:
        return SpoolPlan(findings=found, damaged=facts.damaged)
    assert facts.bucket is not None
    return SpoolPlan(
        findings=found,
        doubted=frozenset(doubted),
        lost_segments=frozenset(facts.manifest.unreadable),
        damaged=facts.damaged,
        orphan_packs=facts.bucket.orphan_packs,
        orphan_files=facts.bucket.orphan_files,
        burial=burial,
    )


def keys_in(spools: tuple[SpoolLook, ...], *, states: tuple[str, ...] = ()) -> list[str]:
    """Keys of the packs on record, of these states only (all without any)."""
    return [
        key
        for look in spools
        for key, state in zip(look.packs.keys, look.packs.states, strict=True)
        if key and (not states or state in states)
    ]


def _joined(look: SpoolLook) -> _Packs:
    names, files = texts(look.packs.names), texts(look.files.names)
    at = positions(names, files)
    sizes = np.array(look.files.sizes, dtype=np.int64)
    return _Packs(
        look=look,
        names=names,
        keys=texts(look.packs.keys),
        states=texts(look.packs.states),
        sizes=np.array(look.packs.sizes, dtype=np.int64),
        has_file=at != NONE,
        file_sizes=np.where(at != NONE, sizes[at], NONE) if len(sizes) else np.full(len(names), NONE, dtype=np.int64),
    )


def _find_local(packs: _Packs, facts: SpoolFacts) -> list[FindingSet]:
    """Journal against files."""
    look = packs.look
    expected = packs.are(*WITH_FILE)
    if look.is_held:
        pending = expected & ~packs.are(PackState.MANIFESTED.value)
        return [packs.found(FindingKind.IN_FLIGHT, pending, meaning="a live process works in this spool")]
    is_open = packs.are(PackState.OPEN.value)
    is_short = (
        expected & packs.has_file & np.where(is_open, packs.file_sizes < packs.sizes, packs.file_sizes != packs.sizes)
    )
    pending = expected & packs.has_file & ~is_short & ~packs.are(PackState.MANIFESTED.value)
    is_damaged = positions(packs.names, texts(_own(look.name, facts.damaged))) != NONE
    lost = packs.are(PackState.LOST.value)
    pending &= ~is_damaged
    no_file = expected & ~packs.has_file
    aside = Action.QUARANTINE
    found = [
        packs.found(FindingKind.ONLY_LOCAL, pending, meaning="not in the manifest yet", action=Action.UPLOAD),
        packs.found(FindingKind.TRUNCATED, is_short, meaning="not as long as it was sealed", action=aside),
        packs.found(FindingKind.DIVERGENT, is_damaged, meaning="not the bytes that were sealed", action=aside),
        packs.found(FindingKind.DANGLING, no_file, meaning="its file is gone", side=Side.JOURNAL, action=Action.SETTLE),
        *_find_strangers(packs, expected),
    ]
    if look.fault is not None:
        found.append(_unreadable(look.name, look.fault, action=Action.RECOVER))
    if lost.any():
        meaning = "LOST, and its rows taken out: made again by the next run"
        found.append(replace(packs.found(FindingKind.DANGLING, lost, meaning=meaning, side=Side.JOURNAL), is_note=True))
    return found


def _own(spool: str, damaged: Mapping[str, str]) -> list[str]:
    return [name.partition("/")[2] for name in damaged if name.startswith(f"{spool}/")]


def _find_strangers(packs: _Packs, expected: Mask) -> list[FindingSet]:
    """Files that no living pack names, and what lies in quarantine."""
    look = packs.look
    files = texts(look.files.names)
    unknown = positions(files, chosen(packs.names, expected)) == NONE
    sizes = np.array(look.files.sizes, dtype=np.int64)[unknown].tolist() if len(files) else []

    def found(kind: FindingKind, names: list[str], *, meaning: str, held: list[int], action: Action) -> FindingSet:
        return FindingSet(
            kind=kind,
            side=Side.LOCAL,
            meaning=meaning,
            action=action,
            names=[f"{look.name}/{name}" for name in names],
            sizes=held,
            is_note=meaning is _SALVAGED,
        )

    strangers = names_of(chosen(files, unknown))
    ours, others = _split_aside(look)
    odd = [ascii(name)[1:-1] for name in look.files.odd]
    odd_aside = [ascii(name)[1:-1] for name in look.quarantined.odd]
    untracked, aside, nothing = FindingKind.UNTRACKED, FindingKind.QUARANTINED, Action.NOTHING
    return [
        found(untracked, strangers, meaning="a file that no pack on record names", held=sizes, action=Action.RECOVER),
        found(untracked, odd, meaning="no regular file, or no usable name", held=[], action=nothing),
        found(aside, list(ours), meaning=_SALVAGED, held=[*ours.values()], action=nothing),
        found(aside, list(others), meaning=_STRANGE, held=[*others.values()], action=nothing),
        found(aside, odd_aside, meaning=_STRANGE, held=[], action=nothing),
    ]


def _split_aside(look: SpoolLook) -> tuple[dict[str, int], dict[str, int]]:
    """Name -> size of what lies in quarantine: packs on record and journals, and what was never a pack of ours."""
    known = set(look.packs.names)
    ours: dict[str, int] = {}
    others: dict[str, int] = {}
    for name, size in zip(look.quarantined.names, look.quarantined.sizes, strict=True):
        plain = _NUMBERED.sub("", name)
        # a pack that was salvaged into another file has its new name on record, and the old one nowhere
        is_ours = name in known or plain in known or PackFile.parse(plain) is not None or is_own_in_spool(name)
        (ours if is_ours else others)[name] = size
    return ours, others


def _find_objects(packs: _Packs, facts: SpoolFacts, *, gone: frozenset[ObjectKey]) -> tuple[list[FindingSet], set[str]]:
    """Journal against bucket: uploaded packs whose object is gone or of another size, and their keys."""
    assert facts.bucket is not None
    listed = facts.bucket.listed
    sent = packs.are(*SENT) & packs.has_file
    is_gone = sent & (positions(packs.keys, texts([key.text for key in gone])) != NONE)
    at = positions(packs.keys, listed.keys)
    sizes = np.where(at != NONE, listed.sizes[at], NONE) if len(listed) else np.full(len(packs.keys), NONE, np.int64)
    is_other = sent & (sizes != NONE) & (sizes != packs.sizes)
    action = Action.NOTHING if packs.look.is_held else Action.SEND_AGAIN
    side = Side.JOURNAL
    found = [
        packs.found(FindingKind.DANGLING, is_gone, meaning="sent, and gone from the bucket", side=side, action=action),
        packs.found(FindingKind.DIVERGENT, is_other, meaning="its object has another size", side=side, action=action),
    ]
    return found, set(names_of(chosen(packs.keys, is_gone | is_other)))


def _unreadable(name: str, why: str, *, action: Action = Action.NOTHING) -> FindingSet:
    return FindingSet(
        kind=FindingKind.UNREADABLE,
        side=Side.JOURNAL,
        meaning="a spool that cannot be read: no row is called LOST",
        action=action,
        names=[name],
        details=[why],
    )


def _plan_burial(facts: SpoolFacts, gone: frozenset[ObjectKey], *, doubted: set[str], can_plan: bool) -> BurialPlan:
    """Those of packs that are still on record here are settled by opening their spool."""
    is_blind = facts.unreadable or any(look.is_held or look.fault is not None for look in facts.spools)
    on_record = set(keys_in(facts.spools, states=WITH_FILE)) | doubted
    return plan_burial(
        [key for key in gone if key.text not in on_record],
        facts.manifest,
        prefix=facts.prefix,
        is_asked=facts.is_burying,
        is_seen_whole=can_plan and not is_blind,
    )

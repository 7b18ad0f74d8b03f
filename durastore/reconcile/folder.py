"""Folder against manifest and bucket: what was seen, and from it alone what it means. Pure.

Duty: `plan_folder` turns facts into findings and a plan; nothing is looked at here. Must never plan about a part that
was not seen whole (INV-6).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from durastore.adopt.ledger import HashedEntry
from durastore.formats.keys import file_listing_prefix
from durastore.model import ObjectKey
from durastore.reconcile.bucket import FileRows, ManifestFacts
from durastore.reconcile.burying import BurialPlan, plan_burial
from durastore.reconcile.columns import (
    NONE,
    KeyTable,
    Mask,
    Rows,
    chosen,
    names_of,
    pairs,
    positions,
)
from durastore.reconcile.compare import BucketComparison
from durastore.reconcile.findings import Action, FindingKind, FindingSet, Side
from durastore.reconcile.local import LocalInventory, OddEntry, Texts
from durastore.reconcile.missing import MissingKeys
from durastore.reconcile.remote_findings import NO_BUCKET_PLAN, find_remote

__all__ = ["FolderFacts", "FolderPlan", "LocalSplit", "adoption_of", "plan_folder", "split_local"]


_NO_FILE = "a file's row whose object is gone, and no such file is here: put the file back, and it is sent again"
_ODD = "not what its suffix says, perhaps whole: only here"
_SUSPECT = "ends in zeros: data, or pages that a crash lost. Only here; sent with --zeros-are-data"
_GOING = "moved for reclaiming by a run that ended, or still works: perhaps only here"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSplit:
    """Data files by how they stand to the rows of files. Masks over the local files, and each one's row."""

    agreeing: Mask
    divergent: Mask
    only_local: Mask
    rows: Rows
    """Of agreeing files: their row among the rows of files; else `NONE`."""


def split_local(local: LocalInventory, files: FileRows, *, is_data: Mask) -> LocalSplit:
    """Join paths and sizes with the rows of files. Content is not compared here."""
    rows = np.where(is_data, positions(pairs(local.paths, local.sizes), pairs(files.paths, files.sizes)), NONE)
    agreeing = rows != NONE
    others = np.flatnonzero(is_data & ~agreeing)
    is_named = np.zeros(len(local.paths), dtype=np.bool_)
    is_named[others] = positions(chosen(local.paths, others), files.paths) != NONE
    return LocalSplit(
        agreeing=agreeing,
        divergent=is_named,
        only_local=is_data & ~agreeing & ~is_named,
        rows=rows,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderFacts:
    """All that was seen of one folder, its manifest and its bucket."""

    prefix: str
    local: LocalInventory
    is_data: Mask
    """Which local files have a known format and a usable name."""
    misnamed: tuple[OddEntry, ...]
    split: LocalSplit
    manifest: ManifestFacts
    bucket: BucketComparison | None
    """None: the listing could not be had whole."""
    bucket_fault: str | None
    missing: MissingKeys
    unhashed: Mask
    """Data files that a row has the name and size of, and that nobody hashed yet."""
    damage: Mapping[str, str]
    """Data files that cannot be whole, and why."""
    oddities: Mapping[str, str]
    """Data files that are not what their suffix says, and may be whole: neither sent nor moved."""
    suspects: Mapping[str, str]
    """Data files that end in zeros of which nothing tells whether they are data: neither sent nor moved."""
    busy: frozenset[str]
    unreadable: Mapping[str, str]
    quarantined: tuple[OddEntry, ...] = ()
    going: tuple[OddEntry, ...] = ()
    """What was moved into the private folder for reclaiming, and is neither freed nor back."""
    strangers: tuple[OddEntry, ...] = ()
    """What lies in the private folder and is none of ours."""
    hashed: tuple[HashedEntry, ...] = ()
    """What was hashed for this look."""
    is_burying: bool = False
    """Rows of packs that are gone are taken out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderPlan:
    """What does not agree, and what `--apply` would do. Carried out once, by `folder_apply`."""

    findings: tuple[FindingSet, ...]
    uploads: Mapping[str, tuple[ObjectKey, ...]] = field(default_factory=dict)
    """Path of each file to be sent, and the key of the row whose object is gone, if there is one."""
    quarantine: Mapping[str, str] = field(default_factory=dict)
    orphan_packs: KeyTable | None = None
    orphan_files: KeyTable | None = None
    burial: BurialPlan = field(default_factory=BurialPlan)
    hashed: tuple[HashedEntry, ...] = ()
    """To be kept on record."""
    listed: tuple[Texts, Rows] | None = None
    """Path and row of each file that is in the bucket as far as was seen: to be proven one by one."""

    @property
    def reclaim(self) -> list[tuple[str, int]]:
        """`listed`, a pair a file: only a run that reads them all needs that."""
        return [] if self.listed is None else list(zip(names_of(self.listed[0]), self.listed[1].tolist(), strict=True))


def plan_folder(facts: FolderFacts) -> FolderPlan:
    """Findings and plan. The same facts give the same plan."""
    can_plan = facts.bucket is not None and not facts.missing.present
    damaged = {path: why for path, why in facts.damage.items() if path not in facts.busy}
    stopped = facts.busy | {*facts.damage, *facts.oddities, *facts.suspects, *facts.unreadable}
    gone = _gone_rows(facts)
    lost_here = facts.split.agreeing & _of_gone(facts, gone)
    is_sent = facts.split.only_local | facts.split.divergent | lost_here
    known = _keys_of(facts, lost_here)
    uploads = {
        path: known.get(path, ()) for path in names_of(chosen(facts.local.paths, is_sent)) if path not in stopped
    }
    burial = plan_burial(
        gone,
        facts.manifest,
        prefix=facts.prefix,
        is_asked=facts.is_burying,
        is_seen_whole=can_plan and not facts.local.unreadable,
    )
    findings = [
        *_find_data(facts, lost_here, stopped=stopped, can_plan=can_plan),
        *_find_damage(facts, damaged),
        *_find_others(facts),
        *find_remote(facts.bucket, facts.manifest, missing=facts.missing, fault=facts.bucket_fault),
        *_find_gone(facts, gone, burial=burial),
    ]
    if not can_plan:
        return FolderPlan(findings=tuple(f for f in findings if f.names), quarantine=damaged, hashed=facts.hashed)
    assert facts.bucket is not None
    # in a manifest with holes a row may be taken out unseen: nothing goes for it
    kept = facts.split.agreeing & ~lost_here & facts.manifest.is_whole & ~_among(facts, facts.busy)
    return FolderPlan(
        findings=tuple(f for f in findings if f.names),
        uploads=uploads,
        hashed=facts.hashed,
        quarantine=damaged,
        orphan_packs=facts.bucket.orphan_packs,
        orphan_files=facts.bucket.orphan_files,
        burial=burial,
        listed=(chosen(facts.local.paths, kept), facts.split.rows[kept]),
    )


def adoption_of(plan: FolderPlan) -> FolderPlan:
    """Only what brings the folder's own files to the bucket. Damaged ones stay where they are, and are told of."""
    findings = [
        replace(finding, action=Action.NOTHING) if finding.action is Action.QUARANTINE else finding
        for finding in plan.findings
        if finding.side is Side.LOCAL or finding.kind in (FindingKind.UNREADABLE, FindingKind.DIVERGENT)
    ]
    return replace(
        plan, findings=tuple(findings), quarantine={}, orphan_packs=None, orphan_files=None, burial=BurialPlan()
    )


def _gone_rows(facts: FolderFacts) -> frozenset[ObjectKey]:
    return frozenset(facts.missing.absent)


def _among(facts: FolderFacts, paths: frozenset[str]) -> Mask:
    mask: Mask = positions(facts.local.paths, pa.array(sorted(paths), pa.large_string())) != NONE
    return mask


def _of_gone(facts: FolderFacts, gone: frozenset[ObjectKey]) -> Mask:
    """Local files that agree with a row whose object is gone."""
    mask = np.zeros(len(facts.local.paths), dtype=np.bool_)
    if gone:
        keys = pa.array([key.text for key in gone], pa.large_string())
        is_gone = positions(facts.manifest.files.keys, keys) != NONE
        at = np.flatnonzero(facts.split.agreeing)
        mask[at] = is_gone[facts.split.rows[at]]
    return mask


def _keys_of(facts: FolderFacts, files: Mask) -> dict[str, tuple[ObjectKey, ...]]:
    """The keys that rows have for these files: sent to another one, the row would stay without its object."""
    at = np.flatnonzero(files)
    keys = names_of(chosen(facts.manifest.files.keys, facts.split.rows[at]))
    return {path: (ObjectKey(key),) for path, key in zip(names_of(chosen(facts.local.paths, at)), keys, strict=True)}


def _find_data(
    facts: FolderFacts, lost_here: Mask, *, stopped: frozenset[str] | set[str], can_plan: bool
) -> list[FindingSet]:
    action = Action.UPLOAD if can_plan else Action.NOTHING
    again = Action.SEND_AGAIN if can_plan else Action.NOTHING
    groups = (
        (FindingKind.ONLY_LOCAL, "data that no manifest row names", action, facts.split.only_local),
        (FindingKind.DIVERGENT, "another content than the row of this name has", action, facts.split.divergent),
        (FindingKind.DANGLING, "its row's object is gone from the bucket, the file is here", again, lost_here),
        (
            FindingKind.UNHASHED,
            "a row has its name and size, its bytes are not compared yet",
            Action.HASH,
            facts.unhashed,
        ),
    )
    found = []
    for kind, meaning, what, mask in groups:
        names = names_of(chosen(facts.local.paths, mask))
        sizes = facts.local.sizes[mask].tolist()
        kept = [(name, size) for name, size in zip(names, sizes, strict=True) if name not in stopped]
        found.append(
            FindingSet(
                kind=kind,
                side=Side.LOCAL,
                meaning=meaning if can_plan else f"{meaning} ({NO_BUCKET_PLAN})",
                action=what,
                names=[name for name, _ in kept],
                sizes=[size for _, size in kept],
            )
        )
    return found


def _find_damage(facts: FolderFacts, damaged: Mapping[str, str]) -> list[FindingSet]:
    sizes = _sizes_of(facts, [*damaged, *facts.oddities, *facts.suspects, *facts.busy, *facts.unreadable])
    busy = dict.fromkeys(sorted(facts.busy), "")
    aside = Action.QUARANTINE
    return [
        _local(FindingKind.TRUNCATED, damaged, meaning="cannot be whole", action=aside, sizes=sizes),
        _local(FindingKind.TRUNCATED, facts.suspects, meaning=_SUSPECT, sizes=sizes),
        _local(FindingKind.UNTRACKED, facts.oddities, meaning=_ODD, sizes=sizes),
        _local(FindingKind.IN_FLIGHT, busy, meaning="open for writing", sizes=sizes),
        _local(FindingKind.UNREADABLE, facts.unreadable, meaning="cannot be read", sizes=sizes),
    ]


def _sizes_of(facts: FolderFacts, paths: Sequence[str]) -> dict[str, int]:
    if not paths:
        return {}
    at = positions(pa.array(paths, pa.large_string()), facts.local.paths)
    return {path: int(facts.local.sizes[row]) for path, row in zip(paths, at.tolist(), strict=True) if row != NONE}


def _local(
    kind: FindingKind,
    found: Mapping[str, str],
    *,
    meaning: str,
    sizes: Mapping[str, int],
    action: Action = Action.NOTHING,
) -> FindingSet:
    return FindingSet(
        kind=kind,
        side=Side.LOCAL,
        meaning=meaning,
        action=action,
        names=list(found),
        sizes=[sizes.get(path, 0) for path in found],
        details=list(found.values()),
    )


def _find_others(facts: FolderFacts) -> list[FindingSet]:
    """What is here and is no data: reported, never touched."""
    named = {entry.path for entry in facts.misnamed}
    is_misnamed = positions(facts.local.paths, _texts_of(named)) != NONE
    other = ~facts.is_data & ~is_misnamed
    return [
        FindingSet(
            kind=FindingKind.UNTRACKED,
            side=Side.LOCAL,
            meaning="no format that durastore looks into: only here, as far as durastore knows",
            action=Action.NOTHING,
            names=names_of(chosen(facts.local.paths, other)),
            sizes=facts.local.sizes[other].tolist(),
        ),
        _odd(
            FindingKind.UNTRACKED,
            facts.local.odd + facts.misnamed,
            meaning="cannot be kept as what it is, or under its name",
        ),
        _odd(FindingKind.UNREADABLE, facts.local.unreadable, meaning="what is below it is unknown"),
        _odd(FindingKind.QUARANTINED, facts.quarantined, meaning="put aside earlier: only here"),
        _odd(FindingKind.UNTRACKED, facts.strangers, meaning="none of ours, in the private folder: only here"),
        _odd(FindingKind.IN_FLIGHT, facts.going, meaning=_GOING, action=Action.TAKE_BACK),
    ]


def _texts_of(names: set[bytes]) -> Texts:
    return pa.array([name.decode() for name in names], pa.large_string())


def _odd(
    kind: FindingKind, entries: Sequence[OddEntry], *, meaning: str, action: Action = Action.NOTHING
) -> FindingSet:
    return FindingSet(
        kind=kind,
        side=Side.LOCAL,
        meaning=meaning,
        action=action,
        names=[entry.path.decode("utf-8", "backslashreplace") for entry in entries],
        sizes=[entry.size_bytes for entry in entries],
        details=[entry.what for entry in entries],
    )


def _find_gone(facts: FolderFacts, gone: frozenset[ObjectKey], *, burial: BurialPlan) -> list[FindingSet]:
    """Rows whose object is gone, by what can be done about them here."""
    files = {key for key in gone if key.text.startswith(file_listing_prefix(facts.prefix))}
    here = {key.text for keys in _keys_of(facts, _of_gone(facts, gone)).values() for key in keys}
    lacking = FindingSet(
        kind=FindingKind.DANGLING,
        side=Side.MANIFEST,
        meaning=_NO_FILE,
        action=Action.NOTHING,
        names=[key.text for key in sorted(files) if key.text not in here],
    )
    return [lacking, *burial.findings()]

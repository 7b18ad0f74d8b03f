"""Findings about bucket and manifest, the same for spool roots and folders. Pure."""

from __future__ import annotations

from durastore.reconcile.bucket import ManifestFacts
from durastore.reconcile.columns import KeyTable, names_of
from durastore.reconcile.compare import BucketComparison
from durastore.reconcile.findings import Action, FindingKind, FindingSet, Side
from durastore.reconcile.missing import MissingKeys

__all__ = ["NO_BUCKET_PLAN", "find_remote"]

NO_BUCKET_PLAN = "no plan: the bucket was not seen whole"
_BACK = "buried, and back: its rows were taken out as lost, and no other row has its samples"


def find_remote(
    bucket: BucketComparison | None, manifest: ManifestFacts, *, missing: MissingKeys, fault: str | None
) -> list[FindingSet]:
    """Orphans, strangers, sizes that differ, and all that could not be seen."""
    can_plan = bucket is not None and not missing.present
    rebuild = Action.REBUILD if can_plan else Action.NOTHING
    found = _find_unseen(manifest, missing, fault=fault, mend=Action.LIST_ANEW if can_plan else Action.NOTHING)
    if bucket is None:
        return found
    return [
        *found,
        _keys(FindingKind.ORPHAN, bucket.orphan_packs, meaning="a pack that no row names", action=rebuild),
        _keys(FindingKind.ORPHAN, bucket.orphan_files, meaning="a file's object that no row names", action=rebuild),
        _keys(FindingKind.ORPHAN, bucket.buried, meaning=_BACK, action=Action.MAKE_AGAIN),
        _keys(FindingKind.DIVERGENT, bucket.resized, meaning="the object has another size than its row says"),
        _keys(FindingKind.UNTRACKED, bucket.untracked, meaning="lies among ours and has no name of ours"),
    ]


def _find_unseen(manifest: ManifestFacts, missing: MissingKeys, *, fault: str | None, mend: Action) -> list[FindingSet]:
    def unseen(
        meaning: str, names: list[str], *, side: Side = Side.BUCKET, action: Action = Action.NOTHING
    ) -> FindingSet:
        return FindingSet(kind=FindingKind.UNREADABLE, side=side, meaning=meaning, action=action, names=names)

    lacking = [f"{gap.writer}: {gap.missing_count} of {gap.last_seq}" for gap in manifest.gaps]
    damaged = [key.text for key in manifest.unreadable]
    return [
        unseen(f"the listing cannot be used: {NO_BUCKET_PLAN}", [fault] if fault is not None else []),
        unseen(
            "the listing leaves out objects that are there, so it contradicts the manifest: no plan about the bucket",
            [key.text for key in missing.present],
        ),
        unseen("not told whether it is there: kept", [] if missing.present else [key.text for key in missing.unknown]),
        unseen("manifest segments that are missing", lacking, side=Side.MANIFEST, action=mend),
        unseen("manifest segments that are gone or cannot be read", damaged, side=Side.MANIFEST, action=mend),
        FindingSet(
            kind=FindingKind.UNTRACKED,
            side=Side.BUCKET,
            meaning="lies among the segments and is none",
            action=Action.NOTHING,
            names=[key.text for key in manifest.listing.foreign],
        ),
    ]


def _keys(kind: FindingKind, table: KeyTable, *, meaning: str, action: Action = Action.NOTHING) -> FindingSet:
    return FindingSet(
        kind=kind,
        side=Side.BUCKET,
        meaning=meaning,
        action=action,
        names=names_of(table.keys),
        sizes=table.sizes.tolist(),
    )

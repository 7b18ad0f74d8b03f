"""Which rows may be taken out because their pack is gone. Pure.

Duty: only where it was asked for, and never so many at once that an outage is the likelier story: a tombstone is for
ever, and an outage ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from durastore.formats.keys import pack_listing_prefix, parse_pack_key
from durastore.model import ObjectKey
from durastore.reconcile.bucket import ManifestFacts
from durastore.reconcile.columns import names_of
from durastore.reconcile.findings import Action, FindingKind, FindingSet, Side

__all__ = ["TOO_MANY", "BurialPlan", "plan_burial"]

_FEW = 10
_GONE = "a row whose object is gone"
_ELSEWHERE = "a spool that holds it sends it again: reconcile there first"
_UNSEEN = "not all that may hold it could be read: its rows stay"
TOO_MANY = "that many at once look like an outage or the wrong bucket; run again later"


@dataclass(frozen=True, slots=True, kw_only=True)
class BurialPlan:
    """The keys whose rows go, and those that stay although they lead nowhere."""

    bury: tuple[ObjectKey, ...] = ()
    kept: tuple[ObjectKey, ...] = ()
    too_many: tuple[ObjectKey, ...] = ()
    """Asked for, and refused."""
    is_asked: bool = False

    def findings(self) -> list[FindingSet]:
        """All of them, by what `--apply` does about them."""
        return [
            FindingSet(
                kind=FindingKind.DANGLING,
                side=Side.MANIFEST,
                meaning=meaning,
                action=action,
                names=[key.text for key in keys],
            )
            for keys, meaning, action in (
                (self.bury, _GONE, Action.BURY),
                (self.too_many, f"{_GONE}; {TOO_MANY}", Action.NOTHING),
                (self.kept, f"{_GONE}; {_UNSEEN}", Action.NOTHING)
                if self.is_asked
                else (self.kept, f"{_GONE}; {_ELSEWHERE}", Action.ASK_TO_BURY),
            )
        ]


def plan_burial(
    gone: Iterable[ObjectKey], manifest: ManifestFacts, *, prefix: str, is_asked: bool, is_seen_whole: bool
) -> BurialPlan:
    """What becomes of the rows of `gone`. `is_seen_whole`: nothing that may hold such a pack was left unread."""
    # never the row of a file: its key is that of its bytes, and put back it could not be listed again
    packs = sorted(key for key in gone if parse_pack_key(prefix, key) is not None)
    if not (is_asked and is_seen_whole and manifest.is_whole):
        return BurialPlan(kept=tuple(packs), is_asked=is_asked)
    lead = pack_listing_prefix(prefix)
    count = sum(key.startswith(lead) for key in names_of(manifest.objects.keys))
    if len(packs) > _FEW and 2 * len(packs) > count:
        return BurialPlan(too_many=tuple(packs))
    return BurialPlan(bury=tuple(packs))

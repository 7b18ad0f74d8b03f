"""Bucket against manifest: which rows lack their object, which objects lack rows. Pure.

Duty: the join of two inventories, nothing looked at and nothing decided. A row without a listed object is a question
here, never yet a loss: `missing` asks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.compute

from durastore.formats.file_keys import file_key_pattern
from durastore.formats.keys import pack_listing_prefix
from durastore.reconcile.bucket import ManifestFacts
from durastore.reconcile.columns import NONE, KeyTable, Mask, positions
from durastore.reconcile.local import Texts

__all__ = ["BucketComparison", "compare_bucket"]

_compute: Any = pyarrow.compute


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketComparison:
    """What does not agree between rows and listed objects, and sums that have to add up."""

    listed: KeyTable
    agreeing: int
    agreeing_bytes: int
    unlisted: KeyTable
    """Objects that live rows name and the listing does not, with the rows' sizes."""
    resized: KeyTable
    """Objects of another size than their rows say, with the listed sizes."""
    orphan_packs: KeyTable
    orphan_files: KeyTable
    known_dead: KeyTable
    """Objects that only rows taken out, or packs of a journal, name: kept, and no finding."""
    buried: KeyTable
    """Of those: rows taken out for a loss, the object is there, and no other row has the samples."""
    untracked: KeyTable

    @property
    def adds_up(self) -> bool:
        """Whether the classes hold every listed object once, by count and by bytes."""
        parts = (self.resized, self.orphan_packs, self.orphan_files, self.known_dead, self.untracked)
        count = self.agreeing + sum(len(part) for part in parts)
        size = self.agreeing_bytes + sum(int(part.sizes.sum()) for part in parts)
        return count == len(self.listed) and size == int(self.listed.sizes.sum())


def compare_bucket(listed: KeyTable, manifest: ManifestFacts, *, prefix: str, held: Texts) -> BucketComparison:
    """Join the listing of packs and files with the manifest. `held`: keys of packs that journals here know of."""
    rows = manifest.objects
    at = positions(rows.keys, listed.keys)
    is_listed = at != NONE
    sizes = np.where(is_listed, listed.sizes[at] if len(listed) else NONE, NONE)
    # a size that was not told is unknown, which is neither equal nor another one (case B64)
    is_resized = is_listed & (sizes != rows.sizes) & (sizes != NONE)
    is_agreeing = is_listed & ~is_resized
    unnamed = positions(listed.keys, rows.keys) == NONE
    is_known = unnamed & _is_among(listed.keys, manifest.dead, also=held)
    strangers = unnamed & ~is_known
    is_pack = strangers & _matches(listed.keys, _pack_pattern(prefix))
    is_file = strangers & _matches(listed.keys, file_key_pattern(prefix))
    return BucketComparison(
        listed=listed,
        agreeing=int(is_agreeing.sum()),
        agreeing_bytes=int(sizes[is_agreeing].sum()),
        unlisted=rows.take(~is_listed),
        resized=listed.take(at[is_resized]),
        orphan_packs=listed.take(is_pack),
        orphan_files=listed.take(is_file),
        known_dead=listed.take(is_known),
        buried=listed.take(is_known & (positions(listed.keys, manifest.buried) != NONE)),
        untracked=listed.take(strangers & ~is_pack & ~is_file),
    )


def _is_among(keys: Texts, first: Texts, *, also: Texts) -> Mask:
    mask: Mask = (positions(keys, first) != NONE) | (positions(keys, also) != NONE)
    return mask


def _matches(keys: Texts, pattern: str) -> Mask:
    found = _compute.match_substring_regex(keys, pattern=pattern)
    mask: Mask = found.to_numpy(zero_copy_only=False).astype(np.bool_)
    return mask


def _pack_pattern(prefix: str) -> str:
    lead = re.escape(pack_listing_prefix(prefix))
    return rf"\A{lead}[0-9a-f]{{16}}/[0-9]{{12}}-[0-9a-f]{{16}}\.(?:tar|safetensors)\z"

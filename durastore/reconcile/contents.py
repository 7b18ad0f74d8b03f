"""Local files against the rows of files, by content: hashed before and unchanged since, or hashed now.

Duty: never take equal names and sizes for equal bytes: two machines make files of one name and size every day, and the
one that asks second would be told that its own are in the bucket.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from durastore.adopt.ledger import HashedEntry, Ledger
from durastore.fsio.folder import Folder
from durastore.fsio.rate import RateLimit
from durastore.model import Digest
from durastore.reconcile.bucket import FileRows
from durastore.reconcile.columns import (
    NONE,
    Mask,
    Rows,
    chosen,
    hex_of,
    joined,
    names_of,
    pairs,
    positions,
    with_texts,
)
from durastore.reconcile.folder import LocalSplit, split_local
from durastore.reconcile.hashing import find_written, hash_files
from durastore.reconcile.local import LocalInventory, Texts

__all__ = ["Contents", "HashingRule", "compare_contents"]

_compute: Any = pyarrow.compute
_CHUNK_FILES = 16_384


@dataclass(frozen=True, slots=True, kw_only=True)
class HashingRule:
    """What is hashed of the files that a row has the name and size of."""

    is_deep: bool
    """All of them."""
    is_complete: bool
    """Those of which nothing is on record."""
    limit: RateLimit
    heed: Callable[[], None] = lambda: None
    """Asked at every file; raises where hashing on is in vain."""


@dataclass(slots=True, kw_only=True)
class Contents:
    """How the local files stand to the rows, and what was learnt."""

    split: LocalSplit
    unhashed: Mask
    hashed: list[HashedEntry] = field(default_factory=list)
    unreadable: dict[str, str] = field(default_factory=dict)
    busy: set[str] = field(default_factory=set)
    """Open or mapped for writing, or nobody can tell."""


def compare_contents(
    folder: Folder, local: LocalInventory, *, files: FileRows, is_data: Mask, known: tuple[Ledger, HashingRule]
) -> Contents:
    """Join by path, size and digest. `known`: what is on record, and what may be hashed beyond it."""
    ledger, rule = known
    by_size = split_local(local, files, is_data=is_data)
    at = np.flatnonzero(by_size.agreeing)
    digests = _recorded(local, ledger, at=at) if not rule.is_deep else pa.array([""] * len(at), pa.large_string())
    result = Contents(split=by_size, unhashed=np.zeros(len(local.paths), dtype=np.bool_))
    if rule.is_deep or rule.is_complete:
        digests = _hash_rest(folder, chosen(local.paths, at), digests=digests, rule=rule, result=result)
    result.unhashed[at[_is_empty(digests)]] = True
    result.split = _with_digests(by_size, local, files=files, at=at, digests=digests)
    result.split.divergent[result.unhashed] = False  # another content, or not: nobody looked
    result.busy |= _written(folder, local, at=np.flatnonzero(result.split.agreeing))
    return result


def _with_digests(
    by_size: LocalSplit, local: LocalInventory, *, files: FileRows, at: Rows, digests: Texts
) -> LocalSplit:
    """The files at these positions by content too. Nearly all have that of the first row of their path and size; a
    join with all rows of equal path and size is made for the others only.
    """
    rows = by_size.rows.copy()
    listed = hex_of(chosen(files.digests, rows[at]))
    is_same = _compute.equal(digests, listed).to_numpy(zero_copy_only=False)
    others = at[~is_same]
    if len(others):
        wanted = with_texts(pairs(chosen(local.paths, others), local.sizes[others]), chosen(digests, ~is_same))
        rows[others] = positions(wanted, with_texts(pairs(files.paths, files.sizes), hex_of(files.digests)))
    agreeing = rows != NONE
    return LocalSplit(
        agreeing=agreeing,
        divergent=by_size.divergent | (by_size.agreeing & ~agreeing),
        only_local=by_size.only_local,
        rows=rows,
    )


def _written(folder: Folder, local: LocalInventory, *, at: Rows) -> set[str]:
    """Agreeing files that have a writer now: what is on record of them may be true no longer."""
    found: set[str] = set()
    for start in range(0, len(at), _CHUNK_FILES):
        found |= find_written(folder, names_of(chosen(local.paths, at[start : start + _CHUNK_FILES])))
    return found


def _is_empty(names: Texts) -> Mask:
    mask: Mask = _compute.equal(_compute.binary_length(names), 0).to_numpy(zero_copy_only=False)
    return mask


def _recorded(local: LocalInventory, ledger: Ledger, *, at: Rows) -> Texts:
    """The digest on record of each file at these positions; empty where it changed since, or never was hashed."""
    identities = local.identities[at]
    marks: Texts = joined(
        [chosen(local.paths, at), identities[:, 0], local.sizes[at], identities[:, 1], identities[:, 2]]
    )
    found = positions(marks, ledger.marks)
    if (found != NONE).all():
        return chosen(ledger.digests, found)
    rows: Any = pa.array(found, mask=found == NONE)
    digests: Texts = _compute.fill_null(ledger.digests.take(rows), "")
    return digests


def _hash_rest(folder: Folder, paths: Texts, *, digests: Texts, rule: HashingRule, result: Contents) -> Texts:
    """The digests, with those that were missing."""
    missing = np.flatnonzero(_is_empty(digests))
    if not len(missing):
        return digests
    found = names_of(digests)
    hashing = hash_files(folder, names_of(chosen(paths, missing)), limit=rule.limit, is_leased=True, heed=rule.heed)
    with closing(hashing) as looks:
        for number, look in zip(missing.tolist(), looks, strict=True):
            if look.is_busy:
                result.busy.add(look.path)
            elif look.digest is None:
                result.unreadable[look.path] = look.unreadable or "was not read"
            elif look.identity is None:
                result.unreadable[look.path] = "changes while it is read"
            else:
                found[number] = look.digest.hex()
                if look.is_settled:
                    entry = HashedEntry(path=look.path, identity=look.identity, digest=Digest(look.digest.hex()))
                    result.hashed.append(entry)
    return pa.array(found, pa.large_string())

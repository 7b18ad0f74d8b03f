"""Local files against the rows of files, by content: hashed before and unchanged since, or hashed now.

Duty: never take equal names and sizes for equal bytes: two machines make files of one name and size every day, and the
one that asks second would be told that its own are in the bucket.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from durastore.adopt.ledger import HashedEntry, Ledger
from durastore.fsio.folder import Folder
from durastore.model import Digest
from durastore.reconcile.bucket import FileRows
from durastore.reconcile.columns import NONE, Mask, Rows, TextBuilder, chosen, joined, names_of, positions
from durastore.reconcile.folder import LocalSplit, split_local
from durastore.reconcile.hashing import RateLimit, find_written, hash_files
from durastore.reconcile.local import LocalInventory, Texts

__all__ = ["Contents", "HashingRule", "compare_contents"]


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
    by_size = split_local(local, files, is_data=is_data, digests=None).agreeing
    at = np.flatnonzero(by_size)
    digests = _recorded(local, ledger, at=at) if not rule.is_deep else [""] * len(at)
    result = Contents(split=LocalSplit.of_none(len(local.paths)), unhashed=np.zeros(len(local.paths), dtype=np.bool_))
    if rule.is_deep or rule.is_complete:
        _hash_rest(folder, names_of(chosen(local.paths, at)), digests=digests, rule=rule, result=result)
    column = [""] * len(local.paths)
    for row, digest in zip(at.tolist(), digests, strict=True):
        column[row] = digest
    is_unknown = np.array([not digest for digest in digests], dtype=np.bool_)
    result.unhashed[at[is_unknown]] = True
    split = split_local(local, files, is_data=is_data, digests=pa.array(column, pa.large_string()))
    result.split = LocalSplit(
        agreeing=split.agreeing,
        divergent=split.divergent & ~result.unhashed,
        only_local=split.only_local & ~result.unhashed,
        rows=split.rows,
    )
    result.busy |= _written(folder, local, at=np.flatnonzero(split.agreeing))
    return result


def _written(folder: Folder, local: LocalInventory, *, at: Rows) -> set[str]:
    """Agreeing files that have a writer now: what is on record of them may be true no longer."""
    found: set[str] = set()
    for start in range(0, len(at), _CHUNK_FILES):
        found |= find_written(folder, names_of(chosen(local.paths, at[start : start + _CHUNK_FILES])))
    return found


def _recorded(local: LocalInventory, ledger: Ledger, *, at: np.ndarray[tuple[int], np.dtype[np.int64]]) -> list[str]:
    """The digest on record of each file at these positions; empty where it changed since, or never was hashed."""
    builder = TextBuilder()
    builder.add(ledger.marks)
    identities = local.identities[at]
    marks: Texts = joined(
        [chosen(local.paths, at), identities[:, 0], local.sizes[at], identities[:, 1], identities[:, 2]]
    )
    found = positions(marks, builder.finish())
    return [ledger.digests[row].decode() if row != NONE else "" for row in found.tolist()]


def _hash_rest(
    folder: Folder, paths: Sequence[str], *, digests: list[str], rule: HashingRule, result: Contents
) -> None:
    missing = [number for number, digest in enumerate(digests) if not digest]
    hashing = hash_files(folder, [paths[number] for number in missing], limit=rule.limit, is_leased=True)
    with closing(hashing) as looks:
        for number, look in zip(missing, looks, strict=True):
            rule.heed()
            if look.is_busy:
                result.busy.add(look.path)
            elif look.digest is None:
                result.unreadable[look.path] = look.unreadable or "was not read"
            elif look.identity is None:
                result.unreadable[look.path] = "changes while it is read"
            else:
                digests[number] = look.digest.hex()
                entry = HashedEntry(path=look.path, identity=look.identity, digest=Digest(look.digest.hex()))
                result.hashed.append(entry)

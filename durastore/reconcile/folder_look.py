"""Everything that is looked at before a folder's plan is made.

Duty: walk, bucket and manifest beside each other, then a look into the files that no row agrees with (deep: into
all). Changes nothing anywhere.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.compute

from durastore.adopt.inspect import DATA_SUFFIXES
from durastore.adopt.ledger import LAST_SEGMENT, Ledger, load_ledger
from durastore.adopt.place import PRIVATE_NAME, refuse_spools
from durastore.errors import InvalidSampleId, RootMismatch
from durastore.formats.spool_root import GOING_NAME, ROOT_MARKER_NAME, render_spool_name
from durastore.fsio.folder import Folder
from durastore.fsio.rate import RateLimit
from durastore.model import SampleId
from durastore.reconcile.columns import Mask, chosen, names_of
from durastore.reconcile.contents import Contents, HashingRule, compare_contents
from durastore.reconcile.folder import FolderFacts
from durastore.reconcile.hashing import look_into
from durastore.reconcile.local import LocalInventory, OddEntry, Texts, load_local, texts
from durastore.reconcile.remote import (
    FOLDER_HINT,
    KnownKeys,
    ManifestLook,
    RemoteLook,
    check_known_id,
    check_store_id,
    look_at_bucket,
    look_at_manifest,
)
from durastore.reconcile.session import Session
from durastore.reconcile.strangers import is_own_in_spool, strangers_in
from durastore.spool.look import SpoolLook, look_at_spool
from durastore.spool.records import FACT_STORE_ID
from durastore.spool.root import SpoolRoot

__all__ = ["look_at_folder", "private_look"]

_compute: Any = pyarrow.compute
_LONG_BYTES = 512
_SPOOL = render_spool_name(0)
"""The only one of a private root."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """The local side as it was read, and held against the rows of files."""

    local: LocalInventory
    is_data: Mask
    misnamed: tuple[OddEntry, ...]
    contents: Contents
    private: SpoolLook | None


def look_at_folder(
    session: Session, folder: Folder, *, on_unbound: Callable[[str | None], None] | None = None
) -> tuple[FolderFacts, RemoteLook]:
    """Facts about the folder and its bucket. With `on_unbound`, for a run that acts on them, files that look like what
    rows name and were never hashed are hashed too; it is called once it is known that nothing speaks against the folder
    and the prefix, and that they belong to no durastore together yet, with the one that the prefix has. `RootMismatch`
    where the folder is not what it was, or looks unmounted;
    `InventoryIncomplete` where the bucket is another one; network errors pass. Safe to repeat.
    """
    request, store, prefix, clock = session.request, session.objects, session.prefix, session.clock
    private = private_look(folder, is_any_filesystem_allowed=request.options.is_any_filesystem_allowed)
    known, store_id = _known(private), private.facts.get(FACT_STORE_ID) if private is not None else None
    with ThreadPoolExecutor(2, "durastore-look") as pool:
        walking = pool.submit(load_local, folder)
        first = look_at_manifest(store, prefix, known=known, clock=clock)
        listing = pool.submit(look_at_bucket, store, prefix, known=known, clock=clock, first=first)
        local = walking.result()
        refuse_spools(local.spools, folder=folder.path)
        if local.is_empty and private is None:
            raise _unmounted(folder, first)
        if first.store_id is None:  # a new prefix, or the wrong one: nothing is hashed before that is known
            check_store_id(listing.result(), store_id, what=str(folder.path), hint=FOLDER_HINT)
        else:
            check_known_id(first.store_id, store_id, what=str(folder.path), hint=FOLDER_HINT)
        if store_id is None and on_unbound is not None:
            on_unbound(first.store_id)
        # hashing may take hours: it runs beside the listing, and ends with it where that fails
        rule = _rule(session, is_hashing=on_unbound is not None, heed=lambda: _raise_early(listing))
        seen = _compared(folder, local, first=first, private=private, rule=rule)
        remote = listing.result()
    return _facts(session, folder, seen=seen, remote=remote), remote


def _raise_early(listing: Future[RemoteLook]) -> None:
    if listing.done():
        listing.result()


def _unmounted(folder: Folder, first: ManifestLook) -> RootMismatch:
    held = len(first.manifest.files.paths)
    had = f", and the manifest has {held} files" if held else ""
    return RootMismatch(
        f"{folder.path} is empty and was never reconciled{had}: no disk is mounted, or another one",
        hint="mount the right one; nothing was changed",
    )


def _known(private: SpoolLook | None) -> KnownKeys:
    last = private.facts.get(LAST_SEGMENT) if private is not None else None
    return KnownKeys(packs=texts([]), sent=texts([]), past={last: ()} if last is not None else {})


def private_look(folder: Folder, *, is_any_filesystem_allowed: bool) -> SpoolLook | None:
    """What the folder's private spool says; None where there is none yet. `RootMismatch` where it is not its own."""
    marker = folder.path / PRIVATE_NAME / ROOT_MARKER_NAME
    if not marker.exists():
        return None
    root = SpoolRoot.open(folder.path / PRIVATE_NAME, is_any_filesystem_allowed=is_any_filesystem_allowed)
    try:
        return look_at_spool(root.folder, _SPOOL) if root.folder.has(_SPOOL) else None
    finally:
        root.close()


def _compared(
    folder: Folder, local: LocalInventory, *, first: ManifestLook, private: SpoolLook | None, rule: HashingRule
) -> _Seen:
    is_data = _data_mask(local.paths)
    faults = _name_faults(local.paths, is_data)
    misnamed = tuple(
        OddEntry(path=path.encode(), what=why, size_bytes=int(local.sizes[at])) for at, (path, why) in faults.items()
    )
    is_data[list(faults)] = False
    ledger = _load_ledger(folder) if private is not None else Ledger()
    contents = compare_contents(folder, local, files=first.manifest.files, is_data=is_data, known=(ledger, rule))
    return _Seen(local=local, is_data=is_data, misnamed=misnamed, contents=contents, private=private)


def _facts(session: Session, folder: Folder, *, seen: _Seen, remote: RemoteLook) -> FolderFacts:
    request, local, contents = session.request, seen.local, seen.contents
    split = contents.split
    candidates = names_of(chosen(local.paths, split.divergent | split.only_local))
    looks = list(look_into(folder, candidates))
    suspects = {} if request.are_zeros_data else {each.path: each.suspicion for each in looks if each.suspicion}
    going, strangers = _private_entries(folder)
    return FolderFacts(
        prefix=session.prefix,
        local=local,
        is_data=seen.is_data,
        misnamed=seen.misnamed,
        strangers=strangers,
        split=split,
        unhashed=contents.unhashed,
        hashed=tuple(contents.hashed),
        manifest=remote.manifest,
        bucket=remote.bucket,
        bucket_fault=remote.fault,
        missing=remote.missing,
        damage={look.path: look.damage for look in looks if look.damage is not None},
        suspects=suspects,
        oddities={look.path: look.oddity for look in looks if look.oddity is not None},
        busy=frozenset(look.path for look in looks if look.is_busy) | contents.busy,
        unreadable=contents.unreadable | {look.path: look.unreadable for look in looks if look.unreadable is not None},
        quarantined=_quarantined(seen.private),
        going=going,
        is_burying=request.is_burying,
    )


def _rule(session: Session, *, is_hashing: bool, heed: Callable[[], None]) -> HashingRule:
    limit = RateLimit(session.request.hash_bytes_per_s, clock=session.clock)
    return HashingRule(is_deep=session.request.is_deep, is_complete=is_hashing, limit=limit, heed=heed)


def _private_entries(folder: Folder) -> tuple[tuple[OddEntry, ...], tuple[OddEntry, ...]]:
    """Of the private folder: what was moved for reclaiming and is not back, and what somebody else put there."""
    try:
        with folder.child(PRIVATE_NAME) as private:
            return _going(private), strangers_in(private, under=f"{PRIVATE_NAME}/", is_private=True)
    except FileNotFoundError:
        return (), ()


def _going(private: Folder) -> tuple[OddEntry, ...]:
    if not private.has(GOING_NAME):
        return ()
    what = f"in {PRIVATE_NAME}/{GOING_NAME}"
    with private.child(GOING_NAME) as going:
        sizes = [(name, os.stat(name, dir_fd=going.fd, follow_symlinks=False).st_size) for name in going.names()]
    return tuple(OddEntry(path=os.fsencode(name), what=what, size_bytes=size) for name, size in sizes)


def _quarantined(private: SpoolLook | None) -> tuple[OddEntry, ...]:
    if private is None:
        return ()
    held = private.quarantined
    return tuple(
        OddEntry(path=name.encode(), what=f"in {PRIVATE_NAME}/{private.name}/quarantine", size_bytes=size)
        for name, size in sorted(zip(held.names, held.sizes, strict=True))
        if not is_own_in_spool(name)
    )


def _data_mask(paths: Texts) -> Mask:
    mask = np.zeros(len(paths), dtype=np.bool_)
    for suffix in sorted(DATA_SUFFIXES):
        mask |= _compute.ends_with(paths, pattern=suffix).to_numpy(zero_copy_only=False).astype(np.bool_)
    bare = [*DATA_SUFFIXES, *("/" + suffix for suffix in DATA_SUFFIXES)]  # a name that is all suffix has none
    for name in sorted(bare):
        is_bare = _compute.ends_with(paths, pattern=name) if name[0] == "/" else _compute.equal(paths, name)
        mask &= ~is_bare.to_numpy(zero_copy_only=False).astype(np.bool_)
    return mask


def _name_faults(paths: Texts, is_data: Mask) -> dict[int, tuple[str, str]]:
    """Positions of data files whose path cannot be an id on every endpoint, with the path and why."""
    is_odd = ~_compute.string_is_ascii(paths).to_numpy(zero_copy_only=False).astype(np.bool_)
    is_odd |= _compute.match_substring_regex(paths, pattern=r"[\x00-\x1f\x7f]").to_numpy(zero_copy_only=False)
    is_odd |= _compute.binary_length(paths).to_numpy(zero_copy_only=False) > _LONG_BYTES
    faults = {}
    for at in np.flatnonzero(is_odd & is_data).tolist():
        path = str(paths[at])
        try:
            SampleId(path)
        except InvalidSampleId as exc:
            faults[at] = (path, exc.message)
    return faults


def _load_ledger(folder: Folder) -> Ledger:
    with folder.child(PRIVATE_NAME) as private:
        return load_ledger(private)

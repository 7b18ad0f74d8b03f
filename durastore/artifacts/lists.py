"""Lists of snapshots in the bucket: found, fetched against their digest, published last.

Duty: a list that is handed out matches the digest in its key (INV-7); one that is published was read back, and every
object that it names was before it (INV-2). Must never take a listing that lacks something for the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from durastore.errors import AmbiguousWrite, IntegrityError, NotVerified, ObjectAbsent, StoreMissing
from durastore.formats.artifact_list import (
    ArtifactList,
    ArtifactName,
    ListRef,
    list_key,
    list_listing_prefix,
    parse_list_key,
)
from durastore.model import Digest, ObjectKey
from durastore.objectstore.crc import crc64nvme_b64
from durastore.objectstore.port import ObjectReader, ObjectStore

__all__ = ["fetch_list", "fetch_newest", "find_list", "list_snapshots", "publish_list"]


def list_snapshots(store: ObjectStore, area: str, *, name: ArtifactName | None = None) -> list[ListRef]:
    """All snapshots, by name and age. `InventoryIncomplete` and network errors pass."""
    found = []
    for page in store.list(list_listing_prefix(area, name)):
        found += [ref for ref in (parse_list_key(area, stat.key) for stat in page) if ref is not None]
    return sorted(found)


def fetch_list(reader: ObjectReader, ref: ListRef, *, area: str) -> ArtifactList:
    """The list, whole. `IntegrityError` where its bytes are others, or say another name than its key."""
    data = reader.fetch(ref.key)
    if Digest.of(data).short != ref.short_digest:
        data = reader.fetch(ref.key)  # a transfer may be damaged, not the object
    if Digest.of(data).short != ref.short_digest:
        raise IntegrityError(f"artifact list {ref.key} does not match the digest in its key", key=ref.key.text)
    found = ArtifactList.parse(data, area=area)
    if (found.name, found.seq) != (ref.name, ref.seq):
        raise IntegrityError(f"artifact list {ref.key} is that of {found.name} {found.seq}", key=ref.key.text)
    return found


def fetch_newest(store: ObjectStore, area: str, *, name: ArtifactName) -> tuple[ListRef, ArtifactList] | None:
    """The newest snapshot of a name; None where there is none."""
    refs = list_snapshots(store, area, name=name)
    return (refs[-1], fetch_list(store, refs[-1], area=area)) if refs else None


def find_list(store: ObjectStore, area: str, *, name: str | None, snapshot: str | None) -> ListRef:
    """The snapshot of this id (the first digits of it do), else the newest of the name. `StoreMissing` where there is
    none, or more than one fits.
    """
    refs = list_snapshots(store, area, name=ArtifactName(name) if name is not None else None)
    if snapshot is not None:
        refs = [ref for ref in refs if ref.short_digest.startswith(snapshot)]
    names = sorted({ref.name.text for ref in refs})
    if not refs or len(names) > 1 or (snapshot is not None and len(refs) > 1):
        raise StoreMissing(_why_none(refs, name=name, snapshot=snapshot), hint="`durastore artifacts ls` shows them")
    return refs[-1]


def _why_none(refs: Sequence[ListRef], *, name: str | None, snapshot: str | None) -> str:
    asked = "".join([f" of {name!r}" if name is not None else "", f" with id {snapshot}" if snapshot else ""])
    if not refs:
        return f"there is no such snapshot{asked or ': none was pushed to this prefix'}"
    names = ", ".join(sorted({ref.name.text for ref in refs})[:8])
    return f"{len(refs)} snapshots fit{asked}: {names}; --name and --snapshot say which"


def publish_list(store: ObjectStore, content: ArtifactList, *, area: str) -> ListRef:
    """Put the list and read it back. Before it nothing shows that there is a snapshot; with it, all of it is there.

    `NotVerified` where the endpoint does not show what it acknowledged. Safe to repeat: the key names the bytes.
    """
    data = content.render(area)
    digest = Digest.of(data)
    key = list_key(area, content.name, seq=content.seq, digest=digest)
    lost: AmbiguousWrite | None = None
    try:
        store.put(key, data, crc64nvme=crc64nvme_b64(data), metadata={})
    except AmbiguousWrite as exc:
        lost = exc  # settled by reading back
    if _seen(store, key) != digest:
        if lost is not None:
            raise lost
        raise NotVerified(f"artifact list {key} was acknowledged and does not read back")
    return ListRef(name=content.name, seq=content.seq, short_digest=digest.short, key=key)


def _seen(store: ObjectStore, key: ObjectKey) -> Digest | None:
    with closing(store.fresh_reader()) as reader:
        try:
            return Digest.of(reader.fetch(key))
        except ObjectAbsent:
            return None

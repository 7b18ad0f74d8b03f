"""What lies right below a prefix: folders to be listed beside each other, where the store tells them in one answer.

Duty: one look with a delimiter, taken whole or not at all. Must never be needed: whoever gets None lists everything
below the prefix in one row, which needs no word of the store's about folders.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from durastore.errors import InventoryIncomplete
from durastore.objectstore.columns import ColumnListing, ColumnPage
from durastore.objectstore.port import ObjectLister

__all__ = ["FolderLister", "FolderPage", "checked_folder", "list_folder"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderPage:
    """All that is right below a prefix: the folders as prefixes of their own, and the objects."""

    folders: tuple[str, ...]
    page: ColumnPage


@runtime_checkable
class FolderLister(Protocol):
    """An adapter that can ask for it."""

    def list_folder(self, prefix: str) -> FolderPage | None:
        """As the function below."""
        ...


def list_folder(lister: ObjectLister, prefix: str) -> FolderPage | None:
    """The folders and objects right below `prefix` (which ends with a slash); None where the adapter cannot ask, where
    one answer does not hold them all, or where the answer is not one about folders. Network errors pass. Repeatable.
    """
    if not isinstance(lister, FolderLister):
        return None
    found = lister.list_folder(prefix)
    return None if found is None else checked_folder(found, prefix)


def checked_folder(found: FolderPage, prefix: str) -> FolderPage | None:
    """The page, if nothing in it speaks against it: an endpoint that takes no notice of a delimiter lists what is
    deeper down as well, or repeats itself.
    """
    whole = found.page.next_token is None
    names = [folder[len(prefix) :] for folder in found.folders if folder.startswith(prefix)]
    are_folders = all(name.endswith("/") and name.count("/") == 1 and len(name) > 1 for name in names)
    is_flat = not any("/" in key[len(prefix) :] for key in found.page.keys)
    if not whole or not are_folders or not is_flat or len(set(names)) != len(found.folders):
        return None
    try:
        pages = list(ColumnListing(lambda _: found.page, prefix=prefix))
    except InventoryIncomplete:
        return None  # to be found out, and said, by the listing of everything
    return FolderPage(folders=found.folders, page=pages[0] if pages else ColumnPage(keys=[], sizes=[]))

"""A listing as columns: keys and sizes only, a page at a time, for inventories of millions of objects.

Duty: the same checks as `listing` makes of each object, made of a page at once. Must never be laxer than `Listing`: a
page that is out of order, foreign to the prefix or the same as before is an incomplete inventory (INV-6).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from durastore.errors import InventoryIncomplete
from durastore.objectstore.listing import CheckedPages, listed_key
from durastore.objectstore.port import ListPage, ObjectLister

__all__ = ["UNKNOWN_SIZE", "ColumnLister", "ColumnListing", "ColumnPage", "column_page", "list_columns"]

UNKNOWN_SIZE = -1
_LONG_KEY_CHARS = 256  # 1024 bytes of UTF-8 are at least that many characters


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnPage:
    """One page: equally many keys and sizes. `UNKNOWN_SIZE` where none was told. `next_token` None: the end."""

    keys: list[str]
    sizes: list[int]
    next_token: str | None = None


@runtime_checkable
class ColumnLister(Protocol):
    """An adapter with a quicker way of its own."""

    def list_columns(self, prefix: str) -> Iterator[ColumnPage]:
        """As the function below. After a network error the same page may be asked for again."""
        ...


def list_columns(lister: ObjectLister, prefix: str) -> Iterator[ColumnPage]:
    """Keys and sizes of all objects below `prefix`, checked as `ObjectLister.list` checks them, and raising the same.

    Where an adapter has a quicker way of its own (`list_columns`), by that.
    """
    if isinstance(lister, ColumnLister):
        return lister.list_columns(prefix)
    return (column_page(page) for page in lister.list(prefix))


def column_page(page: ListPage) -> ColumnPage:
    """An ordinary page as columns."""
    sizes = [UNKNOWN_SIZE if stat.size_bytes is None else stat.size_bytes for stat in page]
    return ColumnPage(keys=[stat.key.text for stat in page], sizes=sizes)


class ColumnListing(CheckedPages[ColumnPage, ColumnPage]):
    """A listing of columns, a page checked at once."""

    def _checked(self, page: ColumnPage) -> ColumnPage | None:
        self._check(page.keys)
        page = _objects_only(page)
        return page if page.keys else None

    def _check(self, keys: list[str]) -> None:
        if not keys:
            return
        row = keys if self._last is None else [self._last, *keys]
        # code point order is the byte order of UTF-8; sorting what is sorted costs one comparison a key
        self._is_byte_order = self._is_byte_order and _is_ascending(row)
        # in byte order, what lies between two keys of the prefix is of the prefix
        asked = (keys[0], keys[-1]) if self._is_byte_order else keys
        if not all(key.startswith(self._prefix) for key in asked):
            raise InventoryIncomplete(f"listing {self._prefix!r}: the store answered with keys outside of it")
        # with NUL for the slash, the order of whole keys is that of their segments
        self._is_walk_order = self._is_walk_order and _is_ascending(_with_nul_for_slash(row))
        if not (self._is_byte_order or self._is_walk_order):
            raise InventoryIncomplete(
                f"listing {self._prefix!r}: the keys from {keys[0]!r} on are not in one ascending order",
                hint="the endpoint repeats or reorders pages (old Ceph does); its listing cannot be used",
            )
        self._last = keys[-1]


def _is_ascending(row: list[str]) -> bool:
    return sorted(row) == row and len(set(row)) == len(row)


def _with_nul_for_slash(row: list[str]) -> list[str]:
    found = "\n".join(row).replace("/", "\0").split("\n")
    return found if len(found) == len(row) else [key.replace("/", "\0") for key in row]  # a line break in a key


def _objects_only(page: ColumnPage) -> ColumnPage:
    """The page without folder markers; `InventoryIncomplete` for a key that durastore cannot address."""
    text = "/" + "/\n/".join(page.keys) + "/"
    is_plain = not any(mark in text for mark in ("//", "/./", "/../", "\0"))
    if is_plain and max(map(len, page.keys), default=0) < _LONG_KEY_CHARS:
        return page
    checked = [
        (key, size)
        for key, size in zip(page.keys, page.sizes, strict=True)
        if listed_key(key, size_bytes=size) is not None
    ]
    return ColumnPage(keys=[key for key, _ in checked], sizes=[size for _, size in checked], next_token=page.next_token)

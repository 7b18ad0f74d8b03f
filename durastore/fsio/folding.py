"""Whether a file system takes two different names for one: by case, or by the way an accent is written.

Duty: ask it, by names that are there. Makes nothing, and tells what it could not find out.
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass

from durastore.fsio.folder import Folder

__all__ = ["Folding", "find_folding", "folded"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Folding:
    """What falls together. None: no name was there to ask by."""

    by_case: bool | None
    by_accent: bool | None
    """NFC and NFD of one text are one name."""


def find_folding(folder: Folder) -> Folding:
    """Of the names in this folder. OSError if it cannot be read."""
    names = [name for name in folder.names() if name.isprintable()]
    return Folding(
        by_case=_is_one(folder, names, change=str.swapcase), by_accent=_is_one(folder, names, change=_other_form)
    )


def folded(name: str, folding: Folding) -> str:
    """Equal for names that are one name there. Unknown counts as told apart."""
    if folding.by_case:
        name = unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())
    return unicodedata.normalize("NFC", name) if folding.by_accent else name


def _other_form(name: str) -> str:
    composed = unicodedata.normalize("NFC", name)
    return unicodedata.normalize("NFD", name) if name == composed else composed


def _is_one(folder: Folder, names: list[str], *, change: Callable[[str], str]) -> bool | None:
    known = set(names)
    for name in names:
        other = change(name)
        if other == name or other in known:
            continue
        try:
            first = os.stat(name, dir_fd=folder.fd, follow_symlinks=False)
            second = os.stat(other, dir_fd=folder.fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino)
    return None

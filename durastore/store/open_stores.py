"""The stores that this process has open.

Duty: tell whoever opens one place twice in one process, and whoever ends without having closed, what that means. Must
never close, flush or touch a store: at the exit of a process it is too late to wait for a network.
"""

from __future__ import annotations

import atexit
import os
import warnings
from dataclasses import dataclass
from pathlib import Path

from durastore.errors import DurastoreError, StoreWarning
from durastore.store.store import Store

__all__ = ["forget_open_stores", "note_closed", "note_opened", "warn_if_open"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opened:
    url: str
    local: Path
    store: Store
    pid: int


_OPEN: dict[int, _Opened] = {}
"""By the store's `id`. A closed store is not among them: what it knew of the bucket may be a gigabyte."""


def warn_if_open(url: str, local: Path, *, stacklevel: int) -> None:
    """Warn where this process has a store of `url` at `local` open: a cell that ran twice, a forgotten close."""
    if (url, local, os.getpid()) in [(known.url, known.local, known.pid) for known in list(_OPEN.values())]:
        warnings.warn(
            f"this process already has a store of {url} open at {local}, which was not closed: the new one does not "
            "see what that one holds and has not sent yet, and would store it again. Use it, or close it first",
            StoreWarning,
            stacklevel=stacklevel + 1,
        )


def note_opened(store: Store, *, url: str, local: Path) -> None:
    """`store` is looked at again when the process ends, or when the same place is opened again."""
    if not _OPEN:
        atexit.unregister(_tell_unclosed)  # once, whatever was forgotten in between
        atexit.register(_tell_unclosed)
    _OPEN[id(store)] = _Opened(url=url, local=local, store=store, pid=os.getpid())


def note_closed(store: Store) -> None:
    """Nothing is to be told of `store` any more. Safe to repeat."""
    _OPEN.pop(id(store), None)


def forget_open_stores() -> None:
    """For tests, which leave stores open as a killed process does."""
    _OPEN.clear()


def _tell_unclosed() -> None:
    for known in list(_OPEN.values()):
        if known.pid != os.getpid():
            continue  # a forked child's end is not that of its parent's store
        try:
            count = len(known.store.status().only_local_ids)
        except DurastoreError:
            continue  # nothing can be asked any more; the next opening looks into the spool
        if count:
            local = known.local
            here = f"{count} {'sample is' if count == 1 else 'samples are'} only below {local} so far, and safe there"
            next_step = f"the next durastore.open with it, or `durastore drain --local {local}`, sends what is left"
            warnings.warn(f"the store of {known.url} was not closed: {here}; {next_step}", StoreWarning, stacklevel=1)

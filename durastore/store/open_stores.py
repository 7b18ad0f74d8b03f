"""The stores that this process has open.

Duty: tell whoever opens one place twice in one process, and whoever ends without having closed, what that means. Must
never close, flush or touch a store: at the exit of a process it is too late to wait for a network. Must never keep a
closed one: it holds the digests of all samples.
"""

from __future__ import annotations

import atexit
import itertools
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from durastore.errors import DurastoreError, StoreWarning
from durastore.store.store import Store

__all__ = ["forget_open_stores", "note_opened", "warn_if_open"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opened:
    store: Store
    url: str
    local: Path
    pid: int
    """A forked child's end is not that of its parent's store."""


_NUMBERS = itertools.count()
_OPEN: dict[int, _Opened] = {}
"""Several threads open and close; each step leaves it whole, without a lock that a forked child could find taken."""
_TOLD_AT_EXIT: set[int] = set()
"""Processes that look at the end. Some forked children (multiprocessing) begin without what was registered."""


def warn_if_open(url: str, local: Path, *, stacklevel: int) -> None:
    """Warn where this process has a store of `url` at `local` open: a cell that ran twice, a forgotten close."""
    if any((each.url, each.local) == (url, local) for each in _open_here()):
        warnings.warn(
            f"this process already has a store of {url} open at {local}, which was not closed: the new one does not "
            "see what that one holds and has not sent yet, and would store it again. Use it, or close it first",
            StoreWarning,
            stacklevel=stacklevel + 1,
        )


def note_opened(store: Store, *, url: str, local: Path) -> Callable[[], None]:
    """`store` is looked at again when the process ends, or when the same place is opened again; until the call that is
    returned, which has to come when it is closed.
    """
    if os.getpid() not in _TOLD_AT_EXIT:
        _TOLD_AT_EXIT.add(os.getpid())
        atexit.unregister(_tell_unclosed)  # a child may have it of its parent
        atexit.register(_tell_unclosed)
    number = next(_NUMBERS)
    _OPEN[number] = _Opened(store=store, url=url, local=local, pid=os.getpid())

    def forget() -> None:
        _OPEN.pop(number, None)

    return forget


def forget_open_stores() -> None:
    """For tests, which leave stores open as a killed process does."""
    _OPEN.clear()


def _open_here() -> list[_Opened]:
    return [each for each in list(_OPEN.values()) if each.pid == os.getpid()]


def _tell_unclosed() -> None:
    texts = []
    for each in _open_here():
        try:
            count = len(each.store.status().only_local_ids)
        except DurastoreError:
            continue  # nothing can be asked any more; the next opening looks into the spool
        if count:
            local = each.local
            here = f"{count} {'sample is' if count == 1 else 'samples are'} only below {local} so far, and safe there"
            next_step = f"the next durastore.open with it, or `durastore drain --local {local}`, sends what is left"
            texts.append(f"the store of {each.url} was not closed: {here}; {next_step}")
    if texts:  # in one: where warnings are errors, the first would be the last
        warnings.warn("\n".join(texts), StoreWarning, stacklevel=1)

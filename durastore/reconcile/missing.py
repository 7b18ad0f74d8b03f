"""Keys that a listing leaves out, asked for one by one.

Duty: two looks at each, on connections of their own: absent, there, or not known. A key that the listing lacks and a
HEAD finds shows that the listing cannot be relied on (cases B18, B141). Must never take silence for absence.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass

from durastore.clock import Clock
from durastore.errors import ObjectAbsent, PermissionRefused, RequestRefused, UnknownAnswer
from durastore.model import ObjectKey
from durastore.objectstore.port import ObjectReader, ObjectStore

__all__ = ["UNCLEAR", "MissingKeys", "look_for"]

_AT_ONCE = 16
_SECOND_LOOK_S = 1.0
_SAMPLE = 32
UNCLEAR = (UnknownAnswer, PermissionRefused, RequestRefused)
"""Answers about one key. Whatever else is wrong is wrong with all of them, and passes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingKeys:
    """What became of each key that was asked for."""

    absent: tuple[ObjectKey, ...] = ()
    """Named as absent twice."""
    present: tuple[ObjectKey, ...] = ()
    unknown: tuple[ObjectKey, ...] = ()
    """No clear answer: kept."""
    is_sampled: bool = False
    """Some of the first were there after all: the rest was not asked for, and is in `unknown`."""


def look_for(
    store: ObjectStore, keys: Sequence[ObjectKey], *, clock: Clock, apart_s: float = _SECOND_LOOK_S
) -> MissingKeys:
    """Ask for each key, twice, `apart_s` seconds apart, where it is absent. `EndpointUnreachable` and refused
    credentials pass. Repeatable.

    A first few are asked for alone: where one of them is there, the listing is wrong, and a million more questions
    would not make it right.
    """
    first = _look(store, keys[:_SAMPLE])
    if any(answer is True for answer in first):
        return _sorted_out(keys, [*first, *([None] * (len(keys) - len(first)))], is_sampled=True)
    answers = [*first, *_look(store, keys[_SAMPLE:])]
    gone = [at for at, answer in enumerate(answers) if answer is False]
    if gone:
        clock.sleep(apart_s)  # one answer can be stale
        for at, answer in zip(gone, _look(store, [keys[at] for at in gone]), strict=True):
            answers[at] = answer
    return _sorted_out(keys, answers, is_sampled=False)


def _look(store: ObjectStore, keys: Sequence[ObjectKey]) -> list[bool | None]:
    """For each key whether it is there; None where that is not told. A new connection for all of them."""
    if not keys:
        return []
    with closing(store.fresh_reader()) as reader, ThreadPoolExecutor(_AT_ONCE, "durastore-head") as pool:
        return list(pool.map(lambda key: _is_there(reader, key), keys))


def _is_there(reader: ObjectReader, key: ObjectKey) -> bool | None:
    try:
        reader.head(key)
    except ObjectAbsent:
        return False
    except UNCLEAR:
        return None  # refused, or an odd answer: it tells neither
    return True


def _sorted_out(keys: Sequence[ObjectKey], answers: Sequence[bool | None], *, is_sampled: bool) -> MissingKeys:
    told = list(zip(keys, answers, strict=True))
    return MissingKeys(
        absent=tuple(key for key, answer in told if answer is False),
        present=tuple(key for key, answer in told if answer is True),
        unknown=tuple(key for key, answer in told if answer is None),
        is_sampled=is_sampled,
    )

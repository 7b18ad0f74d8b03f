"""Keys asked for one by one: what nobody can answer any more ends the look, a key without an answer does not."""

from __future__ import annotations

from typing import NoReturn

import pytest

from durastore.clock import ManualClock
from durastore.errors import (
    BucketMissing,
    CredentialsRefused,
    DurastoreError,
    EndpointUnreachable,
    PermissionRefused,
    RequestRefused,
    UnknownAnswer,
)
from durastore.model import ObjectKey
from durastore.objectstore.memory import MemoryStore
from durastore.objectstore.port import ObjectStat
from durastore.reconcile.missing import MissingKeys, look_for

_KEYS = [ObjectKey("packs/a"), ObjectKey("packs/b")]


class _Refusing(MemoryStore):
    """Answers every HEAD with one error."""

    def __init__(self, error: DurastoreError) -> None:
        super().__init__(clock=ManualClock())
        self._error = error

    def head(self, key: ObjectKey) -> ObjectStat:
        return self._refuse()

    def _refuse(self) -> NoReturn:
        raise self._error


@pytest.mark.parametrize("kind", [EndpointUnreachable, CredentialsRefused, BucketMissing])
def test_what_would_keep_every_answer_away_is_raised(kind: type[DurastoreError]) -> None:
    """Expired credentials are no finding about a key: the operator has to hear of them (exit code 21)."""
    with pytest.raises(kind):
        look_for(_Refusing(kind("told")), _KEYS, clock=ManualClock())


@pytest.mark.parametrize("kind", [UnknownAnswer, PermissionRefused, RequestRefused])
def test_a_key_without_a_clear_answer_is_kept(kind: type[DurastoreError]) -> None:
    """Without the right to list, S3 answers 403 for a key that is not there: it tells neither."""
    assert look_for(_Refusing(kind("told")), _KEYS, clock=ManualClock()) == MissingKeys(unknown=tuple(_KEYS))

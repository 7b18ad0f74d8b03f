"""Hashing beside the listing: what a failed listing does to it."""

from __future__ import annotations

from pathlib import Path
from threading import Event
from typing import Any

import pytest

from durastore.clock import ManualClock
from durastore.errors import EndpointUnreachable
from durastore.objectstore.listing import Listing
from durastore.testing.faulty import FaultyStore
from tests.unit.reconcile_lab import FolderLab, npy

FILES = 40


class _Dropping(FaultyStore):
    """Lists the manifest, and then, once somebody hashes, no more."""

    is_dropping = False
    hashing = Event()

    def list(self, prefix: str, *, start_after: str | None = None) -> Listing:
        if self.is_dropping and "/files/" in prefix:
            self.hashing.wait(10)
            raise EndpointUnreachable("the connection broke")
        return super().list(prefix, start_after=start_after)


class _Slow(ManualClock):
    """Whoever reads faster than the rate really waits, but not for that long."""

    def __init__(self) -> None:
        super().__init__()
        self.waited = 0

    def sleep(self, seconds: float) -> None:
        if seconds < 3_600:  # between tries of the listing
            super().sleep(seconds)
            return
        self.waited += 1
        _Dropping.hashing.set()
        Event().wait(0.1)


@pytest.mark.parametrize("asked", [{"is_deep": True}, {"is_deep": True, "is_applied": True}])
def test_a_listing_that_fails_ends_the_hashing_beside_it(tmp_path: Path, asked: dict[str, Any]) -> None:
    lab = FolderLab(tmp_path / "data")
    store = _Dropping(lab.memory)
    lab.objects = store
    for number in range(FILES):
        lab.write(f"{number}.npy", npy(number))
    lab.run(is_applied=True)
    clock = lab.clock = _Slow()
    store.is_dropping = True
    store.hashing.clear()
    with pytest.raises(EndpointUnreachable):
        lab.run(hash_bytes_per_s=0.01, **asked)
    assert 0 < clock.waited < FILES - 4
    assert sorted(path.name for path in lab.folder.glob("*.npy")) == sorted(f"{number}.npy" for number in range(FILES))

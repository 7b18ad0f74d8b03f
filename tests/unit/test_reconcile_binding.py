"""Which durastore a folder is bound to at first: its marker settles beside the look, and before anything is sent."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from durastore.clock import ManualClock
from durastore.errors import InventoryIncomplete, NotVerified, RootMismatch
from durastore.formats.keys import marker_key
from durastore.formats.marker import MARKER_FORMAT, Marker
from durastore.fsio.folder import Folder
from durastore.manifest.marker_store import ensure_marker
from durastore.objectstore.memory import MemoryStore
from durastore.reconcile import folder_look, hashing
from durastore.spool.records import FACT_STORE_ID
from durastore.spool.root import SpoolRoot
from durastore.testing.faulty import Fault, FaultRule, FaultyStore
from tests.unit.reconcile_lab import PREFIX, FolderLab, npy

MARKER = marker_key(PREFIX)


class _Sleeper(ManualClock):
    """Keeps what it slept, and when."""

    def __init__(self, then: Callable[[float], None] = lambda _: None) -> None:
        self.slept: list[float] = []
        super().__init__(on_sleep=self._note)
        self._then = then

    def _note(self, seconds: float) -> None:
        self.slept.append(seconds)
        self._then(seconds)


class _NoConditions(MemoryStore):
    """Ignores `if_absent`, as some endpoints do."""

    def put(self, *given: Any, if_absent: bool = False, **asked: Any) -> Any:
        del if_absent
        return super().put(*given, **asked)


def _lab(folder: Path, clock: ManualClock, *, memory: type[MemoryStore] = MemoryStore) -> FolderLab:
    lab = FolderLab(folder)
    lab.clock = clock
    lab.memory = memory(clock=clock)
    lab.objects = FaultyStore(lab.memory)
    return lab


def _other_marker(letter: str) -> bytes:
    return Marker(store_id=letter * 32, format=MARKER_FORMAT, run=None, created_ns=1).render()


def _put_marker(lab: FolderLab, data: bytes) -> None:
    lab.memory.put(MARKER, data, crc64nvme=None, metadata={})


def _marker_id(lab: FolderLab) -> str:
    return str(json.loads(lab.memory.fetch(MARKER))["store_id"])


def _bound_to(lab: FolderLab) -> str | None:
    with Folder.open(lab.folder) as folder:
        look = folder_look.private_look(folder, is_any_filesystem_allowed=True)
    return look.facts.get(FACT_STORE_ID) if look is not None else None


def _sent(lab: FolderLab) -> list[str]:
    return [key for op, key in lab.faulty.calls if op in ("put", "create_upload") and key != MARKER.text]


@pytest.mark.parametrize("look_s, rest_s", [(0.0, 2.0), (1.5, 0.5), (3.0, None)])
def test_a_new_marker_settles_while_the_folder_is_looked_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look_s: float, rest_s: float | None
) -> None:
    clock = _Sleeper()
    lab = _lab(tmp_path / "data", clock)
    lab.write("a/0.npy", npy(0))
    honest = hashing.look_into
    calls_before_the_look: list[tuple[str, str]] = []

    def look_into(*given: Any) -> Any:
        if not calls_before_the_look:
            calls_before_the_look.extend(lab.faulty.calls)
            clock.advance(look_s)
        return honest(*given)

    monkeypatch.setattr(folder_look, "look_into", look_into)
    assert lab.apply().exit_code == 0
    assert ("put", MARKER.text) in calls_before_the_look
    assert clock.slept[:1] == ([] if rest_s is None else [rest_s])
    calls = lab.faulty.calls
    begun = calls.index(("put", MARKER.text))
    first_file = next(at for at, (op, key) in enumerate(calls) if op == "put" and "/files/" in key)
    assert calls[begun:first_file].count(("fetch", MARKER.text)) >= 2  # read twice before anything is sent
    assert _bound_to(lab) == _marker_id(lab)


def test_a_folder_is_bound_to_the_marker_that_stays(tmp_path: Path) -> None:
    rival = _other_marker("b")
    clock = _Sleeper(lambda _: _put_marker(lab, rival) if not _sent(lab) else None)
    lab = _lab(tmp_path / "data", clock, memory=_NoConditions)
    lab.write("a/0.npy", npy(0))
    assert lab.apply().exit_code == 0
    assert _bound_to(lab) == "b" * 32
    assert lab.bucket_files() == {"a/0.npy": {npy(0)}}


def test_a_marker_of_this_moment_binds_no_folder_before_it_settled(tmp_path: Path) -> None:
    # another host made it just now, and a third one, at an endpoint without conditions, is about to replace it
    clock = _Sleeper(lambda _: _put_marker(lab, _other_marker("c")) if not _sent(lab) else None)
    lab = _lab(tmp_path / "data", clock, memory=_NoConditions)
    lab.write("a/0.npy", npy(0))
    _put_marker(lab, _other_marker("b"))
    with pytest.raises(NotVerified, match="another one than was looked at"):
        lab.apply()
    assert (_sent(lab), _bound_to(lab)) == ([], None)
    assert lab.apply().exit_code == 0
    assert _bound_to(lab) == "c" * 32


def test_an_old_marker_costs_no_wait(tmp_path: Path) -> None:
    clock = _Sleeper()
    lab = _lab(tmp_path / "data", clock)
    lab.write("a/0.npy", npy(0))
    made = ensure_marker(lab.memory, PREFIX, run=None, clock=ManualClock())
    clock.advance(10)
    assert lab.apply().exit_code == 0
    assert clock.slept == []
    assert _bound_to(lab) == made.store_id


def test_a_marker_that_was_seen_is_never_written_anew(tmp_path: Path) -> None:
    clock = _Sleeper()
    lab = _lab(tmp_path / "data", clock, memory=_NoConditions)
    lab.write("a/0.npy", npy(0))
    _put_marker(lab, _other_marker("b"))
    clock.advance(10)
    lab.faulty.add(FaultRule(op="fetch", fault=Fault.ABSENT, first=2, count=1, key_part="durastore.json"))
    with pytest.raises(NotVerified, match="was there a moment ago"):
        lab.apply()
    assert (_marker_id(lab), _bound_to(lab)) == ("b" * 32, None)
    assert ("put", MARKER.text) not in lab.faulty.calls


def test_no_marker_is_made_for_a_folder_that_is_refused(tmp_path: Path) -> None:
    lab = _lab(tmp_path / "data", _Sleeper())
    lab.write("sub/a.npy", npy(0))
    SpoolRoot.open(lab.folder / "sub" / "root").close()
    spool = lab.folder / "sub" / "root" / "w-00"
    (spool / "packs").mkdir(parents=True)
    (spool / "lock").touch()
    (lab.folder / "sub" / "root" / "durastore-root.json").unlink()
    with pytest.raises(RootMismatch):
        lab.apply()
    assert not lab.memory._objects


def test_no_marker_is_made_where_the_listing_is_not_whole_or_not_empty(tmp_path: Path) -> None:
    lab = _lab(tmp_path / "data", _Sleeper())
    lab.write("a/0.npy", npy(0))
    lab.memory.put(marker_key(f"{PREFIX}/files"), b"x", crc64nvme=None, metadata={})  # any object below our folders
    with pytest.raises(InventoryIncomplete):
        lab.apply()
    assert ("put", MARKER.text) not in lab.faulty.calls


def test_a_look_makes_no_marker(tmp_path: Path) -> None:
    lab = _lab(tmp_path / "data", _Sleeper())
    lab.write("a/0.npy", npy(0))
    assert lab.run().exit_code == 12
    assert lab.run(is_adopting=True).exit_code == 12
    assert not lab.memory._objects

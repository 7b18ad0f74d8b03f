"""Unfinished uploads: only the own, forgotten and old ones are aborted, and not knowing keeps them all."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from durastore.clock import ManualClock
from durastore.config import StoreOptions
from durastore.errors import JournalFailed
from durastore.formats.keys import pack_key
from durastore.model import Digest, ObjectKey, PackKind, WriterId
from durastore.objectstore.memory import MemoryStore
from durastore.objectstore.port import OpenUpload
from durastore.objectstore.retrying import RetryingStore, RetryPolicy
from durastore.observe.events import Counting
from durastore.spool.root import SpoolRoot
from durastore.spool.root_sessions import RootSessions, load_root_sessions
from durastore.spool.spool import Spool
from durastore.store.opening import open_store
from durastore.store.services import Services
from durastore.store.unfinished import abort_unfinished, plan_aborts
from durastore.testing.faulty import Fault, FaultRule, FaultyStore
from tests.faults.trial import wait_until
from tests.unit.spool_lab import record_upload

WEEK_S = 604_800.0
OURS, THEIRS = WriterId("00000000000000aa"), WriterId("00000000000000bb")
KNOWN = RootSessions(writers=frozenset({OURS}), upload_ids=frozenset({"live"}), looked=())


def key_of(writer: WriterId, *, prefix: str = "p", seq: int = 1) -> ObjectKey:
    return pack_key(prefix, writer, seq=seq, digest=Digest.of(b"x"), kind=PackKind.TAR)


def upload(**changes: Any) -> OpenUpload:
    facts: dict[str, Any] = {
        "key": key_of(OURS),
        "upload_id": "forgotten",
        "initiated_s": 1_000.0,
        "server_time_s": 1_000.0 + WEEK_S + 1,
    }
    return OpenUpload(**(facts | changes))


def planned(*found: OpenUpload) -> list[OpenUpload]:
    return plan_aborts(found, known=KNOWN, prefix="p", orphan_age_s=WEEK_S)


def test_what_is_ours_forgotten_and_old_is_aborted() -> None:
    assert planned(upload()) == [upload()]


@pytest.mark.parametrize(
    "changes",
    [
        {"key": key_of(THEIRS)},
        {"key": key_of(OURS, prefix="q")},
        {"key": ObjectKey(f"p/packs/{OURS}/by-hand")},
        {"key": ObjectKey(f"p/files/{OURS}/000000000001-0000000000000000.tar")},
        {"key": ObjectKey(f"p/manifest/{OURS}/000000000001-0000000000000000.parquet")},
        {"upload_id": "live"},
        {"server_time_s": 1_000.0 + WEEK_S},
        {"server_time_s": 0.0},
        {"server_time_s": None},
        {"initiated_s": None},
    ],
    ids=str,
)
def test_anything_else_is_kept(changes: dict[str, Any]) -> None:
    # case B31
    assert planned(upload(**changes)) == []


# --- over a root -----------------------------------------------------------------------------------------------------


class Lab:
    """A root with one spool of an ended process and one in use, and a bucket with its own clock."""

    def __init__(self, folder: Path, *, has_ended: bool = True) -> None:
        self.folder = folder
        self.clock = ManualClock()
        self.server_clock = ManualClock()
        self.objects = FaultyStore(MemoryStore(clock=self.server_clock))
        self.events = Counting()
        self.root = SpoolRoot.open(folder, is_any_filesystem_allowed=True)
        self.gone = THEIRS
        if has_ended:
            first = Spool.claim(self.root, clock=self.clock)
            first.journal.announce_writer()
            self.gone = first.writer
            first.close()
        self.spool = Spool.claim(self.root, clock=self.clock)
        self.spool.journal.announce_writer()

    def begin(self, writer: WriterId | None = None, *, seq: int = 1) -> str:
        return self.objects.create_upload(key_of(writer or self.gone, seq=seq), metadata={})

    def look(self, *, is_stopping: bool = False, **options: Any) -> list[str]:
        """The unfinished uploads that are left."""
        services = SimpleNamespace(
            objects=RetryingStore(self.objects, RetryPolicy(budget_s=0.1)),
            prefix="p",
            options=StoreOptions(**options),
            clock=self.clock,
            observer=self.events,
        )
        abort_unfinished(cast(Services, services), self.spool, is_stopping=lambda: is_stopping)
        return [upload.upload_id for upload in self.objects.inner.list_uploads("")]

    def close(self) -> None:
        self.spool.close()
        self.root.close()


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path / "root")
    yield made
    made.close()


def test_an_old_upload_of_an_ended_process_goes(lab: Lab) -> None:
    lab.begin()
    foreign = lab.begin(THEIRS)
    lab.server_clock.advance(WEEK_S + 1)
    young = lab.begin(seq=2)
    assert lab.look() == [foreign, young]
    assert lab.events.count("upload.orphan_aborted") == 1


@pytest.mark.parametrize("steps_s", [(2 * 3600.0, 100 * 86_400.0), (-100 * 86_400.0,)])
def test_the_hosts_clock_says_nothing_about_an_age(lab: Lab, steps_s: tuple[float, ...]) -> None:
    # case B31
    young = lab.begin()
    for step in steps_s:
        lab.clock.step_wall(step)
    lab.server_clock.advance(WEEK_S - 1)
    assert lab.look() == [young]


def test_what_a_living_sibling_goes_on_with_is_kept(lab: Lab) -> None:
    sibling = Spool.claim(lab.root, clock=lab.clock)
    sibling.journal.announce_writer()
    forgotten, kept = lab.begin(sibling.writer, seq=1), lab.begin(sibling.writer, seq=2)
    assert forgotten != kept
    record_upload(sibling, kept)
    lab.server_clock.advance(10 * WEEK_S)
    assert lab.look() == [kept]
    assert sibling.journal.get_fact("unfinished looked for") is None, "a sibling's journal is only read"
    sibling.close()


@pytest.mark.parametrize("damage", ["failed", "absent", "newer", "garbage", "odd-writer"])
def test_a_journal_that_cannot_be_read_keeps_every_upload(lab: Lab, damage: str) -> None:
    sibling = Spool.claim(lab.root, clock=lab.clock)
    path = sibling.path
    sibling.close()
    journal = path / "journal-1.sqlite"
    if damage == "failed":
        (path / "journal-1.failed").write_bytes(b"")
    elif damage == "absent":
        journal.unlink()
    elif damage == "garbage":
        journal.write_bytes(b"x" * 8192)
    else:
        statement = "PRAGMA user_version=200" if damage == "newer" else "INSERT INTO writers (writer) VALUES ('x')"
        with closing(sqlite3.connect(journal, isolation_level=None)) as conn:
            conn.execute(statement)
    kept = lab.begin()
    lab.server_clock.advance(2 * WEEK_S)
    assert lab.look() == [kept]
    assert lab.objects.count("list_uploads") == 0


def test_once_a_day_and_root(lab: Lab) -> None:
    lab.look()
    lab.clock.advance(86_399)
    other = Spool.claim(lab.root, clock=lab.clock)
    mine, lab.spool = lab.spool, other
    lab.look()
    assert lab.objects.count("list_uploads") == 1
    lab.clock.advance(2)
    lab.look()
    assert lab.objects.count("list_uploads") == 2
    lab.clock.reboot()  # no age can be told: it is looked for
    lab.look()
    assert lab.objects.count("list_uploads") == 3
    lab.spool = mine
    other.close()


def test_a_fresh_root_asks_for_nothing(tmp_path: Path) -> None:
    fresh = Lab(tmp_path / "fresh", has_ended=False)
    fresh.look()
    assert fresh.objects.count("list_uploads") == 0
    fresh.close()


@pytest.mark.parametrize("op", ["list_uploads", "abort_upload"])
@pytest.mark.parametrize("fault", [Fault.FORBIDDEN, Fault.SERVER_ERROR, Fault.DROP_REQUEST])
def test_an_endpoint_that_does_not_let_us_is_no_trouble(
    lab: Lab, op: str, fault: Fault, caplog: pytest.LogCaptureFixture
) -> None:
    kept = lab.begin()
    lab.server_clock.advance(2 * WEEK_S)
    lab.objects.add(FaultRule(op=op, fault=fault, count=None))
    with caplog.at_level("INFO", "durastore"):
        assert lab.look() == [kept]
    assert "not looked for" in caplog.text


def test_an_adapter_of_an_older_port_is_no_trouble(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(FaultyStore, "list_uploads")
    kept = lab.begin()
    lab.server_clock.advance(2 * WEEK_S)
    assert lab.look() == [kept]


def test_a_store_that_closes_stops_it(lab: Lab) -> None:
    kept = lab.begin()
    lab.server_clock.advance(2 * WEEK_S)
    assert lab.look(is_stopping=True) == [kept]


def test_the_age_is_an_option(lab: Lab) -> None:
    kept = lab.begin()
    lab.server_clock.advance(100)
    assert lab.look(orphan_age_s=100.0) == [kept]
    lab.server_clock.advance(1)
    lab.clock.advance(86_401)
    assert lab.look(orphan_age_s=100.0) == []


def test_the_journals_of_a_root_are_read_beside_their_owners(lab: Lab) -> None:
    with ThreadPoolExecutor(4) as pool:
        for n in range(200):
            pool.submit(lab.spool.journal.set_fact, f"f{n}", "x" * 500)
        for future in [pool.submit(load_root_sessions, lab.root) for _ in range(20)]:
            assert future.result(60).upload_ids == set()
    assert lab.spool.journal.get_fact("f199") is not None
    assert load_root_sessions(lab.root).writers == {lab.gone, lab.spool.writer}
    lab.spool.journal.set_fact("still", "there")
    (lab.folder / "w-07").mkdir()
    with pytest.raises(JournalFailed):
        load_root_sessions(lab.root)


def test_a_store_looks_after_it_was_opened(tmp_path: Path) -> None:
    clock = ManualClock()
    objects = FaultyStore(MemoryStore(clock=clock))
    options: dict[str, Any] = {"objects": objects, "is_any_filesystem_allowed": True, "reserve_bytes": 1}
    with open_store("memory://looked/p", local=tmp_path / "spool", **options) as store:
        store.put("a", {"x": np.arange(8)})
    (left,) = {stat.key for page in objects.list("p/packs/") for stat in page}
    ours = objects.create_upload(left, metadata={})
    clock.advance(WEEK_S + 1)
    with open_store("memory://looked/p", local=tmp_path / "spool", **options):
        wait_until(lambda: not objects.inner.list_uploads("p/packs/"))
    assert objects.list_uploads("p/packs/") == (), f"{ours} is still there"

"""The plan of a migration, from facts alone."""

from __future__ import annotations

from typing import Any

import pytest

from durastore.fsio.folding import Folding
from durastore.fsio.identity import FileIdentity
from durastore.migrate.looking import leads_out
from durastore.migrate.plan import MigratePlan, PlanFacts, plan_migrate
from durastore.migrate.scan import Meta, Scan, SourceFile, SourceFolder, SourceLink

META = Meta(mode=0o644, uid=0, gid=0, atime_ns=0, mtime_ns=0)
GIB = 1 << 30


def file(path: str, *, size: int = 100, names: int = 1, is_sparse: bool = False) -> SourceFile:
    identity = FileIdentity(dev=1, inode=abs(hash(path)), size_bytes=size, mtime_ns=1, ctime_ns=1)
    return SourceFile(path=path, identity=identity, meta=META, names=names, is_sparse=is_sparse)


def planned(files: list[SourceFile], **changes: Any) -> MigratePlan:
    scan = Scan(files=files, folders=[SourceFolder(path="", meta=META)])
    facts: dict[str, Any] = {
        "scan": scan,
        "files": tuple(files),
        "there": 0,
        "waiting": (),
        "folding": Folding(by_case=False, by_accent=False),
        "free_bytes": 100 * GIB,
        "disk_bytes": 1000 * GIB,
        "is_one_device": False,
        "is_reclaiming": False,
        "has_locks": True,
    }
    return plan_migrate(PlanFacts(**(facts | changes)))


def test_room_is_counted_in_blocks_and_a_reserve_stays() -> None:
    plan = planned([file("a", size=1), file("b", size=4_097)])
    assert plan.needed_bytes == (1 + 2 + 1) * 4_096
    assert plan.reserve_bytes == GIB
    assert plan.problems == ()
    assert planned([], disk_bytes=100).reserve_bytes == 2


@pytest.mark.parametrize("missing", [0, 1])
def test_one_byte_too_few_is_refused(missing: int) -> None:
    plan = planned([file("a")], free_bytes=2 * 4_096 + GIB - missing)
    assert bool(plan.problems) is bool(missing)


def test_what_waits_for_a_lock_needs_room_too() -> None:
    waiting = (file("w", size=10 * GIB),)
    plan = planned([file("a")], waiting=waiting, free_bytes=5 * GIB)
    assert (plan.waiting, plan.waiting_bytes) == (1, 10 * GIB)
    assert "too few" in plan.problems[0]


def test_names_count_as_the_destination_takes_them() -> None:
    files = [file("A/x"), file("a/x"), file("b")]
    assert planned(files).problems == ()
    assert planned(files, folding=Folding(by_case=None, by_accent=None)).problems == ()
    assert "1 names" in planned(files, folding=Folding(by_case=True, by_accent=None)).problems[0]
    accents = [file("caf\u00e9"), file("cafe\u0301")]
    assert "1 names" in planned(accents, folding=Folding(by_case=False, by_accent=True)).problems[0]


def test_one_device_or_no_lock_frees_nothing() -> None:
    assert planned([], is_one_device=True).problems == ()
    assert "one device" in planned([], is_one_device=True, is_reclaiming=True).problems[0]
    assert planned([], has_locks=False).problems == ()
    assert "locked" in planned([], has_locks=False, is_reclaiming=True).problems[0]


@pytest.mark.parametrize(
    "path, target, is_out",
    [
        ("a/b", "c", False),
        ("a/b", "../c", False),
        ("a/b", "../../c", True),
        ("a/b", "./x/../../../y", True),
        ("a", "..", True),
        ("a/b", "/etc", True),
        ("a/b/c", "..//../x", False),
    ],
)
def test_links_that_lead_out_are_told_by_their_text(path: str, target: str, is_out: bool) -> None:
    assert leads_out(SourceLink(path=path, target=target, atime_ns=0, mtime_ns=0)) is is_out

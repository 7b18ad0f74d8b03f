"""A spool root that moves: copied while in use, handed over under its locks, and never open at two places."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from durastore.clock import SYSTEM_CLOCK
from durastore.codec.encode import EncodedSample
from durastore.errors import DiskFailed, RootMismatch
from durastore.formats.spool_root import INCOMING_NAME, MOVED_NAME, ROOT_MARKER_NAME
from durastore.fsio.publish import publish
from durastore.fsio.sys import SYS
from durastore.migrate import handover
from durastore.migrate.record import Prior
from durastore.migrate.run import MigrateRequest, migrate
from durastore.migrate.scan import PRIVATE_NAME
from durastore.model import PackState
from durastore.spool.root import SpoolRoot
from durastore.spool.spool import Spool
from tests.unit.migrate_lab import FORMATS, MigrateLab, contents, mig
from tests.unit.spool_lab import PREFIX, advance, assert_obtainable, make_ballasts_small, sample, writer_of

__all__ = ["mig"]

make_ballasts_small()


@contextmanager
def spool_in(path: Path) -> Iterator[Spool]:
    """The first free spool, also where the root lies in memory."""
    root = SpoolRoot.open(path, is_any_filesystem_allowed=True)
    try:
        spool = Spool.claim(root, clock=SYSTEM_CLOCK)
        try:
            spool.bind(PREFIX)
            yield spool
        finally:
            spool.close()
    finally:
        root.close()


def put(spool: Spool, *names: str, is_sealed: bool = True) -> list[EncodedSample]:
    samples = [sample(name) for name in names]
    writer = writer_of(spool)
    writer.append(samples)
    if is_sealed:
        writer.seal_open()
    writer.close()
    return samples


@pytest.fixture
def root(mig: MigrateLab) -> MigrateLab:
    """SRC is a spool root with sealed packs and one that is still open."""
    with spool_in(mig.source) as spool:
        mig.samples = put(spool, "a", "b") + put(spool, "c") + put(spool, "open", is_sealed=False)
    return mig


def refuses(path: Path, *, match: str) -> None:
    with pytest.raises(RootMismatch, match=match):
        SpoolRoot.open(path, is_any_filesystem_allowed=True)


def has_it_all(path: Path, samples: list[EncodedSample]) -> None:
    with spool_in(path) as spool:
        report = spool.recover()
        assert report.lost == []
        assert report.set_aside == []
        assert_obtainable(spool, samples)


def test_an_idle_root_is_handed_over(root: MigrateLab) -> None:
    with spool_in(root.source) as spool:
        was = (spool.root.identity.root_id, spool.writer)
    report = root.run()
    assert report.exit_code == 0, list(report.lines())
    assert [(each.path, each.is_active) for each in report.roots] == [("", True)]
    refuses(root.source, match=str(root.target))
    with spool_in(root.target) as spool:
        assert spool.root.identity.root_id == was[0], "it is the same root"
        assert spool.writer != was[1]
    has_it_all(root.target, root.samples)
    assert report.prior[Prior.DIGEST] == 2
    assert Prior.NONE in report.prior, "journal and open pack: nothing says what they were"
    again = root.run()
    assert (again.exit_code, again.copied, again.roots[0].is_active) == (0, 0, True)


def test_sealed_packs_go_while_it_is_in_use_and_the_rest_later(root: MigrateLab) -> None:
    with spool_in(root.source) as spool:
        spool.recover()
        more = put(spool, "sealed now") + put(spool, "not sealed", is_sealed=False)
        report = root.run()
        assert report.exit_code == 11
        assert report.roots[0].busy == ("w-00",)
        said = "\n".join(report.lines())
        assert f"durastore stop --local {root.source}" in said
        assert all("/packs/" in path or path == INCOMING_NAME for path in root.there())
        assert len(root.there()) >= 4
        refuses(root.target, match="being filled")
        assert not (root.source / MOVED_NAME).exists()
        more += put(spool, "put since")
    assert root.run().exit_code == 0
    refuses(root.source, match="moved to")
    has_it_all(root.target, root.samples + more)


def test_packs_that_were_freed_meanwhile_are_not_brought_back(root: MigrateLab) -> None:
    with spool_in(root.source) as spool:
        spool.recover()
        assert root.run().exit_code == 11
        record = spool.journal.packs(PackState.SEALED)[0]
        advance(spool, record.pack_id, to=PackState.MANIFESTED)
        spool.journal.record_intent(record.pack_id, "receipt")
        (spool.path / "packs" / record.name).rename(root.source.parent / "freed")
        spool.journal.record_reclaimed(record.pack_id)
    report = root.run()
    assert report.exit_code == 0
    assert f"w-00/packs/{record.name}" in report.superseded
    with spool_in(root.target) as spool:
        found = spool.recover()
        assert (found.rebuilt, found.set_aside, found.lost) == ([], [], [])


def test_a_journal_that_went_on_is_copied_anew(root: MigrateLab, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise DiskFailed("the source went read-only", errno=errno.EROFS)

    monkeypatch.setattr(handover, "_publish_moved", refuse)
    report = root.run()
    assert (report.exit_code, report.roots[0].is_active) == (3, False)
    assert "read-only" in "\n".join(report.lines())
    refuses(root.target, match="being filled")
    monkeypatch.undo()
    with spool_in(root.source) as spool:  # still the one root there is
        spool.recover()
        more = put(spool, "later")
    report = root.run()
    assert report.exit_code == 0
    assert any(path.endswith(".sqlite") for path in report.superseded)
    has_it_all(root.target, root.samples + more)


def test_a_damaged_pack_is_copied_as_it_is_and_told(root: MigrateLab) -> None:
    pack = sorted((root.source / "w-00/packs").iterdir())[0]
    data = pack.read_bytes()
    pack.write_bytes(data[: len(data) // 2] + bytes(len(data) // 2))
    report = root.run(is_reclaiming=True)
    name = f"w-00/packs/{pack.name}"
    assert (report.exit_code, list(report.damaged)) == (3, [name])
    assert "sealed" in report.damaged[name]
    assert pack.exists()
    assert (root.target / name).read_bytes() == pack.read_bytes()
    assert report.roots[0].is_active, "the salvage at the other side has all that is left of it"


def test_a_pack_that_cannot_be_read_keeps_the_root_here(root: MigrateLab, monkeypatch: pytest.MonkeyPatch) -> None:
    pack = sorted((root.source / "w-00/packs").iterdir())[0]
    inode, plain = pack.stat().st_ino, os.preadv

    def preadv(fd: int, buffers: Any, offset: int) -> int:
        if os.fstat(fd).st_ino == inode:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return plain(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", preadv)
    report = root.run(is_reclaiming=True)
    assert (report.exit_code, report.reclaimed) == (3, 0)
    assert "quarantine by hand" in (report.roots[0].reason or "")
    assert not (root.source / MOVED_NAME).exists()
    refuses(root.target, match="being filled")
    pack.rename(root.source / "w-00/quarantine" / pack.name)
    report = root.run()
    assert (report.exit_code, report.roots[0].is_active) == (3, True)
    refuses(root.source, match="moved to")


def test_sources_of_a_root_go_once_it_is_active(root: MigrateLab) -> None:
    packs = {path.name for path in (root.source / "w-00/packs").iterdir()}
    report = root.run(is_reclaiming=True)
    assert (report.exit_code, report.reclaimed) == (0, len(packs))
    assert list((root.source / "w-00/packs").iterdir()) == []
    assert (root.source / ROOT_MARKER_NAME).exists()
    refuses(root.source, match="moved to")
    has_it_all(root.target, root.samples)


def test_sources_of_a_root_go_later_and_the_new_place_is_left_alone(root: MigrateLab) -> None:
    assert root.run().exit_code == 0
    with spool_in(root.target) as spool:
        spool.recover()
        gone = spool.journal.packs(PackState.SEALED)[0].name
        (spool.path / "packs" / gone).rename(root.target.parent / "freed there")
    before = contents(root.target)
    report = root.run(is_reclaiming=True)
    assert (report.exit_code, list(report.kept)) == (3, [f"w-00/packs/{gone}"])
    assert report.reclaimed == 2
    assert contents(root.target) == before
    assert [path.name for path in (root.source / "w-00/packs").iterdir()] == [gone]


def test_a_root_that_moved_elsewhere_is_refused(root: MigrateLab) -> None:
    assert root.run().exit_code == 0
    first, root.target = root.target, root.target.with_name("other")
    report = root.run()
    assert report.exit_code == 2
    assert str(first) in report.plan.problems[0]
    assert not root.target.exists()


def test_a_place_that_has_a_root_is_refused(root: MigrateLab) -> None:
    with spool_in(root.target) as spool:
        kept = put(spool, "another root's")
    report = root.run()
    assert report.exit_code == 2
    assert "a spool root already" in report.plan.problems[0]
    has_it_all(root.target, kept)
    (root.target / ROOT_MARKER_NAME).unlink()
    assert "looks like a spool" in root.run().plan.problems[0]
    with spool_in(root.source):
        pass


def test_two_roots_do_not_mix(root: MigrateLab, tmp_path: Path) -> None:
    with spool_in(root.source):
        assert root.run().exit_code == 11
    other = MigrateLab(tmp_path / "other", root.target)
    with spool_in(other.source):
        pass
    report = other.run()
    assert report.exit_code == 2
    assert "another spool root" in report.plan.problems[0]


def test_memory_is_no_place_for_a_root(root: MigrateLab) -> None:
    report = root.run(is_any_filesystem_allowed=False)
    assert report.exit_code == 2
    assert "tmpfs" in report.plan.problems[0]
    assert "--any-filesystem" in report.plan.problems[0]


def test_a_process_that_begins_in_the_last_moment_keeps_its_root(
    root: MigrateLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, opened = handover._publish_marker, []

    def late(*args: Any, **kwargs: Any) -> None:
        plain(*args, **kwargs)
        held = SpoolRoot.open(root.source)
        opened.append((held, Spool.claim(held, clock=SYSTEM_CLOCK)))

    monkeypatch.setattr(handover, "_publish_marker", late)
    report = root.run()
    (held, spool) = opened[0]
    assert spool.path.name == "w-01"
    assert report.exit_code == 3
    assert "durastore stop" in (report.roots[0].reason or "")
    assert not (root.source / MOVED_NAME).exists()
    refuses(root.target, match="being filled")
    spool.bind(PREFIX)
    spool.recover()
    more = put(spool, "by the late one")
    spool.close()
    held.close()
    monkeypatch.undo()
    assert root.run().exit_code == 0
    refuses(root.source, match="moved to")
    with spool_in(root.target), spool_in(root.target) as second:
        assert second.path.name == "w-01"
        second.recover()
        assert_obtainable(second, more)


def test_a_process_that_comes_after_the_mark_gets_no_spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = SpoolRoot.open(tmp_path)
    (tmp_path / MOVED_NAME).write_text("/elsewhere\n")
    with pytest.raises(RootMismatch, match="/elsewhere"):
        Spool.claim(held, clock=SYSTEM_CLOCK)
    held.close()


@pytest.mark.parametrize("step", ["_publish_marker", "_publish_moved", "relocate_shared"])
def test_a_handover_that_ends_half_way_is_ended_by_the_next_run(
    root: MigrateLab, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    class Killed(BaseException):
        pass

    def kill(*_: object, **__: object) -> None:
        raise Killed

    monkeypatch.setattr(handover, step, kill)
    with pytest.raises(Killed):
        root.run()
    monkeypatch.undo()
    refuses(root.target, match="being filled")
    if step == "relocate_shared":
        refuses(root.source, match="moved to")
    else:
        SpoolRoot.open(root.source).close()
    assert root.run().exit_code == 0
    refuses(root.source, match="moved to")
    has_it_all(root.target, root.samples)


def test_the_mark_comes_before_the_first_spool(root: MigrateLab, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        pass

    plain = SYS.mkdir

    def mkdir(name: str, mode: int, *, dir_fd: int) -> None:
        if name == "packs":
            raise Killed
        plain(name, mode, dir_fd=dir_fd)

    monkeypatch.setattr(SYS, "mkdir", mkdir)
    with pytest.raises(Killed):
        root.run()
    monkeypatch.undo()
    assert (root.target / "w-00").is_dir()
    refuses(root.target, match="being filled")
    assert root.run().exit_code == 0


def test_a_full_source_gives_its_ballast_for_the_mark(root: MigrateLab, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = publish
    ballast = root.source / "w-00" / "ballast"

    def full(folder: Any, name: str, **asked: Any) -> Any:
        if name == MOVED_NAME and ballast.exists():
            raise DiskFailed("No space left on device", errno=errno.ENOSPC)
        return plain(folder, name, **asked)

    assert ballast.exists()
    monkeypatch.setattr(handover, "publish", full)
    assert root.run().exit_code == 0
    assert not ballast.exists()
    refuses(root.source, match="moved to")


def test_a_root_inside_a_tree_moves_with_it(mig: MigrateLab) -> None:
    mig.write("data/a.bin", 100)
    inner = mig.source / "data" / ".durastore"
    with spool_in(inner) as spool:
        samples = put(spool, "inner")
        report = mig.run()
        assert report.exit_code == 11
        assert [root.path for root in report.roots] == ["data/.durastore"]
    mig.written.clear()
    report = mig.run(is_reclaiming=True)
    assert report.exit_code == 0
    refuses(inner, match=str(mig.target / "data/.durastore"))
    has_it_all(mig.target / "data/.durastore", samples)
    assert not (mig.source / "data/a.bin").exists()


def test_a_journal_that_cannot_be_read_vouches_for_nothing(root: MigrateLab) -> None:
    (journal,) = (root.source / "w-00").glob("journal-*.sqlite")
    data = bytearray(journal.read_bytes())
    data[:100] = bytes(100)
    journal.write_bytes(data)
    report = root.run()
    assert report.exit_code == 0
    assert any("says nothing" in note for note in report.notes)
    assert report.prior[Prior.DIGEST] == 0
    assert (root.target / journal.relative_to(root.source)).read_bytes() == data


def test_what_is_made_anew_is_not_copied(root: MigrateLab) -> None:
    (root.source / "probe-0123456789abcdef.json").write_bytes(b"{}")
    assert root.run().exit_code == 0
    names = {path.partition("/")[2] for path in root.there() if "/" in path}
    assert not names & {"lock", "ballast"}
    assert "probe-0123456789abcdef.json" in root.there()
    assert (root.source / ROOT_MARKER_NAME).read_bytes() != (root.target / ROOT_MARKER_NAME).read_bytes()


def test_a_root_copied_by_other_means_is_noticed(root: MigrateLab) -> None:
    for marker in ("cp", "rsync"):
        copy = root.target.with_name(marker)
        shutil.copytree(root.source, copy)
        refuses(copy, match="is a copy")
    with spool_in(root.source) as spool:
        assert spool.recover().lost == []
    assert PRIVATE_NAME not in os.listdir(root.source)


@pytest.mark.parametrize("part", ["w-00", "w-00/packs", "w-00/quarantine"])
def test_a_part_of_a_root_is_not_freed(root: MigrateLab, part: str) -> None:
    """Its packs would be gone for the journal that knows them, and their samples lost to the store."""
    request = MigrateRequest(
        source=root.source / part, target=root.target, is_reclaiming=True, is_any_filesystem_allowed=True
    )
    for has_marker in (True, False):
        with spool_in(root.source) as spool:
            spool.recover()
            if not has_marker:
                (root.source / ROOT_MARKER_NAME).rename(root.source.parent / "lost marker")
            before = contents(root.source)
            report = migrate(request, formats=FORMATS)
            assert report.exit_code == 2
            assert "lies in the spool root" in report.plan.problems[0]
            assert contents(root.source) == before
            assert not root.target.exists()
    copied = migrate(replace(request, is_reclaiming=False), formats=FORMATS)
    assert copied.is_executed, "a copy harms nobody"


@pytest.mark.parametrize("depth", ["", "disk/old"])
def test_spools_without_their_roots_marker_are_not_freed(mig: MigrateLab, depth: str) -> None:
    (mig.source / depth).mkdir(parents=True, exist_ok=True)
    with spool_in(mig.source / depth) as spool:
        mig.samples = put(spool, "a") + put(spool, "b", is_sealed=False)
        (mig.source / depth / ROOT_MARKER_NAME).rename(mig.source / "lost marker")
        report = mig.run(is_reclaiming=True)
        assert report.exit_code == 2
        assert "looks like a spool" in report.plan.problems[0]
        found = spool.recover()
        assert (found.lost, found.set_aside) == ([], [])
        assert_obtainable(spool, mig.samples)

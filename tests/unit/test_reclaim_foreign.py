"""Freeing files of others, one fact wrong at a time: whatever is doubtful is back in its place, byte for byte."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from durastore.errors import NotVerified, RootMismatch
from durastore.fsio.folder import Folder
from durastore.fsio.sys import SYS
from durastore.model import parse_json, render_json
from durastore.reclaim import foreign
from durastore.reclaim.foreign import ForeignReport, restore_moved
from durastore.spool.records import PackRecord
from durastore.testing.faulty import Fault
from durastore.verify.receipt import Receipt
from durastore.verify.verifier import ProofBatch, Verifier
from tests.unit.foreign_lab import ForeignLab, foreign_lab
from tests.unit.reconcile_lab import npy

FILES = {"a/0.npy": npy(0), "a/1.npy": npy(1, rows=70), "b.npy": npy(2)}
ONE = {"b.npy": FILES["b.npy"]}


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[ForeignLab]:
    with foreign_lab(tmp_path / "data") as made:
        yield made


def _kept(lab: ForeignLab, report: ForeignReport, *, path: str, match: str) -> None:
    """This file stays where it was, and the report says why; nothing is left in the private folder."""
    assert match in report.kept[path]
    assert lab.path(path).read_bytes() == FILES[path]
    assert (lab.going(), lab.aside()) == ([], {})
    assert lab.observer.count("reclaim.kept") == len(report.kept)


def _all_here(lab: ForeignLab) -> bool:
    return {path: lab.path(path).read_bytes() for path in FILES} == FILES


# --- what goes, and how ----------------------------------------------------------------------------------------------


def test_proven_files_go_and_the_report_says_so(lab: ForeignLab) -> None:
    size = sum(map(len, FILES.values()))
    report = lab.execute(*lab.proven(FILES))
    assert report == ForeignReport(files=3, bytes_freed=size, freed=list(FILES), kept={})
    assert (report.files, report.bytes_freed) == (3, size)
    assert not [path for path in FILES if lab.path(path).exists()]
    assert (lab.going(), lab.aside()) == ([], {})
    assert (lab.observer.count("reclaim.freed"), lab.observer.count("reclaim.freed.bytes")) == (3, size)
    assert lab.observer.count("reclaim.kept") == 0


def test_nothing_to_free_is_nothing_freed(lab: ForeignLab) -> None:
    report = lab.execute()
    assert (report.files, report.bytes_freed, report.freed, report.kept) == (0, 0, [], {})


def test_where_a_file_belongs_is_on_record_before_it_is_moved_and_the_receipt_before_it_goes(
    lab: ForeignLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    (record,) = lab.proven(ONE)
    seen: list[tuple[str, dict[str, Any]]] = []

    def noting(plain: Callable[..., None], *, position: int) -> Callable[..., None]:
        def call(*names: str, **fds: int) -> None:
            if lab.place.going.fd in fds.values():
                private = names[position]
                seen.append((private, parse_json(lab.intent(private) or "{}", what="intent")))
            plain(*names, **fds)

        return call

    monkeypatch.setattr(SYS, "rename_new", noting(SYS.rename_new, position=1))
    monkeypatch.setattr(SYS, "unlink", noting(SYS.unlink, position=0))
    assert lab.execute(record).files == 1
    (private, intent), (unlinked, grounds) = seen
    assert private == unlinked
    assert intent == {"path": "b.npy", "key": str(record.key), "digest": str(record.digest)}
    assert grounds["path"] == "b.npy"
    assert str(record.key) in str(grounds["receipt"])
    assert lab.intent(private) is None


def test_every_descriptor_is_closed(lab: ForeignLab) -> None:
    records = lab.proven(FILES)
    lab.path("b.npy").write_bytes(b"other")
    before = os.listdir("/proc/self/fd")
    assert lab.execute(*records).files == 2
    assert len(os.listdir("/proc/self/fd")) == len(before)


# --- what a batch rests on -------------------------------------------------------------------------------------------


def _refusing(lab: ForeignLab, *, at: int) -> ForeignLab:
    """The folder is another one from the n-th look on."""
    looks: list[int] = []

    def check() -> None:
        looks.append(1)
        if len(looks) >= at:
            raise RootMismatch("another disk lies here")

    return replace(lab, place=replace(lab.place, check=check))


def test_where_the_folder_is_another_one_not_even_the_bucket_is_asked(lab: ForeignLab) -> None:
    records = lab.proven(FILES)
    changed = _refusing(lab, at=1)
    asked = len(lab.objects.calls)
    with pytest.raises(RootMismatch):
        changed.execute(*records)
    assert len(lab.objects.calls) == asked
    assert _all_here(lab)


def test_a_disk_that_is_replaced_between_two_files_keeps_the_second(lab: ForeignLab) -> None:
    # case B20
    records = lab.proven(FILES)
    changed = _refusing(lab, at=3)  # the batch, the first file, the second
    with pytest.raises(RootMismatch):
        changed.execute(*records)
    assert [path for path in FILES if lab.path(path).exists()] == ["a/1.npy", "b.npy"]


def _sized(lab: ForeignLab, *sizes: int) -> list[PackRecord]:
    """Records of files that are not there."""
    (record,) = lab.proven(ONE)
    return [replace(record, name=f"{number}.npy", size_bytes=size) for number, size in enumerate(sizes)]


@pytest.mark.parametrize(
    "sizes, batches",
    [
        ((), []),
        ((4, 4, 2), [[4, 4, 2]]),  # up to the limit, and not one byte beyond
        ((4, 4, 3), [[4, 4], [3]]),
        ((11,), [[11]]),  # larger than a batch may be: by itself
        ((11, 1, 9, 1), [[11], [1, 9], [1]]),
        ((1, 1, 1, 1), [[1, 1, 1], [1]]),  # no more files than that either
        ((1, 1, 1, 1, 1, 1, 1), [[1, 1, 1], [1, 1, 1], [1]]),
        ((10, 0, 0), [[10, 0, 0]]),  # an empty file takes no room
        ((0, 0, 10), [[0, 0, 10]]),
    ],
)
def test_a_batch_is_limited_in_files_and_bytes(
    lab: ForeignLab, monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...], batches: list[list[int]]
) -> None:
    records = _sized(lab, *sizes)
    monkeypatch.setattr(foreign, "_BATCH_FILES", 3)
    monkeypatch.setattr(foreign, "_BATCH_BYTES", 10)
    opened: list[list[int | None]] = []

    def open_batch(_: Verifier, records: Sequence[PackRecord]) -> Any:
        opened.append([record.size_bytes for record in records])
        return contextlib.nullcontext()

    monkeypatch.setattr(Verifier, "open_batch", open_batch)
    report = lab.execute(*records)
    assert opened == batches
    assert sorted(report.kept) == sorted(record.name for record in records)


# --- what keeps a file -----------------------------------------------------------------------------------------------


def test_a_folder_that_is_gone_keeps_its_files_and_no_others(lab: ForeignLab) -> None:
    records = lab.proven(FILES)
    lab.path("a").rename(lab.path("c"))
    report = lab.execute(*records)
    assert (report.files, report.freed) == (1, ["b.npy"])
    assert all("its folder cannot be opened" in report.kept[path] for path in ("a/0.npy", "a/1.npy"))
    assert lab.path("c/0.npy").read_bytes() == FILES["a/0.npy"]


def test_a_file_that_changed_stays_and_the_others_go(lab: ForeignLab) -> None:
    records = lab.proven(FILES)
    os.utime(lab.path("a/1.npy"))
    report = lab.execute(*records)
    assert (report.files, report.freed) == (2, ["a/0.npy", "b.npy"])
    _kept(lab, report, path="a/1.npy", match="it changed since it was looked at")


def test_a_file_of_another_file_system_is_not_even_moved(lab: ForeignLab) -> None:
    records = lab.proven(ONE)
    with contextlib.ExitStack() as stack:
        try:
            path = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm")))
        except OSError:
            pytest.skip("there is no second file system that can be written to")
        if path.stat().st_dev == lab.path("b.npy").stat().st_dev:
            pytest.skip("it is the same file system")
        other = replace(lab, place=replace(lab.place, going=stack.enter_context(Folder.open(path))))
        _kept(other, other.execute(*records), path="b.npy", match="another file system")


def test_a_name_that_cannot_be_moved_stays_and_nothing_is_left_on_record(
    lab: ForeignLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    privates: list[str] = []

    def refuse(source: str, target: str, *, source_fd: int, target_fd: int) -> None:
        privates.append(target)
        raise OSError(errno.EROFS, "Read-only file system")

    records = lab.proven(ONE)
    monkeypatch.setattr(SYS, "rename_new", refuse)
    _kept(lab, lab.execute(*records), path="b.npy", match="cannot be moved")
    assert [lab.intent(private) for private in privates] == [None]


def test_a_move_of_which_nobody_knows_whether_it_lasts_is_taken_back(
    lab: ForeignLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, failing = SYS.fsync, [lab.place.going.fd]

    def fsync(fd: int) -> None:
        if fd in failing:
            failing.remove(fd)
            raise OSError(errno.EIO, "Input/output error")
        plain(fd)

    records = lab.proven(ONE)
    monkeypatch.setattr(SYS, "fsync", fsync)
    _kept(lab, lab.execute(*records), path="b.npy", match="cannot be moved")
    assert failing == []


def _prove(monkeypatch: pytest.MonkeyPatch, *, before: Callable[[PackRecord], object] | None = None) -> None:
    """Something happens once the file is moved, before it is proven."""
    plain = ProofBatch.prove

    def prove(batch: ProofBatch, record: PackRecord, fd: int) -> Receipt:
        if before is not None:
            before(record)
        return plain(batch, record, fd)

    monkeypatch.setattr(ProofBatch, "prove", prove)


def test_a_copy_that_is_gone_keeps_its_file_which_is_moved_back(
    lab: ForeignLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = lab.proven(FILES)

    def lose(record: PackRecord) -> None:
        if record.name == "a/1.npy":
            assert record.key is not None
            lab.objects.lose(record.key)

    _prove(monkeypatch, before=lose)
    report = lab.execute(*records)
    assert (report.files, report.freed) == (2, ["a/0.npy", "b.npy"])
    _kept(lab, report, path="a/1.npy", match=str(records[1].key))


def test_whatever_ends_the_run_in_between_leaves_the_file_in_its_place(
    lab: ForeignLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = lab.proven(FILES)
    gone: list[bool] = []

    def stop(record: PackRecord) -> None:
        gone.append(not lab.path(record.name).exists())
        raise KeyboardInterrupt

    _prove(monkeypatch, before=stop)
    with pytest.raises(KeyboardInterrupt):
        lab.execute(*records)
    assert gone == [True]
    assert _all_here(lab)
    assert lab.going() == []


def test_whoever_waits_to_write_by_another_name_keeps_the_file(
    lab: ForeignLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the copy is proven; the bytes are about to be others
    lab.proven(ONE)
    second = lab.path("second.npy")
    os.link(lab.path("b.npy"), second)
    records = lab.proven_again(ONE)
    plain = ProofBatch.prove

    def prove(batch: ProofBatch, record: PackRecord, fd: int) -> Receipt:
        receipt = plain(batch, record, fd)
        with pytest.raises(BlockingIOError):  # it breaks the lease, as an open that waits does
            os.open(second, os.O_WRONLY | os.O_NONBLOCK)
        return receipt

    monkeypatch.setattr(ProofBatch, "prove", prove)
    _kept(lab, lab.execute(*records), path="b.npy", match="somebody wants to write to it")


def _replaced_before_the_move(
    lab: ForeignLab, monkeypatch: pytest.MonkeyPatch, *, path: str, make: Callable[[Path], object]
) -> None:
    """Something else comes under the name, at the last moment there is."""
    plain, is_due = SYS.rename_new, [True]

    def rename_new(source: str, target: str, *, source_fd: int, target_fd: int) -> None:
        if source == Path(path).name and is_due and is_due.pop():
            lab.path(path).rename(lab.path("kept-elsewhere"))
            make(lab.path(path))
        plain(source, target, source_fd=source_fd, target_fd=target_fd)

    monkeypatch.setattr(SYS, "rename_new", rename_new)


def _folder_of_files(path: Path) -> None:
    path.mkdir()
    (path / "inner.npy").write_bytes(b"not ours to take")


@pytest.mark.parametrize(
    "make, is_there",
    [
        (lambda path: path.write_bytes(b"new"), lambda path: path.read_bytes() == b"new"),
        (lambda path: path.symlink_to("kept-elsewhere"), lambda path: os.readlink(path) == "kept-elsewhere"),
        (os.mkfifo, lambda path: path.is_fifo()),
        (_folder_of_files, lambda path: (path / "inner.npy").read_bytes() == b"not ours to take"),
    ],
    ids=["file", "link", "fifo", "folder"],
)
def test_whatever_came_under_the_name_is_put_back(
    lab: ForeignLab, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], object], is_there: Callable[[Path], bool]
) -> None:
    records = lab.proven(FILES)
    _replaced_before_the_move(lab, monkeypatch, path="a/1.npy", make=make)
    report = lab.execute(*records)
    assert (set(report.kept), report.files) == ({"a/1.npy"}, 2)
    assert is_there(lab.path("a/1.npy"))
    assert lab.path("kept-elsewhere").read_bytes() == FILES["a/1.npy"]
    assert (lab.going(), lab.aside()) == ([], {})


def test_another_file_under_the_name_is_told_as_such_before_anything_is_proven(
    lab: ForeignLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = lab.proven(ONE)
    proven: list[PackRecord] = []
    _prove(monkeypatch, before=proven.append)
    _replaced_before_the_move(lab, monkeypatch, path="b.npy", make=lambda path: path.write_bytes(ONE["b.npy"]))
    _kept(lab, lab.execute(*records), path="b.npy", match="another file came under its name")
    assert proven == []


def test_a_wrong_copy_ends_all_freeing(lab: ForeignLab) -> None:
    records = lab.proven(FILES)
    for record in records:
        assert record.key is not None
        lab.objects.damage(record.key, Fault.FLIP_BYTE)
    with pytest.raises(NotVerified, match="canary"):
        lab.execute(*records)
    assert _all_here(lab)


# --- what an interrupted run left ------------------------------------------------------------------------------------


def _intent(**facts: object) -> str:
    return render_json(cast(Any, facts))


def test_what_a_killed_run_had_moved_is_taken_back(lab: ForeignLab) -> None:
    lab.path("a").mkdir()
    lab.moved("00ff", b"one", intent=_intent(path="a/0.npy", key="k", digest="d"))
    lab.moved("11ff", b"two", intent=_intent(path="b.npy", receipt="r"))
    assert restore_moved(lab.place) == ["a/0.npy", "b.npy"]
    assert (lab.path("a/0.npy").read_bytes(), lab.path("b.npy").read_bytes()) == (b"one", b"two")
    assert (lab.going(), lab.aside()) == ([], {})
    assert (lab.intent("00ff"), lab.intent("11ff")) == (None, None)
    assert restore_moved(lab.place) == []


def test_a_file_whose_name_is_taken_or_whose_folder_is_gone_goes_to_quarantine(lab: ForeignLab) -> None:
    lab.path("b.npy").write_bytes(b"somebody's next one")
    lab.moved("00ff", b"one", intent=_intent(path="b.npy"))
    lab.moved("11ff", b"two", intent=_intent(path="gone/0.npy"))
    lab.moved("22ff", b"six", intent=_intent(path="../0.npy"))
    assert restore_moved(lab.place) == ["b.npy", "gone/0.npy", "../0.npy"]
    assert lab.path("b.npy").read_bytes() == b"somebody's next one"
    assert lab.aside() == {"00ff": b"one", "11ff": b"two", "22ff": b"six"}
    assert (lab.intent("00ff"), lab.intent("11ff"), lab.going()) == (None, None, [])


@pytest.mark.parametrize("intent", [None, "{", "[]", _intent(key="k"), _intent(path=7), _intent(path=None)])
def test_a_file_of_which_nobody_noted_where_it_belongs_goes_to_quarantine(lab: ForeignLab, intent: str | None) -> None:
    lab.moved("00ff", b"whose?", intent=intent)
    assert restore_moved(lab.place) == ["00ff"]
    assert (lab.aside(), lab.going(), lab.intent("00ff")) == ({"00ff": b"whose?"}, [], None)


def test_what_is_no_file_and_on_no_record_stays(lab: ForeignLab) -> None:
    going = lab.place.going.path
    (going / "folder").mkdir()
    lab.path("b.npy").write_bytes(b"whole")
    (going / "link").symlink_to(lab.path("b.npy"))
    (going / "nowhere").symlink_to("nothing")
    assert restore_moved(lab.place) == []
    assert lab.going() == ["folder", "link", "nowhere"]
    assert lab.aside() == {}


@pytest.mark.parametrize("is_taken", [False, True])
def test_a_folder_that_a_killed_run_had_moved_is_taken_back_or_stays(lab: ForeignLab, is_taken: bool) -> None:
    # it came under the name between the look and the move
    _folder_of_files(lab.place.going.path / "00ff")
    lab.place.journal.set_fact("going 00ff", _intent(path="b.npy"))
    if is_taken:
        lab.path("b.npy").write_bytes(b"somebody's next one")
    moved = restore_moved(lab.place)
    place = lab.place.going.path / "00ff" if is_taken else lab.path("b.npy")
    assert (place / "inner.npy").read_bytes() == b"not ours to take"
    assert (moved, lab.aside()) == ([] if is_taken else ["b.npy"], {})
    assert (lab.intent("00ff") is not None) is is_taken  # where it belongs is known as long as it is here


def test_a_file_that_may_be_under_both_names_already_gets_one_of_them(lab: ForeignLab) -> None:
    # killed while it was moved back
    lab.moved("00ff", b"one", intent=_intent(path="b.npy"))
    os.link(lab.place.going.path / "00ff", lab.path("b.npy"))
    assert restore_moved(lab.place) == ["b.npy"]
    assert lab.path("b.npy").read_bytes() == b"one"
    assert (lab.going(), lab.aside()) == ([], {})

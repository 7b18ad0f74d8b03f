"""Snapshots of folders: all or nothing, each content once, nothing freed without proof. Memory, no socket."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from durastore.adopt.sending import Sender
from durastore.artifacts import pushing
from durastore.artifacts.keeping import choose_older
from durastore.artifacts.lists import fetch_list, list_snapshots
from durastore.artifacts.pulling import snapshots
from durastore.artifacts.request import PushRequest
from durastore.errors import (
    ConfigError,
    CredentialsRefused,
    EndpointUnreachable,
    FormatUnsupported,
    IntegrityError,
    InvalidInput,
    InventoryIncomplete,
    NotVerified,
    ObjectAbsent,
    RootMismatch,
    StoreMissing,
)
from durastore.formats.artifact_list import ArtifactFile, ArtifactList, ArtifactName, area_of, parse_list_key
from durastore.manifest.marker_store import ensure_marker, fetch_marker
from durastore.model import Digest, ObjectKey, SampleId
from durastore.testing.faulty import Fault, FaultRule
from tests.unit.artifact_lab import PREFIX, ArtifactLab
from tests.unit.reconcile_lab import npy

FILES = {"train.py": b"print()\n", "data/tokens.bin": bytes(range(256)) * 40, "empty": b"", "ckpt-1/w.npy": npy(1)}


@pytest.fixture
def lab(tmp_path: Path) -> ArtifactLab:
    lab = ArtifactLab(tmp_path / "out")
    for path, data in FILES.items():
        lab.write(path, data)
    return lab


# --- there and back ------------------------------------------------------------------------------------------------


def test_a_folder_of_any_files_comes_back(lab: ArtifactLab, tmp_path: Path) -> None:
    report = lab.push()
    assert (report.files, report.sent, report.is_new, report.exit_code) == (4, 4, True, 0)
    pulled = lab.pull(tmp_path / "back")
    assert (pulled.written, pulled.exit_code) == (4, 0)
    assert lab.files(tmp_path / "back") == FILES
    again = lab.pull(tmp_path / "back")
    assert (again.written, again.present, again.bytes_written) == (0, 4, 0)


def test_parts_of_a_snapshot_and_earlier_ones(lab: ArtifactLab, tmp_path: Path) -> None:
    first = lab.push().snapshot
    lab.write("train.py", b"print(2)\n")
    lab.push()
    assert first is not None
    lab.pull(tmp_path / "a", patterns=("data",))
    lab.pull(tmp_path / "b", patterns=("*.py",), snapshot=first.short_digest[:6])
    lab.pull(tmp_path / "c", patterns=("train.py",), name="out")
    found = [lab.files(tmp_path / name) for name in "abc"]
    data = {"data/tokens.bin": FILES["data/tokens.bin"]}
    assert found == [data, {"train.py": b"print()\n"}, {"train.py": b"print(2)\n"}]
    with pytest.raises(InvalidInput, match="no file of the snapshot fits"):
        lab.pull(tmp_path / "d", patterns=("absent",))
    for asked, told in (({"snapshot": "zz"}, "with id zz"), ({"name": "other"}, "of 'other'")):
        with pytest.raises(StoreMissing, match=f"no such snapshot {told}"):
            lab.pull(tmp_path / "d", **asked)
    lab.push(name="second")
    with pytest.raises(StoreMissing, match="out, second"):
        lab.pull(tmp_path / "d")


def test_the_same_folder_again_is_no_new_snapshot(lab: ArtifactLab) -> None:
    first = lab.push()
    keys = (lab.bucket_keys(), lab.bucket_keys("snapshots"), lab.bucket_keys("manifest"))
    report = lab.push()
    assert (report.snapshot, report.is_new, report.sent) == (first.snapshot, False, 0)
    assert (lab.bucket_keys(), lab.bucket_keys("snapshots"), lab.bucket_keys("manifest")) == keys


def test_each_content_is_sent_once(lab: ArtifactLab, tmp_path: Path) -> None:
    lab.write("ckpt-1/tokenizer.json", b"{}" * 99)
    lab.write("ckpt-2/tokenizer.json", b"{}" * 99)
    assert lab.push().sent == 5
    lab.write("ckpt-3/tokenizer.json", b"{}" * 99)
    (lab.folder / "train.py").rename(lab.folder / "moved.py")
    os.utime(lab.folder / "data/tokens.bin")
    report = lab.push()
    assert (report.files, report.sent) == (7, 0)
    assert len(lab.bucket_keys()) == 5
    lab.pull(tmp_path / "back")
    assert lab.files(tmp_path / "back") == lab.files()


def test_content_that_the_bucket_lost_is_sent_again(lab: ArtifactLab, tmp_path: Path) -> None:
    # case B23
    lab.push()
    gone = next(key for key in lab.bucket_keys() if "tokens" in key)
    lab.objects.lose(ObjectKey(gone))
    report = lab.push()
    assert (report.sent, report.exit_code) == (1, 0)
    lab.pull(tmp_path / "back")
    assert lab.files(tmp_path / "back") == FILES


# --- all or nothing ------------------------------------------------------------------------------------------------


def test_a_file_that_is_being_written_keeps_the_snapshot_from_being_taken(lab: ArtifactLab) -> None:
    # case B37
    with (lab.folder / "data/tokens.bin").open("ab"):
        report = lab.push()
    assert (report.snapshot, report.exit_code) == (None, 3)
    assert "open for writing" in report.troubles["data/tokens.bin"]
    assert lab.lists() == []
    assert lab.push().exit_code == 0


def test_a_file_that_looks_as_it_did_and_is_open_for_writing_is_in_the_way(lab: ArtifactLab) -> None:
    """A change through a mapping shows in no time before it is written back."""
    lab.push()
    with (lab.folder / "data/tokens.bin").open("ab"):
        report = lab.push()
    assert (report.snapshot, set(report.troubles)) == (None, {"data/tokens.bin"})


def test_a_folder_has_to_be_quiet_for_as_long_as_was_asked(lab: ArtifactLab) -> None:
    now_s = lab.clock.now_ns() / 1e9
    newest = max(path.stat().st_ctime for path in lab.folder.rglob("*"))
    lab.clock.advance(max(newest - now_s, 0) + 30)
    assert set(lab.push(quiet_s=60).troubles) == set(FILES)
    lab.clock.advance(40)
    assert lab.push(quiet_s=60).exit_code == 0


@pytest.mark.parametrize("change", ["rewrite", "remove"])
def test_a_file_that_changes_before_it_is_hashed_gets_no_list(
    lab: ArtifactLab, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    real = Sender.send

    def send(self: Any, *args: Any, **named: Any) -> Any:
        if change == "rewrite":
            lab.write("train.py", b"other\n")
        else:
            (lab.folder / "empty").rename(lab.folder.parent / "empty")
        return real(self, *args, **named)

    monkeypatch.setattr(Sender, "send", send)
    report = lab.push()
    assert (report.snapshot, report.exit_code) == (None, 3)
    assert set(report.troubles) == {"train.py" if change == "rewrite" else "empty"}
    assert lab.lists() == []
    monkeypatch.undo()
    assert lab.push().files == len(lab.files())


def test_a_snapshot_is_of_the_moment_it_was_begun(
    lab: ArtifactLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training goes on while its checkpoints are sent."""
    real = Sender.send

    def send(self: Any, *args: Any, **named: Any) -> Any:
        lab.write("ckpt-2/w.npy", npy(2))
        report = real(self, *args, **named)
        lab.write("train.py", b"other\n")
        (lab.folder / "empty").rename(lab.folder.parent / "empty")
        return report

    monkeypatch.setattr(Sender, "send", send)
    assert lab.push().exit_code == 0
    lab.pull(tmp_path / "back")
    assert lab.files(tmp_path / "back") == FILES


def test_what_comes_between_two_walks_is_in_the_way(lab: ArtifactLab, monkeypatch: pytest.MonkeyPatch) -> None:
    from durastore.reconcile.local import load_local

    real, walks = load_local, []

    def load(folder: Any) -> Any:
        walks.append(1)
        found = real(folder)
        if len(walks) == 1:
            lab.write("ckpt-2/half", b"x")
        return found

    monkeypatch.setattr("durastore.artifacts.folder_state.load_local", load)
    report = lab.push()
    assert (report.snapshot, report.troubles) == (None, {"ckpt-2/half": "came meanwhile"})


@pytest.mark.parametrize("failing", ["put", "fetch", "list"])
def test_an_endpoint_that_goes_away_leaves_no_list_or_a_whole_one(
    lab: ArtifactLab, tmp_path: Path, failing: str
) -> None:
    """At every call of the push, one after the other."""
    outcomes = set()
    for nth in range(1, 60):
        lab.objects.heal()
        lab.objects.add(FaultRule(op=failing, fault=Fault.FORBIDDEN, first=nth, count=None))
        try:
            report = lab.push()
        except (CredentialsRefused, NotVerified, InventoryIncomplete):
            outcomes.add("failed")
        else:
            outcomes.add("whole" if report.snapshot is not None else "none")
        lab.objects.heal()
        for at, found in enumerate(lab.lists()):
            assert len(found.files) == 4
            snapshot = list_snapshots(lab.memory, area_of(PREFIX))[at].short_digest
            lab.pull(tmp_path / f"{nth}", snapshot=snapshot)
            assert lab.files(tmp_path / f"{nth}") == FILES
        if "whole" in outcomes:
            break
    assert "whole" in outcomes


def test_damage_and_what_cannot_be_kept_is_named_and_can_be_left_out(lab: ArtifactLab) -> None:
    # case B88
    lab.write("ckpt-2/w.npy", npy(2)[:90])
    os.mkfifo(lab.folder / "pipe")
    (lab.folder / "latest").symlink_to("ckpt-1")
    report = lab.push()
    assert report.snapshot is None
    assert set(report.troubles) == {"pipe"}
    report = lab.push(exclude=("pipe",))
    assert set(report.troubles) == {"ckpt-2/w.npy"}
    report = lab.push(exclude=("pipe", "ckpt-2/*"))
    assert (report.files, report.left_out) == (4, ("ckpt-2/w.npy", "latest", "pipe"))


def test_a_part_that_cannot_be_read_is_not_left_out_in_silence(
    lab: ArtifactLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    # case B16
    from durastore.reconcile.local import OddEntry, load_local

    real = load_local

    def load(folder: Any) -> Any:
        return replace(real(folder), unreadable=(OddEntry(path=b"data", what="Permission denied"),))

    monkeypatch.setattr("durastore.artifacts.folder_state.load_local", load)
    report = lab.push()
    assert (report.snapshot, set(report.troubles)) == (None, {"data"})


def test_what_is_no_folder_of_artifacts_is_refused(lab: ArtifactLab, tmp_path: Path) -> None:
    from durastore.objectstore.location import BucketUrl

    with pytest.raises(InvalidInput, match="not usable"):
        lab.push(name="../x")
    with pytest.raises(ConfigError, match="keep_last"):
        lab.push(keep_last=0)
    with pytest.raises(StoreMissing):
        lab.push(folder=tmp_path / "absent", name="x")
    (lab.folder / "sub").mkdir()
    lab.push()
    with pytest.raises(RootMismatch):
        lab.push(folder=lab.folder / "sub")
    inside = BucketUrl(kind="file", bucket=str(lab.folder / "bucket"))
    request = PushRequest(folder=lab.folder, bucket=inside)
    with pytest.raises(ConfigError, match="lie in one another"):
        pushing.push(request, objects=lab.objects, clock=lab.clock)


def test_another_bucket_than_before_is_refused(lab: ArtifactLab) -> None:
    # case B164
    lab.push()
    other = ArtifactLab(lab.folder)
    with pytest.raises(StoreMissing, match="sent to one") as empty:
        other.push()
    assert fetch_marker(other.objects, area_of(PREFIX)) is None, "a slip makes no store"
    ensure_marker(other.objects, area_of(PREFIX), run=None, clock=other.clock)
    with pytest.raises(InventoryIncomplete, match="another durastore") as filled:
        other.push()
    for told in (empty, filled):
        assert "a folder keeps to the durastore" in str(told.value.hint)
        assert "--local" not in str(told.value.hint)


# --- keep_last -----------------------------------------------------------------------------------------------------


def test_the_highest_numbers_of_each_kind_stay() -> None:
    names = [
        "ckpt-900/a",
        "ckpt-1000/a",
        "ckpt-1000/b",
        "ckpt-80/deep/c",
        "step7/a",
        "final/a",
        "run-3.txt",
        "12/x",
        "9/x",
    ]
    chosen = choose_older(map(SampleId, names), keep_last=1)
    assert [path.text for path in chosen] == ["9/x", "ckpt-80/deep/c", "ckpt-900/a"]
    assert [path.text for path in choose_older(map(SampleId, names), keep_last=2)] == ["ckpt-80/deep/c"]


def test_older_checkpoints_leave_this_disk_and_stay_in_the_snapshots(lab: ArtifactLab, tmp_path: Path) -> None:
    for number in (2, 3):
        lab.write(f"ckpt-{number}/w.npy", npy(number))
        lab.write(f"ckpt-{number}/tokenizer.json", b"{}" * 50)
    everything = lab.files()
    report = lab.push(keep_last=1)
    assert (report.freed, report.kept, report.exit_code) == (3, {}, 0)
    assert set(lab.files()) == set(everything) - {"ckpt-1/w.npy", "ckpt-2/w.npy", "ckpt-2/tokenizer.json"}
    lab.write("ckpt-4/w.npy", npy(4))
    report = lab.push(keep_last=1)
    assert (report.carried, report.files, report.freed) == (3, len(everything) + 1, 2)
    lab.pull(tmp_path / "back")
    assert lab.files(tmp_path / "back") == {**everything, "ckpt-4/w.npy": npy(4)}


def test_what_was_freed_stays_in_the_snapshots_beside_another_folder_of_that_name(
    lab: ArtifactLab, tmp_path: Path
) -> None:
    lab.write("ckpt-2/w.npy", npy(2))
    assert lab.push(keep_last=1).freed == 1
    assert lab.push(folder=_other(tmp_path)).is_new
    report = lab.push()
    assert (report.carried, report.files) == (1, 5)
    lab.pull(tmp_path / "back")
    assert lab.files(tmp_path / "back")["ckpt-1/w.npy"] == FILES["ckpt-1/w.npy"]


def test_what_was_freed_stays_in_the_snapshots_under_another_name(lab: ArtifactLab, tmp_path: Path) -> None:
    lab.write("ckpt-2/w.npy", npy(2))
    assert lab.push(keep_last=1).freed == 1
    assert lab.push(name="second").carried == 1
    lab.pull(tmp_path / "back", name="second")
    assert lab.files(tmp_path / "back")["ckpt-1/w.npy"] == FILES["ckpt-1/w.npy"]


def test_what_was_freed_stays_in_the_snapshots_of_a_folder_that_lost_its_record(
    lab: ArtifactLab, tmp_path: Path
) -> None:
    lab.write("ckpt-2/w.npy", npy(2))
    assert lab.push(keep_last=1).freed == 1
    lab.write("new.txt", b"so that a list says what was freed")
    lab.push()
    (lab.folder / ".durastore").rename(tmp_path / "lost")
    report = lab.push()
    assert (report.carried, report.is_new) == (1, False)


def test_no_snapshot_is_taken_where_the_last_one_cannot_be_read(lab: ArtifactLab, tmp_path: Path) -> None:
    lab.write("ckpt-2/w.npy", npy(2))
    first = lab.push(keep_last=1).snapshot
    assert first is not None
    lab.push(folder=_other(tmp_path))
    lab.objects.lose(first.key)
    with pytest.raises(ObjectAbsent):
        lab.push()


def _other(tmp_path: Path) -> Path:
    folder = tmp_path / "elsewhere/out"
    folder.mkdir(parents=True)
    (folder / "x.txt").write_bytes(b"of another run")
    return folder


def test_what_somebody_else_took_away_leaves_the_snapshots(lab: ArtifactLab) -> None:
    lab.push()
    (lab.folder / "train.py").rename(lab.folder.parent / "train.py")
    report = lab.push()
    assert (report.files, report.carried) == (3, 0)


def test_a_checkpoint_that_was_freed_and_is_made_anew_is_the_new_one(lab: ArtifactLab, tmp_path: Path) -> None:
    lab.write("ckpt-2/w.npy", npy(2))
    lab.push(keep_last=1)
    lab.write("ckpt-1/w.npy", npy(77))
    report = lab.push()
    assert report.carried == 0
    lab.pull(tmp_path / "back")
    assert lab.files(tmp_path / "back")["ckpt-1/w.npy"] == npy(77)


def test_a_copy_that_is_wrong_frees_nothing(lab: ArtifactLab) -> None:
    # case B61
    lab.write("ckpt-2/w.npy", npy(2))
    lab.push()
    key = ObjectKey(next(key for key in lab.bucket_keys() if "ckpt-1" in key))
    data = bytearray(lab.memory.fetch(key))
    data[-1] ^= 1
    lab.memory.put(key, bytes(data), crc64nvme=None, metadata={})
    report = lab.push(keep_last=1)
    assert (report.freed, set(report.kept), report.exit_code) == (0, {"ckpt-1/w.npy"}, 13)
    assert lab.files()["ckpt-1/w.npy"] == FILES["ckpt-1/w.npy"]


def test_an_interrupted_free_is_taken_back(lab: ArtifactLab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.write("ckpt-2/w.npy", npy(2))
    lab.push()
    lab.objects.add(FaultRule(op="head", fault=Fault.DROP_REQUEST, first=8, count=None))
    with pytest.raises((EndpointUnreachable, NotVerified)):
        lab.push(keep_last=1)
    lab.objects.heal()
    assert lab.files()["ckpt-1/w.npy"] == FILES["ckpt-1/w.npy"]
    assert lab.push(keep_last=1).freed == 1


# --- lists ---------------------------------------------------------------------------------------------------------


def _list(**changes: Any) -> ArtifactList:
    file = ArtifactFile(
        path=SampleId("a/b"),
        size_bytes=3,
        digest=Digest.of(b"abc"),
        key=ObjectKey("p/artifacts/files/x"),
        segment=ObjectKey("p/artifacts/manifest/y"),
    )
    values: dict[str, Any] = {"name": ArtifactName("run"), "seq": 7, "created_ns": 5, "host": "h", "files": (file,)}
    return ArtifactList(**{**values, **changes})


def test_a_list_reads_back_and_nothing_else_is_one() -> None:
    area = "p/artifacts"
    content = _list()
    assert ArtifactList.parse(content.render(area), area=area) == content
    assert b"p/artifacts" not in content.render(area)
    text = content.render(area).decode()
    bent: list[tuple[str, Callable[[str], str]]] = [
        ("a/b", lambda found: "../b".join(text.split(found))),
        ("files/x", lambda found: "../../x".join(text.split(found))),
        (Digest.of(b"abc").hex, lambda found: "00".join(text.split(found))),
        (",3,", lambda found: ",-3,".join(text.split(found))),
        ("true", lambda found: "1".join(text.split(found))),
        ('"seq":7', lambda found: '"seq":"7"'.join(text.split(found))),
        ('"name":"run"', lambda found: '"name":"../run"'.join(text.split(found))),
    ]
    for found, bend in bent:
        assert found in text
        with pytest.raises(IntegrityError):
            ArtifactList.parse(bend(found).encode(), area=area)
    with pytest.raises(IntegrityError, match="twice"):
        ArtifactList.parse(_list(files=content.files * 2).render(area), area=area)
    with pytest.raises(FormatUnsupported):
        ArtifactList.parse("2.0".join(text.split("1.0")).encode(), area=area)
    for broken in (b"", b"[]", b"{}", text.encode()[:-1]):
        with pytest.raises((IntegrityError, FormatUnsupported)):
            ArtifactList.parse(broken, area=area)


def test_keys_of_lists_are_told_from_all_others(lab: ArtifactLab) -> None:
    snapshot = lab.push().snapshot
    assert snapshot is not None
    area = area_of(PREFIX)
    assert parse_list_key(area, snapshot.key) == snapshot
    assert area_of("") == "artifacts"
    for other in (f"{snapshot.key}x", f"x{snapshot.key}", f"{area}/snapshots/a/b/000000000001-{'0' * 16}.json"):
        assert parse_list_key(area, ObjectKey(other)) is None


def test_a_damaged_list_is_told_and_hides_no_other(lab: ArtifactLab, tmp_path: Path) -> None:
    first = lab.push().snapshot
    lab.write("more", b"x")
    second = lab.push().snapshot
    assert first is not None
    assert second is not None
    data = bytearray(lab.memory.fetch(second.key))
    data[20] ^= 1
    lab.memory.put(second.key, bytes(data), crc64nvme=None, metadata={})
    shown = list(snapshots(lab.memory, PREFIX))
    assert [each.content is None for each in shown] == [False, True]
    assert "does not match" in shown[1].fault
    with pytest.raises(IntegrityError):
        lab.pull(tmp_path / "back")
    with pytest.raises(IntegrityError):
        fetch_list(lab.memory, second, area=area_of(PREFIX))
    lab.pull(tmp_path / "back", snapshot=first.short_digest)
    assert lab.files(tmp_path / "back") == FILES


def test_damage_in_the_bucket_makes_no_file(lab: ArtifactLab, tmp_path: Path) -> None:
    lab.push()
    key = ObjectKey(next(key for key in lab.bucket_keys() if "tokens" in key))
    data = bytearray(lab.memory.fetch(key))
    data[0] ^= 1
    lab.memory.put(key, bytes(data), crc64nvme=None, metadata={})
    report = lab.pull(tmp_path / "back")
    assert ([each.id for each in report.failed], report.exit_code) == (["data/tokens.bin"], 3)
    assert (tmp_path / "back/ckpt-1/w.npy").read_bytes() == FILES["ckpt-1/w.npy"]
    assert not (tmp_path / "back/data/tokens.bin").exists()


def test_a_file_that_is_there_is_never_written_over(lab: ArtifactLab, tmp_path: Path) -> None:
    # case B15
    lab.push()
    (tmp_path / "back").mkdir()
    (tmp_path / "back/train.py").write_bytes(b"mine")
    report = lab.pull(tmp_path / "back")
    assert [each.id for each in report.failed] == ["train.py"]
    assert (tmp_path / "back/train.py").read_bytes() == b"mine"


def test_nothing_of_it_is_a_sample(lab: ArtifactLab) -> None:
    from durastore.manifest.snapshot import fetch_snapshot

    lab.push()
    assert fetch_snapshot(lab.memory, PREFIX).segments == ()
    assert np.load(lab.folder / "ckpt-1/w.npy").shape == (40,)

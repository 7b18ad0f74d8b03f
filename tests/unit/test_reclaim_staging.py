"""The staging door: a server's file goes once its sample is durable or its request dead, and stays in every doubt."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from durastore.clock import SYSTEM_CLOCK
from durastore.errors import ConfigError, FormatUnsupported
from durastore.formats.spool_root import ROOT_MARKER_NAME
from durastore.formats.staging import GOING_NAME, STAGING_MARKER_NAME, render_request, request_in
from durastore.fsio.identity import identify
from durastore.fsio.relocate import relocate_shared
from durastore.fsio.sys import SYS
from durastore.model import Digest
from durastore.reclaim import staging as door
from durastore.reclaim.staging import StagedFile, StagingFolder
from durastore.verify.staged import verify_ingested

SERVED = Digest("0" * 32)
NAME = "a.safetensors"


def opened(path: Path, *, served: Digest = SERVED) -> StagingFolder:
    return StagingFolder.open(path, served=served, clock=SYSTEM_CLOCK)


@pytest.fixture
def staging(tmp_path: Path) -> Iterator[StagingFolder]:
    folder = opened(tmp_path / "staging")
    yield folder
    folder.close()


def written(staging: StagingFolder, path: str = NAME, data: bytes = b"states") -> StagedFile:
    """A file and its lock, as a server leaves them, after it was parsed."""
    file = staging.path / path
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(data)
    file.with_name(file.name + ".lock").touch()
    return parsed(staging, path)


def parsed(staging: StagingFolder, path: str = NAME) -> StagedFile:
    fd = staging.open_read(path)
    try:
        return StagedFile(path=path, identity=identify(fd))
    finally:
        os.close(fd)


def yes() -> bool:
    return True


def is_whole(staging: StagingFolder, data: bytes = b"states") -> bool:
    moved = list((staging.path / GOING_NAME).iterdir())
    return (staging.path / NAME).read_bytes() == data and not moved


def test_a_file_goes_with_its_lock_once_its_sample_is_durable(staging: StagingFolder) -> None:
    staged, other = written(staging), written(staging, "b.safetensors")
    asked: list[bool] = []

    def holds() -> bool:
        asked.append((staging.path / NAME).exists())
        return True

    assert staging.free(staged, holds=holds) == len(b"states")
    assert asked == [True, False]  # before it is moved, and when nobody can reach it any more
    assert staging.names() == ["b.safetensors", "b.safetensors.lock"]
    assert not any((staging.path / GOING_NAME).iterdir())
    assert parsed(staging, "b.safetensors") == other


def test_what_the_store_does_not_hold_stays(staging: StagingFolder) -> None:
    staged = written(staging)
    assert staging.free(staged, holds=lambda: False) is None
    answers = iter([True, False])  # lost between the two looks
    assert staging.free(staged, holds=lambda: next(answers)) is None
    assert is_whole(staging)


def _grown(file: Path) -> None:
    with file.open("ab") as stream:
        stream.write(b"more")


def _rewritten(file: Path) -> None:
    file.write_bytes(b"STATES")


def _rewritten_in_secret(file: Path) -> None:
    stat = file.stat()
    file.write_bytes(b"STATES")
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def _replaced(file: Path) -> None:
    data = file.read_bytes()
    file.rename(file.with_name("old"))
    file.write_bytes(data)


@pytest.mark.parametrize("change", [_grown, _rewritten, _rewritten_in_secret, _replaced])
def test_a_file_that_is_no_longer_what_was_parsed_stays(staging: StagingFolder, change: Callable[[Path], None]) -> None:
    staged = written(staging)
    change(staging.path / NAME)
    now = (staging.path / NAME).read_bytes()
    assert staging.free(staged, holds=yes) is None
    assert is_whole(staging, now)


def test_a_file_that_comes_under_the_name_at_the_last_moment_stays(
    staging: StagingFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = written(staging)
    plain = relocate_shared

    def late(*args: object, **more: object) -> None:
        _replaced(staging.path / NAME)
        plain(*args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(door, "relocate_shared", late)
    assert staging.free(staged, holds=yes) is None
    assert is_whole(staging)


def test_a_file_that_is_being_written_stays(staging: StagingFolder) -> None:
    # case B37
    staged = written(staging)
    with (staging.path / NAME).open("r+b"):
        assert staging.free(staged, holds=yes) is None
    lock = os.open(staging.path / f"{NAME}.lock", os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    assert staging.free(staged, holds=yes) is None
    assert staging.reap(NAME, is_dead=yes) is None
    assert staging.reap(f"{NAME}.lock", is_dead=yes) is None
    assert is_whole(staging)
    os.close(lock)
    assert staging.free(staged, holds=yes) == len(b"states")


def test_another_name_of_the_file_keeps_every_byte(staging: StagingFolder, tmp_path: Path) -> None:
    # case B35
    staged = written(staging)
    os.link(staging.path / NAME, tmp_path / "kept")
    staged = parsed(staging)
    assert staging.free(staged, holds=yes) == len(b"states")
    assert (tmp_path / "kept").read_bytes() == b"states"


def test_a_link_and_a_folder_under_the_name_stay(staging: StagingFolder, tmp_path: Path) -> None:
    staged = written(staging)
    (staging.path / NAME).rename(tmp_path / "elsewhere")
    (staging.path / NAME).symlink_to(tmp_path / "elsewhere")
    assert staging.free(staged, holds=yes) is None
    assert staging.reap(NAME, is_dead=yes) is None
    assert (tmp_path / "elsewhere").read_bytes() == b"states"


def test_entries_that_are_folders_go_when_they_are_empty(staging: StagingFolder) -> None:
    one, two = written(staging, "req_1/hidden.pt"), written(staging, "req_1/ids.pt")
    assert staging.free(one, holds=yes) is not None
    assert not staging.drop_entry("req_1")
    assert staging.files_of("req_1") == ["req_1/ids.pt", "req_1/ids.pt.lock"]
    assert staging.free(two, holds=yes) is not None
    assert staging.drop_entry("req_1")
    assert staging.names() == []
    (staging.path / "file").touch()
    assert not staging.drop_entry("file")
    assert staging.names() == ["file"]


def test_only_dead_requests_are_reaped(staging: StagingFolder) -> None:
    written(staging)
    assert staging.reap(NAME, is_dead=lambda: False) is None
    answers = iter([True, False])  # answered after all
    assert staging.reap(NAME, is_dead=lambda: next(answers)) is None
    assert is_whole(staging)
    assert staging.reap(NAME, is_dead=yes) == len(b"states")
    assert staging.names() == []


_LIVES = """
import sys, time
from pathlib import Path
from durastore.clock import SYSTEM_CLOCK
from durastore.model import Digest
from durastore.reclaim.staging import StagingFolder
folder = StagingFolder.open(Path(sys.argv[1]), served=Digest("0" * 32), clock=SYSTEM_CLOCK)
sys.stdout.write(folder.session + "\\n")
sys.stdout.flush()
time.sleep(600)
"""


def test_the_folders_own_files_never_go(staging: StagingFolder) -> None:
    own = [STAGING_MARKER_NAME, f".durastore-session-{staging.session}", f"{GOING_NAME}/x"]
    (staging.path / GOING_NAME / "x").write_bytes(b"of another session")
    assert [staging.reap(path, is_dead=yes) for path in own] == [None, None, None]
    assert [staging.free(parsed(staging, path), holds=yes) for path in own] == [None, None, None]
    assert all((staging.path / path).exists() for path in own)


def test_the_kernel_says_whether_a_session_has_ended(staging: StagingFolder) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _LIVES, str(staging.path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        assert process.stdout is not None
        theirs = process.stdout.readline().strip()
        moved = staging.path / GOING_NAME / f"{theirs}-0123456789abcdef"
        moved.write_bytes(b"states")
        assert not staging.is_ended(theirs)
        assert staging.reap_moved() == 0
        assert moved.exists()
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert staging.is_ended(theirs)
    assert not staging.is_ended(staging.session)
    assert not staging.is_ended("f" * 16)  # never here, so nobody knows
    (staging.path / GOING_NAME / f"{staging.session}-0123456789abcdef").write_bytes(b"ours")
    assert staging.reap_moved() == len(b"states")
    assert [path.read_bytes() for path in (staging.path / GOING_NAME).iterdir()] == [b"ours"]


def test_names_tell_whose_request_they_are_of() -> None:
    session = "0123456789abcdef"
    request = render_request(session, 17)
    for name in (f"cmpl-{request}-0-1a2b3c4d.safetensors", f"req_{request}", f"{request}.pt.lock"):
        assert request_in(name) == (session, request)
    for name in ("cmpl-0123-0-1a2b3c4d.safetensors", f"words-{request[3:]}", f"ds-{session[:-1]}-1", "ds-x-1"):
        assert request_in(name) is None


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "precious.safetensors").write_bytes(b"x")
    with pytest.raises(ConfigError, match="no staging folder"):
        opened(tmp_path / "data")
    assert os.listdir(tmp_path / "data") == ["precious.safetensors"]
    opened(tmp_path / "mine").close()
    opened(tmp_path / "mine").close()
    with pytest.raises(ConfigError, match="another model"):
        opened(tmp_path / "mine", served=Digest("1" * 32))
    (tmp_path / ROOT_MARKER_NAME).touch()
    with pytest.raises(ConfigError, match="spool root"):
        opened(tmp_path / "mine")
    (tmp_path / ROOT_MARKER_NAME).unlink()
    marker = tmp_path / "mine" / STAGING_MARKER_NAME
    marker.write_text("{}", encoding="utf-8")
    with pytest.raises(ConfigError, match="damaged"):
        opened(tmp_path / "mine")
    marker.write_text(json.dumps({"format": 2, "served": SERVED.hex}), encoding="utf-8")
    with pytest.raises(FormatUnsupported):
        opened(tmp_path / "mine")


def test_an_error_at_any_step_leaves_every_byte_under_a_name(
    staging: StagingFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own name, or one in the private folder where no way back was."""
    for call in ("rename_new", "fsync", "link", "unlink"):
        staged = written(staging)
        with monkeypatch.context() as patch:
            patch.setattr(type(SYS), call, _refuse)
            if call == "link":  # on the way back
                patch.setattr(door, "verify_ingested", _refuse)
            assert staging.free(staged, holds=yes) is None
        left = [staging.path / NAME, *(staging.path / GOING_NAME).iterdir()]
        assert b"states" in [path.read_bytes() for path in left if path.exists()], call
        for path in (staging.path / GOING_NAME).iterdir():
            path.rename(staging.path / NAME)


def _refuse(*_: object, **__: object) -> None:
    raise OSError(5, "planned")


def test_a_receipt_is_good_for_its_file_only(staging: StagingFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    staged = written(staging)
    plain = verify_ingested

    def minted_for_another(*args: object, **more: object) -> object:
        receipt = plain(*args, **more)  # type: ignore[arg-type]
        for path in (staging.path / GOING_NAME).iterdir():
            os.utime(path, ns=(0, 0))  # an open for writing would wait for the lease
        return receipt

    monkeypatch.setattr(door, "verify_ingested", minted_for_another)
    assert staging.free(staged, holds=yes) is None
    assert is_whole(staging)

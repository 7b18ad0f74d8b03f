"""The delete guard bites: library code that takes a name away below a spool root is stopped, and the bytes stay."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType

import pytest

from durastore.formats.spool_root import ROOT_MARKER_NAME
from durastore.fsio.folder import Folder
from durastore.fsio.publish import publish
from durastore.fsio.relocate import relocate
from durastore.fsio.sys import SYS
from tests.delete_guard import REPO, DeleteGuard


@contextmanager
def _held(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        yield fd
    finally:
        os.close(fd)


def _as_library(source: str, *, module: str = "durastore/spool/planted.py") -> Callable[[Path], None]:
    """A function `act(path)` that the interpreter believes to stand in `module` of the library."""
    space: dict[str, object] = {"os": os, "shutil": shutil, "SYS": SYS, "held": _held}
    exec(compile(source, str(REPO / module), "exec"), space)  # noqa: S102 - the planted mistake is this test's own text
    act = space["act"]
    assert isinstance(act, FunctionType)
    return act


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "w-01" / "packs").mkdir(parents=True)
    (root / ROOT_MARKER_NAME).write_text("{}")
    file = root / "w-01" / "packs" / "000001.tar"
    file.write_bytes(b"the only copy")
    return file


MISTAKES = {
    "unlink": "def act(path): os.unlink(path)",
    "unlink by folder": "def act(path):\n with held(path.parent) as fd: os.unlink(path.name, dir_fd=fd)",
    "pathlib": "def act(path): path.unlink()",
    "rename away": "def act(path): path.rename(path.with_suffix('.old'))",
    "replace": "def act(path):\n os.link(path, f'{path}.2')\n os.replace(f'{path}.2', path)",
    "truncate": "def act(path): os.truncate(path, 0)",
    "ftruncate": "def act(path):\n with held(path) as fd: os.ftruncate(fd, 3)",
    "open for writing": "def act(path): path.open('wb')",
    "write_bytes": "def act(path): path.write_bytes(b'')",
    "rmtree": "def act(path): shutil.rmtree(path.parents[2])",
    "move": "def act(path): shutil.move(path, path.parents[3] / 'elsewhere')",
    "system calls": "def act(path):\n with held(path.parent) as fd: SYS.unlink(path.name, dir_fd=fd)",
}


@pytest.mark.parametrize("source", MISTAKES.values(), ids=MISTAKES.keys())
def test_library_code_is_stopped_and_the_bytes_stay(source: str, pack: Path, delete_guard: DeleteGuard) -> None:
    with pytest.raises(PermissionError, match="delete guard"):
        _as_library(source)(pack)
    breaches = delete_guard.take_breaches()
    assert len(breaches) == 1
    assert "durastore/spool/planted.py" in breaches[0].caller
    assert pack.read_bytes() == b"the only copy"


def test_a_background_thread_is_stopped_too(pack: Path, delete_guard: DeleteGuard) -> None:
    act = _as_library("def act(path):\n try: os.unlink(path)\n except OSError: pass")
    thread = threading.Thread(target=act, args=(pack,))
    thread.start()
    thread.join()
    assert [breach.event for breach in delete_guard.take_breaches()] == ["os.remove"]
    assert pack.exists()


def test_a_thread_without_any_known_code_is_stopped(pack: Path, delete_guard: DeleteGuard) -> None:
    with ThreadPoolExecutor(max_workers=1) as executor:
        failure = executor.submit(os.unlink, pack).exception()
    assert isinstance(failure, PermissionError)
    assert [breach.caller for breach in delete_guard.take_breaches()] == ["no known code"]
    assert pack.exists()


def test_the_doors_and_the_test_itself_pass(pack: Path, delete_guard: DeleteGuard) -> None:
    quarantine = pack.parents[1] / "quarantine"
    quarantine.mkdir()
    with Folder.open(pack.parent) as packs, Folder.open(quarantine) as target:
        publish(packs, "000002.tar", chunks=[b"another"])
        relocate(packs, "000002.tar", target=target, new_name="000002.tar")
        assert target.names() == ["000002.tar"]
    act = _as_library("def act(path): os.unlink(path)", module="durastore/reclaim/_unlink.py")
    act(pack)
    (quarantine / "000002.tar").unlink()
    assert delete_guard.take_breaches() == []


def test_outside_a_spool_root_nothing_is_watched(tmp_path: Path, delete_guard: DeleteGuard) -> None:
    file = tmp_path / "scratch"
    file.write_bytes(b"x")
    _as_library("def act(path): os.unlink(path)")(file)
    with tempfile.TemporaryDirectory(dir=tmp_path) as folder:
        shutil.copy(__file__, folder)
    assert delete_guard.take_breaches() == []
    assert not file.exists()

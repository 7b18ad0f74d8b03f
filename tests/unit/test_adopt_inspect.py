"""Whole files of known formats pass; what a full disk or a crash leaves of them does not."""

from __future__ import annotations

import ast
import os
import pickle
import threading
import time
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch

from durastore.adopt.inspect import Fault, find_fault, is_data


def _safetensors(path: Path) -> None:
    safetensors.numpy.save_file({"a": np.arange(5_000, dtype=np.float32) + 1, "b": np.ones((3, 3), np.int8)}, path)


def _torch(path: Path) -> None:
    torch.save({"h": torch.arange(5_000.0) + 1, "meta": {"n": 1}}, path)


def _npz(path: Path) -> None:
    np.savez(path, a=np.arange(5_000.0), b=np.ones(3))


def _npy(path: Path) -> None:
    np.save(path, np.arange(5_000, dtype=np.float64) + 1)


WHOLE = {".safetensors": _safetensors, ".pt": _torch, ".pth": _torch, ".npz": _npz, ".npy": _npy}


def _damage(path: Path) -> str | None:
    fault = _fault(path)
    assert fault is None or fault.is_damage, fault
    return fault.reason if fault is not None else None


def _oddity(path: Path) -> str:
    fault = _fault(path)
    assert fault is not None
    assert not fault.is_damage
    return fault.reason


@pytest.mark.parametrize("suffix", WHOLE)
def test_a_whole_file_passes_and_no_shorter_or_longer_one_does(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x{suffix}"
    WHOLE[suffix](path)
    data = path.read_bytes()
    assert is_data(path.name)
    assert _damage(path) is None
    for size in {0, 1, 7, 8, 9, 100, len(data) // 2, len(data) - 30, len(data) - 1}:
        path.write_bytes(data[:size])
        assert _damage(path) is not None, size
    path.write_bytes(bytes(len(data)))
    assert _damage(path) is not None


def _fault(path: Path) -> Fault | None:
    fd = os.open(path, os.O_RDONLY)
    try:
        return find_fault(fd, path.name)
    finally:
        os.close(fd)


def _suspicion(path: Path) -> str:
    fault = _fault(path)
    assert fault is not None
    assert (fault.is_damage, fault.is_suspect) == (False, True)
    return fault.reason


def _save(path: Path, values: np.ndarray[Any, Any], *, data_at: int) -> None:
    """One array whose bytes begin at that place of a page, as a header of just that length makes it."""
    if path.suffix == ".npy":
        np.save(path, values)  # 128 bytes of header, always
        return
    plain = len(safetensors.numpy.save({"h": values}, {"pad": ""})) - values.nbytes
    pad = (data_at - plain) % 4096
    safetensors.numpy.save_file({"h": values}, path, {"pad": " " * pad})
    assert (path.stat().st_size - values.nbytes) % 4096 == data_at


@pytest.mark.parametrize("suffix", [".safetensors", ".npy"])
def test_pages_that_were_never_written_are_found_and_zeros_that_are_data_are_not(tmp_path: Path, suffix: str) -> None:
    # case B88, case B79
    path = tmp_path / f"x{suffix}"
    WHOLE[suffix](path)
    data = path.read_bytes()
    path.write_bytes(data[:8192])
    os.truncate(path, len(data))  # what a crash leaves where the size was recorded before the pages
    assert "which nobody ever wrote" in str(_damage(path))
    path.write_bytes(data[:9000] + bytes(len(data) - 9000))
    assert _damage(path) is None


def test_pages_that_were_allocated_and_never_written_are_found(tmp_path: Path) -> None:
    # case B88
    path = tmp_path / "x.npy"
    _npy(path)
    data = path.read_bytes()
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, len(data))
        file.write(data[:8192])
    assert "which nobody ever wrote" in str(_damage(path))


@pytest.mark.parametrize("suffix", [".safetensors", ".npy"])
def test_a_padded_batch_that_ends_at_a_page_is_no_damage(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x{suffix}"
    values = np.random.default_rng(3).standard_normal((96, 1024)).astype(np.float32)  # a row is a page
    values[40:] = 0.0
    values[:40, -16:] = 0.0 if suffix == ".npy" else 1.0
    _save(path, values, data_at=0)
    if suffix == ".npy":  # its header is 128 bytes long: rows never end at a page's edge, but for their own zeros
        assert _fault(path) is None
    else:
        assert "data, or pages that a crash lost" in _suspicion(path)


def test_a_mask_that_ends_at_a_page_is_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    mask = np.zeros((1, 8192), dtype=np.int64)
    mask[0, : (8192 - 128) // 8] = 1
    np.save(path, mask)
    assert "data, or pages that a crash lost" in _suspicion(path)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("suffix", [".safetensors", ".npy"])
def test_a_row_torn_at_a_page_is_damage(tmp_path: Path, suffix: str, dtype: type[np.generic]) -> None:
    # case B88: copied to another disk, lost pages are zeros like all others
    path = tmp_path / f"x{suffix}"
    values = np.random.default_rng(3).standard_normal((96, 1000)).astype(dtype)
    _save(path, values, data_at=128)
    data = path.read_bytes()
    path.write_bytes(data[: 4096 * 9] + bytes(len(data) - 4096 * 9))
    assert "from the middle of a row" in str(_damage(path))


def test_rows_that_all_end_in_zeros_are_not_torn(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    values = np.random.default_rng(3).standard_normal((20, 2048)).astype(np.float32)
    values[:, 1024:] = 0.0  # a padded width, and the first half of a row ends at a page's edge
    values[9:] = 0.0
    _save(path, values, data_at=0)
    _suspicion(path)


def _archive(path: Path, size_bytes: int) -> int:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data", bytes([1]) * size_bytes)
    return path.stat().st_size


def test_zeros_behind_a_whole_archive_are_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    _archive(path, 8_000 - _archive(path, 8_000) % 4096)
    assert path.stat().st_size % 4096 == 0
    with path.open("ab") as file:
        file.write(bytes(8192))
    _oddity(path)
    torch.save({"h": torch.zeros(50_000)}, path)  # nothing but zeros: its directory says that it is whole
    assert _damage(path) is None
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2] + bytes(len(data) - len(data) // 2))
    assert "zip directory" in str(_damage(path))


def test_an_old_pickle_of_torch_is_taken_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "old.pt"
    torch.save({"h": torch.ones(100)}, path, _use_new_zipfile_serialization=False)
    assert path.read_bytes().startswith(pickle.dumps(0)[:1])
    assert _damage(path) is None


def test_arrays_of_other_kinds(tmp_path: Path) -> None:
    makers: dict[str, Callable[[], np.ndarray[Any, Any]]] = {
        "scalar": lambda: np.array(3.0),
        "empty": lambda: np.empty((0, 4)),
        "text": lambda: np.array(["ab", "cde"]),
        "bool": lambda: np.ones(9, dtype=np.bool_),
    }
    for name, make in makers.items():
        np.save(tmp_path / f"{name}.npy", make())
        assert _damage(tmp_path / f"{name}.npy") is None, name


def test_a_member_that_is_not_where_the_directory_says(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    _torch(path)
    data = bytearray(path.read_bytes())
    data[0:4] = bytes(4)
    path.write_bytes(bytes(data))
    assert _damage(path) is not None


def test_arrays_are_looked_into_by_many_threads_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Python's parser of literals raised SystemError where two threads were in it
    path = tmp_path / "a.npy"
    np.save(path, np.zeros((3, 4)))
    inside = threading.Lock()
    plain = ast.literal_eval

    def alone(text: str) -> object:
        if not threading.current_thread().name.startswith("looking"):
            return plain(text)  # some other test's thread, which has nothing to do with this
        assert inside.acquire(blocking=False), "two threads at once"
        try:
            return plain(text)
        finally:
            time.sleep(0.001)
            inside.release()

    monkeypatch.setattr(ast, "literal_eval", alone)

    def look(_: int) -> Fault | None:
        fd = os.open(path, os.O_RDONLY)
        try:
            return find_fault(fd, path.name)
        finally:
            os.close(fd)

    with ThreadPoolExecutor(8, thread_name_prefix="looking") as pool:
        assert list(pool.map(look, range(64))) == [None] * 64


def test_other_suffixes_are_no_data() -> None:
    assert [name for name in ("a.txt", "a.pt.tmp", "pt", "a.bin", ".npy", "A.PT") if is_data(name)] == []


@pytest.mark.parametrize("suffix", [".safetensors", ".npy"])
@pytest.mark.parametrize("more", [b"more", bytes(20_000)])
def test_bytes_behind_the_data_are_no_damage(tmp_path: Path, suffix: str, more: bytes) -> None:
    path = tmp_path / f"x{suffix}"
    WHOLE[suffix](path)
    path.write_bytes(path.read_bytes() + more)
    assert f"{len(more)} bytes more" in _oddity(path)


@pytest.mark.parametrize("suffix", WHOLE)
def test_another_format_under_the_suffix_is_no_damage(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x{suffix}"
    path.write_bytes(b"something else altogether")
    _oddity(path)
    path.write_bytes(b"x" * 8192 + bytes(8192))
    _oddity(path)

"""The local digest is of every byte behind the descriptor, wherever its position stands."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from durastore.model import Digest
from durastore.verify import local
from durastore.verify.local import digest_of


@pytest.mark.parametrize("size", [0, 1, 16, 17, 160])
def test_every_byte_counts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(local, "_BLOCK_BYTES", 16)
    data = bytes(range(size))
    (tmp_path / "pack").write_bytes(data)
    fd = os.open(tmp_path / "pack", os.O_RDONLY)
    try:
        os.lseek(fd, 5, os.SEEK_SET)
        assert digest_of(fd) == Digest.of(data) == digest_of(fd)
        assert os.lseek(fd, 0, os.SEEK_CUR) == 5
    finally:
        os.close(fd)

"""Packs read by WebDataset: the code of the page runs as it stands, but for the names of the place."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import durastore
from durastore.errors import IntegrityError
from durastore.integrations.members import decode_member
from tests.architecture.source_tree import REPO
from tests.integration.export_lab import hurry

_IDS = ["a/doc", "a/v1.5", "b%c", "plain"]


def _fill(bucket: Path, spool: Path) -> dict[str, torch.Tensor]:
    """States that compress, so that a member has to be decoded."""
    states = {name: torch.full((300, 64), at + 0.5) for at, name in enumerate(_IDS)}
    place: dict[str, Any] = {"local": spool, "is_any_filesystem_allowed": True, "reclaim": "never"}
    with durastore.open(str(bucket), run={"layers": [1]}, **place) as store:
        for name, tensor in states.items():
            store.put(name, {"hidden_states": tensor, "input_ids": np.arange(300)}, meta={"name": name})
        store.flush()
    return states


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it leaves its shards open
def test_the_code_of_the_page_gives_every_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("webdataset", reason="pip install webdataset")
    hurry(monkeypatch)
    (tmp_path / "bucket/states").mkdir(parents=True)
    states = _fill(tmp_path / "bucket/states", tmp_path / "spool")
    text = (REPO / "docs/operations/integrations.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert "/mnt/bucket" in block
    space: dict[str, Any] = {}
    code = re.sub("/mnt/bucket", str(tmp_path / "bucket"), block)
    exec(compile(code, "integrations.md", "exec"), space)  # noqa: S102 - our own documentation
    assert sorted(space["keys"]) == ["a/doc", "a/v1%2E5", "b%25c", "plain"]
    found = {sample.id: sample for sample in space["samples"]}
    assert found.keys() == states.keys()
    for name, tensor in states.items():
        assert found[name].tensors["hidden_states"].equal(tensor)
        assert found[name].meta == {"name": name}


def test_a_member_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # case B73
    import tarfile

    hurry(monkeypatch)
    (tmp_path / "bucket").mkdir()
    states = _fill(tmp_path / "bucket", tmp_path / "spool")
    (pack,) = (tmp_path / "bucket").glob("packs/*/*.tar")
    with tarfile.open(pack) as archive:
        stream = archive.extractfile("plain.safetensors")
        assert stream is not None
        data = bytearray(stream.read())
    assert decode_member(bytes(data)).tensors["hidden_states"].equal(states["plain"])
    for damaged in (bytes(data[:-1]), bytes(data[:40]), bytes([*data[:-1], data[-1] ^ 1])):
        with pytest.raises(IntegrityError):
            decode_member(damaged)

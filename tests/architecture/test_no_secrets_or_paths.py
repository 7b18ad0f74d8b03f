"""The repository holds no secret and names no machine."""

from __future__ import annotations

import pytest

from tests.architecture.repository_text import find_in_text, repository_files
from tests.architecture.source_tree import REPO

HOME = "/home"  # joined below, so that this file passes its own test


def test_repository_text() -> None:
    files = repository_files(REPO)
    assert REPO / "pyproject.toml" in files
    found = []
    for file in files:
        data = file.read_bytes()
        if b"\0" not in data:
            found += [f"{file.relative_to(REPO)}: {what}" for what in find_in_text(data.decode("utf-8"))]
    assert found == []


@pytest.mark.parametrize(
    "text, kind",
    [
        (f"see {HOME}/someone/data", "path of a machine"),
        ("key = '" + "AKIA" + "IOSFODNN7EXAMPLE'", "access key"),
        ("aws_secret_access_key = '" + "a1B2" * 10 + "'", "secret key"),
        ("-----BEGIN " + "PRIVATE KEY-----", "private key"),
    ],
)
def test_planted_text_is_found(text: str, kind: str) -> None:
    assert find_in_text(f"first line\n{text}\n") == [f"line 2: {kind}"]


def test_ordinary_text_is_not_found() -> None:
    assert find_in_text('local="/nvme/spool"\nurl = "s3://bucket/home/prefix"\n#!/usr/bin/env bash\n') == []

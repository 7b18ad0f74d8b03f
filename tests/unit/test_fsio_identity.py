"""Each of the five numbers tells a file from another, and from its own past."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from durastore.fsio.identity import FileIdentity, identify, identity_of

FIELDS = {
    "dev": "st_dev",
    "inode": "st_ino",
    "size_bytes": "st_size",
    "mtime_ns": "st_mtime_ns",
    "ctime_ns": "st_ctime_ns",
}


class Stat:
    """A stat result with chosen numbers."""

    def __init__(self, **numbers: int) -> None:
        self.__dict__ |= {name: number for number, name in enumerate(FIELDS.values(), start=1)} | numbers


@pytest.mark.parametrize("field, source", FIELDS.items())
def test_every_number_counts(field: str, source: str) -> None:
    plain: Any = Stat()
    other: Any = Stat(**{source: 99})
    assert identity_of(plain) == identity_of(plain)
    assert identity_of(plain) != identity_of(other)
    assert getattr(identity_of(other), field) == 99
    assert FileIdentity.parse(identity_of(other).render()) == identity_of(other)


def test_an_open_file_is_told_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"four")
    fd = os.open(tmp_path / "file", os.O_RDONLY)
    try:
        before = identify(fd)
        assert (before.size_bytes, before.inode) == (4, (tmp_path / "file").stat().st_ino)
        os.link(tmp_path / "file", tmp_path / "name")  # a new name is a change of the inode, and only of that
        after = identify(fd)
        assert before.ctime_ns < after.ctime_ns
        assert (before.mtime_ns, before.size_bytes) == (after.mtime_ns, after.size_bytes)
    finally:
        os.close(fd)


@pytest.mark.parametrize(
    "ask, may_differ",
    [
        (FileIdentity.is_same_inode, {"size_bytes", "mtime_ns", "ctime_ns"}),
        (FileIdentity.is_same_renamed, {"ctime_ns"}),
        (FileIdentity.is_same_remounted, {"dev"}),
    ],
)
@pytest.mark.parametrize("field", FIELDS)
def test_each_question_leaves_out_only_what_it_says(
    ask: Callable[[FileIdentity, FileIdentity], bool], may_differ: set[str], field: str
) -> None:
    one: Any = identity_of(cast(Any, Stat()))
    other = replace(one, **{field: 99})
    assert ask(one, one)
    assert ask(other, one) is ask(one, other) is (field in may_differ)

"""Fuzz target of other tools' files: containers, contents, layouts."""

from __future__ import annotations

import warnings

from durastore.adopt.foreign_formats.containers import SUFFIXES, parse_foreign
from durastore.adopt.foreign_formats.contents import Unparsed
from durastore.adopt.foreign_formats.layouts import recognise
from tests.fuzz.target import FuzzTarget

__all__ = ["FOREIGN_TARGETS"]


def check_foreign(data: bytes) -> None:
    """The first byte chooses the suffix."""
    path = f"data_1{SUFFIXES[data[0] % len(SUFFIXES)]}" if data else "data_1.pt"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch tells of pickle protocols that it does not know
            contents = parse_foreign(data[1:], path=path)
        sample = recognise(contents, path=path)
    except Unparsed:
        return
    assert all(array.nbytes <= max(64 << 20, 1100 * len(data)) for array in contents.arrays.values())
    assert sample.arrays.keys() <= contents.arrays.keys()
    assert sample.tokens is None or sample.tokens.ndim == 1


FOREIGN_TARGETS = (FuzzTarget(name="foreign_file", check=check_foreign, max_bytes=8192),)

"""The table of exit codes that operators read is the one the code has."""

from __future__ import annotations

import re

from durastore import errors
from durastore.errors import DurastoreError
from durastore_cli.exits import EXIT_CODES
from tests.architecture.source_tree import REPO

PAGE = REPO / "docs" / "operations" / "exit-codes.md"
_ROW = re.compile(r"^\| `(\w+)` \| `([a-z-]+)` \| (\d+) \|", re.MULTILINE)
_EXIT = re.compile(r"^\| (\d+) \|", re.MULTILINE)
_OF_THE_COMMAND = {0, 1, 2, 3, 130, 143}  # ok, other, usage, partly done, interrupted: no class needed


def _classes() -> dict[str, type[DurastoreError]]:
    found = {name: value for name, value in vars(errors).items() if isinstance(value, type)}
    return {name: value for name, value in found.items() if issubclass(value, DurastoreError)}


def test_every_error_is_on_the_page_with_its_code_and_exit_code() -> None:
    rows = {name: (code, int(exit_code)) for name, code, exit_code in _ROW.findall(PAGE.read_text())}
    assert rows == {name: (found.code, found.exit_code) for name, found in _classes().items()}


def test_every_exit_code_is_explained() -> None:
    explained = [int(number) for number in _EXIT.findall(PAGE.read_text())]
    assert explained == sorted(set(explained))
    assert set(explained) == {found.exit_code for found in _classes().values()} | _OF_THE_COMMAND
    assert set(explained) == set(EXIT_CODES), "what --help shows"


def test_codes_are_unique_and_exported() -> None:
    codes = [found.code for found in _classes().values()]
    assert len(codes) == len(set(codes))
    assert set(errors.__all__) == {*_classes(), "StoreWarning"}  # a warning has no code

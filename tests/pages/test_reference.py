"""The reference pages are those of this code, and leave nothing out."""

from __future__ import annotations

import inspect
import re

import click

import durastore
from durastore_cli.main import COMMANDS, cli
from tests.architecture.source_tree import REPO
from tests.pages.api_reference import PLACES, render_api_reference
from tests.pages.cli_reference import render_cli_reference

_AGAIN = "run `make reference` and commit what it writes"


def _page(name: str) -> str:
    return (REPO / "docs/reference" / name).read_text(encoding="utf-8")


def test_the_page_of_commands_is_current() -> None:
    assert _page("cli.md") == render_cli_reference(), _AGAIN


def test_the_page_of_the_interface_is_current() -> None:
    assert _page("api.md") == render_api_reference(REPO), _AGAIN


def test_every_command_has_its_options_on_the_page() -> None:
    parts = dict(re.findall(r"^##+ (durastore [^\n]+)\n(.*?)(?=^##|\Z)", _page("cli.md"), re.MULTILINE | re.DOTALL))
    root = click.Context(cli, info_name="durastore")
    left = [(name, cli.get_command(root, name)) for name in COMMANDS]
    seen = 0
    while left:
        path, command = left.pop()
        assert command is not None
        ctx = click.Context(command, info_name=path)
        part = parts.pop(f"durastore {path}")
        for option in command.get_params(ctx):
            is_option = isinstance(option, click.Option)
            names = option.opts + option.secondary_opts if is_option else [option.make_metavar(ctx)]
            assert "--help" in names or all(name in part for name in names), (path, names)
            seen += 1
        if isinstance(command, click.Group):
            left += [(f"{path} {name}", command.commands[name]) for name in command.list_commands(ctx)]
    assert parts == {}
    assert seen > 200


def test_every_option_has_a_meaning() -> None:
    rows = [line for line in _page("cli.md").splitlines() if line.startswith("| `--")]
    assert len(rows) > 200
    assert [row for row in rows if not re.search(r"\| [^|]+ \|$", row)] == []


def test_every_public_name_is_on_the_page_with_its_methods() -> None:
    text = _page("api.md")
    for name in durastore.__all__:
        if name == "errors":
            continue  # a page of its own, and a test that keeps it current
        assert f"durastore.{name}" in PLACES
        value = getattr(durastore, name)
        members = vars(value).items() if inspect.isclass(value) else ()
        for member in [n for n, v in members if not n.startswith("_") and (callable(v) or isinstance(v, property))]:
            shown = f"### `{value.__name__}.{member}`\n" in text or f"| `{member}` |" in text
            assert shown, f"{name}.{member}"


def test_every_entry_says_something() -> None:
    entries = re.split(r"^##+ (.*)\n", _page("api.md"), flags=re.MULTILINE)[1:]
    silent = [
        title
        for title, body in zip(entries[::2], entries[1::2], strict=True)
        if len(re.sub(r"```python\n.*?```", "", body, flags=re.DOTALL).split()) < 3
    ]
    assert silent == []

"""Makes the page of all commands from click, so that it says what `--help` says."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click

from durastore_cli.exits import EXIT_CODES
from durastore_cli.main import COMMANDS, cli

_HEAD = """# Commands

All commands with all their options, as `--help` has them. (Made by `make reference`; a test keeps it equal to the
commands.) The pages under *Operations* say what they do and when; [options.md](../operations/options.md) has the
options that can also stand in a file or in the environment.

`durastore --version` prints the version; `durastore --debug COMMAND ...` shows the traceback of an error. Results go to
stdout, everything else to stderr. Sizes are bytes, or `64MiB`, `1.5GiB`; times are seconds unless the option says
otherwise.

| exit code | meaning |
|---|---|
"""


def render_cli_reference() -> str:
    """The page."""
    parts = [_HEAD + "".join(f"| {code} | {meaning} |\n" for code, meaning in EXIT_CODES.items())]
    root = click.Context(cli, info_name="durastore")
    for name in sorted(COMMANDS):
        command = cli.get_command(root, name)
        assert command is not None
        parts += _command(command, click.Context(command, parent=root, info_name=name), depth=2)
    return "\n".join(parts)


def _command(command: click.Command, ctx: click.Context, *, depth: int) -> Iterator[str]:
    yield f"{'#' * depth} {ctx.command_path}\n"
    words = " ".join(p.make_metavar(ctx) for p in command.get_params(ctx) if isinstance(p, click.Argument))
    if isinstance(command, click.Group):
        words = "COMMAND"
    yield f"```\n{ctx.command_path} [OPTIONS]{' ' if words else ''}{words}\n```\n"
    yield inspect.cleandoc(command.help or "").replace("\b\n", "") + "\n"
    options = [
        p for p in command.get_params(ctx) if isinstance(p, click.Option) and "--help" not in p.opts and not p.hidden
    ]
    if options:
        yield "| option | value | meaning |\n|---|---|---|"
        yield "".join(f"| {_cell(option, ctx)} |\n" for option in options)
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            below = command.get_command(ctx, name)
            assert below is not None
            yield from _command(below, click.Context(below, parent=ctx, info_name=name), depth=depth + 1)


def _cell(option: click.Option, ctx: click.Context) -> str:
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    if option.is_flag or option.count:
        value = ""
    elif isinstance(option.type, click.Choice):
        value = ", ".join(f"`{choice}`" for choice in option.type.choices)
    else:
        value = f"`{option.make_metavar(ctx)}`"
    notes = [" ".join((option.help or "").split())]
    notes += ["Required."] if option.required else []
    notes += [f"Default: {option.default}."] if option.show_default else []
    notes += ["May be repeated."] if option.multiple else []
    return " | ".join((names, value, " ".join(notes).strip().replace("|", "\\|").replace("<", "&lt;")))

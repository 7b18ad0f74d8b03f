"""What a shell offers for a value that is typed: files, folders, or nothing.

Duty: the parameters that take a path, told by how help calls their value. Looks at no disk: the shell itself does.
"""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

__all__ = ["complete_paths"]

_BY_METAVAR = {"DIR": "dir", "SRC": "dir", "DST": "dir", "FILE": "file", "INPUT": "file", "DIR|FILE": "file"}
_BY_OPTION = {"--bucket": "dir", "--model": "file"}
"""Also other things than paths, so their metavar says more."""


class _Path(click.types.StringParamType):
    """A text as before, for which the shell offers files (and folders) or folders alone."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        del ctx, param
        return [] if "://" in incomplete else [CompletionItem(incomplete, type=self._kind)]


def complete_paths(command: click.Command) -> click.Command:
    """`command` and those below it, with completion of their paths."""
    for param in command.params:
        kind = _BY_OPTION.get(param.opts[0], _BY_METAVAR.get(param.metavar or ""))
        if kind is not None and type(param.type) is click.types.StringParamType:
            param.type = _Path(kind)
    if isinstance(command, click.Group):
        for each in command.commands.values():
            complete_paths(each)
    return command

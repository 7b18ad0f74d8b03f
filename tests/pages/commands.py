"""Finds the `durastore ...` command lines of pages, and says what click would not take of one."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from durastore_cli.main import cli

_FENCE = re.compile(r"^ *(?:```|~~~)(\w*)")
_INLINE = re.compile(r"`(durastore(?: [^`]*)?)`")
_LINE = re.compile(r"^ *(?:[\w ./-]*&& )?(?:sudo )?(durastore(?: .*)?)$")
_META = re.compile(r"\[[^\]]*\]|\.\.\.|…")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLine:
    """A command line as it stands on a page. `is_typed`: in a block, where a reader copies it whole."""

    page: str
    text: str
    is_typed: bool


def find_commands(page: Path, name: str) -> Iterator[CommandLine]:
    """Those of blocks, continuation lines joined, and those in running text."""
    for block, is_code in _parts(page.read_text(encoding="utf-8")):
        if is_code:
            for text in _typed(block):
                yield CommandLine(page=name, text=text, is_typed=_META.search(text) is None and "|" not in text)
        else:
            for match in _INLINE.finditer(block.replace("\n", " ")):
                yield CommandLine(page=name, text=match[1], is_typed=False)


def fault_of(line: CommandLine) -> str | None:
    """Why click would refuse this command line; None where it would not. Placeholders count as values."""
    bare = line.text.replace("[OPTIONS]", "")
    while (shorter := _META.sub(lambda m: m[0].strip("[].…"), bare)) != bare:
        bare = shorter
    # a typed line ends where another program begins; elsewhere | also stands between two options
    words = shlex.split(re.sub(r"[|>;].*" if line.is_typed else r" \| [a-z].*|[|]", " ", bare), comments=True)[1:]
    command: click.Command = cli
    ctx = click.Context(cli, info_name="durastore")
    while isinstance(command, click.Group):
        while words and words[0] in ("--debug", "--version", "--help"):
            words = words[1:]
        if not words or words[0] == "COMMAND":
            return None
        found = command.get_command(ctx, words[0])
        if found is None:
            return f"there is no command {words[0]!r}"
        command, ctx = found, click.Context(found, parent=ctx, info_name=words[0])
        words = words[1:]
    return _typed_fault(command, ctx, words) if line.is_typed else _named_fault(command, ctx, words)


def _named_fault(command: click.Command, ctx: click.Context, words: list[str]) -> str | None:
    known = {name for option in command.get_params(ctx) for name in (*option.opts, *option.secondary_opts)}
    unknown = [word for word in words if word.startswith("-") and word != "-" and word.partition("=")[0] not in known]
    return f"there is no option {unknown[0]}" if unknown else None


def _typed_fault(command: click.Command, ctx: click.Context, words: list[str]) -> str | None:
    try:
        values, left, _ = command.make_parser(ctx).parse_args(args=list(words))
    except click.UsageError as exc:
        return exc.format_message()
    if left:
        return f"{left[0]!r} is one argument too many"
    for option in command.get_params(ctx):
        value = values.get(option.name or "")
        is_given = option.name in values and value not in (None, ()) and not _is_unset(value)
        if option.required and not is_given:
            return f"{option.make_metavar(ctx) if isinstance(option, click.Argument) else option.opts[0]} is missing"
        choices = option.type.choices if isinstance(option.type, click.Choice) else None
        if is_given and choices is not None and isinstance(value, str) and value not in choices:
            return f"{option.opts[0]} cannot be {value!r}"
    return None


def _is_unset(value: object) -> bool:
    return type(value).__name__ == "Sentinel"  # click 8.3 marks what was not given so


def _parts(text: str) -> Iterator[tuple[str, bool]]:
    """Running text and code blocks (fenced, or indented by four), in their order."""
    block: list[str] = []
    is_fenced = is_code = False
    for line in text.splitlines():
        fence = _FENCE.match(line)
        is_indented = not is_fenced and line.startswith("    ")
        if (fence and not is_fenced) or (is_indented != is_code and not is_fenced):
            yield "\n".join(block), is_code
            block, is_code = [], bool(fence) or is_indented
        if fence:
            is_fenced = not is_fenced
            if not is_fenced:
                yield "\n".join(block), True
                block, is_code = [], False
            continue
        block.append(line)
    yield "\n".join(block), is_code


def _typed(block: str) -> Iterator[str]:
    joined = re.sub(r"\\\n\s*", "", block)
    joined = re.sub(r"\n {2,}(?=[\[-])", " ", joined)  # a synopsis goes on in the next line
    lines = joined.split("\n")
    shown = [line.strip()[2:] for line in lines if line.strip().startswith("$ ")]
    for line in shown or lines:  # where commands have a prompt, the rest is what they answered
        if match := _LINE.match(line):
            yield match[1]

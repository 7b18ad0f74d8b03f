"""Texts that people write: sizes, addresses, paths, JSON.

Duty: make checked values of them, and say what is odd about one. Must never quote what may hold a secret, and never
open, read or ask anything.
"""

from __future__ import annotations

import os
import re
import unicodedata
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from durastore.errors import ConfigError

__all__ = ["JSON_HINT", "checked_address", "checked_ends", "expanded", "has_unseen_end", "odd_member", "parse_size"]

JSON_HINT = "use strings, finite numbers, booleans, None, lists and dicts; of an array's number its .item()"
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(|B|KiB|MiB|GiB|TiB)", re.IGNORECASE)
_SIZE_UNITS = {"": 1, "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}


def parse_size(text: str) -> int:
    """Bytes of `1048576`, `64 MiB` or `1.5GiB`; ValueError on anything else."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"not a size: {text!r}")
    return (
        int(float(match[1]) * _SIZE_UNITS[match[2].lower()])
        if "." in match[1]
        else int(match[1]) * _SIZE_UNITS[match[2].lower()]
    )


def checked_address(url: str, *, name: str) -> SplitResult:
    """The parts of `http(s)://host[:port][/path]`. `ConfigError` for anything else, which `name` tells of.

    It is never quoted: what is no address may hold a secret in any place (`user:secret@host`, `?token=`).
    """
    hint = "use http(s)://host[:port]"
    try:
        parts = urlsplit(url)
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        raise ConfigError(f"{name} is not a URL", hint=hint) from None  # the cause quotes parts of it
    if "@" in url:
        raise ConfigError(f"{name} carries credentials", hint=f"{hint}; credentials never go into a URL")
    if not is_usable or "?" in url or "#" in url or not url.isprintable() or " " in url:
        raise ConfigError(f"{name} is not usable", hint=hint)
    return parts


def has_unseen_end(text: str) -> bool:
    """Whether the first or last character is one that nobody sees."""
    return any(c.isspace() or unicodedata.category(c) in ("Cc", "Cf") for c in text[:1] + text[-1:])


def checked_ends(text: str, *, name: str) -> str:
    """`text`, unless it begins or ends with what nobody sees: a blank, a line end, a control or formatting character.

    With one the text would name another place than the one it looks like. It is not quoted: it may hold a secret. A
    name that really ends so can be given with a slash behind it.
    """
    if has_unseen_end(text):
        raise ConfigError(
            f"{name} begins or ends with a blank or a control character",
            hint="take it out (a blank inside the quotes, a line end?); a name that does end so takes a / after it",
        )
    return text


def expanded(path: str | os.PathLike[str]) -> Path:
    """`path` with a `~` in front as the home folder: no shell has seen what comes from Python, a file or a variable.

    `./~` is a folder of that name, and comes back whole: a `Path` forgets the dot. `ConfigError` where there is no such
    home.
    """
    plain = Path(path)
    if not os.fspath(path).startswith("~"):
        return plain.absolute() if plain.parts[:1] and plain.parts[0].startswith("~") else plain
    try:
        return plain.expanduser()
    except RuntimeError as exc:
        raise ConfigError(f"{ascii(os.fspath(path))[:100]}: {exc}", hint="write the whole path") from exc


def odd_member(value: object, *, at: str) -> str | None:
    """Where the first value is that JSON has no form for, and of which type it is."""
    if isinstance(value, dict):
        members = [(f"{at}.{name}" if at else str(name), each) for name, each in value.items()]
    elif isinstance(value, list | tuple):
        members = [(f"{at}[{number}]", each) for number, each in enumerate(value)]
    elif value is None or isinstance(value, str | int | float):
        return None
    else:
        kind = type(value)
        return f"{at or 'it'} is a {kind.__module__}.{kind.__qualname__}"
    return next((odd for name, each in members if (odd := odd_member(each, at=name)) is not None), None)

"""Packages that an extra of durastore brings.

Duty: one form of the error that names the extra where such a package is missing. Imports none of them.
"""

from __future__ import annotations

from importlib.util import find_spec

from durastore.errors import ConfigError

__all__ = ["ensure_extra"]


def ensure_extra(extra: str, *packages: str, what: str) -> None:
    """`ConfigError` that names `extra` where one of `packages` (as they are imported) is not installed.

    `what` needs them: "reading a .gguf model".
    """
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise ConfigError(
            f"{what} needs {' and '.join(missing)}, which {verb} not installed",
            hint=f"pip install 'durastore[{extra}]'",
        )

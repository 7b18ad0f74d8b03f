"""`torchrun -m durastore.integrations.speculators_train ARGS`: speculators' own training, which knows our backend.

Speculators collects the options of all backends when its command line is imported, and finds none by itself: so ours is
imported first, and nothing else is changed.
"""

from __future__ import annotations

import runpy
import sys
from importlib.util import find_spec

from durastore.errors import ConfigError

__all__ = ["main"]


def main() -> None:
    """Run `python -m speculators.train` with the arguments as they are. Ends with one line where that is not
    installed, or where the backend refuses.
    """
    try:
        if find_spec("speculators") is None:
            raise ConfigError("speculators is not installed", hint="pip install speculators")
        import durastore.integrations.speculators  # noqa: F401 - registers the backend

        runpy.run_module("speculators.train", run_name="__main__", alter_sys=True)
    except ConfigError as exc:
        sys.exit(f"durastore: {exc}")


if __name__ == "__main__":
    main()

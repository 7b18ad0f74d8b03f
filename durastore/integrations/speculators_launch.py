"""`python -m durastore.integrations.speculators_launch launch_vllm.py ARGS`: the script, which knows our backend.

It is in speculators' repository and in no package, so it is named by its path. It runs as it is.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from durastore.errors import ConfigError

__all__ = ["main"]


def main() -> None:
    """Run the script that the first argument names with the others. Ends with one line where there is none, or where
    the backend refuses.
    """
    try:
        if len(sys.argv) < 2 or not Path(sys.argv[1]).is_file():
            raise ConfigError("name speculators' launch script", hint="scripts/launch_vllm.py in its repository")
        import durastore.integrations.speculators  # noqa: F401 - registers the backend

        sys.argv = sys.argv[1:]
        runpy.run_path(sys.argv[0], run_name="__main__")
    except ConfigError as exc:
        sys.exit(f"durastore: {exc}")


if __name__ == "__main__":
    main()

"""`python -m durastore_cli`: the `durastore` command where its script is not on PATH."""

from __future__ import annotations

from durastore_cli.main import main

if __name__ == "__main__":
    main()

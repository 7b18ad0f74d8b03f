"""Runs the commands that need the core alone, on a bucket that is a folder: `python inventory_commands.py FOLDER`.

A program of its own, so that it can be run by an interpreter that has neither pytest nor the extras. Prints one JSON
object: what was typed, without the paths -> [exit code, stderr].
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from pathlib import Path

import numpy as np

import durastore
from durastore_cli.main import COMMANDS, run

SETTINGS = {
    "DURASTORE_IS_ANY_FILESYSTEM_ALLOWED": "1",
    "DURASTORE_RECLAIM": "never",  # the folder that stands for a bucket is on the spool's own disk
    "DURASTORE_RESERVE_BYTES": "1",
}


def lines(work: Path) -> list[list[str]]:
    """What is typed, in this order."""
    bucket = ["--bucket", str(work / "bucket")]
    local = ["--local", str(work / "spool")]
    return [
        *([name, "--help"] for name in sorted(COMMANDS)),
        ["--version"],
        ["ls", *bucket],
        ["get", "a", "--out", str(work / "out"), *bucket],
        ["verify", "--deep", *bucket],
        ["status", *local],
        ["reconcile", *local, *bucket],
        ["drain", *local],
        ["adopt", str(work / "files"), *bucket],
        ["migrate", str(work / "files"), str(work / "moved")],
        ["doctor", *local, *bucket],
        ["manifest", "show", *bucket],
        ["manifest", "compact", *bucket],
        ["manifest", "rebuild", *bucket],
        ["probe", *bucket],
        ["quarantine", "list", *local],
        ["artifacts", "push", str(work / "run"), *bucket],
        ["artifacts", "ls", *bucket],
        ["artifacts", "pull", "--out", str(work / "back"), *bucket],
    ]


def prepare(work: Path) -> None:
    """A store with two samples, a folder of somebody's arrays, and one of a run."""
    for name in ("bucket", "files", "run"):
        (work / name).mkdir()
    np.save(work / "files" / "old.npy", np.arange(9))
    (work / "run" / "notes.txt").write_text("kept\n", encoding="utf-8")
    with durastore.open(work / "bucket", local=work / "spool") as store:
        for sample_id in ("a", "b"):
            store.put(sample_id, {"x": np.arange(9)})


def main(work: Path) -> None:
    os.environ.update(SETTINGS)
    prepare(work)
    seen = {}
    for line in lines(work):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run(line)
        typed = " ".join(word for word in line if not word.startswith(str(work)))
        seen[typed] = (code, err.getvalue())
    sys.stdout.write(json.dumps(seen))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

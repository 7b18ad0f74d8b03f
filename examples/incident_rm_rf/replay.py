"""Replays incident 1 against a real S3 server on this machine: `python examples/incident_rm_rf/replay.py [FILES]`."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import numpy as np

from durastore.demo.seaweed import SeaweedServer
from durastore_cli.main import run

BEFORE, CUT, ZEROED = 120, 7, 3


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000
    work = Path(tempfile.mkdtemp(prefix="incident-"))
    with SeaweedServer.start(work / "server", log=work / "log") as server:
        os.environ.update(server.environment())
        folder = work / "extracted"
        where = ["--local", str(folder), "--bucket", f"s3://{server.make_bucket()}/run"]
        where += ["--endpoint-url", server.endpoint_url]
        paths = [folder / f"rows_0-{count}" / f"data_{number}.npy" for number in range(count)]
        paths[0].parent.mkdir(parents=True)
        for number, path in enumerate(paths):
            if number == BEFORE:
                _type("an earlier run had sent 120 of them", "reconcile", *where, "--apply")
            np.save(path, np.random.default_rng(number).standard_normal((64, 16)))
        for number, path in enumerate(paths[BEFORE : BEFORE + CUT + ZEROED]):
            size = path.stat().st_size
            path.write_bytes(path.read_bytes()[: size // 2] if number < CUT else bytes(size))
        for name in ("run.sh", "notes.txt", "metrics.json", "old.log", "README"):
            (folder / name).write_text("mine\n", encoding="utf-8")
        _type("look before anything is cleared", "reconcile", *where)
        _type("free what is proven", "reconcile", *where, "--apply", "--reclaim", "--settle", "2")
        _type("once more", "reconcile", *where, "--apply", "--reclaim", "--settle", "2")
        left = sorted(str(path.relative_to(folder)) for path in folder.glob("*") if path.is_file())
        sys.stdout.write(f"left in the folder: {', '.join(left)}\nall of it stays in {work}\n")


def _type(why: str, *command: str) -> None:
    sys.stdout.write(f"\n# {why}\n$ durastore {' '.join(command)}\n")
    sys.stdout.flush()
    code = run(command)
    sys.stdout.write(f"exit code {code}\n")


if __name__ == "__main__":
    main()

"""An extraction by two Ray actors on this machine: `python examples/ray_cluster/local.py [PROMPTS]`."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from durastore.demo.material import find_model, write_prompts
from durastore.demo.seaweed import SeaweedServer
from durastore.fsio.folder import Folder
from durastore_cli.main import run


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 8
    work = Path(tempfile.mkdtemp(prefix="ray-"))
    with Folder.open(work) as folder:
        prompts = write_prompts(folder, count=count)
    with SeaweedServer.start(work / "server", log=work / "log") as server:
        os.environ.update(server.environment())  # before Ray starts: its actors look for credentials themselves
        os.environ["DURASTORE_SEAL_AGE_S"] = "1"
        where = ["--bucket", f"s3://{server.make_bucket()}/states", "--endpoint-url", server.endpoint_url]
        what = ["--model", str(find_model()), "--layers", "2,15,27", "--dtype", "float32", "--batch-tokens", "512"]
        command = ["extract", str(prompts), "--ray", "local", "--workers", "2", *what, *where]
        command += ["--local", str(work / "spool")]
        _type("two actors share the prompts", *command)
        _type("the same again: all are done", *command)
        _type("all of them are there", "ls", *where)
        sys.stdout.write(f"all of it stays in {work}\n")


def _type(why: str, *command: str) -> None:
    sys.stdout.write(f"\n# {why}\n$ durastore {' '.join(command)}\n")
    sys.stdout.flush()
    code = run(command)
    sys.stdout.write(f"exit code {code}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()

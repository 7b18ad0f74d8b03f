"""The whole example on this machine: `python run.py [PROMPTS]`. A real server, a small real model, two minutes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from durastore.demo.material import find_model, write_prompts
from durastore.demo.seaweed import SeaweedServer
from durastore.fsio.folder import Folder


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    work = Path(tempfile.mkdtemp(prefix="drafter-"))
    model = find_model()
    with Folder.open(work) as folder:
        prompts = write_prompts(folder, count=count)
    with SeaweedServer.start(work / "server", log=work / "log") as server:
        os.environ.update(server.environment(), TQDM_DISABLE="1")  # no bars of libraries between our lines
        os.environ["DURASTORE_SEAL_AGE_S"] = "1"
        where = ["--bucket", f"s3://{server.make_bucket()}/states", "--endpoint-url", server.endpoint_url]
        durastore = [sys.executable, "-m", "durastore_cli.main"]
        extract = ["extract", str(prompts), "--model", str(model), "--layers", "2,15,27,last", "--batch-tokens", "1024"]
        script = str(Path(__file__).with_name("train.py"))
        train = [sys.executable, script, *where, "--model", str(model), "--settle", "1", "--save-every", "15"]
        first, second = (["--out", str(work / name)] for name in ("a", "b"))
        _type("hidden states of the target", *durastore, *extract, *where, "--local", str(work / "spool"))
        dying = [*train, *first, "--steps", "60", "--die-at", "37"]
        _type("train, killed in the middle of an epoch", *dying, expect=-signal.SIGKILL)
        _type("the same machine goes on", *train, *first, "--steps", "60")
        _type("a new machine, the same bucket", *train, *second, "--steps", "75")
        _type("what is kept", *durastore, "artifacts", "ls", *where)
    sys.stdout.write(f"all of it stays in {work}\n")


def _type(why: str, *command: str, expect: int = 0) -> None:
    """Show the command and run it. Another exit code than expected ends it all with an error."""
    shown = " ".join(Path(part).name if part.startswith("/") else part for part in command)
    sys.stdout.write(f"\n# {why}\n$ {shown}\n")
    sys.stdout.flush()
    code = subprocess.run(command, check=False).returncode
    sys.stdout.write(f"exit code {code}\n")
    sys.stdout.flush()
    if code != expect:
        raise SystemExit(f"{why}: exit code {code}, and {expect} was expected")


if __name__ == "__main__":
    main()

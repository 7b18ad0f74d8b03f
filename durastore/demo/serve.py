"""`durastore demo --serve`: only the server, for commands and loops of one's own.

Duty: start it on the demo's folder, put what a shell needs into a file that only this user can read, and say what to
type. Must never show a secret, and never write over anything.
"""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from durastore.demo.material import find_model, write_prompts
from durastore.demo.seaweed import SeaweedServer
from durastore.errors import ConfigError
from durastore.fsio.folder import Folder
from durastore.fsio.publish import publish

__all__ = ["DEMO_BUCKET", "DEMO_PORT", "Served", "served"]

DEMO_BUCKET = "durastore-demo"
DEMO_PORT = 8333


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A running server, and what leads a shell to it."""

    endpoint_url: str
    port: int
    folder: Path
    environment: Path
    """A file for `.`: credentials and DURASTORE_ENDPOINT_URL, readable by this user only."""
    has_run: bool
    """Whether `durastore demo` left its samples in this bucket."""
    example: str | None
    """An extraction to type; None where the demo's model or prompts are not installed."""

    def lines(self) -> Iterator[str]:
        """What to type, for people."""
        yield f"S3 server on {self.endpoint_url}, bucket s3://{DEMO_BUCKET}, data in {self.folder}"
        yield "in another terminal:"
        yield f"  . {shlex.quote(str(self.environment))}    # credentials and endpoint, for any S3 client"
        if self.has_run:
            yield f"  durastore ls --bucket s3://{DEMO_BUCKET}/run    # what `durastore demo` left here"
        if self.example is not None:
            yield f"  {self.example}"
        port = [] if self.port == DEMO_PORT else ["--port", str(self.port)]  # in the other terminal's file, too
        again = shlex.join(["durastore", "demo", "--serve", "--keep", str(self.folder), *port])
        yield f"Ctrl-C ends the server; this starts it again, with the same bucket: {again}"


@contextmanager
def served(keep: Path | None, *, samples: int, port: int = DEMO_PORT) -> Iterator[Served]:
    """Serve the demo's bucket from the folder `keep` (new and temporary if None) until the block ends.

    Raises as `SeaweedServer.start` does: `ConfigError` where the port is taken, `SpoolLocked` where it runs already.
    """
    path = keep.absolute() if keep is not None else Path(tempfile.mkdtemp(prefix="durastore-demo-"))
    with Folder.create(path) as folder, _started(path, port) as server:
        server.make_bucket(DEMO_BUCKET)
        yield Served(
            endpoint_url=server.endpoint_url,
            port=server.port,
            folder=path,
            environment=_write_environment(folder, server),
            has_run=bool(server.client().list_objects_v2(Bucket=DEMO_BUCKET, Prefix="run/", MaxKeys=1)["KeyCount"]),
            example=_example(folder, samples=samples),
        )


def _started(path: Path, port: int) -> SeaweedServer:
    try:
        return SeaweedServer.start(path / "server", port=port, log=path / "server.log")
    except ConfigError as exc:
        if exc.facts.get("port") == port:  # most often by this command itself, in another terminal
            environment = path / _environment_name(port)
            shown = shlex.quote(str(environment)) if environment.exists() else f"DIR/{environment.name}"
            running = "does `durastore demo --serve` run already? Then use that one"
            exc.hint = f"{running} (`. {shown}`, the line that it showed), or give another --port"
        raise


def _environment_name(port: int) -> str:
    return f"s3-{port}.env"


def _write_environment(folder: Folder, server: SeaweedServer) -> Path:
    """The folder's keys and the port in the name settle the content: what an earlier start wrote is right."""
    name = _environment_name(server.port)
    if not folder.has(name):
        values = {
            **server.environment(),
            "AWS_REGION": server.region,
            "DURASTORE_ENDPOINT_URL": server.endpoint_url,
            "AWS_ENDPOINT_URL": server.endpoint_url,  # for other S3 clients
        }
        lines = ["unset AWS_PROFILE AWS_SESSION_TOKEN\n"]
        lines += [f"export {key}={shlex.quote(value)}\n" for key, value in values.items()]
        publish(folder, name, chunks=["".join(lines).encode()])  # mode 0600
    return folder.path / name


def _example(folder: Folder, *, samples: int) -> str | None:
    try:
        model, prompts = find_model(), write_prompts(folder, count=samples)
    except ConfigError:
        return None
    words = ["durastore", "extract", str(prompts), "--model", str(model), "--layers", "2,15,27"]
    return shlex.join([*words, "--bucket", f"s3://{DEMO_BUCKET}/mine", "--local", str(folder.path / "mine")])

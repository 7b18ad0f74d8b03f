"""`durastore adopt`: existing files brought under inventory, as they are or as samples."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import click

from durastore.config import resolve_options
from durastore.errors import ConfigError
from durastore_cli.exits import EPILOG
from durastore_cli.options import REMOTE_NAMES, bucket_option, given, local_option, needed_place, remote_options
from durastore_cli.progress import Ticker
from durastore_cli.render import print_json, print_lines

__all__ = ["command"]

_FOR_SAMPLES = ("data", "id_from", "run_file", "local")


@click.command(epilog=EPILOG)
@click.argument("folder", metavar="DIR")
@bucket_option
@remote_options
@click.option("--dry-run", is_flag=True, help="Say what would be done. Nothing changes anywhere.")
@click.option("--reclaim", is_flag=True, help="Free each file after its own proof. Not with --as-samples.")
@click.option(
    "--settle", "settle_s", type=float, metavar="SECONDS", help="From upload to reclaim at least (default 60)."
)
@click.option("--any-filesystem", is_flag=True, help="Also on a network, FUSE, overlay or memory file system.")
@click.option("--as-samples", is_flag=True, help="Convert .pt, .ckpt and .safetensors files into samples of a run.")
@click.option("--run", "run_file", metavar="FILE", help="With --as-samples: the run they belong to, as run.toml.")
@click.option("--data", metavar="FILE", help="With --as-samples: the input that extract is given (JSON lines).")
@click.option(
    "--id-from",
    metavar="RULE",
    help="With --as-samples: how a file tells its sample: row (the number at the end of its name, from 0; default), "
    "field:NAME in it, or regex:R over its path.",
)
@local_option
@click.option("--json", "as_json", is_flag=True, help="The report as JSON.")
def command(folder: str, *, bucket: str | None, as_samples: bool, as_json: bool, **options: Any) -> int:
    """Bring the files below DIR under inventory: sent as they are, read back, listed in the manifest under their path.

    A file that cannot be whole, or that somebody has open for writing, is named and not sent. With --as-samples the
    files of other tools become samples that count as done for `durastore extract`; what does not fit its input or run
    is named. The files stay where they are, unless --reclaim is given. The same command again goes on.
    """
    report = _adopt_samples(folder, bucket, options=options) if as_samples else _adopt(folder, bucket, options=options)
    if as_json:
        print_json(report.facts())
    else:
        print_lines(report.lines())
    error = getattr(report, "error", None)
    if error is not None:
        click.echo(f"durastore: {error} [{error.code}]", err=True)
    return int(report.exit_code)


def _remote(options: dict[str, Any]) -> dict[str, Any]:
    allowed = {"is_any_filesystem_allowed": True} if options["any_filesystem"] else {}
    return given({name: options[name] for name in REMOTE_NAMES}) | allowed


def _adopt(folder: str, bucket: str | None, *, options: dict[str, Any]) -> Any:
    from durastore.objectstore.location import BucketUrl
    from durastore.reconcile.run import reconcile
    from durastore.reconcile.session import ReconcileRequest

    extra = [f"--{name.removesuffix('_file').replace('_', '-')}" for name in _FOR_SAMPLES if options[name] is not None]
    if extra:
        raise click.UsageError(f"{', '.join(extra)} acts only together with --as-samples")
    request = ReconcileRequest(
        local=Path(folder),
        bucket=BucketUrl.parse(needed_place("bucket", bucket)),
        options=resolve_options(_remote(options)),
        is_adopting=True,
        is_applied=not options["dry_run"],
        is_reclaiming=options["reclaim"] and not options["dry_run"],
        settle_s=options["settle_s"],
    )
    return reconcile(request, observer=_Progress())


def _adopt_samples(folder: str, bucket: str | None, *, options: dict[str, Any]) -> Any:
    if options["reclaim"]:
        raise ConfigError(
            "--reclaim does not go together with --as-samples: the bucket holds what was made of a file, not its bytes",
            hint="adopt it without --as-samples too, under a prefix of its own: there a file goes after its own proof",
        )
    if options["run_file"] is None:
        raise click.UsageError("--as-samples needs --run FILE: the run that the files belong to")

    from durastore.extract.adopt_match import parse_id_rule
    from durastore.extract.adopt_samples import SampleAdoptionRequest, adopt_samples

    settle = given({"settle_s": options["settle_s"]})
    return adopt_samples(
        SampleAdoptionRequest(
            folder=Path(folder),
            bucket=needed_place("bucket", bucket),
            local=Path(needed_place("local", options["local"])),
            run_file=Path(options["run_file"]),
            data=Path(options["data"]) if options["data"] is not None else None,
            id_rule=parse_id_rule(options["id_from"] or "row"),
            options=_remote(options) | settle,  # type: ignore[arg-type]  # resolve_options checks every name and value
            is_dry_run=options["dry_run"],
            on_progress=Ticker("adopt", "files"),
        )
    )


class _Progress:
    """Counts what the sender tells, for the line on stderr."""

    def __init__(self) -> None:
        self._tick = Ticker("adopt", "files to send")
        self._files = 0
        self._done = 0
        self._lock = threading.Lock()  # events come from many threads

    def emit(self, name: str, **facts: str | int | float | bool | None) -> None:
        if name == "adopt.begun":
            self._files = int(facts["files"] or 0)
        elif name == "adopt.file":
            with self._lock:
                self._done += 1
                self._tick(self._done, self._files)

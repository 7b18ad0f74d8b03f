"""`durastore reconcile`: compare local files, journal or manifest, and bucket."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from durastore.config import resolve_options
from durastore_cli.exits import EPILOG
from durastore_cli.options import SIZE, bucket_option, given, needed_place, remote_options
from durastore_cli.render import print_json, print_lines

__all__ = ["command"]


@click.command(epilog=EPILOG)
@click.option("--local", metavar="DIR", help="A spool root, or any folder of files. [env: DURASTORE_LOCAL]")
@bucket_option
@remote_options
@click.option("--deep", is_flag=True, help="Hash every local file, and compare with what was recorded.")
@click.option("--apply", is_flag=True, help="Do what the findings say. Without it nothing changes anywhere.")
@click.option("--reclaim", is_flag=True, help="With --apply: free each local file after its own proof.")
@click.option("--bury", is_flag=True, help="With --apply: take rows of packs that are gone out, for good.")
@click.option("--zeros-are-data", is_flag=True, help="Files that end in zeros are whole, where nothing says otherwise.")
@click.option(
    "--settle",
    type=float,
    metavar="SECONDS",
    help="From upload to reclaim at least (default 60; spool root 600).",
)
@click.option("--hash-rate", type=SIZE, metavar="SIZE", help="Bytes a second that --deep reads at most.")
@click.option("--any-filesystem", is_flag=True, help="Also on a network, FUSE, overlay or memory file system.")
@click.option("--report", metavar="FILE", help="Write the whole report as JSON into a new FILE.")
@click.option("--json", "as_json", is_flag=True, help="The result as JSON.")
def command(
    *,
    local: str | None,
    bucket: str | None,
    deep: bool,
    apply: bool,
    reclaim: bool,
    bury: bool,
    zeros_are_data: bool,
    settle: float | None,
    hash_rate: int | None,
    any_filesystem: bool,
    report: str | None,
    as_json: bool,
    **remote: Any,
) -> int:
    """Say what does not agree between local files, records and the bucket, and what --apply would do about it.

    Exit code 0: everything below DIR is in the bucket and nothing disagrees. Nothing in the bucket is ever deleted, and
    files leave DIR only with --apply --reclaim, each after its own proof.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read by numpy, whose linear algebra has nothing to do here
    from durastore.objectstore.location import BucketUrl
    from durastore.reconcile.run import reconcile
    from durastore.reconcile.session import ReconcileRequest

    if reclaim and not apply:
        raise click.UsageError("--reclaim acts only together with --apply; without both, look at the plan first")
    options = given(remote) | ({"is_any_filesystem_allowed": True} if any_filesystem else {})
    request = ReconcileRequest(
        local=Path(needed_place("local", local)),
        bucket=BucketUrl.parse(needed_place("bucket", bucket)),
        options=resolve_options(options),
        is_deep=deep,
        is_applied=apply,
        is_reclaiming=reclaim,
        is_burying=bury,
        are_zeros_data=zeros_are_data,
        settle_s=settle,
        hash_bytes_per_s=hash_rate or 0,
    )
    result = reconcile(request)
    if report is not None:
        _save(report, result.render())
    if as_json:
        print_json(result.facts())
    else:
        print_lines(result.lines())
    return result.exit_code


def _save(path: str, text: str) -> None:
    """A new file, whole or not at all; an existing one is not overwritten."""
    from durastore.errors import ConfigError, DiskFailed
    from durastore.fsio.folder import Folder
    from durastore.fsio.publish import publish

    target = Path(path).absolute()
    try:
        with Folder.open(target.parent) as folder:
            publish(folder, target.name, chunks=[text.encode()])
    except FileExistsError as exc:
        raise ConfigError(f"{path} exists", hint="give --report a new name") from exc
    except OSError as exc:
        raise DiskFailed(f"writing {path}: {exc.strerror}") from exc

"""`durastore doctor`: one call of `doctor`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from durastore.config import resolve_options
from durastore_cli.exits import EPILOG
from durastore_cli.options import bucket_option, given, local_option, needed_place, remote_options
from durastore_cli.render import print_json, print_lines

__all__ = ["command"]


@click.command(epilog=EPILOG)
@local_option
@bucket_option
@remote_options
@click.option("--data", metavar="FILE", help="The input of the extraction (default: that of the last start).")
@click.option("--server", metavar="URL", help="An extraction server (vLLM or SGLang) to be asked for one sample.")
@click.option("--staging", metavar="DIR", help="Where that server puts its files.")
@click.option(
    "--apply", is_flag=True, help="Put doubtful packs aside, once what matches was copied; let stale staging go."
)
@click.option("--any-filesystem", is_flag=True, help="Also on a network, FUSE, overlay or memory file system.")
@click.option("--json", "as_json", is_flag=True, help="The result as JSON.")
def command(
    *,
    local: str | None,
    bucket: str | None,
    data: str | None,
    server: str | None,
    staging: str | None,
    apply: bool,
    any_filesystem: bool,
    as_json: bool,
    **remote: Any,
) -> int:
    """After a crash, a full disk, a move or a reboot: is it safe to go on, and with which command?

    Exit code 0: nothing that was looked at speaks against it. A stage that fails blocks those that rest on it; mend
    what it names, and run the same command again. Without --apply nothing changes. No process is ever ended.
    """
    from durastore.doctor.request import DoctorRequest
    from durastore.doctor.run import doctor
    from durastore.objectstore.location import BucketUrl

    options = given(remote) | ({"is_any_filesystem_allowed": True} if any_filesystem else {})
    report = doctor(
        DoctorRequest(
            local=Path(needed_place("local", local)),
            bucket=BucketUrl.parse(needed_place("bucket", bucket)),
            options=resolve_options(options),
            data=Path(data) if data is not None else None,
            server=server,
            staging=Path(staging) if staging is not None else None,
            is_applied=apply,
        )
    )
    if as_json:
        print_json(report.facts())
    else:
        print_lines(report.lines())
    return report.exit_code

"""`durastore migrate`: one call of `migrate`."""

from __future__ import annotations

from pathlib import Path

import click

from durastore_cli.exits import EPILOG
from durastore_cli.options import SIZE
from durastore_cli.render import print_json, print_lines

__all__ = ["command"]


@click.command(epilog=EPILOG)
@click.argument("source", metavar="SRC")
@click.argument("target", metavar="DST")
@click.option("--dry-run", is_flag=True, help="Only look and plan; nothing is made. Exit code as far as it can tell.")
@click.option("--reclaim-source", is_flag=True, help="Free each source after its copy on another device was proven.")
@click.option("--jobs", type=click.IntRange(1, 64), default=4, show_default=True, help="Files copied at once.")
@click.option(
    "--limit-rate",
    type=SIZE,
    default=0,
    metavar="SIZE",
    help="Bytes a second read at most (default: no limit).",
)
@click.option("--any-filesystem", is_flag=True, help="Roots and freeing also onto a network, FUSE or memory one.")
@click.option("--json", "as_json", is_flag=True, help="The result as JSON.")
def command(
    *,
    source: str,
    target: str,
    dry_run: bool,
    reclaim_source: bool,
    jobs: int,
    limit_rate: int,
    any_filesystem: bool,
    as_json: bool,
) -> int:
    """Copy SRC to DST, a tree or a spool root, and prove every copy by reading it back from the device.

    Exit code 0: DST has all files, folders and links that SRC has. Nothing in DST is overwritten. The same command
    again goes on where another one ended, wherever that was.
    """
    from durastore.adopt.inspect import is_data, tell_damage
    from durastore.migrate.reading import Formats
    from durastore.migrate.run import MigrateRequest, migrate
    from durastore_cli.progress import Ticker

    request = MigrateRequest(
        source=Path(source),
        target=Path(target),
        is_dry=dry_run,
        is_reclaiming=reclaim_source,
        jobs=jobs,
        bytes_per_s=limit_rate,
        is_any_filesystem_allowed=any_filesystem,
    )
    formats = Formats(is_known=is_data, find_damage=tell_damage)
    report = migrate(request, formats=formats, on_progress=Ticker("migrate", "files"))
    if as_json:
        print_json(report.facts())
    else:
        print_lines(report.lines())
    return report.exit_code

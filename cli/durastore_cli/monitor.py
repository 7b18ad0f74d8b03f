"""`durastore monitor`: one call of `serve`, or of `look_once` with `--json`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from durastore_cli.exits import EPILOG
from durastore_cli.options import needed_place
from durastore_cli.render import print_json

if TYPE_CHECKING:
    from durastore.monitor.serving import Address

__all__ = ["command"]


@click.command(epilog=EPILOG)
@click.option(
    "--local", multiple=True, metavar="DIR", help="A spool root; several times for more. [env: DURASTORE_LOCAL]"
)
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Not loopback: needs a token.")
@click.option("--port", type=click.IntRange(0, 65_535), default=8080, show_default=True, help="0: a free one.")
@click.option("--json", "as_json", is_flag=True, help="What the page would show now, as JSON, without serving it.")
def command(*, local: tuple[str, ...], host: str, port: int, as_json: bool) -> int:
    """Serve a live page about the runs in spool roots: progress, what limits it, stalls, what is at risk.

    Reads only, and changes nothing. /metrics is for Prometheus, /healthz for a supervisor. Another address than
    loopback needs the token that is printed once at the start. Ends with Ctrl-C.
    """
    roots = [Path(each) for each in local] or [Path(needed_place("local", None))]
    if as_json:
        from durastore.monitor.as_json import render_view
        from durastore.monitor.sampler import look_once

        print_json(render_view(look_once(roots)))
        return 0
    from durastore.monitor.serving import serve

    serve(roots, host=host, port=port, told=_tell)
    return 0


def _tell(address: Address) -> None:
    click.echo(f"durastore monitor: {address.url}", err=True)
    for problem in address.problems:
        click.echo(f"durastore monitor: {problem}; it is looked at again every second", err=True)
    if address.token is not None:
        click.echo("durastore monitor: the token in this address is shown only now", err=True)

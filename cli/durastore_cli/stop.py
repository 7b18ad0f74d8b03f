"""`durastore stop`: one call of `stop`."""

from __future__ import annotations

from pathlib import Path

import click

from durastore_cli.exits import EPILOG
from durastore_cli.options import local_option, needed_place
from durastore_cli.render import print_json, print_lines

__all__ = ["command"]


@click.command(epilog=EPILOG)
@local_option
@click.option(
    "--grace", type=click.FloatRange(0), default=90.0, show_default=True, help="Seconds to wait for them to end."
)
@click.option("--json", "as_json", is_flag=True, help="The result as JSON.")
def command(*, local: str | None, grace: float, as_json: bool) -> int:
    """Ask the processes that work on a spool root to stop, and wait for them.

    Finds them by the locks they hold and sends SIGTERM; a process that does not end in time is reported and left alone.
    """
    from durastore.extract.stop import stop

    report = stop(Path(needed_place("local", local)), grace)
    if as_json:
        processes = [{"pid": p.pid, "spools": list(p.spools), "outcome": p.outcome.value} for p in report.processes]
        print_json({"processes": processes, "exit_code": report.exit_code})
    elif report.processes:
        print_lines(f"process {p.pid} ({', '.join(p.spools)}): {p.outcome.value}" for p in report.processes)
    else:
        print_lines(["no process holds a spool of this root"])
    if report.next_step is not None:
        click.echo(f"hint: {report.next_step}", err=True)
    return report.exit_code

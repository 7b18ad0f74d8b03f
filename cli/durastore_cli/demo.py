"""`durastore demo`: one call of `run_demo`, or of `served` with `--serve`."""

from __future__ import annotations

from pathlib import Path

import click

from durastore.clock import SYSTEM_CLOCK
from durastore_cli.exits import EPILOG
from durastore_cli.interrupts import until_interrupted
from durastore_cli.render import print_json, print_lines

__all__ = ["command"]


@click.command(epilog=EPILOG)
@click.option("--samples", type=click.IntRange(1), default=164, show_default=True, help="How many prompts.")
@click.option("--keep", metavar="DIR", help="Work in this folder; the same folder again resumes.")
@click.option("--bucket", metavar="URL", help="Use this bucket instead of a local S3 server.")
@click.option("--endpoint-url", metavar="URL", help="S3 endpoint of that bucket.")
@click.option("--serve", is_flag=True, help="Only the S3 server of the folder, until Ctrl-C, to try commands on.")
@click.option("--port", type=click.IntRange(1, 55_535), help="With --serve: its port on loopback (default 8333).")
@click.option("--json", "as_json", is_flag=True, help="The report as JSON.")
def command(
    *,
    samples: int,
    keep: str | None,
    bucket: str | None,
    endpoint_url: str | None,
    serve: bool,
    port: int | None,
    as_json: bool,
) -> int:
    """Extract real hidden states, upload and prove them, reclaim the disk and read everything back."""
    if serve and (bucket is not None or endpoint_url is not None):
        raise click.UsageError("--serve starts a server of its own: leave --bucket and --endpoint-url out")
    if port is not None and not serve:
        raise click.UsageError("--port is for --serve")
    if serve:
        return _serve(Path(keep) if keep is not None else None, samples=samples, port=port)
    from durastore.demo import DemoOptions, run_demo

    report = run_demo(
        DemoOptions(
            samples=samples, keep=Path(keep) if keep is not None else None, bucket=bucket, endpoint_url=endpoint_url
        )
    )
    if as_json:
        print_json(report.render())
    else:
        print_lines(report.lines())
    return report.exit_code


def _serve(keep: Path | None, *, samples: int, port: int | None) -> int:
    """Until somebody interrupts it, which is how it is meant to end."""
    from durastore.demo.serve import DEMO_PORT, served

    with until_interrupted() as is_over, served(keep, samples=samples, port=port or DEMO_PORT) as server:
        print_lines(server.lines())
        while not is_over():
            SYSTEM_CLOCK.sleep(1)
    return 0

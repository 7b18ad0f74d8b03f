"""`durastore demo`: one call of `run_demo`."""

from __future__ import annotations

from pathlib import Path

import click

from durastore_cli.exits import EPILOG
from durastore_cli.render import print_json, print_lines

__all__ = ["command"]


@click.command(epilog=EPILOG)
@click.option("--samples", type=click.IntRange(1), default=164, show_default=True, help="How many prompts.")
@click.option("--keep", metavar="DIR", help="Work in this folder; the same folder again resumes.")
@click.option("--bucket", metavar="URL", help="Use this bucket instead of a local S3 server.")
@click.option("--endpoint-url", metavar="URL", help="S3 endpoint of that bucket.")
@click.option("--json", "as_json", is_flag=True, help="The report as JSON.")
def command(*, samples: int, keep: str | None, bucket: str | None, endpoint_url: str | None, as_json: bool) -> int:
    """Extract real hidden states, upload and prove them, reclaim the disk and read everything back."""
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

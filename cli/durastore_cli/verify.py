"""`durastore verify`: one call of `scrub`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from durastore.clock import SYSTEM_CLOCK
from durastore_cli.exits import EPILOG
from durastore_cli.options import SHARE, SIZE, bucket_option, given, needed_place, remote_options
from durastore_cli.progress import Ticker
from durastore_cli.remote import opened_remote
from durastore_cli.render import finding_facts, finding_lines, print_json, print_lines

if TYPE_CHECKING:
    from durastore.reconcile.scrub import ScrubReport

__all__ = ["command"]


@click.command(epilog=EPILOG)
@bucket_option
@remote_options
@click.option("--deep", is_flag=True, help="Read every byte of every object.")
@click.option("--sample", "share", type=SHARE, metavar="SHARE", help="Read this random share in full: 1% or 0.01.")
@click.option("--rate", "bytes_per_s", type=SIZE, metavar="SIZE", help="Read at most this much a second, e.g. 50MiB.")
@click.option("--state", metavar="FILE", help="Keep progress here; the same command again goes on after a kill.")
@click.option("--json", "as_json", is_flag=True, help="The report as JSON.")
def command(*, bucket: str | None, deep: bool, share: float | None, as_json: bool, **options: Any) -> int:
    """Look whether the bucket still holds what its manifest says. Needs no local files and changes nothing.

    Without --deep or --sample only sizes are compared. Exit code 12: something is missing or damaged; 13: nothing is,
    as far as could be looked at, and something could not.
    """
    from durastore.reconcile.scrub import ScrubRequest, scrub

    if deep and share is not None:
        raise click.UsageError("--deep reads everything; leave out --sample")
    bytes_per_s, state = options.pop("bytes_per_s"), options.pop("state")
    request = ScrubRequest(
        share=1.0 if deep else share or 0.0,
        bytes_per_s=bytes_per_s,
        state=Path(state) if state is not None else None,
    )
    with opened_remote(needed_place("bucket", bucket), given(options)) as (store, prefix):
        ticker = Ticker("durastore verify", "bytes read")
        report = scrub(store, prefix, request=request, clock=SYSTEM_CLOCK, on_progress=ticker)
    if as_json:
        print_json(_facts(report))
    else:
        print_lines(_lines(report))
    return report.exit_code


def _facts(report: ScrubReport) -> dict[str, Any]:
    return {
        **_counts(report),
        "findings": [finding_facts(finding) for finding in report.findings],
        "unverified": [{"key": u.key.text, "reason": u.reason} for u in report.unverified],
        "exit_code": report.exit_code,
    }


def _counts(report: ScrubReport) -> dict[str, Any]:
    return {
        "snapshot": report.snapshot_id,
        "samples": report.samples,
        "objects": report.objects,
        "bytes_recorded": report.bytes_recorded,
        "objects_listed_right": report.listed,
        "objects_listing_lacks": report.unlisted,
        "objects_read": report.objects_read,
        "objects_read_before": report.objects_read_before,
        "bytes_read": report.bytes_read,
        "bad_transfers": report.bad_transfers,
    }


def _lines(report: ScrubReport) -> Iterator[str]:
    yield from (f"{name}: {value}" for name, value in _counts(report).items())
    if not report.objects_read + report.objects_read_before:
        yield "only sizes were compared; --sample or --deep reads bytes"
    yield from finding_lines(report.findings)
    yield from (f"could not be looked at: {each.key}: {each.reason}" for each in report.unverified)
    yield f"findings: {len(report.findings)}, could not be looked at: {len(report.unverified)}"

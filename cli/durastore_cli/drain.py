"""`durastore drain`: one call of `drain_root`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from durastore.config import resolve_options
from durastore_cli.exits import EPILOG
from durastore_cli.options import bucket_option, given, local_option, named_place, needed_place, remote_options
from durastore_cli.render import print_json, print_lines

if TYPE_CHECKING:
    from durastore.store.draining import DrainedSpool, DrainReport

__all__ = ["command"]

_SHOWN = 20


@click.command(epilog=EPILOG)
@local_option
@bucket_option
@remote_options
@click.option("--timeout", "timeout_s", type=click.FloatRange(0), metavar="S", help="Seconds to wait for each bucket.")
@click.option(
    "--reclaim",
    type=click.Choice(["lazy", "eager", "never"]),
    help="eager: also wait until proven files have left the disk. Default lazy.",
)
@click.option("--settle", "settle_s", type=float, metavar="S", help="Least age of an upload before that (default 600).")
@click.option("--json", "as_json", is_flag=True, help="The report as JSON.")
def command(*, local: str | None, bucket: str | None, timeout_s: float | None, as_json: bool, **options: Any) -> int:
    """Finish the uploads of extractors that have ended: bring what their spools hold to the bucket, and prove it.

    Each spool's journal knows its bucket; without --bucket each goes to its own. Spools that a live process holds are
    left to it (exit code 11 if there are no others). Exit code 13: something is not proven; its files stay.
    """
    from durastore.store.draining import drain_root

    report = drain_root(
        Path(needed_place("local", local)),
        options=resolve_options(given(options)),
        bucket=named_place("bucket", bucket),
        timeout_s=timeout_s,
    )
    if as_json:
        print_json({**_facts(report), "exit_code": report.exit_code})
    else:
        print_lines(_lines(report))
    for spool in report.spools:
        if spool.error is not None:
            click.echo(f"durastore: {spool.name}: {spool.error} [{spool.error.code}]", err=True)
    return report.exit_code


def _facts(report: DrainReport) -> dict[str, Any]:
    return {"spools": [_spool_facts(spool) for spool in report.spools], "locked": list(report.locked)}


def _spool_facts(spool: DrainedSpool) -> dict[str, Any]:
    return {
        "spool": spool.name,
        "bucket": spool.bucket,
        "packs_found": spool.packs_found,
        "packs_proven": spool.packs_proven,
        "packs_freed": spool.packs_freed,
        "bytes_left": spool.bytes_left,
        "left": [
            {"pack": p.name, "state": p.state.value, "samples": p.samples, "size_bytes": p.size_bytes, "why": p.reason}
            for p in spool.left
        ],
        "error": spool.error.code if spool.error is not None else None,
    }


def _lines(report: DrainReport) -> Iterator[str]:
    for spool in report.spools:
        yield (
            f"{spool.name}: {spool.packs_proven} of {spool.packs_found} packs are proven in {spool.bucket}, "
            f"{spool.packs_freed} freed, {spool.bytes_left} bytes stay here"
        )
        for pack in spool.left[:_SHOWN]:
            yield f"  {pack.name}: {pack.state.value}, {pack.samples} samples, {pack.size_bytes} bytes: {pack.reason}"
        if len(spool.left) > _SHOWN:
            yield f"  ... and {len(spool.left) - _SHOWN} more"
    if report.locked:
        yield f"held by live processes: {', '.join(report.locked)}"
    if not report.spools:
        yield "no idle spool has anything to upload"

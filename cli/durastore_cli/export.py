"""`durastore export`: samples as the files of other tools."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from durastore_cli.exits import EPILOG
from durastore_cli.options import bucket_option, given, needed_place, remote_options
from durastore_cli.progress import Ticker
from durastore_cli.remote import opened_remote
from durastore_cli.render import print_json, print_lines, shown

if TYPE_CHECKING:
    from durastore.integrations.exporting import ExportReport

__all__ = ["command"]

_FORMATS = ["vllm", "speculators", "specforge-eagle3", "specforge-dflash", "specforge-dspark"]
_SHOWN = 100


@click.command(epilog=EPILOG)
@click.argument("ids", metavar="[ID]...", nargs=-1)
@bucket_option
@remote_options
@click.option("--format", "form", type=click.Choice(_FORMATS), required=True, help="Whose files they become.")
@click.option("--out", required=True, metavar="DIR", help="The folder that they go to.")
@click.option("--all", "is_all", is_flag=True, help="Every sample.")
@click.option("--ids", "ids_file", metavar="FILE", help="A file with one id a line.")
@click.option("--data", metavar="FILE", help="The input that was extracted: files are called after its rows, from 0.")
@click.option("--number-from-id", "is_number_from_id", is_flag=True, help="... or after the number that an id ends in.")
@click.option("--layers", metavar="LIST", help="Of the stored layers only these, e.g. 2,15,27.")
@click.option("--model", metavar="NAME", help="The run's model: its final norm is applied where the format wants it.")
@click.option("--mask-all", "is_mask_filled", is_flag=True, help="Samples without a loss mask get one of ones.")
@click.option("--dry-run", "is_dry_run", is_flag=True, help="Check names and run; fetch and write nothing.")
@click.option("--json", "as_json", is_flag=True, help="The report as JSON.")
def command(
    ids: tuple[str, ...], *, is_all: bool, ids_file: str | None, bucket: str | None, as_json: bool, **options: Any
) -> int:
    """Get samples out of the bucket as the files of another tool, each whole and checked before it has its name.

    Nothing is written over. What a format fixes (the side of the final norm, the number of layers, a loss mask) is
    required of the samples, never assumed. The same command again keeps what is there and goes on.
    """
    from durastore.dataset.restore import load_ids
    from durastore.integrations.exporting import ExportRequest, export_samples

    if (bool(ids) + is_all + (ids_file is not None)) != 1:
        raise click.UsageError("name the samples in one way: ID..., --ids FILE or --all")
    layers, data = options.pop("layers"), options.pop("data")
    request = ExportRequest(
        form=options.pop("form"),
        out=Path(options.pop("out")),
        ids=None if is_all else load_ids(Path(ids_file)) if ids_file is not None else ids,
        layers=_layers(layers) if layers is not None else None,
        model=options.pop("model"),
        data=Path(data) if data is not None else None,
        is_number_from_id=options.pop("is_number_from_id"),
        is_mask_filled=options.pop("is_mask_filled"),
        is_dry_run=options.pop("is_dry_run"),
        on_progress=Ticker("durastore export", "samples"),
    )
    with opened_remote(needed_place("bucket", bucket), given(options)) as (store, prefix):
        report = export_samples(store, prefix, request=request)
    _print(report, as_json=as_json)
    return report.exit_code


def _layers(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise click.UsageError(f"--layers {text!r} is no list of numbers such as 2,15,27")
    return tuple(map(int, parts))


def _print(report: ExportReport, *, as_json: bool) -> None:
    facts: dict[str, Any] = {
        "format": report.form,
        "layers": report.layers,
        "dry_run": report.is_dry_run,
        "written": report.written,
        "present": report.present,
        "bytes_written": report.bytes_written,
        "left_out": sorted(report.left_out),
        "failed": len(report.failed),
    }
    if as_json:
        failures = [{"id": f.id, "code": f.error.code, "reason": f.error.message} for f in report.failed]
        print_json({**facts, "failures": failures})
        return
    verb = "would be written" if report.is_dry_run else "written"
    print_lines(
        [
            f"{report.form}: {verb} {report.written}, there before {report.present}, failed {len(report.failed)}",
            f"layers: {report.layers or 'none'}",
        ]
    )
    if report.left_out:
        print_lines([f"left out: {', '.join(sorted(report.left_out))}"])
    for failure in report.failed[:_SHOWN]:
        click.echo(f"failed: {shown(failure.id)}: {shown(failure.error.message)} [{failure.error.code}]", err=True)
    if len(report.failed) > _SHOWN:
        click.echo(f"... and {len(report.failed) - _SHOWN} more; --json lists all", err=True)

"""`durastore get`: one call of `restore_samples`."""

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
    from durastore.dataset.restore import RestoreReport

__all__ = ["command"]

_SHOWN = 100


@click.command(epilog=EPILOG)
@click.argument("ids", metavar="[ID]...", nargs=-1)
@bucket_option
@remote_options
@click.option("--all", "is_all", is_flag=True, help="Every sample.")
@click.option("--ids", "ids_file", metavar="FILE", help="A file with one id a line.")
@click.option("--out", required=True, metavar="DIR|FILE", help="A folder; for one id also a file ending .safetensors.")
@click.option("--tensors", metavar="A,B", help="Only these tensors, uncompressed.")
@click.option("--plain", "is_plain", is_flag=True, help="Uncompressed tensors, for any safetensors reader.")
@click.option("--json", "as_json", is_flag=True, help="The report as JSON.")
def command(
    ids: tuple[str, ...], *, is_all: bool, ids_file: str | None, bucket: str | None, as_json: bool, **options: Any
) -> int:
    """Get samples out of the bucket, each into <id>.safetensors below DIR (dots of its last part as %2E).

    Each file is checked, digest by digest, before it gets its name; nothing is overwritten. The same command again
    keeps what is there and goes on inside a large sample.
    """
    from durastore.dataset.restore import RestoreRequest, load_ids, restore_samples

    if (bool(ids) + is_all + (ids_file is not None)) != 1:
        raise click.UsageError("name the samples in one way: ID..., --ids FILE or --all")
    out, tensors, is_plain = options.pop("out"), options.pop("tensors"), options.pop("is_plain")
    request = RestoreRequest(
        out=Path(out),
        ids=None if is_all else load_ids(Path(ids_file)) if ids_file is not None else ids,
        tensors=tuple(tensors.split(",")) if tensors is not None else None,
        is_plain=is_plain,
    )
    with opened_remote(needed_place("bucket", bucket), given(options)) as (store, prefix):
        report = restore_samples(store, prefix, request=request, on_progress=Ticker("durastore get", "samples"))
    _print(report, as_json=as_json)
    return report.exit_code


def _print(report: RestoreReport, *, as_json: bool) -> None:
    facts: dict[str, Any] = {
        "written": report.written,
        "present": report.present,
        "bytes_written": report.bytes_written,
        "bytes_fetched": report.bytes_fetched,
        "compressed": report.compressed,
        "failed": len(report.failed),
    }
    if as_json:
        failures = [{"id": f.id, "code": f.error.code, "reason": f.error.message} for f in report.failed]
        print_json({**facts, "failures": failures})
    else:
        print_lines(f"{name}: {value}" for name, value in facts.items())
        for failure in report.failed[:_SHOWN]:
            click.echo(f"failed: {shown(failure.id)}: {shown(failure.error.message)} [{failure.error.code}]", err=True)
        for hint in dict.fromkeys(f.error.hint for f in report.failed[:_SHOWN] if f.error.hint):
            click.echo(f"hint: {shown(hint)}", err=True)
        if len(report.failed) > _SHOWN:
            click.echo(f"... and {len(report.failed) - _SHOWN} more; --json lists all", err=True)
    if report.compressed:
        text = f"{report.compressed} of the files hold compressed tensors, as stored; --plain writes them uncompressed"
        click.echo(f"durastore get: {text}", err=True)

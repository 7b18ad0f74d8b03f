"""`durastore ls`: one call of `fetch_listing_of`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from durastore_cli.exits import EPILOG
from durastore_cli.options import bucket_option, given, needed_place, remote_options
from durastore_cli.remote import opened_remote
from durastore_cli.render import print_json_lines, print_lines, time_text

if TYPE_CHECKING:
    from durastore.dataset.listing import ListedSample

__all__ = ["command"]


@click.command(epilog=EPILOG)
@click.argument("id_prefix", metavar="[PREFIX]", default="")
@bucket_option
@remote_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line: id, size, key, time, tensors, ...")
@click.option("--meta", "with_meta", is_flag=True, help="With --json: each sample's meta too.")
def command(*, id_prefix: str, bucket: str | None, as_json: bool, with_meta: bool, **remote: Any) -> None:
    """List the samples whose id begins with PREFIX (all without one), in byte order, one a line.

    Tells what the manifest says; `durastore verify` looks at the objects.
    """
    from durastore.dataset.listing import fetch_listing_of

    if with_meta and not as_json:
        raise click.UsageError("--meta acts only together with --json")
    with opened_remote(needed_place("bucket", bucket), given(remote)) as (store, prefix):
        listing = fetch_listing_of(store, prefix, id_prefix=id_prefix, with_meta=with_meta)
    if not as_json:
        for ids in listing.ids():
            print_lines(ids)
        return
    for batch in listing:
        print_json_lines(map(_facts, batch))


def _facts(sample: ListedSample) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "id": sample.id,
        "size_bytes": sample.size_bytes,
        "digest": sample.digest,
        "key": sample.key,
        "time": time_text(sample.time_ns),
        "provenance": sample.provenance,
        "tensors": [
            {"name": t.name, "dtype": t.dtype, "shape": list(t.shape), "codec": t.codec} for t in sample.tensors
        ],
    }
    return facts if sample.meta is None else {**facts, "meta": sample.meta}

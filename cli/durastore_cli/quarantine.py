"""`durastore quarantine list` and `durastore quarantine release`."""

from __future__ import annotations

from pathlib import Path

import click

from durastore_cli.exits import EPILOG
from durastore_cli.options import local_option, needed_place
from durastore_cli.render import print_json, print_lines

__all__ = ["command"]

_SHOWN = 5


@click.group(epilog=EPILOG)
def command() -> None:
    """Doubtful files that were set aside: show them, or move one out."""


@command.command("list", epilog=EPILOG, short_help="Show the files, and what of them is good.")
@local_option
@click.option("--json", "as_json", is_flag=True, help="The result as JSON, with every sample's id.")
def list_files(*, local: str | None, as_json: bool) -> None:
    """List the files in quarantine: why they are there, and which samples in them still verify. Reads each in full."""
    from durastore.spool.quarantine import find_quarantined

    files = find_quarantined(Path(needed_place("local", local)))
    if as_json:
        print_json(
            [
                {
                    "name": file.place,
                    "size_bytes": file.size_bytes,
                    "mtime_ns": file.mtime_ns,
                    "reason": file.reason,
                    "samples": list(file.samples),
                    "damaged": file.damaged,
                }
                for file in files
            ]
        )
        return
    for file in files:
        names = ", ".join(file.samples[:_SHOWN]) + (", ..." if len(file.samples) > _SHOWN else "")
        good = f"{len(file.samples)} samples still verify" + (f" ({names})" if names else "")
        bad = f"; damaged places: {file.damaged}" if file.damaged else ""
        print_lines([f"{file.place}: {file.size_bytes} bytes: {file.reason}; {good}{bad}"])
    if not files:
        print_lines(["nothing is in quarantine"])


@command.command(epilog=EPILOG, short_help="Move one file out, into a folder of yours.")
@click.argument("name")
@local_option
@click.option("--to", required=True, metavar="DIR", help="A folder outside of the root, on the same file system.")
@click.option("--json", "as_json", is_flag=True, help="The result as JSON.")
def release(*, name: str, local: str | None, to: str, as_json: bool) -> None:
    """Move the file NAME (w-NN/FILE, as list shows it) out of quarantine into DIR, which is made if it is missing.

    Nothing is overwritten. Where only one spool has such a FILE, its name is enough.
    """
    from durastore.spool.quarantine import release_quarantined

    released = release_quarantined(Path(needed_place("local", local)), name, to=Path(to))
    if as_json:
        print_json({"name": released.place, "path": str(released.path)})
    else:
        print_lines([f"{released.place}: now {released.path}"])

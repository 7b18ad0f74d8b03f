"""`durastore artifacts push|watch|pull|ls`: folders kept as snapshots."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

import click

from durastore.config import resolve_options
from durastore_cli.exits import EPILOG
from durastore_cli.options import REMOTE_NAMES, bucket_option, given, needed_place, remote_options
from durastore_cli.progress import Ticker
from durastore_cli.remote import opened_remote
from durastore_cli.render import print_json, print_lines, shown, time_text

if TYPE_CHECKING:
    from durastore.artifacts.pulling import Snapshot
    from durastore.artifacts.request import PushReport, PushRequest

__all__ = ["command"]

F = TypeVar("F", bound=Callable[..., Any])
_SHOWN = 20
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)([smhd]?)", re.ASCII)


@click.group(epilog=EPILOG)
def command() -> None:
    """Keep folders (checkpoints, tokenised data, scripts) in the bucket, as snapshots that appear whole or not."""


def _push_options(wrapped: F) -> F:
    for option in reversed(
        (
            click.option("--name", metavar="NAME", help="What the snapshots are called. Default: as the folder."),
            click.option("--exclude", metavar="GLOB", multiple=True, help="Leave these out. Can be given repeatedly."),
            click.option(
                "--keep-last", type=click.IntRange(1), metavar="N", help="Free all but N numbered sub-folders."
            ),
            click.option(
                "--settle",
                "settle_s",
                type=float,
                metavar="SECONDS",
                help="From upload to reclaim at least (default 60).",
            ),
            click.option("--any-filesystem", is_flag=True, help="Also on a network, FUSE or memory file system."),
        )
    ):
        wrapped = option(wrapped)
    return wrapped


def _seconds(text: str) -> float:
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise click.UsageError(f"{text!r} is no time such as 90s, 30m or 2h")
    return float(found[1]) * _UNITS[found[2]]


@command.command(epilog=EPILOG, short_help="Take one snapshot of a folder.")
@click.argument("folder", metavar="DIR")
@bucket_option
@remote_options
@_push_options
@click.option("--quiet", default="0", metavar="TIME", show_default=True, help="No file may be newer.")
@click.option("--json", "as_json", is_flag=True, help="The report as JSON.")
def push(folder: str, *, bucket: str | None, as_json: bool, **options: Any) -> int:
    """Take one snapshot of DIR: every file sent, read back and listed, and the snapshot's list published last.

    What the bucket has is not sent again. Nothing is published while somebody writes to a file of DIR.
    """
    from durastore.artifacts.pushing import push as take

    report = take(_request(folder, bucket, options=options))
    _print_push(report, as_json=as_json)
    return report.exit_code


@command.command(epilog=EPILOG, short_help="Take one every so often, until told to stop.")
@click.argument("folder", metavar="DIR")
@bucket_option
@remote_options
@_push_options
@click.option("--every", default="30m", metavar="TIME", show_default=True, help="Such as 90s, 30m, 2h.")
@click.option("--quiet", default="60s", metavar="TIME", show_default=True, help="No file may be newer.")
@click.option("--json", "as_json", is_flag=True, help="The reports as JSON.")
def watch(folder: str, *, bucket: str | None, every: str, as_json: bool, **options: Any) -> int:
    """Push DIR again and again, until SIGTERM or Ctrl-C. Exit code: that of the last push."""
    from durastore.artifacts.pushing import push as push_once
    from durastore.artifacts.watching import watch as go_on

    stopping: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        del frame
        stopping.append(number)

    def take(request: PushRequest) -> PushReport:
        report = push_once(request)
        _print_push(report, as_json=as_json)
        return report

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        return go_on(
            _request(folder, bucket, options=options),
            take=take,
            every_s=_seconds(every),
            should_stop=lambda: bool(stopping),
        )
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _request(folder: str, bucket: str | None, *, options: dict[str, Any]) -> PushRequest:
    from durastore.artifacts.request import PushRequest
    from durastore.objectstore.location import BucketUrl

    allowed = {"is_any_filesystem_allowed": True} if options["any_filesystem"] else {}
    remote = given({name: options[name] for name in REMOTE_NAMES})
    return PushRequest(
        folder=Path(folder),
        bucket=BucketUrl.parse(needed_place("bucket", bucket)),
        name=options["name"],
        exclude=tuple(options["exclude"]),
        quiet_s=_seconds(options["quiet"]),
        keep_last=options["keep_last"],
        settle_s=options["settle_s"],
        options=resolve_options(remote | allowed),
    )


def _print_push(report: PushReport, *, as_json: bool) -> None:
    ref = report.snapshot
    facts: dict[str, Any] = {
        "name": report.name,
        "snapshot": ref.short_digest if ref is not None else None,
        "seq": ref.seq if ref is not None else None,
        "is_new": report.is_new,
        "files": report.files,
        "bytes": report.size_bytes,
        "sent": report.sent,
        "sent_bytes": report.sent_bytes,
        "carried": report.carried,
        "left_out": list(report.left_out),
        "freed": report.freed,
        "freed_bytes": report.freed_bytes,
        "kept": report.kept,
        "troubles": report.troubles,
    }
    if as_json:
        print_json(facts)
        return
    if ref is None:
        print_lines([f"{report.name}: no snapshot, {len(report.troubles)} in the way"])
    else:
        state = "new" if report.is_new else "unchanged"
        lines = [
            f"{report.name} {ref.seq} ({ref.short_digest}), {state}: {report.files} files, {report.size_bytes} bytes"
        ]
        lines += [f"sent {report.sent} files, {report.sent_bytes} bytes"]
        if report.freed or report.carried:
            lines += [f"freed here {report.freed} files, {report.freed_bytes} bytes; earlier {report.carried}"]
        print_lines(lines)
    for what, found in (("in the way", report.troubles), ("kept", report.kept)):
        for path, why in list(found.items())[:_SHOWN]:
            click.echo(f"{what}: {shown(path)}: {shown(why.removeprefix(f'{path} '))}", err=True)
        if len(found) > _SHOWN:
            click.echo(f"... and {len(found) - _SHOWN} more; --json lists all", err=True)
    if report.troubles:
        click.echo("hint: mend them, or leave them out (--exclude GLOB); then the same command again", err=True)
    if report.left_out:
        click.echo(f"left out (excluded, or links): {len(report.left_out)}", err=True)


@command.command(epilog=EPILOG, short_help="Get a snapshot's files, or some of them.")
@click.argument("patterns", metavar="[PATH]...", nargs=-1)
@bucket_option
@remote_options
@click.option("--out", required=True, metavar="DIR", help="Where the files go. Nothing is written over.")
@click.option("--name", metavar="NAME", help="Of the snapshots; needed where there are several.")
@click.option("--snapshot", metavar="ID", help="An earlier one, by the first digits of its id. Default: the newest.")
@click.option("--json", "as_json", is_flag=True, help="The report as JSON.")
def pull(patterns: tuple[str, ...], *, bucket: str | None, as_json: bool, **options: Any) -> int:
    """Get a snapshot's files, or those that PATH (a path, a folder, a pattern) names, each checked before it is there.

    The same command again keeps what is there and goes on, inside of a large file too.
    """
    from durastore.artifacts.pulling import PullRequest
    from durastore.artifacts.pulling import pull as bring

    out, name, snapshot = options.pop("out"), options.pop("name"), options.pop("snapshot")
    progress = Ticker("durastore artifacts pull", "files")
    request = PullRequest(out=Path(out), name=name, snapshot=snapshot, patterns=patterns, on_progress=progress)
    with opened_remote(needed_place("bucket", bucket), given(options)) as (store, prefix):
        report = bring(store, prefix, request=request)
    facts: dict[str, Any] = {
        "name": report.snapshot.name.text,
        "snapshot": report.snapshot.short_digest,
        "written": report.written,
        "present": report.present,
        "bytes_written": report.bytes_written,
        "failed": len(report.failed),
    }
    if as_json:
        failures = [{"path": f.id, "code": f.error.code, "reason": f.error.message} for f in report.failed]
        print_json({**facts, "failures": failures})
    else:
        print_lines(f"{key}: {value}" for key, value in facts.items())
        for failure in report.failed[:_SHOWN]:
            click.echo(f"failed: {shown(failure.id)}: {shown(failure.error.message)}", err=True)
    return report.exit_code


@command.command("ls", epilog=EPILOG, short_help="List the snapshots, or the newest one's files.")
@bucket_option
@remote_options
@click.option("--name", metavar="NAME", help="Only these snapshots.")
@click.option("--files", "with_files", is_flag=True, help="The files of the newest one (of the name).")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def list_(*, bucket: str | None, name: str | None, with_files: bool, as_json: bool, **options: Any) -> int:
    """List the snapshots: name, number, id, time, files, bytes, host."""
    from durastore.artifacts.pulling import snapshots

    with opened_remote(needed_place("bucket", bucket), given(options)) as (store, prefix):
        found = list(snapshots(store, prefix, name=name))
    if with_files:
        found = found[-1:]
    if as_json:
        print_json([_facts(each, with_files=with_files) for each in found])
    else:
        print_lines(line for each in found for line in _lines(each, with_files=with_files))
    return 12 if any(each.content is None for each in found) else 0


def _facts(each: Snapshot, *, with_files: bool) -> dict[str, Any]:
    facts: dict[str, Any] = {"name": each.ref.name.text, "seq": each.ref.seq, "snapshot": each.ref.short_digest}
    if each.content is None:
        return {**facts, "fault": each.fault}
    content = each.content
    facts |= {"created": time_text(content.created_ns), "host": content.host}
    facts |= {"files": len(content.files), "bytes": content.size_bytes}
    if with_files:
        facts["paths"] = [
            {"path": f.path.text, "bytes": f.size_bytes, "xxh3_128": f.digest.hex, "is_local": f.is_local}
            for f in content.files
        ]
    return facts


def _lines(each: Snapshot, *, with_files: bool) -> list[str]:
    head = f"{each.ref.name}  {each.ref.seq}  {each.ref.short_digest}"
    if each.content is None:
        return [f"{head}  unreadable: {each.fault}"]
    content = each.content
    if with_files:
        return [f"{file.size_bytes}  {file.path}" for file in content.files]
    size = f"{len(content.files)} files  {content.size_bytes} bytes"
    return [f"{head}  {time_text(content.created_ns)}  {size}  {content.host}"]

"""`durastore status`: one call of `look_at_store`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from durastore.clock import SYSTEM_CLOCK, Stamp
from durastore.config import resolve_options
from durastore.monitor.words import duration, size
from durastore_cli.exits import EPILOG
from durastore_cli.interrupts import until_interrupted
from durastore_cli.options import bucket_option, given, local_option, named_place, needed_place, remote_options
from durastore_cli.remote import opened_remote
from durastore_cli.render import print_json, print_json_lines, print_lines, shown, time_text

if TYPE_CHECKING:
    from durastore.spool.glance import RootGlance, SpoolGlance
    from durastore.store.overview import ManifestTotals, StatusReport

__all__ = ["command"]

_SHOWN = 10
_PARTLY_DONE = 3


@click.command(epilog=EPILOG)
@local_option
@bucket_option
@remote_options
@click.option("--failed", is_flag=True, help="The samples that extractions could not do, and why, instead.")
@click.option("--watch", is_flag=True, help="Go on showing progress, stages and stalls, until interrupted.")
@click.option(
    "--every",
    "every_s",
    type=click.FloatRange(0.2),
    default=1.0,
    show_default=True,
    metavar="S",
    help="How often, with --watch.",
)
@click.option("--json", "as_json", is_flag=True, help="The report as JSON; with --watch one document a line.")
def command(
    *, local: str | None, bucket: str | None, failed: bool, watch: bool, every_s: float, as_json: bool, **remote: Any
) -> int:
    """Show what a spool root holds, also while an extractor works there; with --bucket the manifest's totals too.

    --failed --bucket tells what failed on all machines, as far as they told the bucket; --failed --local what failed in
    that root.

    Takes no lock and writes nothing.
    """
    if watch:
        return _watch(Path(needed_place("local", local)), every_s=every_s, as_json=as_json)
    if failed:
        place = bucket if bucket is not None or named_place("local", local) else named_place("bucket", bucket)
        if place is not None:
            return _show_failed_anywhere(place, remote, as_json=as_json)
        return _show_failed(Path(needed_place("local", local)), as_json=as_json)
    from durastore.store.overview import look_at_store

    place = named_place("bucket", bucket)
    reserve_bytes = resolve_options(given(remote)).reserve_bytes
    opener = partial(opened_remote, place, given(remote)) if place is not None else None
    report = look_at_store(Path(needed_place("local", local)), bucket=opener)
    facts = _facts(report, reserve_bytes=reserve_bytes)
    if as_json:
        print_json(facts)
    else:
        print_lines(_lines(facts))
    if report.error is not None:
        click.echo(f"durastore: the bucket: {report.error} [{report.error.code}]", err=True)
    return report.exit_code


def _watch(root: Path, *, every_s: float, as_json: bool) -> int:
    """Until somebody interrupts it, which is how it is meant to end."""
    from durastore.monitor.as_json import render_view
    from durastore.monitor.sampler import Sampler

    with Sampler([root]) as sampler, until_interrupted() as is_over:
        sampler.look()
        sampler.start()
        while as_json and not is_over():
            print_json_lines([render_view(sampler.view)])
            SYSTEM_CLOCK.sleep(every_s)
        if not as_json:
            from rich.console import Console

            from durastore.monitor.terminal import watch

            watch(sampler, console=Console(), clock=SYSTEM_CLOCK, every_s=every_s, is_over=is_over)
    return 0


def _show_failed(root: Path, *, as_json: bool) -> int:
    """Exit code 3 while there are any: they are what an extraction left undone."""
    from dataclasses import asdict

    from durastore.extract.failure_book import load_failures

    failures = load_failures(root)
    if as_json:
        print_json({"failed": [{**asdict(failure), "time": time_text(failure.time_ns)} for failure in failures]})
    else:
        print_lines(
            f"{f.sample_id or f'line {f.line}'}: {f.stage}: {f.reason}"
            f" (attempts {f.attempts}, runs {f.runs}, {f.worker}, {time_text(f.time_ns)}, run {f.run[:16]})"
            for f in failures
        )
        if not failures:
            print_lines(["no sample is recorded as failed"])
    return _PARTLY_DONE if failures else 0


def _show_failed_anywhere(bucket: str, remote: dict[str, Any], *, as_json: bool) -> int:
    """As `_show_failed`, of all hosts; what says nothing is named on stderr."""
    from dataclasses import asdict

    from durastore.extract.shared_failures import fetch_failures

    with opened_remote(bucket, given(remote)) as (store, prefix):
        found = fetch_failures(store, prefix)
    if as_json:
        failed = [{**asdict(failure), "time": time_text(failure.time_ns)} for failure in found.failures]
        ignored = [asdict(each) for each in found.ignored]
        print_json({"run": found.run.hex, "failed": failed, "ignored": ignored, "problem": found.problem})
    else:
        print_lines(
            f"{f.sample_id or f'line {f.line}'}: {f.stage}: {f.reason}"
            f" (attempts {f.attempts}, runs {f.runs}, {f.worker} on {f.host}, {time_text(f.time_ns)})"
            for f in found.failures
        )
        if not found.failures:
            print_lines(["the bucket was told of no sample that failed and is not stored"])
    for each in found.ignored[:_SHOWN]:
        click.echo(shown(f"durastore: not read: {each.key}: {each.reason}"), err=True)
    if len(found.ignored) > _SHOWN:
        click.echo(f"durastore: not read: ... and {len(found.ignored) - _SHOWN} more (--json names all)", err=True)
    if found.problem is not None:
        click.echo(shown(f"durastore: what was stored since is told as failed, too: {found.problem}"), err=True)
    return _PARTLY_DONE if found.failures else 0


def _facts(report: StatusReport, *, reserve_bytes: int) -> dict[str, Any]:
    root = report.root
    return {
        "local": str(root.path),
        "moved_to": root.moved_to,
        "is_copy": root.is_copy,
        "free_bytes": root.free_bytes,
        "reserve_bytes": reserve_bytes,
        "spools": [_spool_facts(spool) for spool in root.spools],
        "stops": [
            {"id": s.id, "thrown": _wall(s.thrown) if s.thrown else None, "reason": s.reason} for s in root.stops
        ],
        "probes": list(_probe_facts(root)),
        "manifest": _totals(report.manifest) if report.manifest is not None else None,
    }


def _spool_facts(spool: SpoolGlance) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "spool": spool.name,
        "held_by": list(spool.holders) if spool.holders is not None else None,
        "problem": spool.problem,
        "quarantined_files": spool.quarantined_files,
        "quarantined_bytes": spool.quarantined_bytes,
    }
    journal = spool.journal
    if journal is None:
        return facts
    oldest = journal.oldest_only_local_ns
    age_s = max(0, SYSTEM_CLOCK.now_ns() - oldest) / 1e9 if oldest is not None else None
    return {
        **facts,
        "bucket": journal.bucket_url,
        "local_bytes": journal.local_bytes,
        "packs": {
            state.value: {"packs": t.packs, "samples": t.samples, "size_bytes": t.size_bytes}
            for state, t in journal.states.items()
        },
        "only_local_samples": journal.only_local_samples,
        "oldest_only_local_age_s": round(age_s, 1) if age_s is not None else None,
        "troubles": [{"pack": name, "reason": reason} for name, reason in journal.troubles],
    }


def _probe_facts(root: RootGlance) -> Iterator[dict[str, Any]]:
    for probe in root.probes:
        yield {
            "endpoint": probe.endpoint,
            "bucket": probe.bucket,
            "prefix": probe.prefix,
            "taken": _wall(probe.taken),
            "level": probe.level.name,
            "blocking": list(probe.blocking),
        }


def _wall(stamp: str) -> str:
    return time_text(Stamp.parse(stamp).wall_ns)


def _totals(manifest: ManifestTotals) -> dict[str, Any]:
    return {
        "snapshot": manifest.snapshot_id,
        "segments": manifest.segments,
        "samples": manifest.samples,
        "sample_bytes": manifest.sample_bytes,
        "objects": manifest.objects,
        "duplicates": manifest.duplicates,
    }


def _lines(facts: dict[str, Any]) -> Iterator[str]:
    yield f"root {facts['local']}: {size(facts['free_bytes'])} free (reserve {size(facts['reserve_bytes'])})"
    if facts["free_bytes"] < facts["reserve_bytes"]:
        yield "less than the reserve is free: puts wait until proven packs were freed, or others free some"
    if facts["is_copy"]:
        yield "this root is a copy, and no process opens it: use the original (`durastore drain` here says more)"
    if facts["moved_to"] is not None:
        yield f"moved to {facts['moved_to']}: this root is not used any more"
    for spool in facts["spools"]:
        yield from _spool_lines(spool)
    for stop in facts["stops"]:
        yield f"reclaiming is stopped since {stop['thrown']}: {stop['reason']} (`durastore probe --local` lifts it)"
    for probe in facts["probes"]:
        blocked = "".join(f"; nothing is reclaimed: {reason}" for reason in probe["blocking"])
        where = f"{probe['endpoint']} {probe['bucket']}/{probe['prefix']}"
        yield f"probe of {where} at {probe['taken']}: {probe['level']}{blocked}"
    if facts["manifest"] is not None:
        yield "manifest: " + ", ".join(f"{name} {value}" for name, value in facts["manifest"].items())


def _spool_lines(spool: dict[str, Any]) -> Iterator[str]:
    held = spool["held_by"]
    who = "nobody can tell who holds it" if held is None else f"held by {', '.join(map(str, held))}" if held else "idle"
    if "packs" not in spool:
        yield f"{spool['spool']}: {who}: {spool['problem'] or 'no journal yet'}"
    else:
        states = ", ".join(f"{t['packs']} {state} ({size(t['size_bytes'])})" for state, t in spool["packs"].items())
        here = f"{size(spool['local_bytes'])} here for {spool['bucket'] or 'no bucket yet'}"
        yield f"{spool['spool']}: {who}: {here}: {states or 'no packs'}"
        if spool["only_local_samples"]:
            age = spool["oldest_only_local_age_s"]
            yield f"  {spool['only_local_samples']} samples are only here so far, the oldest for {duration(age)}"
        for trouble in spool["troubles"][:_SHOWN]:
            yield f"  {trouble['pack']}: {trouble['reason']}"
    if spool["quarantined_files"]:
        yield f"  quarantine: {spool['quarantined_files']} files, {size(spool['quarantined_bytes'])}"

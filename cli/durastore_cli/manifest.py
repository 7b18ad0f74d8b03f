"""`durastore manifest show`, `durastore manifest compact` and `durastore manifest rebuild`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from durastore.clock import SYSTEM_CLOCK
from durastore_cli.exits import EPILOG
from durastore_cli.options import bucket_option, given, needed_place, remote_options
from durastore_cli.remote import opened_remote
from durastore_cli.render import finding_facts, finding_lines, print_json, print_lines, shown

if TYPE_CHECKING:
    from durastore.manifest.compaction import CompactionReport
    from durastore.manifest.view import ResolvedView
    from durastore.model import ManifestRow
    from durastore.reconcile.rebuild import RebuildPlan, RebuildReport

__all__ = ["command"]

_FINDINGS = 12
_NO_SAMPLE = 1


@click.group(epilog=EPILOG)
def command() -> None:
    """Show the bucket's manifest, write it in one piece, or rebuild it from the packs."""


@command.command(epilog=EPILOG, short_help="Show what the manifest says the bucket holds.")
@bucket_option
@remote_options
@click.option("--sample", metavar="ID", help="Show the live rows of this sample.")
@click.option("--ids", "is_listing", is_flag=True, help="List the ids of all samples.")
@click.option("--json", "as_json", is_flag=True, help="The result as JSON.")
def show(*, bucket: str | None, sample: str | None, is_listing: bool, as_json: bool, **remote: Any) -> int:
    """Show what the manifest says the bucket holds. Looks at no pack."""
    from durastore.manifest.presence import fetch_present_snapshot
    from durastore.manifest.view import fetch_view
    from durastore.model import SampleId

    if sample is not None and is_listing:
        raise click.UsageError("--sample shows one sample, --ids lists all: give one of them")
    with opened_remote(needed_place("bucket", bucket), given(remote)) as (store, prefix):
        snapshot = fetch_present_snapshot(store, prefix)
        view = fetch_view(store, snapshot)
    if sample is not None:
        rows = [_row_facts(row) for row in view.rows_of(SampleId(sample))]
        if as_json:
            print_json({"sample": sample, "rows": rows})
        else:
            print_lines(f"{name}: {value}" for row in rows for name, value in row.items())
        if not rows:
            click.echo(f"no sample {shown(sample)}; --ids lists those that there are", err=True)
        return 0 if rows else _NO_SAMPLE
    if is_listing:
        if as_json:
            print_json(view.ids())
        else:
            print_lines(view.ids())
        return 0
    facts = _view_facts(view, segments=len(snapshot.segments))
    if as_json:
        print_json(facts)
    else:
        print_lines(f"{name}: {value}" for name, value in facts.items() if name != "runs")
        print_lines(f"run {run['digest']}: {run['samples']} samples: {run['text']}" for run in facts["runs"])
    return 0


@command.command(epilog=EPILOG, short_help="Add the samples of packs that no row names.")
@bucket_option
@remote_options
@click.option("--dry-run", is_flag=True, help="Only show what would be read.")
@click.option("--json", "as_json", is_flag=True, help="The result as JSON.")
def rebuild(*, bucket: str | None, dry_run: bool, as_json: bool, **remote: Any) -> int:
    """Read every pack that no manifest row names, check it, and add its samples to the manifest.

    Adds manifest segments; changes and removes nothing. Damaged and foreign objects are reported (exit code 12).
    """
    from durastore.manifest.presence import check_present
    from durastore.reconcile.rebuild import execute_rebuild, plan_rebuild

    with opened_remote(needed_place("bucket", bucket), given(remote)) as (store, prefix):
        check_present(store, prefix)
        plan = plan_rebuild(store, prefix)
        report = None if dry_run else execute_rebuild(store, plan, clock=SYSTEM_CLOCK)
    findings = plan.findings if report is None else report.findings
    facts = _plan_facts(plan) if report is None else _report_facts(report)
    if as_json:
        print_json({**facts, "findings": [finding_facts(finding) for finding in findings]})
    else:
        print_lines(f"{name}: {value}" for name, value in facts.items())
        print_lines(finding_lines(findings))
    return _FINDINGS if findings else 0


@command.command(epilog=EPILOG, short_help="Write one segment in the place of many.")
@bucket_option
@remote_options
@click.option("--dry-run", is_flag=True, help="Only show what would be written.")
@click.option("--json", "as_json", is_flag=True, help="The result as JSON.")
def compact(*, bucket: str | None, dry_run: bool, as_json: bool, **remote: Any) -> int:
    """Write one segment that says what all segments say, so that opening the dataset takes fewer requests.

    Adds one object and removes nothing. Writers may go on meanwhile: what they add is read beside it.
    """
    from durastore.manifest.compaction import CompactionReport, execute_compaction, plan_compaction
    from durastore.manifest.presence import check_present

    with opened_remote(needed_place("bucket", bucket), given(remote)) as (store, prefix):
        check_present(store, prefix)
        plan = plan_compaction(store, prefix)
        report = CompactionReport(plan=plan, segment=None) if dry_run else execute_compaction(store, plan)
    facts = _compaction_facts(report)
    if as_json:
        print_json(facts)
        return 0
    if report.segment is None:
        del facts["segment"]
    print_lines(f"{name}: {value}" for name, value in facts.items())
    if not plan.is_needed:
        print_lines(["nothing to compact: the manifest is in one piece already"])
    return 0


def _view_facts(view: ResolvedView, *, segments: int) -> dict[str, Any]:
    texts = view.runs
    return {
        "snapshot": view.snapshot_id.hex,
        "samples": len(view),
        "duplicate_rows": view.duplicate_count,
        "objects": len(view.object_keys()),
        "segments": segments,
        "runs": [
            {"digest": digest.hex, "samples": count, "text": texts[digest].text if digest in texts else None}
            for digest, count in sorted(view.run_counts.items())
        ],
    }


def _row_facts(row: ManifestRow) -> dict[str, Any]:
    entry, held = row.entry, row.object
    return {
        "sample_id": entry.sample_id.text,
        "key": held.key.text,
        "offset": entry.offset,
        "length": entry.length,
        "object_size": held.size_bytes,
        "object_digest": held.digest.hex,
        "crc64nvme": held.crc64nvme,
        "etag": held.etag,
        "version_id": held.version_id,
        "header_digest": entry.header_digest.hex,
        "schema": entry.schema,
        "meta": entry.meta,
        "run": entry.run.hex,
        "input_digest": entry.input_digest.hex if entry.input_digest is not None else None,
        "provenance": entry.provenance,
        "writer": held.writer.hex,
        "time_ns": entry.time_ns,
    }


def _compaction_facts(report: CompactionReport) -> dict[str, Any]:
    plan = report.plan
    return {
        "samples": plan.samples,
        "rows": plan.rows,
        "tombstones": plan.tombstones,
        "rows_left_out": plan.rows_left_out,
        "segments_read": plan.read_count,
        "bytes_read": plan.read_bytes,
        "segments_covered": len(plan.covers),
        "bytes_compacted": len(plan.data),
        "segment": report.segment.text if report.segment is not None else None,
    }


def _plan_facts(plan: RebuildPlan) -> dict[str, Any]:
    return {
        "packs_to_read": len(plan.packs),
        "bytes_to_read": plan.bytes_to_read,
        "gaps": sum(gap.missing_count for gap in plan.gaps),
        "unreadable_segments": len(plan.unreadable),
    }


def _report_facts(report: RebuildReport) -> dict[str, Any]:
    return {
        "packs_read": report.packs_read,
        "bytes_read": report.bytes_read,
        "rows_published": report.rows_published,
        "rows_tombstoned": report.rows_tombstoned,
        "segments_published": len(report.segments),
    }

"""`durastore probe`: what an endpoint really checks, as a table for people or as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from durastore.clock import Stamp
from durastore.config import resolve_options
from durastore_cli.exits import EPILOG
from durastore_cli.options import bucket_option, given, needed_place, remote_options
from durastore_cli.render import print_json, print_lines, time_text

if TYPE_CHECKING:
    from durastore.objectstore.probe.result import ProbeResult

__all__ = ["command"]

_FINDINGS = 12


@click.command(epilog=EPILOG)
@bucket_option
@remote_options
@click.option("--local", metavar="DIR", help="Also keep the result in this spool root or reconciled folder.")
@click.option("--json", "as_json", is_flag=True, help="The result as JSON.")
def command(*, bucket: str | None, local: str | None, as_json: bool, **remote: Any) -> int:
    """Send wrong checksums, sizes and conditions to the endpoint, and see which it refuses.

    Fewer than 60 requests, 10 to 30 MB. Writes small objects under .durastore-probe/ below the prefix, which stay
    there, and touches no other key. Works with credentials that may not list: what cannot be seen counts as the worse
    case. Exit code 12: something here takes stored objects away or changes them, so nothing would be reclaimed.
    """
    result = _run(needed_place("bucket", bucket), given(remote), local=local)
    if local is not None:
        from durastore.spool.opened import save_probe_in_root

        save_probe_in_root(Path(local), result)
    if as_json:
        print_json(_facts(result))
    else:
        print_lines(_lines(result))
    return _FINDINGS if result.is_blocking else 0


def _run(bucket: str, values: Mapping[str, Any], *, local: str | None) -> ProbeResult:
    from durastore.objectstore.location import BucketUrl, S3Options
    from durastore.objectstore.probe.opening import opened_probe_port, require_bucket
    from durastore.objectstore.probe.run import run_probe
    from durastore.spool.stops import stops_in_root

    # before the first question: the probe then answers what was found wrong before it, and nothing that comes later
    stops = stops_in_root(Path(local)) if local is not None else []
    options, url = resolve_options(values), BucketUrl.parse(bucket)
    s3 = S3Options.of(options)
    require_bucket(url, s3=s3)
    with opened_probe_port(url, s3=s3) as port:
        return run_probe(port, url.prefix, answering=[stop.id for stop in stops])


def _facts(result: ProbeResult) -> dict[str, Any]:
    single, multipart = result.checksum_single, result.checksum_multipart
    return {
        "level": result.level.name,
        "levels": {"single": result.level_single.name, "multipart": result.level_multipart.name},
        "checksums": {
            "single": single.value if single is not None else None,
            "multipart": multipart.value if multipart is not None else None,
        },
        "is_blocking": result.is_blocking,
        "blocking": list(result.blocking),
        "id": result.id,
        "taken": _taken(result),
        "endpoint": result.endpoint,
        "bucket": result.bucket,
        "prefix": result.prefix,
        "requests": result.request_count,
        "absent_is_404": result.absent_is_404,
        "is_create_only_enforced": result.is_create_only_enforced,
        "is_if_match_enforced": result.is_if_match_enforced,
        "is_versioned": result.is_versioned,
        "clock_skew_s": result.clock_skew_s,
        "expiring_rule": result.expiring_rule,
        "answers_stops": list(result.answers_stops),
        "checks": [
            {"name": c.name, "outcome": c.outcome.value, "detail": c.detail, "meaning": c.meaning}
            for c in result.checks
        ],
    }


def _taken(result: ProbeResult) -> str:
    return time_text(Stamp.parse(result.taken).wall_ns)


def _lines(result: ProbeResult) -> Iterator[str]:
    yield f"endpoint {result.endpoint}, bucket {result.bucket}, prefix {result.prefix or '(none)'}"
    yield f"probe {result.id} of {_taken(result)}: {result.request_count} requests"
    yield ""
    name_width = max(len(c.name) for c in result.checks) + 2
    outcome_width = max(len(c.outcome.value) for c in result.checks) + 2
    yield f"{'check':<{name_width}}{'outcome':<{outcome_width}}what it means (and what was seen)"
    for c in result.checks:
        yield f"{c.name:<{name_width}}{c.outcome.value:<{outcome_width}}{c.meaning}"
        yield f"{'':<{name_width + outcome_width}}({c.detail})"
    yield ""
    for path, level, checksum in (
        ("single writes", result.level_single, result.checksum_single),
        ("multipart writes", result.level_multipart, result.checksum_multipart),
    ):
        if level.name == "ATTESTED":
            assert checksum is not None
            how = f"proven by {checksum.value}, a look on another connection and a spot read"
        else:
            how = "every byte is read back before a local file may go"
        yield f"{path}: {level.name}: {how}"
    yield f"level: {result.level.name}"
    for stop in result.answers_stops:
        yield (
            f"lifts the stop of reclaiming {stop}, if that was thrown here: for stores from their next open on, "
            "for a folder from its next reconcile on"
        )
    for reason in result.blocking:
        yield f"nothing will be reclaimed: {reason}"

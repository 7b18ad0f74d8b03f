"""The probe: every check in order, fewer than 60 requests, one result.

Duty: put the questions, most important first, and hand the outcomes to `judge`. Writes only under a random prefix of
its own, replaces only what it wrote, takes nothing away.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace

from durastore.clock import SYSTEM_CLOCK, Clock
from durastore.errors import EndpointUnreachable, ObjectAbsent, UnknownAnswer
from durastore.objectstore.classify import Refusal, classify_refusal
from durastore.objectstore.probe.bucket import check_clock, check_lifecycle, check_versioning
from durastore.objectstore.probe.conditions import check_absent, check_conditions, check_stored, put_truncated
from durastore.objectstore.probe.interview import Interview
from durastore.objectstore.probe.judge import find_distrust, judge
from durastore.objectstore.probe.multipart import check_multipart, check_part_kinds
from durastore.objectstore.probe.names import check_names
from durastore.objectstore.probe.port import Answer, ProbePort
from durastore.objectstore.probe.result import Outcome, ProbeResult, WritePath
from durastore.objectstore.probe.saved import target_of
from durastore.objectstore.probe.single import check_single, put_plain

__all__ = ["PROBE_FOLDER", "run_probe"]

PROBE_FOLDER = ".durastore-probe"
"""Below the prefix: where probes leave their objects (some 20 small ones and two to five of 5 MiB, never removed)."""
_SETTLED = frozenset((301, 302, 307, 308, 401, 403, 404))
_FACTS = {
    Outcome.HONOURED: True,
    Outcome.NOT_ENFORCED: False,
    Outcome.UNSUPPORTED: False,
    Outcome.WRONG: False,
}


def run_probe(
    port: ProbePort, prefix: str, *, clock: Clock = SYSTEM_CLOCK, answering: Sequence[str] | None = None
) -> ProbeResult:
    """Find out what the endpoint checks. `prefix` is the store's, without slashes at its ends; may be empty.

    `answering`: where a person asks, the stops of reclaiming that were in force before this call; None where a store
    asks by itself.

    Whatever the endpoint does later, a result comes back, with the safer level for all that stayed unclear. Raises only
    where nothing can be asked at all, by the very first write: `EndpointUnreachable`, `CredentialsRefused`,
    `PermissionRefused`, `BucketMissing`, `ConfigError`, `UnknownAnswer`. Safe to repeat: each probe has its own keys.
    """
    base = f"{prefix}/" if prefix else ""
    talk = Interview(port, base=f"{base}{PROBE_FOLDER}/{secrets.token_hex(8)}/", clock=clock)
    plain = put_plain(talk)
    _raise_if_pointless(plain.created, key=plain.key)
    check_stored(talk, plain)
    torn = put_truncated(talk)
    check_single(talk, plain)
    check_conditions(talk, plain)
    expiring_rule = check_lifecycle(talk, prefix)
    check_absent(talk, torn)
    check_multipart(talk)
    is_versioned = check_versioning(talk)
    check_names(talk)
    check_part_kinds(talk)
    talk.give_up_uploads()
    if talk.open_uploads:
        left = ", ".join(sorted(talk.open_uploads.values()))
        talk.note("uploads", Outcome.PRESENT, detail=f"could not be given up: {left}")
    clock_skew_s = check_clock(talk)
    result = _result(talk, port, prefix=prefix, clock=clock, facts=(is_versioned, expiring_rule, clock_skew_s))
    return replace(result, is_by_person=answering is not None, answers_stops=tuple(answering or ()))


def _raise_if_pointless(first: Answer, *, key: str) -> None:
    if first.status is None:
        raise EndpointUnreachable(f"probe {key}: no answer from the endpoint ({first.code})")
    if first.status in _SETTLED:
        refusal = Refusal(status=first.status, server_code=first.code)
        error = classify_refusal(refusal, write=True, what="probe", key=key)
        if isinstance(error, ObjectAbsent):  # nobody asked whether the key is there: something else answers here
            raise UnknownAnswer(error.message, hint="check endpoint_url and bucket", **error.facts)
        raise error


def _result(
    talk: Interview,
    port: ProbePort,
    *,
    prefix: str,
    clock: Clock,
    facts: tuple[bool | None, str | None, float | None],
) -> ProbeResult:
    outcomes = {check.name: check.outcome for check in talk.checks}
    reasons = find_distrust(outcomes)
    talk.note("trust", Outcome.WRONG if reasons else Outcome.HONOURED, detail="; ".join(reasons) or "caught in no lie")
    single, multipart = judge(WritePath.SINGLE, outcomes), judge(WritePath.MULTIPART, outcomes)
    is_versioned, expiring_rule, clock_skew_s = facts
    return ProbeResult(
        id=secrets.token_hex(8),
        target=target_of(endpoint=port.endpoint, bucket=port.bucket, prefix=prefix, account=port.account),
        taken=clock.stamp().render(),
        endpoint=port.endpoint,
        bucket=port.bucket,
        prefix=prefix,
        checks=talk.checks,
        level_single=single.level,
        level_multipart=multipart.level,
        checksum_single=single.checksum,
        checksum_multipart=multipart.checksum,
        absent_is_404=_FACTS.get(talk.outcome("absent")),
        is_create_only_enforced=_FACTS.get(talk.outcome("put.create-only")),
        is_if_match_enforced=_FACTS.get(talk.outcome("get.if-match")),
        is_versioned=is_versioned,
        clock_skew_s=clock_skew_s,
        expiring_rule=expiring_rule,
        request_count=talk.request_count,
    )

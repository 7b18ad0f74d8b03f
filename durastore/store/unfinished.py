"""Multipart uploads that this root began and nobody goes on with: their parts cost money and are no object.

Duty: find those that are surely ours, surely forgotten and old by the server's own clock, and abort them. An abort
changes no object. Must never touch an upload that a journal of this root knows, one of another root, or one whose age
the server does not tell; not knowing means keeping, and nothing here may keep a store from working.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from durastore.clock import age_s
from durastore.errors import DurastoreError
from durastore.formats.keys import pack_listing_prefix, parse_pack_key
from durastore.objectstore.port import OpenUpload
from durastore.observe.events import LOGGER
from durastore.spool.root_sessions import FACT_LOOKED, RootSessions, load_root_sessions
from durastore.spool.spool import Spool
from durastore.store.services import Services

__all__ = ["abort_unfinished", "plan_aborts"]

_EVERY_S = 86_400.0


def plan_aborts(
    found: Iterable[OpenUpload], *, known: RootSessions, prefix: str, orphan_age_s: float
) -> list[OpenUpload]:
    """Those to be aborted. `known` was read after `found` was listed: what was begun since is not in `found`, and what
    is older than `orphan_age_s` had its session recorded long before.
    """
    return [
        upload
        for upload in found
        if (parts := parse_pack_key(prefix, upload.key)) is not None
        and parts.writer in known.writers
        and upload.upload_id not in known.upload_ids
        and _age_s(upload) > orphan_age_s
    ]


def _age_s(upload: OpenUpload) -> float:
    """By the server's clock alone (case B31); -1 where it does not tell."""
    if upload.initiated_s is None or upload.server_time_s is None:
        return -1.0
    return upload.server_time_s - upload.initiated_s


def abort_unfinished(services: Services, spool: Spool, *, is_stopping: Callable[[], bool]) -> None:
    """Look and abort, if no store at this root did within a day. What goes wrong is told in the log, and looked for
    again another time.
    """
    try:
        _look(services, spool, is_stopping=is_stopping)
    except DurastoreError as exc:
        LOGGER.info("unfinished uploads of %s were not looked for: %s", spool.root.path, exc)


def _look(services: Services, spool: Spool, *, is_stopping: Callable[[], bool]) -> None:
    now = services.clock.stamp()
    before = load_root_sessions(spool.root)
    ages = [age_s(stamp, now) for stamp in before.looked]
    if not before.writers - {spool.writer} or any(age is not None and age < _EVERY_S for age in ages):
        return
    spool.journal.set_fact(FACT_LOOKED, now.render())
    found = services.objects.list_uploads(pack_listing_prefix(services.prefix))
    known = load_root_sessions(spool.root)
    age_limit_s = services.options.orphan_age_s
    for upload in plan_aborts(found, known=known, prefix=services.prefix, orphan_age_s=age_limit_s):
        if is_stopping():
            return
        services.objects.abort_upload(upload.key, upload.upload_id)
        services.observer.emit("upload.orphan_aborted", key=upload.key.text)
        LOGGER.info(
            "aborted an unfinished upload of %s, begun %.1f days ago by the server's clock",
            upload.key,
            _age_s(upload) / 86_400,
        )

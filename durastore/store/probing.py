"""When a store's endpoint is probed, and what a stop of reclaiming means for the next session.

Duty: use a fresh saved result, else probe in the background (copies are read back in full until it is there); keep the
stop switch in the journal. Must never let a result of another endpoint, bucket or key count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial

from durastore.clock import Clock, Stamp
from durastore.errors import DurastoreError
from durastore.objectstore.location import BucketUrl, S3Options
from durastore.objectstore.probe.opening import opened_probe_port
from durastore.objectstore.probe.result import ProbeResult, WritePath
from durastore.objectstore.probe.run import run_probe
from durastore.objectstore.probe.saved import is_fresh, load_probe, save_probe, target_of
from durastore.observe.events import LOGGER
from durastore.spool.root import SpoolRoot
from durastore.spool.spool import Spool
from durastore.store.services import Services
from durastore.verify.policy import ProofPolicy

__all__ = ["Probing", "choose_headers", "probe_headers"]

_FACT = "reclaim_stopped"


class Probing:
    """For one open store."""

    def __init__(self, services: Services, policy: ProofPolicy, *, spools: Sequence[Spool]) -> None:
        """`spools[0]` is the own one; a stop is kept in all, since another process may drain them next."""
        self._services = services
        self._policy = policy
        self._spools = spools
        self._s3: S3Options | None = None

    def start(self, url: BucketUrl, s3: S3Options, *, is_probed: bool) -> None:
        """Restore a stop of an earlier session; with `is_probed`, find out what this endpoint guards."""
        if not is_probed:
            self.restore_stop(None)
            return
        self._s3, prefix = s3, self._services.prefix
        self.begin(_target(url, s3, prefix=prefix), partial(_probe, url, s3, prefix=prefix, clock=self._services.clock))

    def restore_stop(self, result: ProbeResult | None) -> None:
        """Start stopped if an earlier session found a wrong copy and nobody has probed the endpoint since; from now on
        a stop is recorded.
        """
        for spool in self._spools:
            text = spool.journal.get_fact(_FACT)
            if text is None:
                continue
            stamp, _, reason = text.partition(" ")
            if result is None or Stamp.parse(result.taken).wall_ns <= Stamp.parse(stamp).wall_ns:
                self._services.verifier.stop_reclaiming(reason)
            else:
                spool.journal.set_fact(_FACT, None)
        if self._services.verifier.distrust is not None:
            self._record_stop(self._services.verifier.distrust)  # also one that recovery just found
        self._services.verifier.on_distrust(self._record_stop)

    def begin(self, target: str, probe: Callable[[], ProbeResult]) -> None:
        """Use the saved result about `target`, or run `probe` on the pool and use that."""
        saved = load_probe(self._spools[0].root.folder, target=target)
        self.restore_stop(saved)
        if saved is not None and is_fresh(saved, now=self._services.clock.stamp()):
            self._use(saved)
        elif self._services.verifier.distrust is None:  # a stop is lifted by a person's probe, not by our own
            self._services.board.is_probing = True
            self._services.pool.submit(probe).add_done_callback(self._after)

    def _record_stop(self, reason: str) -> None:
        LOGGER.error("reclaiming is stopped, local files are kept: %s", reason)
        for spool in self._spools:
            if spool.journal.get_fact(_FACT) is None:
                spool.journal.set_fact(_FACT, f"{self._services.clock.stamp().render()} {reason}")

    def _after(self, future: Future[ProbeResult]) -> None:
        try:
            self._take(future)
        finally:
            self._services.board.is_probing = False

    def _take(self, future: Future[ProbeResult]) -> None:
        if future.cancelled():
            return
        error = future.exception()
        if error is not None:
            LOGGER.warning("the endpoint could not be probed, every copy is read back in full: %s", error)
            return
        try:
            save_probe(self._spools[0].root.folder, future.result())
        except DurastoreError as exc:
            LOGGER.warning("the probe's result could not be saved: %s", exc)
        self._use(future.result())

    def _use(self, result: ProbeResult) -> None:
        self._services.verifier.use(replace(self._policy, probe=result))
        if self._s3 is not None:
            _send_as(result, self._s3)
        LOGGER.info(
            "endpoint probe %s: single writes %s, multipart writes %s",
            result.id,
            result.level_single.name,
            result.level_multipart.name,
        )
        for reason in result.blocking:
            LOGGER.error("nothing will be reclaimed: %s", reason)


def choose_headers(url: BucketUrl, s3: S3Options, *, root: SpoolRoot) -> None:
    """Send the checksum headers that the newest saved probe of this endpoint saw work, whatever its age."""
    saved = load_probe(root.folder, target=_target(url, s3, prefix=url.prefix))
    if saved is not None:
        _send_as(saved, s3)


def probe_headers(url: BucketUrl, s3: S3Options, *, root: SpoolRoot, clock: Clock) -> bool:
    """Find out now which checksum headers the endpoint takes, and keep the result. True if others are sent from now on:
    an endpoint that refuses what is sent could not even take the bucket's marker (case B160).
    """
    result = _probe(url, s3, prefix=url.prefix, clock=clock)
    save_probe(root.folder, result)
    return _send_as(result, s3)


def _send_as(result: ProbeResult, s3: S3Options) -> bool:
    single, multipart = result.header_of(WritePath.SINGLE), result.header_of(WritePath.MULTIPART)
    is_new = s3.sent.use(single=single, multipart=multipart)
    if is_new:
        LOGGER.info("checksum headers: %s with whole bodies, %s with parts", single, multipart)
    return is_new


def _target(url: BucketUrl, s3: S3Options, *, prefix: str) -> str:
    with opened_probe_port(url, s3=s3) as port:
        return target_of(endpoint=port.endpoint, bucket=port.bucket, prefix=prefix, account=port.account)


def _probe(url: BucketUrl, s3: S3Options, *, prefix: str, clock: Clock) -> ProbeResult:
    with opened_probe_port(url, s3=s3) as port:
        return run_probe(port, prefix, clock=clock)

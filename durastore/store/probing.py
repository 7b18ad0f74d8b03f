"""When a store's endpoint is probed, and what saved results mean for a session.

Duty: use a fresh saved result, else probe in the background (nothing is reclaimed until that has ended). Must never let
a result of another endpoint, bucket or key count, nor forget one that blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial

from durastore.clock import Clock
from durastore.errors import DurastoreError
from durastore.formats.stop import Place
from durastore.fsio.folder import Folder
from durastore.objectstore.location import BucketUrl, S3Options
from durastore.objectstore.port import ObjectStore
from durastore.objectstore.probe.opening import opened_probe_port, probed_place
from durastore.objectstore.probe.result import ProbeResult, WritePath
from durastore.objectstore.probe.run import run_probe
from durastore.objectstore.probe.saved import is_fresh, load_probe, load_probes, newest_of, save_probe, standing_block
from durastore.observe.events import LOGGER
from durastore.spool.root import SpoolRoot
from durastore.spool.spool import Spool
from durastore.store.services import Services
from durastore.store.stopping import StopSwitch
from durastore.verify.policy import ProofPolicy

__all__ = ["Probing", "choose_headers", "probe_headers"]


class Probing:
    """For one open store."""

    def __init__(self, services: Services, policy: ProofPolicy, *, spools: Sequence[Spool]) -> None:
        """`spools[0]` is the own one; a stop is kept in all, since another process may drain them next."""
        self._services = services
        self._policy = policy
        self._s3: S3Options | None = None
        self._folder = spools[0].root.folder
        self._switch = StopSwitch(services, spools=spools)
        self._saved: list[ProbeResult] = []

    def start(self, url: BucketUrl | None, s3: S3Options, *, is_probed: bool, via: ObjectStore | None = None) -> None:
        """Restore a stop of an earlier session; with `is_probed`, find out what this endpoint guards.

        `url` None: an adapter of the caller's own, which no saved result speaks of. `via`: as in `opened_probe_port`.
        """
        if url is None:
            self._switch.restore((), place=None)
            return
        self._s3, prefix = s3, self._services.prefix
        place, target = probed_place(url, s3=s3, via=via)
        probe = partial(_probe, url, s3, prefix=prefix, clock=self._services.clock, via=via)
        self.begin(target, probe if is_probed else None, place=place)

    def begin(self, target: str, probe: Callable[[], ProbeResult] | None, *, place: Place) -> None:
        """Use the saved result about `target`, or run `probe` on the pool and use that. None: do neither; every copy
        is read back, and a saved result that blocks does so all the same.
        """
        self._saved = load_probes(self._folder, target=target)
        saved = newest_of(self._saved)
        self._switch.restore(self._saved, place=place)
        if probe is None:
            self._use_none()
        elif saved is not None and is_fresh(saved, now=self._services.clock.stamp()):
            self._use(saved)
        elif self._services.verifier.distrust is None:  # a stop is lifted by a person's probe, not by our own
            self._services.board.is_probing = True
            self._services.verifier.await_probe()  # else a file could go a second before the answer that forbids it
            self._services.pool.submit(probe).add_done_callback(self._after)
        else:
            self._use_none()

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
            self._use_none()
            return
        _keep(future.result(), self._folder)
        self._use(future.result())

    def _use(self, result: ProbeResult) -> None:
        block = standing_block([*self._saved, result])  # an answer that did not come takes back nothing
        self._services.verifier.use(replace(self._policy, probe=result, block=block))
        if self._s3 is not None:
            _send_as(result, self._s3)
        LOGGER.info(
            "endpoint probe %s: single writes %s, multipart writes %s",
            result.id,
            result.level_single.name,
            result.level_multipart.name,
        )
        self._tell_blocked()

    def _use_none(self) -> None:
        """Every copy is read back; what is known to block goes on blocking, whatever its age."""
        self._services.verifier.use(replace(self._policy, block=standing_block(self._saved)))
        self._tell_blocked()

    def _tell_blocked(self) -> None:
        reason = self._services.verifier.distrust
        if reason is not None:
            LOGGER.error("nothing will be reclaimed: %s", reason)


def choose_headers(url: BucketUrl, s3: S3Options, *, root: SpoolRoot, via: ObjectStore | None = None) -> None:
    """Send the checksum headers that the newest saved probe of this endpoint saw work, whatever its age."""
    _, target = probed_place(url, s3=s3, via=via)
    saved = load_probe(root.folder, target=target)
    if saved is not None:
        _send_as(saved, s3)


def probe_headers(url: BucketUrl, s3: S3Options, *, root: SpoolRoot, clock: Clock) -> bool:
    """Find out now which checksum headers the endpoint takes, and keep the result. True if others are sent from now on:
    an endpoint that refuses what is sent could not even take the bucket's marker (case B160).
    """
    result = _probe(url, s3, prefix=url.prefix, clock=clock)
    _keep(result, root.folder)
    return _send_as(result, s3)


def _keep(result: ProbeResult, folder: Folder) -> None:
    try:
        save_probe(folder, result)
    except DurastoreError as exc:
        LOGGER.warning("the probe's result could not be saved: %s", exc)


def _send_as(result: ProbeResult, s3: S3Options) -> bool:
    single, multipart = result.header_of(WritePath.SINGLE), result.header_of(WritePath.MULTIPART)
    is_new = s3.sent.use(single=single, multipart=multipart)
    if is_new:
        LOGGER.info("checksum headers: %s with whole bodies, %s with parts", single, multipart)
    return is_new


def _probe(url: BucketUrl, s3: S3Options, *, prefix: str, clock: Clock, via: ObjectStore | None = None) -> ProbeResult:
    with opened_probe_port(url, s3=s3, via=via) as port:
        return run_probe(port, prefix, clock=clock)

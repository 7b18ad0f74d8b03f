"""Opening a store: every check comes before the first byte is written, and every doubt moves packs back.

Order: options -> bucket -> failure domain -> spool root and lock -> marker and run -> recovery -> rolled-back journal
-> manifest -> pipeline. An error at any point releases what was taken and leaves all files as they were.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

from durastore.clock import SYSTEM_CLOCK, Clock
from durastore.config import StoreOptions, resolve_options
from durastore.errors import ConfigError, EndpointUnreachable, RequestRefused, StoreWarning
from durastore.formats.marker import Marker
from durastore.manifest.marker_store import ensure_marker
from durastore.model import Run
from durastore.objectstore.fate import refuse_same_fate
from durastore.objectstore.location import BucketUrl, S3Options, open_object_store
from durastore.objectstore.port import ObjectStore
from durastore.objectstore.retrying import RetryingStore, RetryPolicy
from durastore.observe.events import LOGGER, Counting, Observer, Tee
from durastore.observe.recent import Recent
from durastore.spool.pack_writer import PackLimits, PackWriter
from durastore.spool.root import SpoolRoot
from durastore.spool.spool import Spool, claim_idle_siblings
from durastore.spool.watermarks import Watermarks
from durastore.store.board import Board
from durastore.store.catalog import Catalog
from durastore.store.intake import Intake
from durastore.store.lane import Lane
from durastore.store.membership import Membership
from durastore.store.open_stores import note_opened, warn_if_open
from durastore.store.pace import Pace
from durastore.store.probing import Probing, choose_headers, probe_headers
from durastore.store.reporting import StoreReporter
from durastore.store.room import Room, RoomLimits
from durastore.store.services import Services
from durastore.store.settling import Settling
from durastore.store.store import STOP_TIMEOUT_S, Store, StoreParts
from durastore.store.unfinished import abort_unfinished
from durastore.store.wait_news import WaitNews
from durastore.store.waiting import PipelineWords
from durastore.texts import expanded
from durastore.upload.engine import Uploader
from durastore.upload.job import UploadLimits
from durastore.upload.port import TransportFactory
from durastore.upload.transports import choose_transport
from durastore.verify.policy import ProofPolicy
from durastore.verify.verifier import BucketIdentity, Verifier

__all__ = ["OptionOverrides", "open_idle", "open_store"]

_POOL_THREADS = 6
_LIMITS = UploadLimits()
_PATIENCE_S = 30.0  # an endpoint that does not answer for so long is reported instead of waited for at opening
_GROUP_BYTES = 64 << 20


class OptionOverrides(TypedDict, total=False):
    """Keyword options of `durastore.open`: fields of `StoreOptions`, then three objects of the caller's."""

    endpoint_url: str | None
    region: str | None
    profile: str | None
    addressing_style: str
    ca_bundle: str | None
    connect_timeout_s: float
    read_timeout_s: float
    storage_class: str | None
    sse: str | None
    kms_key: str | None
    bucket_owner: str | None
    checksum: str
    compress: str
    transport: str
    machine_requests: int
    reclaim: str
    settle_s: float
    high_watermark_bytes: int
    low_watermark_bytes: int
    reserve_bytes: int
    stall_s: float
    probe: str
    audit_share: float
    orphan_age_s: float
    seal_age_s: float
    pack_target_bytes: int
    single_pack_bytes: int
    is_any_filesystem_allowed: bool
    reclaim_batch_packs: int
    reclaim_batch_bytes: int
    evidence_ttl_s: float
    receipt_ttl_s: float
    clock: Clock
    observer: Observer
    objects: ObjectStore


def open_store(
    url: str | os.PathLike[str],
    *,
    local: str | Path,
    run: Mapping[str, Any] | None = None,
    **overrides: Unpack[OptionOverrides],
) -> Store:
    """Open (or create) the store at `url` with the spool root `local`.

    `url`: `s3://bucket/prefix`, a bare bucket name, `file:///dir` or a path, `memory://name`. `run`: a JSON mapping of
    what produces the samples; None takes the run that the prefix already has, and binds a new prefix to no run for
    good, which a `StoreWarning` says. Other keywords are the options (`docs/operations/options.md`), `clock` and
    `observer`; `objects` is an adapter of the caller's own, used in place of the one that `url` names (it still gives
    the prefix). `local` is a folder, made where its parent exists.

    Goes on with what an earlier process left in the spool. Raises `ConfigError`, `RunMismatch`, `BucketMissing`,
    `CredentialsRefused`, `EndpointUnreachable`, `SameFailureDomain`, `UnsupportedFilesystem`, `ManifestIncomplete`.
    """
    clock = overrides.pop("clock", SYSTEM_CLOCK)
    listener = overrides.pop("observer", None)
    objects = overrides.pop("objects", None)
    options = resolve_options(dict(overrides))
    if run is not None and not isinstance(run, Mapping):
        raise ConfigError(f"run is a {type(run).__name__}", hint="give a JSON mapping of what produces the samples")
    given_run = Run.of(run) if run is not None else None
    with ExitStack() as stack:
        opener = _Opener(stack, options=options, clock=clock, listener=listener, is_own_adapter=objects is not None)
        place = BucketUrl.parse(url)
        root = expanded(local)
        real = Path(os.path.realpath(root))
        warn_if_open(place.render(), real, stacklevel=2)
        bare = objects if objects is not None else open_object_store(place, s3=opener.s3_options())
        began_ns = clock.now_ns()
        store = opener.build(place, root, given_run=given_run, bare=bare)
        if given_run is None and opener.marker.run is None and opener.marker.created_ns >= began_ns:
            warnings.warn(
                f"{place.render()} is new and was opened without run=: it holds samples of no particular run now, and "
                "will take none of another. Give run={...} at a prefix of its own for what produces the samples",
                StoreWarning,
                stacklevel=2,
            )
        opener.at_close(note_opened(store, url=place.render(), local=real))
        opener.keep()
        return store


def open_idle(
    url: str, spools: Sequence[Spool], *, options: StoreOptions, clock: Clock = SYSTEM_CLOCK
) -> tuple[Store, tuple[Lane, ...]]:
    """A store of claimed spools whose processes have ended, with no spool of its own: it only works off what they left.

    The spools are closed with it, or if this fails. The run is the bucket's own. Raises as `open_store`.
    """
    with ExitStack() as stack:
        opener = _Opener(stack, options=options, clock=clock, listener=None, is_own_adapter=False)
        place = BucketUrl.parse(url)
        store = opener.build_idle(place, spools, bare=lambda: open_object_store(place, s3=opener.s3_options()))
        opener.keep()
        return store, opener.lanes


class _Opener:
    """The steps of one opening; what it acquires is released if a later step fails."""

    def __init__(
        self,
        stack: ExitStack,
        *,
        options: StoreOptions,
        clock: Clock,
        listener: Observer | None,
        is_own_adapter: bool,
    ) -> None:
        self._stack = stack
        self._is_own_adapter = is_own_adapter
        self._options = options
        self._s3 = S3Options.of(options)
        self._clock = clock
        self._counters, self._pace, self._recent = Counting(), Pace(clock), Recent(clock)
        own = (self._counters, self._pace, self._recent)
        self._observer: Observer = Tee(*own, *([] if listener is None else [listener]))
        self._resources = ExitStack()
        stack.push(self._resources)  # released on failure; `keep` hands it to the store instead
        self._lanes: list[Lane] = []

    def at_close(self, action: Callable[[], None]) -> None:
        self._resources.callback(action)

    def keep(self) -> None:
        self._stack.pop_all()

    @property
    def lanes(self) -> tuple[Lane, ...]:
        return tuple(self._lanes)

    def build(self, url: BucketUrl, local: Path, *, given_run: Run | None, bare: ObjectStore) -> Store:
        """A store with a spool of its own, which drains idle siblings too."""
        objects = self._checked(bare, local)
        root = SpoolRoot.open(local, is_any_filesystem_allowed=self._options.is_any_filesystem_allowed)
        self._resources.callback(root.close)
        spool = Spool.claim(root, clock=self._clock)
        self._resources.callback(spool.close)
        self.marker = self._agree_on_marker(objects, url, run=given_run, root=root)
        return self._assembled(
            objects, url, claim=lambda: [spool, *self._siblings(root)], marker=self.marker, given_run=given_run
        )

    def build_idle(self, url: BucketUrl, spools: Sequence[Spool], *, bare: Callable[[], ObjectStore]) -> Store:
        """A store of these claimed spools and none of its own. It closes them, also if this fails."""
        for spool in spools:
            self._resources.callback(spool.close)
        root = spools[0].root
        objects = self._checked(bare(), root.path)  # after the spools are in safe keeping
        marker = self._agree_on_marker(objects, url, run=None, root=root)
        return self._assembled(objects, url, claim=lambda: spools, marker=marker, given_run=None)

    def _checked(self, bare: ObjectStore, local: Path) -> ObjectStore:
        self._resources.callback(bare.close)
        objects = RetryingStore(bare, RetryPolicy(budget_s=_PATIENCE_S), clock=self._clock)
        _check_bucket(objects)
        _refuse_same_fate(objects, local, options=self._options, is_own_adapter=self._is_own_adapter)
        self._bare = bare
        return objects

    def _assembled(
        self,
        objects: ObjectStore,
        url: BucketUrl,
        *,
        claim: Callable[[], Sequence[Spool]],
        marker: Marker,
        given_run: Run | None,
    ) -> Store:
        run = given_run or marker.run or Run.of({})
        limit = _LIMITS.max_requests
        transport = choose_transport(self._bare, self._options.transport, s3=self._s3, max_requests=limit)
        spools = claim()  # before the pool, whose work needs their locks to its end
        services = self._services(objects, url.prefix, run=run, store_id=marker.store_id, transport=transport)
        settling = Settling(services, url=url.render(), store_id=marker.store_id)
        for each in spools:
            settling.settle(each)
        catalog = Catalog(objects, url.prefix, clock=self._clock)  # after settling, which may bury rows
        membership = Membership(
            catalog.view.index(run.digest), run=run.digest, rows_of=catalog.rows_of, is_held=catalog.is_held
        )
        known = None if self._is_own_adapter else url
        probing = Probing(services, self._policy(), spools=spools)
        probing.start(known, self._s3, is_probed=self._is_probed(url), via=self._bare)
        for number, each in enumerate(spools):
            self._lanes.append(self._lane(number, each, services=services, membership=membership))
        writer = PackWriter(spools[0], run, limits=self._pack_limits(), clock=self._clock, listener=self._lanes[0])
        self._resources.callback(writer.close)
        parts = StoreParts(
            services=services,
            lanes=tuple(self._lanes),
            intake=Intake(writer.append, group_bytes=_GROUP_BYTES),
            membership=membership,
            catalog=catalog,
            room=self._room(spools[0], services.board),
            pipeline=PipelineWords(self._lanes, self._options),
            counters=self._counters,
            resources=self._resources,
        )
        for lane in self._lanes:
            # where a later step fails: before anything that it works with is closed, and its spool given up
            self._stack.callback(lane.stop, STOP_TIMEOUT_S)
            lane.start(writer if lane.number == 0 else None)
        self._look_for_unfinished(services, spools[0])
        reporter = StoreReporter(services, self._lanes, counters=self._counters, recent=self._recent)
        self._resources.callback(reporter.stop)  # first of all, while the journals are open
        reporter.start()
        return Store(parts)

    def _look_for_unfinished(self, services: Services, spool: Spool) -> None:
        stopping = threading.Event()
        self._resources.callback(stopping.set)  # before the pool is waited for
        services.pool.submit(abort_unfinished, services, spool, is_stopping=stopping.is_set)

    def s3_options(self) -> S3Options:
        """The same for all that is opened: what one of them learns about headers holds for the others."""
        return self._s3

    def _is_probed(self, url: BucketUrl) -> bool:
        return url.kind == "s3" and not self._is_own_adapter and self._options.probe == "auto"

    def _agree_on_marker(self, objects: ObjectStore, url: BucketUrl, *, run: Run | None, root: SpoolRoot) -> Marker:
        """The first write of all: where its headers are refused, the endpoint is probed for others at once."""
        if not self._is_probed(url):
            return ensure_marker(objects, url.prefix, run=run, clock=self._clock)
        choose_headers(url, self._s3, root=root, via=self._bare)
        try:
            return ensure_marker(objects, url.prefix, run=run, clock=self._clock)
        except RequestRefused:
            if not probe_headers(url, self._s3, root=root, clock=self._clock):
                raise
            return ensure_marker(objects, url.prefix, run=run, clock=self._clock)

    def _services(
        self, objects: ObjectStore, prefix: str, *, run: Run, store_id: str, transport: TransportFactory
    ) -> Services:
        options = self._options
        bucket = BucketIdentity(prefix=prefix, store_id=store_id)
        limits = replace(_LIMITS, machine_requests=options.machine_requests)
        uploader = Uploader(transport, limits=limits, policy=RetryPolicy(), clock=self._clock, observer=self._observer)
        self._resources.callback(uploader.close, 2.0)
        pool = ThreadPoolExecutor(max_workers=_POOL_THREADS, thread_name_prefix="durastore-look")
        self._resources.callback(pool.shutdown, wait=True, cancel_futures=True)
        return Services(
            objects=objects,
            prefix=prefix,
            run=run,
            uploader=uploader,
            verifier=Verifier(
                objects, bucket=bucket, policy=self._policy(), clock=self._clock, observer=self._observer
            ),
            options=options,
            pool=pool,
            board=Board(self._clock),
            clock=self._clock,
            observer=self._observer,
        )

    def _policy(self) -> ProofPolicy:
        options = self._options
        return ProofPolicy(
            evidence_ttl_s=options.evidence_ttl_s,
            settle_s=options.settle_s,
            receipt_ttl_s=options.receipt_ttl_s,
            part_bytes=_LIMITS.part_bytes,
            audit_share=options.audit_share,
        )

    def _siblings(self, root: SpoolRoot) -> list[Spool]:
        siblings = claim_idle_siblings(root, clock=self._clock)
        for sibling in siblings:
            self._resources.callback(sibling.close)
            LOGGER.info("draining the spool of an ended process: %s", sibling.path)
        return siblings

    def _lane(self, number: int, spool: Spool, *, services: Services, membership: Membership) -> Lane:
        lane = Lane(number, spool, services=services, membership=membership)
        for record in lane.unmanifested():
            membership.add_pending(spool.journal.entries(record.pack_id), lane=number, pack_id=record.pack_id)
        return lane

    def _pack_limits(self) -> PackLimits:
        return PackLimits(target_bytes=self._options.pack_target_bytes, single_bytes=self._options.single_pack_bytes)

    def _room(self, spool: Spool, board: Board) -> Room:
        options = self._options
        marks = Watermarks(
            high_bytes=options.high_watermark_bytes,
            low_bytes=options.low_watermark_bytes,
            reserve_bytes=options.reserve_bytes,
        )
        limits = RoomLimits(watermarks=marks, stall_s=options.stall_s, settle_s=options.settle_s)
        news = WaitNews(self._pace, observer=self._observer, clock=self._clock)
        return Room(spool, limits, board=board, news=news, clock=self._clock)


def _check_bucket(objects: ObjectStore) -> None:
    try:
        objects.check_bucket()
    except EndpointUnreachable as exc:
        place = objects.failure_domain.partition(":")[2]
        raise EndpointUnreachable(
            f"{exc.message}; the endpoint is {place}",
            hint=exc.hint or "check endpoint_url and the network",
            **exc.facts,
        ) from exc


def _refuse_same_fate(objects: ObjectStore, local: Path, *, options: StoreOptions, is_own_adapter: bool) -> None:
    """With a bucket that is lost together with the spool nothing may ever be reclaimed (DESIGN 4). An adapter of the
    caller's own in memory is a test's, and any file system can be allowed.
    """
    if options.reclaim == "never":
        return
    refuse_same_fate(objects, local, is_allowed=is_own_adapter or options.is_any_filesystem_allowed)

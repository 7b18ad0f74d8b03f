"""The map-style dataset: `len`, `ds[i]`, `ds["id"]`, pinned to one snapshot.

Duty: give training code checked samples by position or id, from any number of worker processes. Must never write, never
follow the manifest past its snapshot, and never use a connection of another process.
"""

from __future__ import annotations

import copy
import operator
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, SupportsIndex

import numpy as np

from durastore.codec.decode import Room
from durastore.codec.dtypes import has_torch
from durastore.config import resolve_options
from durastore.dataset.cache import NodeCache, SampleShelf
from durastore.dataset.connection import Connection
from durastore.dataset.course import Blocks, Course, Uneven
from durastore.dataset.inputs import InputIndex
from durastore.dataset.order import Positions
from durastore.dataset.pinning import PinnedSource
from durastore.dataset.sampler import EpochSampler
from durastore.dataset.selection import Where, layout_of, positions_of, positions_where, selection_digest
from durastore.dataset.share import find_share
from durastore.dataset.stream import SampleStream, StreamOptions
from durastore.errors import ConfigError, InvalidInput, SampleAbsent, StoreMissing
from durastore.manifest.marker_store import fetch_marker
from durastore.manifest.presence import NO_STORE_HINT
from durastore.manifest.snapshot import Snapshot, fetch_snapshot, find_snapshot
from durastore.manifest.view import ResolvedView, fetch_view
from durastore.model import Digest, ManifestRow, Run, Sample, SampleId
from durastore.objectstore.location import BucketUrl, S3Options
from durastore.objectstore.port import ObjectStore
from durastore.observe.events import LOGGER
from durastore.read.remote import SampleSource, ServedSample, fetch_one, fetch_samples, serve_samples
from durastore.read.rooms import Slabs, rooms_of
from durastore.read.sample import Wanted

__all__ = ["Dataset"]

_ITER_BATCH = 32
_OPTIONS = (
    "endpoint_url",
    "region",
    "profile",
    "addressing_style",
    "ca_bundle",
    "connect_timeout_s",
    "read_timeout_s",
    "bucket_owner",
)


class Dataset:
    """All samples of a store as of one moment, in byte order of their ids. Usable as a torch map-style dataset.

    Options are `endpoint_url`, `region`, `profile`, `addressing_style`, `ca_bundle`, `connect_timeout_s`,
    `read_timeout_s` and `bucket_owner`; credentials come by the standard AWS chain. `snapshot` pins an earlier state: a
    `Snapshot`, its text, or the id that a dataset printed. `max_requests` bounds the requests of this process at one
    time. `cache` keeps whole samples on a disk of this node (`docs/training.md`).

    Items are `Sample` values, so a `DataLoader` with batches needs a `collate_fn`. Every byte handed out matched its
    digest. Thread-safe; picklable and usable after fork: each process opens connections of its own.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        snapshot: Snapshot | str | None = None,
        max_requests: int = 16,
        cache: NodeCache | None = None,
        **options: Any,
    ) -> None:
        """Open `url` and resolve its manifest. Raises `StoreMissing`, `BucketMissing`, `ManifestIncomplete`,
        `ConfigError` (options, a cache that does not fit), `InvalidInput` (the snapshot), `FormatUnsupported`,
        `CredentialsRefused`, `PermissionRefused`, `EndpointUnreachable`.
        """
        if max_requests < 1:
            raise ConfigError(f"max_requests is {max_requests}", hint="it has to be at least 1")
        self._place = BucketUrl.parse(url)
        self._connection = Connection(self._place, s3=_s3_options(options), max_requests=max_requests)
        store = self._connection.store
        self._snapshot = _pinned(store, self._place, wanted=snapshot)
        self._view: ResolvedView = fetch_view(store, self._snapshot, max_requests=max_requests)
        LOGGER.info("dataset %s: %d samples, snapshot %s", self._place, len(self._view), self._snapshot.id)
        self._positions: Positions | None = None
        self._wanted = Wanted()
        self._shelf = None if cache is None else SampleShelf(cache, self._view)
        if self._view.duplicate_count:
            LOGGER.warning("dataset %s: %d rows lost to a row of the same id", self._place, self._view.duplicate_count)

    # --- what there is -------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Samples of the snapshot, or of the selection."""
        return len(self._view) if self._positions is None else len(self._positions)

    def __contains__(self, sample_id: object) -> bool:
        return isinstance(sample_id, str) and self._position(sample_id) is not None

    def __repr__(self) -> str:
        return f"Dataset({str(self._place)!r}, samples={len(self)}, snapshot={self.snapshot_id!r})"

    @property
    def snapshot(self) -> Snapshot:
        """The pinned snapshot; `snapshot.render()` is its text, which `snapshot=` takes back."""
        return self._snapshot

    @property
    def snapshot_id(self) -> str:
        """Id of the pinned snapshot: equal ids mean equal rows."""
        return self._snapshot.id.hex

    @cached_property
    def ids(self) -> list[str]:
        """All sample ids, sorted; `ids[i]` is the id of `ds[i]`."""
        ids = self._view.ids()
        return ids if self._positions is None else [ids[at] for at in self._positions.tolist()]

    @property
    def runs(self) -> dict[Digest, Run]:
        """What produced the samples, by digest."""
        return self._view.runs

    @property
    def duplicates(self) -> tuple[ManifestRow, ...]:
        """Live rows whose id has a smaller live row: those are not part of the dataset."""
        return self._view.duplicates

    def missing(self, ids: Sequence[str]) -> list[str]:
        """Those of `ids` that the dataset lacks, in the order given."""
        if self._positions is None:
            return self._view.missing(ids)
        absent = set(self._view.missing(ids))
        return [text for text in ids if text in absent or text not in self]

    def made_from(self, input_digest: str) -> list[str]:
        """Ids of the samples whose input has this digest, in order. `InvalidInput` where it is no digest."""
        found = [self._view.id_at(at) for at in self._inputs.find(Digest(input_digest))]
        return found if self._positions is None else [text for text in found if text in self]

    @cached_property
    def _inputs(self) -> InputIndex:
        return InputIndex(self._view)

    def row(self, index: SupportsIndex | str) -> ManifestRow:
        """The manifest row of a position or id, without fetching the sample. Raises like indexing."""
        at = self._at(index)
        return self._view.row_at(at if self._positions is None else int(self._positions[at]))

    def rows(self, indices: Sequence[SupportsIndex | str]) -> list[ManifestRow]:
        """The manifest rows of many positions or ids, in their order; each costs a fraction of `row`."""
        at = np.array([self._at(index) for index in indices], dtype=np.int64)
        return self._view.rows_at((at if self._positions is None else self._positions[at]).tolist())

    def select(
        self,
        *,
        ids: Sequence[str] | None = None,
        where: Where | None = None,
        tensors: Sequence[str] | None = None,
        rows: slice | None = None,
    ) -> Dataset:
        """The same snapshot, less of it: these ids, those whose meta fits, of each these tensors and rows.

        `where` is a mapping of members that the meta has to have, or a callable that is given the meta. A selection is
        a dataset, in order of ids; of what is left out nothing is fetched. Raises `SampleAbsent` for an id that is not
        there. Unknown tensors are refused when a sample is read, since samples may have others.
        """
        chosen = copy.copy(self)
        chosen.__dict__.pop("ids", None)
        for positions in (
            None if ids is None else positions_of(self._view, ids),
            None if where is None else positions_where(self._view, where),
        ):
            if positions is not None:
                chosen._positions = (
                    positions if chosen._positions is None else np.intersect1d(chosen._positions, positions)
                )
        if ids is not None and self._positions is not None and (absent := self.missing(ids)):
            raise SampleAbsent(f"{len(absent)} of {len(ids)} ids are not in the selection, e.g. {absent[0]!r}")
        chosen._wanted = self._wanted.narrowed(tensors=tensors, rows=rows)
        return chosen

    # --- samples -------------------------------------------------------------------------------------------------

    def __getitem__(self, index: SupportsIndex | str) -> Sample:
        """The sample at a position (negative counts from the end) or of an id.

        Raises `IndexError`, `SampleAbsent` (a `KeyError`), and `IntegrityError` where its bytes do not match.
        """
        row = self.row(index)
        wanted = replace(self._wanted, into=self.rooms([row])[0])
        return fetch_one(self._connection.store, row, wanted=wanted, shelf=self._shelf)

    def __getitems__(self, indices: Sequence[SupportsIndex | str]) -> list[Sample]:
        """A batch, in the order asked for, fetched in parallel with neighbours sharing requests; torch's fetcher calls
        this. Raises like indexing.
        """
        rows = self.rows(indices)
        return fetch_samples(self._source, rows, wanted=self._wanted, rooms=self.rooms(rows))

    def serve(self, rows: Sequence[ManifestRow], rooms: Sequence[Room | None] = ()) -> list[ServedSample]:
        """Begin to fetch these samples; `result` of each waits for it, and raises as indexing does."""
        return serve_samples(self._source, rows, wanted=self._wanted, rooms=rooms)

    def rooms(self, rows: Sequence[ManifestRow], *, slabs: Slabs | None = None) -> list[Room | None]:
        """Where the tensors of these samples go, which are one batch: in a loader's worker to memory that is handed on
        as it is, else to `slabs`; None where each has memory of its own.
        """
        slabs = self._connection.arena or slabs
        if slabs is None:
            return [None] * len(rows)
        return rooms_of(slabs, [row.entry for row in rows], wanted=self._wanted)

    @property
    def _source(self) -> SampleSource:
        return SampleSource(reader=self._connection.store, pool=self._connection.pool, shelf=self._shelf)

    def get(
        self, index: SupportsIndex | str, *, tensors: Sequence[str] | None = None, rows: slice | None = None
    ) -> Sample:
        """Part of a sample: the named tensors, the rows of a slice of the first dimension; only the chunks needed are
        fetched. Raises like indexing, and `InvalidInput` for a tensor that the sample does not have.
        """
        wanted = self._wanted.narrowed(tensors=tensors, rows=rows)
        return fetch_one(self._connection.store, self.row(index), wanted=wanted, shelf=self._shelf)

    # --- training ------------------------------------------------------------------------------------------------

    def sampler(self, *, shuffle: int | None, **share: Any) -> EpochSampler:
        """A sampler for a `DataLoader` of this dataset: one rank's samples, resumable (`docs/training.md`).

        `shuffle` is the seed of the order (None: in order of ids). `rank` and `world_size` are found in an initialised
        torch.distributed or torchrun's environment where they are not given. `uneven`: a remainder smaller than the
        world is filled up from the epoch's beginning ("pad") or left out ("drop"). `block`: so many neighbours in the
        bucket are shuffled as one, and `lanes` (16) of these blocks are read side by side. Raises `ConfigError`.
        """
        return EpochSampler(self._course(shuffle, **share))

    def iterable(
        self,
        *,
        shuffle: int | None,
        batch_size: int = 1,
        prefetch_bytes: int = 64 << 20,
        pin: bool = False,
        **share: Any,
    ) -> SampleStream:
        """One rank's samples as a stream that fetches ahead, resumable; torch's `IterableDataset` where torch is there.

        `shuffle`, `rank`, `world_size`, `uneven`, `block` and `lanes` as for `sampler`. `batch_size` is that of the
        loader around it, so that whole batches go to its workers in turn; `prefetch_bytes` bounds the stored bytes that
        are fetched, or being fetched, and not yet handed out, in each process. `pin`: read without workers, the tensors
        of a batch lie side by side in page-locked memory. Raises `ConfigError`.
        """
        options = StreamOptions(batch_size=batch_size, prefetch_bytes=prefetch_bytes)
        course = self._course(shuffle, **share)
        if not has_torch():
            if pin:
                raise ConfigError("pin=True without torch", hint="install torch, or leave pin=False")
            return SampleStream(self, course, options=options)
        from durastore.dataset.torch_stream import TorchStream

        return TorchStream(PinnedSource(self) if pin else self, course, options=options)

    def _course(
        self,
        shuffle: int | None,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        uneven: Uneven = "pad",
        **blocks: Any,
    ) -> Course:
        cut = Blocks(**blocks)
        return Course(
            snapshot=self._snapshot.id,
            selection=selection_digest(self._positions),
            size=len(self),
            shuffle=shuffle,
            share=find_share(rank, world_size),
            uneven=uneven,
            block=cut.block,
            lanes=cut.lanes_or_usual,
            layout=None if cut.block == 1 else layout_of(self._view, self._positions),
        )

    def __iter__(self) -> Iterator[Sample]:
        """All samples in order, fetched in batches."""
        for start in range(0, len(self), _ITER_BATCH):
            yield from self.__getitems__(range(start, min(start + _ITER_BATCH, len(self))))

    def close(self) -> None:
        """Let go of this process's connections; the next access opens new ones. Safe to repeat."""
        self._connection.close()

    def __enter__(self) -> Dataset:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _position(self, text: str) -> int | None:
        try:
            at = self._view.position(SampleId(text))
        except InvalidInput:
            return None  # no sample can have such an id
        if at is None or self._positions is None:
            return at
        found = int(np.searchsorted(self._positions, at))
        return found if found < len(self._positions) and int(self._positions[found]) == at else None

    def _at(self, index: SupportsIndex | str) -> int:
        if isinstance(index, str):
            at = self._position(index)
            if at is None:
                raise SampleAbsent(
                    f"no sample {index!r} in {self._place} at snapshot {self.snapshot_id}",
                    hint="`ids` lists those there are",
                )
            return at
        try:
            position = operator.index(index)
        except TypeError as exc:
            raise InvalidInput(f"a dataset is indexed by position or id, not by {type(index).__name__}") from exc
        if not -len(self) <= position < len(self):
            raise IndexError(f"position {position} of {len(self)} samples")
        return position % len(self)


def _s3_options(options: dict[str, Any]) -> S3Options:
    unknown = sorted(options.keys() - set(_OPTIONS))
    if unknown:
        raise ConfigError(f"unknown option {unknown[0]!r}", hint=f"a dataset knows: {', '.join(_OPTIONS)}")
    return S3Options.of(resolve_options(options))


def _pinned(store: ObjectStore, place: BucketUrl, *, wanted: Snapshot | str | None) -> Snapshot:
    """The snapshot to read: a given one as it is, else as listed now, else the listed state of the given id."""
    if isinstance(wanted, str) and wanted.lstrip().startswith("{"):
        wanted = Snapshot.parse(wanted)
    if isinstance(wanted, Snapshot):
        if wanted.prefix != place.prefix:
            raise InvalidInput(f"the snapshot is of prefix {wanted.prefix!r}, not of {place.prefix!r}")
        return wanted
    is_marked = fetch_marker(store, place.prefix) is not None
    current = fetch_snapshot(store, place.prefix)
    if not is_marked and not current.segments:
        raise StoreMissing(f"there is no durastore at {place}", hint=NO_STORE_HINT)
    if not is_marked:
        # The rows prove themselves; only writers depend on the marker.
        LOGGER.warning("dataset %s: the bucket marker is gone, the manifest is there", place)
    return current if wanted is None else find_snapshot(current, Digest(wanted))

"""Samples out of the bucket into files: `durastore get`.

Duty: choose the rows, fetch small samples together and large ones by range, and tell what became of each. A sample that
cannot be had does not keep the others; what concerns all of them (network, credentials, disk) ends the call, and the
same call goes on. Must never count a sample whose file is not durable under its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from durastore.codec.decode import scan_sample
from durastore.codec.encode import EncodedSample, SampleContext, encode_sample
from durastore.errors import (
    ConfigError,
    DurastoreError,
    IntegrityError,
    InvalidInput,
    ObjectAbsent,
    SampleAbsent,
)
from durastore.manifest.fetching import SegmentPart
from durastore.manifest.presence import fetch_present_snapshot
from durastore.manifest.view import ResolvedView, fetch_view
from durastore.model import Digest, ManifestRow, Run, SampleEntry, SampleId, parse_json
from durastore.objectstore.port import ObjectStore
from durastore.read.landing import FOR_ALL, FailedSample, Landed, Landing, is_verbatim
from durastore.read.pinned import PinnedObject
from durastore.read.remote import BatchRange, plan_batch
from durastore.read.sample import Wanted, read_checked

__all__ = [
    "RestoreReport",
    "RestoreRequest",
    "load_ids",
    "part_of",
    "restore_samples",
    "rows_in_batches",
]

_LARGE_BYTES = 8 << 20  # from here on a part file, so that what was fetched outlives a kill
_BATCH = 256
_THREADS = 8
_EMBED_BYTES = 16 << 20
_NEVER = 1 << 62
_MAX_IDS_BYTES = 4 << 30
_SUFFIX = ".safetensors"
_OTHER_FILES = frozenset({".pt", ".pth", ".ckpt", ".bin", ".npy", ".npz", ".json", ".tar", ".parquet", ".safetensor"})
"""Ends of names that nobody gives to a folder: a file of that kind is expected, and would not come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreRequest:
    """What to get. `ids` None: every sample."""

    out: Path
    """A folder; or, for one id, a file if it ends in .safetensors and is no folder."""
    ids: Sequence[str] | None
    tensors: tuple[str, ...] | None = None
    """Only these; such files are written plain."""
    is_plain: bool = False
    """Tensors uncompressed, so that any safetensors reader has them; else the bytes as they are stored."""

    def __post_init__(self) -> None:
        is_one = self.ids is not None and len(self.ids) == 1
        if is_one and self.out.suffix.lower() in _OTHER_FILES and not self.out.is_dir():
            hint = "name a file that ends in .safetensors, or a folder"
            raise ConfigError(
                f"--out {self.out}: a sample is written as .safetensors, never as {self.out.suffix}", hint=hint
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreReport:
    """What became of the samples that were asked for."""

    written: int
    present: int
    """Files of the same content were there before."""
    bytes_written: int
    bytes_fetched: int
    compressed: int
    """Files that hold compressed tensors, as stored: plain readers see bytes in their place."""
    failed: tuple[FailedSample, ...]

    @property
    def exit_code(self) -> int:
        """0, or 3 where a sample that was asked for could not be had, however many were; `failed` tells why."""
        return 3 if self.failed else 0


def load_ids(path: Path) -> list[str]:
    """One id a line, empty lines left out. `ConfigError` where the file cannot be read as UTF-8, or names none."""
    try:
        if path.stat().st_size > _MAX_IDS_BYTES:
            raise ConfigError(f"{path} is larger than 4 GiB")
        ids = [line for line in path.read_text(encoding="utf-8").split("\n") if line]
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"the list of ids {path} cannot be read: {exc}") from exc
    if not ids:  # no success: the step that writes it may have failed
        raise ConfigError(f"the list of ids {path} names no sample", hint="did the step that writes it end well?")
    return ids


def restore_samples(
    store: ObjectStore, prefix: str, *, request: RestoreRequest, on_progress: Callable[[int, int], None] | None = None
) -> RestoreReport:
    """Write the samples that the manifest lists now into files. Safe to repeat: what is there is checked and kept.

    `on_progress(done, of)` is called now and then. Raises `StoreMissing`, `ManifestIncomplete`, `EndpointUnreachable`,
    `CredentialsRefused`, `BucketMissing`, `DiskFailed`; all else is in the report.
    """
    snapshot = fetch_present_snapshot(store, prefix)
    view = fetch_view(store, snapshot, part=part_of(request.ids))
    tally = _Tally()
    rows = rows_in_batches(view, request.ids, refuse=tally.add)
    total = len(view) if request.ids is None else len(request.ids)
    fetcher = _Fetcher(store, request, runs=view.runs)
    with ThreadPoolExecutor(max_workers=_THREADS, thread_name_prefix="durastore-get") as pool:
        for batch in rows:
            for outcomes in pool.map(lambda job: job(), list(fetcher.jobs(batch))):
                for outcome in outcomes:
                    tally.add(outcome)
            if on_progress is not None:
                on_progress(tally.done, total)
    return tally.report()


def part_of(ids: Sequence[str] | None) -> SegmentPart | None:
    """Of few samples only their rows stay in memory."""
    if ids is None:
        return None
    import pyarrow as pa
    import pyarrow.compute as pc

    wanted = pa.array([text for text in ids if _is_text(text)], type=pa.string())
    return SegmentPart(rows=lambda table: table.filter(pc.is_in(table.column("sample_id"), value_set=wanted)))


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def rows_in_batches(
    view: ResolvedView, ids: Sequence[str] | None, *, refuse: Callable[[FailedSample], None], size: int = _BATCH
) -> Iterator[list[ManifestRow]]:
    """The rows of these ids (None: all) in batches; ids that there are none of are refused at once."""
    if ids is None:
        for start in range(0, len(view), size):
            yield [view.row_at(at) for at in range(start, min(start + size, len(view)))]
        return
    batch: list[ManifestRow] = []
    for text in dict.fromkeys(ids):
        try:
            row = view.row(SampleId(text))
            if row is None:
                raise SampleAbsent(f"no sample {text!r}", hint="`durastore ls` lists those that there are")
        except DurastoreError as exc:
            refuse(FailedSample(id=text, error=exc))
            continue
        batch.append(row)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


@dataclass(frozen=True, slots=True)
class _Done:
    landed: Landed
    is_compressed: bool


_Outcome = _Done | FailedSample
_Job = Callable[[], list[_Outcome]]


class _Tally:
    """Counts of a restore under way. Used by one thread."""

    def __init__(self) -> None:
        self._written = self._present = self._bytes_written = self._bytes_fetched = self._compressed = 0
        self._failed: list[FailedSample] = []

    @property
    def done(self) -> int:
        return self._written + self._present + len(self._failed)

    def add(self, outcome: _Outcome) -> None:
        if isinstance(outcome, FailedSample):
            self._failed.append(outcome)
            return
        landed = outcome.landed
        self._written += landed.is_new
        self._present += not landed.is_new
        self._bytes_written += landed.size_bytes if landed.is_new else 0
        self._bytes_fetched += landed.fetched_bytes
        self._compressed += outcome.is_compressed

    def report(self) -> RestoreReport:
        return RestoreReport(
            written=self._written,
            present=self._present,
            bytes_written=self._bytes_written,
            bytes_fetched=self._bytes_fetched,
            compressed=self._compressed,
            failed=tuple(self._failed),
        )


class _Fetcher:
    """Turns rows into jobs for the pool. Thread-safe."""

    def __init__(self, store: ObjectStore, request: RestoreRequest, *, runs: dict[Digest, Run]) -> None:
        self._store = store
        self._request = request
        self._runs = runs
        self._landing = Landing(request.out, is_file=_is_file(request))
        self._is_decoded = request.is_plain or request.tensors is not None

    def jobs(self, batch: Sequence[ManifestRow]) -> Iterator[_Job]:
        small = [row for row in batch if row.entry.length < _LARGE_BYTES and not self._is_decoded]
        for shared in plan_batch(small):
            members = [small[at] for at in shared.members]
            yield partial(self._small, shared, members)
        for row in batch:
            if self._is_decoded or row.entry.length >= _LARGE_BYTES:
                yield partial(self._alone, row)

    def _alone(self, row: ManifestRow) -> list[_Outcome]:
        return [self._one(row)]

    def _one(self, row: ManifestRow) -> _Outcome:
        try:
            source = PinnedObject(self._store, row)
            if self._is_decoded:
                return _Done(self._landing.land_encoded(self._encoded(source, row.entry)), False)
            return _Done(self._landing.land_large(source, row.entry), _is_compressed(row.entry))
        except FOR_ALL:
            raise
        except DurastoreError as exc:
            return FailedSample(id=row.entry.sample_id.text, error=_named(exc, row))

    def _encoded(self, source: PinnedObject, entry: SampleEntry) -> EncodedSample:
        if is_verbatim(entry):
            raise InvalidInput(
                f"{entry.sample_id.text!r} is a file that is kept as it was", hint="leave out --plain and --tensors"
            )
        wanted = Wanted(tensors=self._request.tensors)
        sample = read_checked(source.fetch, entry, wanted=wanted, where="the bucket")
        run = self._runs.get(entry.run)
        context = SampleContext(
            run=run if run is not None else Run(text="", digest=entry.run),
            meta=sample.meta,
            input_digest=entry.input_digest,
            provenance=entry.provenance,
            # a run whose text no segment carries can be named, not told
            embed_run_above_bytes=_EMBED_BYTES if run is not None else _NEVER,
        )
        return encode_sample(entry.sample_id, sample.tensors, context=context)

    def _small(self, shared: BatchRange, rows: Sequence[ManifestRow]) -> list[_Outcome]:
        """Samples that one request brings; where it brings something else, each is asked for by itself."""
        outcomes = [self._found(row) for row in rows]
        lacking = [row for row, outcome in zip(rows, outcomes, strict=True) if outcome is None]
        data = self._shared_bytes(shared, lacking[0]) if lacking else memoryview(b"")
        for at, row in enumerate(rows):
            if outcomes[at] is None:
                start = row.entry.offset - shared.offset
                outcomes[at] = self._land(row, data[start : start + row.entry.length])
        return [outcome for outcome in outcomes if outcome is not None]

    def _found(self, row: ManifestRow) -> _Outcome | None:
        """What a file that is there already makes of this sample; None where there is none."""
        try:
            landed = self._landing.find(row.entry)
        except InvalidInput as exc:
            return FailedSample(id=row.entry.sample_id.text, error=exc)
        return _Done(landed, _is_compressed(row.entry)) if landed is not None else None

    def _shared_bytes(self, shared: BatchRange, row: ManifestRow) -> memoryview:
        version_id = row.object.version_id
        try:
            data = self._store.fetch(shared.key, offset=shared.offset, length=shared.length, version_id=version_id)
        except FOR_ALL:
            raise
        except DurastoreError:
            return memoryview(b"")  # told sample by sample, where the version may be another one too
        return memoryview(data)

    def _land(self, row: ManifestRow, body: bytes | memoryview) -> _Outcome:
        entry = row.entry
        try:
            fault = _fault(body, entry)
            for _ in range(2):  # once for the shared request, once more for a transfer that was damaged
                if fault is not None:
                    body = PinnedObject(self._store, row).fetch(0, entry.length)
                    fault = _fault(body, entry)
            if fault is not None:
                raise IntegrityError(f"sample {entry.sample_id.text!r} in object {row.object.key}: {fault}")
            return _Done(self._landing.land_bytes(entry, body), _is_compressed(entry))
        except FOR_ALL:
            raise
        except DurastoreError as exc:
            return FailedSample(id=entry.sample_id.text, error=_named(exc, row))


def _named(exc: DurastoreError, row: ManifestRow) -> DurastoreError:
    if isinstance(exc, ObjectAbsent):
        return ObjectAbsent(f"sample {row.entry.sample_id.text!r}: its object {row.object.key} is not in the bucket")
    return exc


def _fault(body: bytes | memoryview, entry: SampleEntry) -> str | None:
    """Why these bytes are not the sample of the row; None if every byte of them is."""
    if len(body) != entry.length:
        return "its bytes are missing"
    if Digest.of(memoryview(body)[: entry.header_length]) != entry.header_digest:
        return "the bytes do not match their digest in the manifest"
    if is_verbatim(entry):
        return None
    try:
        scan_sample(body)
    except IntegrityError as exc:
        return exc.message
    return None


def _is_compressed(entry: SampleEntry) -> bool:
    if is_verbatim(entry):
        return False
    schema = parse_json(entry.schema, what="schema of a manifest row")
    return any(codec != "raw" for _, _, _, codec in schema)


def _is_file(request: RestoreRequest) -> bool:
    is_one = request.ids is not None and len(set(request.ids)) == 1
    is_file = request.out.name.endswith(_SUFFIX) and not request.out.is_dir()
    if is_file and not is_one:
        raise InvalidInput(f"{request.out} names one file", hint="give a folder for several samples")
    return is_file

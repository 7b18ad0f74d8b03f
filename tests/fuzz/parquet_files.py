"""Mutated manifest segments and failure lists: the whole file format, as pyarrow reads it, and what is made of it."""

from __future__ import annotations

import random
from contextlib import suppress
from itertools import product
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq

from durastore.errors import DurastoreError, FormatUnsupported, IntegrityError
from durastore.formats.failure_list import parse_failure_table
from durastore.formats.segment import parse_segment_table, row_at, segment_covers, segment_runs, tombstone_at
from durastore.manifest.fetching import FetchedSegments, SegmentTable
from durastore.manifest.view import ResolvedView
from durastore.model import Digest, ObjectKey
from tests.fuzz.file_worker import WantsMemory
from tests.fuzz.mutate import mutate_bytes
from tests.fuzz.row_targets import check_failures
from tests.fuzz.seeds import RUN, failure_list, segment

__all__ = ["ParquetFiles", "open_segment"]

_KEY = ObjectKey("p/manifest/0123456789abcdef/000000000001-0000000000000001.parquet")
_MAX_BYTES = 64 << 10
_CODECS: tuple[Literal["none", "snappy", "zstd"], ...] = ("none", "snappy", "zstd")
_VERSIONS: tuple[Literal["1.0", "2.0"], ...] = ("1.0", "2.0")


def _variants(ours: bytes) -> list[bytes]:
    """The same file as other Parquet writers could have written it, so that other decoders are reached."""
    table = pq.read_table(pa.BufferReader(ours))
    metadata = {key.decode(): value.decode() for key, value in (table.schema.metadata or {}).items()}
    found = [ours]
    for codec, version, dictionary in product(_CODECS, _VERSIONS, (True, False)):
        sink = pa.BufferOutputStream()
        with pq.ParquetWriter(
            sink,
            table.schema,
            compression=codec,
            data_page_version=version,
            use_dictionary=dictionary,
            store_schema=codec == "none",
            write_page_index=dictionary,
        ) as writer:
            writer.write_table(table, row_group_size=3)
            writer.add_key_value_metadata(metadata)
        found.append(bytes(sink.getvalue()))
    return found


class ParquetFiles:
    """A `FileKind`."""

    batch = 200

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._files = [*_variants(segment()), *_variants(failure_list())]
        self.seed_count = len(self._files)
        pa.set_cpu_count(1)

    def make(self, number: int) -> bytes:
        """One of the files, changed in its pages, its footer, or anywhere; mostly with its footer's length right."""
        if number < 0:
            return self._files[number]
        rng = random.Random(f"{self._seed}:{number}")
        data = rng.choice(self._files)
        size = int.from_bytes(data[-8:-4], "little")
        pages, footer = data[: -8 - size], data[-8 - size : -8]
        where = rng.randrange(5)
        if where == 0:
            return mutate_bytes(data, rng, others=self._files, max_bytes=_MAX_BYTES)
        if where < 3:
            pages = _few_changes(pages, rng) if rng.randrange(2) else mutate_bytes(pages, rng, max_bytes=_MAX_BYTES)
        if where > 1:
            footer = _few_changes(footer, rng) if rng.randrange(2) else mutate_bytes(footer, rng, max_bytes=_MAX_BYTES)
        return pages + footer + len(footer).to_bytes(4, "little") + b"PAR1"

    def check(self, data: bytes) -> bool:
        is_segment = open_segment(data)
        return _open_failures(data) or is_segment


def _few_changes(data: bytes, rng: random.Random) -> bytes:
    """Single bytes: most of what is around them stays readable."""
    out = bytearray(data)
    for _ in range(1 + rng.randrange(4)):
        if out:
            out[rng.randrange(len(out))] = rng.choice((rng.randrange(256), 0, 1, 0x7F, 0x80, 0xFF))
    return bytes(out)


def open_segment(data: bytes) -> bool:
    """Read a segment as readers do. False where it is refused; what must hold of an accepted one is asserted."""
    try:
        table = parse_segment_table(data)
        segment_covers(table)
    except (IntegrityError, FormatUnsupported) as exc:
        if isinstance(exc.__cause__, MemoryError):
            raise WantsMemory from exc
        return False
    try:
        for at in range(min(table.num_rows, 50)):
            for parse in (row_at, tombstone_at):
                with suppress(IntegrityError):
                    parse(table, at)
        with suppress(IntegrityError):
            segment_runs(table)
        _resolve(table)
    except MemoryError as exc:
        raise WantsMemory from exc
    return True


def _open_failures(data: bytes) -> bool:
    """Read a failure list as readers do. False where it is refused."""
    try:
        table = parse_failure_table(data, run=RUN.digest)
    except (IntegrityError, FormatUnsupported) as exc:
        if isinstance(exc.__cause__, MemoryError):
            raise WantsMemory from exc
        return False
    try:
        check_failures(table)
    except MemoryError as exc:
        raise WantsMemory from exc
    return True


def _resolve(table: pa.Table) -> None:
    read = (SegmentTable(key=_KEY, table=table),)
    view = ResolvedView(Digest.of(b""), FetchedSegments(read=read, covered=frozenset(), unreadable=()))
    for position in range(min(len(view), 20)):
        with suppress(IntegrityError):
            assert view.row_at(position).entry.sample_id.text == view.id_at(position)
    for question in (view.ids, lambda: view.duplicates, lambda: view.run_counts, view.object_keys, view.tombstones):
        with suppress(DurastoreError):
            question()
    view.index()

"""An engine that is watched is still of its kind, and tells how far it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from durastore.clock import SYSTEM_CLOCK
from durastore.extract.engine import Extracted, Refused, StreamEngine
from durastore.extract.rows import TokenRow
from durastore.extract.watched_passes import watched
from durastore.model import Digest, SampleId


def _rows(*numbers: int) -> list[TokenRow]:
    return [
        TokenRow(
            line=number,
            sample_id=SampleId(f"s{number}"),
            input_ids=np.array([number], dtype=np.int64),
            loss_mask=None,
            input_digest=Digest.of(bytes([number])),
        )
        for number in numbers
    ]


class _Batches:
    def start(self) -> None:
        pass

    def health(self) -> str | None:
        return None

    def extract(self, batch: Sequence[TokenRow]) -> list[Extracted | Refused]:
        return [Refused(reason="no") for _ in batch]

    def close(self) -> None:
        pass


class _Stream(_Batches):
    def stream(
        self, rows: Iterator[TokenRow | None], *, may_wait: Callable[[], bool]
    ) -> Iterator[tuple[TokenRow, Extracted | Refused]]:
        for row in rows:
            if row is not None and may_wait():
                yield row, Refused(reason="no")


def test_a_stream_stays_one_and_each_result_counts() -> None:
    engine = watched(_Stream(), clock=SYSTEM_CLOCK)
    assert isinstance(engine, StreamEngine)
    results = engine.stream(iter([*_rows(1, 2), None, *_rows(3)]), may_wait=lambda: True)
    assert [row.line for row, _ in results] == [1, 2, 3]
    assert engine.passes == 3
    assert engine.pass_s is None
    assert not engine.is_stuck


def test_an_engine_of_batches_gets_no_stream() -> None:
    engine = watched(_Batches(), clock=SYSTEM_CLOCK)
    assert not isinstance(engine, StreamEngine)
    assert len(engine.extract(_rows(1, 2))) == 2
    assert engine.passes == 1

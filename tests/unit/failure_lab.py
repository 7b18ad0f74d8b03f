"""Failures to put into lists, and lists to put into buckets."""

from __future__ import annotations

from typing import Any

from durastore.formats.failure_list import FailedSample, FailureList, SettledFailure, render_failure_list
from durastore.formats.keys import failures_key
from durastore.manifest.failure_lists import publish_failures
from durastore.model import Digest, ObjectKey, Run, SampleId, WriterId
from durastore.objectstore.memory import MemoryStore
from tests.unit.manifest_bucket import RUN

__all__ = ["Lists", "failed", "rendered", "settled"]


def failed(name: str | None, time_ns: int = 10, **changes: Any) -> FailedSample:
    values: dict[str, Any] = {
        "sample_id": SampleId(name) if name is not None else None,
        "line": 1,
        "input_digest": None,
        "stage": "states",
        "reason": "state 2 has a NaN or an infinity",
        "attempts": 1,
        "runs": 1,
        "worker": "worker 3",
        "host": "node-1",
        "time_ns": time_ns,
    }
    return FailedSample(**{**values, **changes})


def settled(name: str | None, time_ns: int = 10, *, stored: str, line: int = 1) -> SettledFailure:
    sample_id = SampleId(name) if name is not None else None
    return SettledFailure(sample_id=sample_id, line=line, time_ns=time_ns, stored_id=SampleId(stored))


def rendered(*rows: FailedSample | SettledFailure, run: Run = RUN) -> bytes:
    failures = tuple(row for row in rows if isinstance(row, FailedSample))
    settlements = tuple(row for row in rows if isinstance(row, SettledFailure))
    return render_failure_list(FailureList(run=run.digest, failed=failures, settled=settlements))


class Lists:
    """Hosts that tell one prefix what failed."""

    def __init__(self, store: MemoryStore, prefix: str) -> None:
        self.store, self.prefix = store, prefix
        self._seqs: dict[WriterId, int] = {}

    def tell(self, *rows: FailedSample | SettledFailure, host: str = "a") -> ObjectKey:
        writer = WriterId(host * 16)
        self._seqs[writer] = seq = self._seqs.get(writer, 0) + 1
        return publish_failures(self.store, rendered(*rows), prefix=self.prefix, writer=writer, seq=seq)

    def plant(self, data: bytes, *, seq: int = 1, host: str = "f") -> ObjectKey:
        """Somebody else's bytes, under a key that fits them."""
        key = failures_key(self.prefix, WriterId(host * 16), seq=seq, digest=Digest.of(data))
        self.store.put(key, data, crc64nvme=None, metadata={})
        return key

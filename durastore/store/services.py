"""What every lane of a store works with, bundled once by `opening`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from durastore.clock import Clock
from durastore.config import StoreOptions
from durastore.model import Run
from durastore.objectstore.port import ObjectStore
from durastore.observe.events import Observer
from durastore.reclaim.plan import ReclaimPolicy
from durastore.spool.records import PackRecord
from durastore.store.board import Board
from durastore.upload.engine import Uploader
from durastore.verify.verifier import Verifier

__all__ = ["Services"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """Shared, thread-safe parts of one open store."""

    objects: ObjectStore
    prefix: str
    run: Run
    uploader: Uploader
    verifier: Verifier
    options: StoreOptions
    pool: ThreadPoolExecutor
    """Runs looks at the bucket and segment writes; the lane threads only decide."""
    board: Board
    clock: Clock
    observer: Observer

    def tell(self, name: str, record: PackRecord) -> None:
        """An event of one pack."""
        size_bytes = record.size_bytes or 0
        self.observer.emit(name, pack=record.name, bytes=size_bytes, samples=record.sample_count)

    def reclaim_policy(self, used_bytes: int) -> ReclaimPolicy:
        """What may go now of a spool that holds `used_bytes`: while somebody drains, everything that was proven; while
        a put waits for room, what it needs, also below the low watermark.
        """
        options, short_bytes = self.options, self.board.short_bytes
        low_bytes = options.low_watermark_bytes
        if short_bytes:
            low_bytes = min(low_bytes, max(0, used_bytes - short_bytes))
        return ReclaimPolicy(
            mode="eager" if self.board.is_draining and options.reclaim != "never" else options.reclaim,
            low_bytes=low_bytes,
            settle_s=options.settle_s,
            evidence_ttl_s=options.evidence_ttl_s,
            batch_packs=options.reclaim_batch_packs,
            batch_bytes=options.reclaim_batch_bytes,
        )

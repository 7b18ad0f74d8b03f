"""What proof costs, counted by the server: four writers, shuffled ids, a prefix that already holds very much.

Proving a pack (from its upload's answer to MANIFESTED) on an endpoint that attests is one HEAD and one ranged GET; a
share of the packs is read back in full. What reclaim asks afterwards is counted apart.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
import pytest

import durastore
from durastore.store.store import Store
from durastore.testing.strict_s3 import SeenRequest, StrictS3

WRITERS = 4
ALREADY_THERE = 100_000
AUDIT_SHARE = 0.01
OLD_WRITER = "0" * 16
GROUP = 50  # samples of one `put_many`: each is a pack of its own all the same
RECLAIM_BATCH = 64


@pytest.fixture
def server(strict_s3: StrictS3, monkeypatch: pytest.MonkeyPatch) -> StrictS3:
    for name, value in strict_s3.environment().items():
        monkeypatch.setenv(name, value)
    return strict_s3


class Ward:
    """One bucket with four writers, and the server's count of what they asked."""

    def __init__(self, server: StrictS3, local: Path) -> None:
        self.server, self.local = server, local
        self.bucket = server.make_bucket()
        server.populate(self.bucket, f"p/packs/{OLD_WRITER}/", count=ALREADY_THERE, suffix="-{digest}.tar")
        self._counted = len(server.requests())

    def open(self) -> Store:
        """Nothing is freed yet, and every sample is a pack of its own."""
        return durastore.open(
            f"s3://{self.bucket}/p",
            local=self.local,
            endpoint_url=self.server.endpoint_url,
            reclaim="lazy",
            settle_s=0.0,
            single_pack_bytes=1,
            reserve_bytes=1,
        )

    def asked(self) -> list[SeenRequest]:
        """The requests since the last call."""
        seen = self.server.requests()
        new, self._counted = seen[self._counted :], len(seen)
        return [request for request in new if request.bucket == self.bucket]


def await_probe(store: Store, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while store._parts.services.verifier._policy.probe is None:
        assert time.monotonic() < deadline, "the endpoint was not probed"
        time.sleep(0.02)


def count(requests: Iterable[SeenRequest]) -> Counter[str]:
    """By operation, and by what the key names."""
    return Counter(f"{request.op} {_kind_of(request.key)}".strip() for request in requests)


def _kind_of(key: str) -> str:
    for kind in ("packs", "manifest"):
        if f"/{kind}/" in key:
            return kind
    return "" if not key else "other"


def put_share(store: Store, ids: list[str]) -> None:
    for start in range(0, len(ids), GROUP):
        store.put_many(
            {name: {"h": np.frombuffer(name.encode(), dtype=np.uint8)} for name in ids[start : start + GROUP]}
        )


def check_cost(server: StrictS3, local: Path, *, packs: int) -> str:
    """Fails where a proof costs more than it may; returns the figures."""
    ward = Ward(server, local)
    ids = [f"s/{number:06d}" for number in range(packs)]
    random.Random(packs).shuffle(ids)
    with ExitStack() as stack:
        stores = [stack.enter_context(closing(ward.open()))]
        await_probe(stores[0])
        stores += [stack.enter_context(closing(ward.open())) for _ in range(WRITERS - 1)]
        for store in stores:
            await_probe(store)
        opened = count(ward.asked())
        with ThreadPoolExecutor(WRITERS) as pool:
            list(pool.map(put_share, stores, [ids[n::WRITERS] for n in range(WRITERS)]))
            list(pool.map(Store.flush, stores))
        proof = count(ward.asked())
        audited = [store._parts.counters.count("verify.read_back") for store in stores]
        attested = [store._parts.counters.count("verify.attested") for store in stores]
        with ThreadPoolExecutor(WRITERS) as pool:
            list(pool.map(Store.drain, stores))
        freed = count(ward.asked())
        assert all(store.status().local_bytes == 0 for store in stores)
    assert sum(audited) + sum(attested) == packs
    check_proof(proof, packs=packs, audited=sum(audited), opened=opened)
    check_reclaim(freed, packs=packs)
    return "\n".join(
        [
            f"{packs} packs, {WRITERS} writers, {ALREADY_THERE} objects there before; {sum(audited)} read back in full",
            f"  opening and probing: {dict(opened)}",
            f"  upload to MANIFESTED: {dict(proof)}",
            f"  reclaim: {dict(freed)}",
        ]
    )


def check_proof(proof: Counter[str], *, packs: int, audited: int, opened: Counter[str]) -> None:
    """One HEAD and one ranged GET a pack; an audited one takes two HEADs (before and after) and a whole GET instead."""
    assert proof["put packs"] == packs
    assert proof["head packs"] == packs + audited
    assert proof["get packs"] == packs
    share = AUDIT_SHARE * packs
    assert audited <= share + 5 * share**0.5 + 8 * WRITERS  # chance, and what a session reads before it believes
    lists = sum(counts[op] for counts in (proof, opened) for op in ("list", "list_v1", "list_versions"))
    assert lists <= 10 * WRITERS


def check_reclaim(freed: Counter[str], *, packs: int) -> None:
    """A HEAD (and at most a spot) a pack; of one in each batch every byte; marker and segments for each batch."""
    batches = freed["get other"]
    assert freed["head packs"] == packs + 2 * batches
    assert batches <= freed["get packs"] <= packs + batches
    assert batches <= packs // RECLAIM_BATCH + 8 * WRITERS
    assert not any(freed[op] for op in ("list", "list_v1", "list_versions", "put packs"))


def test_proof_costs_a_head_and_a_spot_a_pack(server: StrictS3, tmp_path: Path) -> None:
    check_cost(server, tmp_path / "spool", packs=120)


@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
def test_proof_of_ten_thousand_packs(server: StrictS3, tmp_path: Path) -> None:
    sys.stdout.write("\n" + check_cost(server, tmp_path / "spool", packs=10_000) + "\n")

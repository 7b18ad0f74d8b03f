"""Failure lists on a server that lies: history may be lost, nothing else, and nobody waits for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import durastore
from durastore.clock import SYSTEM_CLOCK
from durastore.errors import DurastoreError
from durastore.extract.failure_book import FailureBook, load_failures
from durastore.extract.failure_teller import FailureTeller, hear_failures, opened_bucket, telling_failures
from durastore.extract.rows import RowFailure
from durastore.extract.shared_failures import BucketFailures, fetch_failures
from durastore.model import Digest, Run, SampleId
from durastore.testing.strict_s3 import Lie, Rule, StrictS3

RUN = {"model": "m"}
LISTS = "/failures/"


class Lab:
    """One machine's book, and a bucket with one sample."""

    def __init__(self, server: StrictS3, folder: Path) -> None:
        self.server, self.bucket, self.root = server, server.make_bucket(), folder / "spool"
        self.url = f"s3://{self.bucket}/p"
        options: Any = {
            "endpoint_url": server.endpoint_url,
            "probe": "never",
            "seal_age_s": 0.1,
            "connect_timeout_s": 2.0,
        }
        self.request: Any = SimpleNamespace(bucket=self.url, local=self.root, options=options)
        with durastore.open(self.url, local=self.root, run=RUN, **options) as store:
            store.put("stored", {"x": np.arange(3)})
        self.run = Run.of(RUN).digest
        self.book = FailureBook(self.root, run=self.run.hex, worker="pid 1", clock=SYSTEM_CLOCK)
        self.book.add(RowFailure(line=1, sample_id=SampleId("a"), stage="states", reason="has a NaN"))
        self.teller = FailureTeller(self.book, self.connected, run=self.run)

    def connected(self) -> Any:
        return opened_bucket(self.request)

    def seen(self) -> BucketFailures:
        with self.connected() as (store, prefix):
            return fetch_failures(store, prefix)

    def lists(self) -> list[str]:
        return [key for key in self.server.keys(self.bucket) if LISTS in key]


@pytest.fixture
def lab(strict_s3: StrictS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    for name, value in strict_s3.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("DURASTORE_IS_ANY_FILESYSTEM_ALLOWED", "1")
    monkeypatch.setattr("durastore.extract.failure_teller._PATIENCE_S", 0.5)
    made = Lab(strict_s3, tmp_path)
    yield made
    made.book.close()


def _names(seen: BucketFailures) -> list[str | None]:
    return [failure.sample_id for failure in seen.failures]


@pytest.mark.parametrize("lie", [Lie.LOSE, Lie.STORE_EMPTY, Lie.STORE_SHORT, Lie.ZERO_BLOCK, Lie.FLIP_BYTE, Lie.HOLLOW])
def test_a_list_that_is_not_stored_as_it_was_sent_is_told_again(lab: Lab, lie: Lie) -> None:
    lab.server.script(Rule(lie=lie, op="put", key_part=LISTS, count=1))
    with pytest.raises(DurastoreError):
        lab.teller.tell()
    assert _names(lab.seen()) in ([], ["a"])
    lab.server.script()
    assert lab.teller.tell() == 1
    assert (_names(lab.seen()), lab.seen().ignored) == (["a"], ()), "the same bytes heal the damaged copy"


@pytest.mark.parametrize("lie", [Lie.DROP_RESPONSE, Lie.ERROR_AFTER, Lie.ERROR, Lie.SLOW_DOWN, Lie.DROP_REQUEST])
def test_an_answer_that_was_lost_is_settled_and_the_list_is_there_once(lab: Lab, lie: Lie) -> None:
    lab.server.script(Rule(lie=lie, op="put", key_part=LISTS, count=1))
    with telling_failures(lab.teller, is_stopping=lambda: False):
        pass
    lab.server.script()
    lab.teller.tell()
    assert len(lab.lists()) == 1
    assert _names(lab.seen()) == ["a"]


@pytest.mark.parametrize("lie", [Lie.FORBIDDEN, Lie.EXPIRED_TOKEN, Lie.ERROR, Lie.HTML_200])
def test_who_may_not_write_lists_fails_no_run(lab: Lab, lie: Lie) -> None:
    lab.server.script(Rule(lie=lie, op="put", key_part=LISTS))
    with telling_failures(lab.teller, is_stopping=lambda: False):
        pass
    assert len(load_failures(lab.root)) == 1
    lab.server.script()
    assert lab.teller.tell() == 1


def test_a_server_that_keeps_its_lists_back_costs_history_and_no_sample(lab: Lab) -> None:
    lab.teller.tell()
    lab.server.script(Rule(lie=Lie.LIST_EMPTY, op="list", count=1))
    assert lab.seen().failures == ()
    hear_failures(lab.book, lab.connected, run=lab.run)
    assert lab.book.knows("a", 1)
    lab.server.script(Rule(lie=Lie.FORBIDDEN, op="get", key_part=LISTS))
    hear_failures(lab.book, lab.connected, run=lab.run)
    lab.server.script()
    with durastore.Dataset(lab.url, endpoint_url=lab.server.endpoint_url) as dataset:
        assert list(dataset.ids) == ["stored"]


@pytest.mark.parametrize("lie", [Lie.TRUNCATE_BODY, Lie.SHORT_BODY])
def test_a_body_that_is_cut_on_the_way_is_asked_for_again(lab: Lab, lie: Lie) -> None:
    lab.teller.tell()
    lab.server.script(Rule(lie=lie, op="get", key_part=LISTS, count=1))
    assert (_names(lab.seen()), lab.seen().ignored) == (["a"], ())


def test_a_forged_list_says_nothing_about_what_is_stored(lab: Lab) -> None:
    lab.teller.tell()
    body = b"\x1b[2Jnot parquet"
    key = f"p/failures/{'e' * 16}/000000000001-{Digest.of(body).short}.parquet"
    lab.server.client().put_object(Bucket=lab.bucket, Key=key, Body=body)
    seen = lab.seen()
    assert _names(seen) == ["a"]
    assert [each.key for each in seen.ignored] == [key]
    assert "\x1b" not in seen.ignored[0].reason
    with durastore.open(lab.url, local=lab.root, run=RUN, **lab.request.options) as store:
        assert "a" not in store
        assert "stored" in store

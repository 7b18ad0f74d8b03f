"""Lists of many hosts read as one, and settled by the manifest alone."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from durastore.errors import EndpointUnreachable, StoreMissing
from durastore.extract.shared_failures import BucketFailures, fetch_failures
from durastore.formats.failure_list import FailedSample, SettledFailure, failure_table
from durastore.manifest.failure_lists import latest_failures
from durastore.model import Digest, ObjectKey, Run, Tombstone
from durastore.objectstore.memory import MemoryStore
from tests.unit.failure_lab import Lists, failed, rendered, settled
from tests.unit.manifest_bucket import RUN, Bucket, encode

INPUT, EDITED = Digest.of(b"input"), Digest.of(b"edited input")


@pytest.fixture
def bucket() -> Bucket:
    made = Bucket()
    made.mark()
    return made


@pytest.fixture
def lists(bucket: Bucket) -> Lists:
    return Lists(bucket.store, bucket.prefix)


def _seen(bucket: Bucket) -> BucketFailures:
    return fetch_failures(bucket.store, bucket.prefix)


def _names(bucket: Bucket) -> list[str]:
    return [failure.sample_id or f"line {failure.line}" for failure in _seen(bucket).failures]


# --- one row a sample ----------------------------------------------------------------------------------------------


def test_the_latest_of_each_sample_wins_whoever_told_it_and_tries_are_counted_on(bucket: Bucket, lists: Lists) -> None:
    lists.tell(failed("x", 10, runs=4), failed("y", 11), failed(None, 12, line=7), host="a")
    lists.tell(
        failed("x", 20, runs=2, host="node-2", reason="again"), failed(None, 13, line=7, reason="later"), host="b"
    )
    first, second, third = sorted(_seen(bucket).failures, key=lambda f: f.sample_id or "~")
    assert (first.sample_id, first.reason, first.host, first.runs) == ("x", "again", "node-2", 4)
    assert (second.sample_id, third.line, third.reason) == ("y", 7, "later")
    assert _seen(bucket).run == RUN.digest


def test_order_and_repeats_of_rows_and_lists_change_nothing() -> None:
    rows: list[FailedSample | SettledFailure] = [
        failed("x", 10), failed("x", 20, runs=3), failed("x", 20, host="z"), settled("x", 10, stored="x"),
        failed("y", 5), settled("y", 5, stored="y"), settled("y", 4, stored="y"), failed(None, 6, line=3),
        settled(None, 6, stored="new", line=3),
    ]  # fmt: skip
    whole = latest_failures(failure_table(rows)).to_pylist()
    assert [(row["sample_id"], row["runs"], row["stored_id"]) for row in whole] == [
        ("x", 3, None),
        ("y", 1, "y"),
        (None, 1, "new"),
    ]
    draw = random.Random(5)
    for _ in range(50):
        mixed = draw.choices(rows, k=5) + draw.sample(rows, len(rows))
        assert latest_failures(failure_table(mixed)).to_pylist() == whole


def test_nobody_told_anything_is_no_failure_and_costs_one_listing(bucket: Bucket) -> None:
    assert _seen(bucket) == BucketFailures(run=RUN.digest, failures=(), ignored=(), problem=None)


def test_no_store_at_the_prefix_is_said(bucket: Bucket) -> None:
    with pytest.raises(StoreMissing):
        fetch_failures(bucket.store, "data/sat")


# --- settled by the manifest, and by nothing else ------------------------------------------------------------------


def test_a_live_row_from_the_same_input_settles_whatever_the_clocks_say(bucket: Bucket, lists: Lists) -> None:
    lists.tell(failed("x", 10**18, input_digest=INPUT), failed("y", 10**18, input_digest=INPUT))
    bucket.add_segment(bucket.add_tar([encode("x", 1, input_digest=INPUT)]))
    assert _names(bucket) == ["y"]


def test_an_older_row_from_another_input_settles_nothing_and_a_later_one_does(bucket: Bucket, lists: Lists) -> None:
    bucket.add_segment(bucket.add_tar([encode("x", 1, input_digest=INPUT)]))  # put at 1 ns
    lists.tell(failed("x", 1, input_digest=EDITED))
    assert _names(bucket) == ["x"], "it was stored, was edited, and failed then"
    other = Bucket()
    other.mark()
    Lists(other.store, other.prefix).tell(failed("x", 0, input_digest=EDITED), failed("y", 0))
    other.add_segment(other.add_tar([encode("x", 1, input_digest=INPUT), encode("y", 1)]))
    assert _names(other) == []


def test_no_list_makes_a_sample_count_as_stored(bucket: Bucket, lists: Lists) -> None:
    """Whoever says "settled": without a row of the run in the manifest it failed, and stays so."""
    lists.tell(failed("x", 10), failed(None, 10, line=3))
    lists.tell(settled("x", 99, stored="x"), settled(None, 99, stored="new", line=3), host="b")
    assert sorted(_names(bucket)) == ["line 3", "x"]
    other_run = Run.of({"model": "other"})
    bucket.add_segment(bucket.add_tar([encode("x", 1, run=other_run), encode("new", 2, run=other_run)], run=other_run))
    assert sorted(_names(bucket)) == ["line 3", "x"], "rows of another run"
    rows = bucket.add_tar([encode("x", 1), encode("new", 2)])
    bucket.add_segment(rows)
    assert _names(bucket) == []
    stones = [
        Tombstone(sample_id=r.entry.sample_id, key=r.object.key, offset=r.entry.offset, reason="lost") for r in rows
    ]
    bucket.add_segment(tombstones=stones)
    assert sorted(_names(bucket)) == ["line 3", "x"], "what was lost is not stored"


def test_a_settlement_counts_for_its_failure_and_not_for_a_later_one(bucket: Bucket, lists: Lists) -> None:
    bucket.add_segment(bucket.add_tar([encode("x", 1, input_digest=INPUT)]))
    lists.tell(failed("x", 10, input_digest=EDITED), settled("x", 10, stored="x"))
    assert _names(bucket) == []
    lists.tell(failed("x", 11, input_digest=EDITED), host="b")
    assert _names(bucket) == ["x"]


def test_a_failure_takes_nothing_away_from_the_manifest(bucket: Bucket, lists: Lists) -> None:
    bucket.add_segment(bucket.add_tar([encode("x", 1)]))
    before = bucket.view().ids()
    lists.tell(failed("x", 10**18))
    assert bucket.view().ids() == before == ["x"]
    assert _names(bucket) == ["x"], "told, because it came later; done all the same"


def test_a_manifest_that_cannot_be_read_hides_no_failure(bucket: Bucket, lists: Lists) -> None:
    bucket.skip_segment()
    bucket.add_segment(bucket.add_tar([encode("x", 1)]))
    lists.tell(failed("x", 0))
    seen = _seen(bucket)
    assert [failure.sample_id for failure in seen.failures] == ["x"]
    assert seen.problem is not None
    assert "lacks 1 segments" in seen.problem


# --- damage --------------------------------------------------------------------------------------------------------


def _damaged(bucket: Bucket, lists: Lists) -> tuple[ObjectKey, str]:
    key = lists.tell(failed("lost"), host="b")
    bucket.damage(key, at=40)
    return key, "its bytes do not match the digest in its name"


def _newer(bucket: Bucket, lists: Lists) -> tuple[ObjectKey, str]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    del bucket
    sink = pa.BufferOutputStream()
    table = pa.table({"what": ["ever"]})
    pq.write_table(table.replace_schema_metadata({"durastore.failures": "7.1"}), sink)
    return lists.plant(bytes(sink.getvalue())), "it has the newer format 7.1"


def _of_another_run(bucket: Bucket, lists: Lists) -> tuple[ObjectKey, str]:
    del bucket
    return lists.plant(rendered(failed("x"), run=Run.of({"model": "other"}))), "it is of another run than the bucket's"


def _gigantic(bucket: Bucket, lists: Lists) -> tuple[ObjectKey, str]:
    data = bytes((128 << 20) + 1)
    del bucket
    return lists.plant(data), "no list has 134217729 bytes"


def _garbage(bucket: Bucket, lists: Lists) -> tuple[ObjectKey, str]:
    del bucket
    return lists.plant(b"<html>"), "it is no failure list"


def _stranger(bucket: Bucket, lists: Lists) -> tuple[ObjectKey, str]:
    del lists
    key = ObjectKey(f"{bucket.prefix}/failures/notes.txt")
    bucket.store.put(key, b"hello", crc64nvme=None, metadata={})
    return key, "is no failure list by its name"


@pytest.mark.parametrize("harm", [_damaged, _newer, _of_another_run, _gigantic, _garbage, _stranger])
def test_what_is_no_sound_list_is_named_and_the_others_are_read(bucket: Bucket, lists: Lists, harm: Any) -> None:
    lists.tell(failed("x"))
    key, reason = harm(bucket, lists)
    seen = _seen(bucket)
    assert [failure.sample_id for failure in seen.failures] == ["x"]
    ((named, why),) = [(each.key, each.reason) for each in seen.ignored]
    assert named == key.text
    assert why.startswith(reason)


def test_the_name_of_a_stranger_cannot_steer_a_terminal(bucket: Bucket) -> None:
    key = ObjectKey(f"{bucket.prefix}/failures/\x9b2J\u202e.parquet")
    bucket.store.put(key, b"x", crc64nvme=None, metadata={})
    assert [each.key for each in _seen(bucket).ignored] == [f"{bucket.prefix}/failures/?2J?.parquet"]


def test_the_columns_of_a_stranger_cannot_steer_a_terminal_either(bucket: Bucket, lists: Lists) -> None:
    whole = pq.read_table(pa.BufferReader(rendered(failed("x"))))
    odd = whole.set_column(whole.schema.get_field_index("attempts"), "attempts", pa.array([{"\x9b2J\u202e": 1}]))
    sink = pa.BufferOutputStream()
    pq.write_table(odd, sink)
    lists.plant(bytes(sink.getvalue()))
    (ignored,) = _seen(bucket).ignored
    assert "struct<?2J?" in ignored.reason


def test_a_list_that_is_gone_is_missed_and_costs_its_own_rows_only(bucket: Bucket) -> None:
    class Forgetful(MemoryStore):
        def list(self, prefix: str, *, start_after: str | None = None) -> Any:
            for page in super().list(prefix, start_after=start_after):
                yield [stat for stat in page if "/000000000002-" not in stat.key.text]

    store = Forgetful()
    other = Bucket(store)
    other.mark()
    lists = Lists(store, other.prefix)
    for number in (1, 2, 3):
        lists.tell(failed(f"x{number}"))
    seen = fetch_failures(store, other.prefix)
    assert [failure.sample_id for failure in seen.failures] == ["x1", "x3"]
    assert [each.reason for each in seen.ignored] == ["1 of its 3 lists are not there"]


def test_an_endpoint_that_does_not_answer_is_no_empty_list(bucket: Bucket, lists: Lists) -> None:
    lists.tell(failed("x"))

    class Silent(MemoryStore):
        def fetch(self, key: ObjectKey, **_: Any) -> bytes:
            if "/failures/" in key.text:
                raise EndpointUnreachable("nobody answers")
            return bucket.store.fetch(key)

        def list(self, prefix: str, *, start_after: str | None = None) -> Any:
            return bucket.store.list(prefix, start_after=start_after)

    with pytest.raises(EndpointUnreachable):
        fetch_failures(Silent(), bucket.prefix)


def test_readers_that_do_not_know_lists_see_the_same_dataset(bucket: Bucket, lists: Lists) -> None:
    bucket.add_segment(bucket.add_tar([encode("x", 1)]))
    snapshot = bucket.view().snapshot_id
    lists.tell(failed("y"), failed("x"))
    assert (bucket.view().snapshot_id, bucket.view().ids()) == (snapshot, ["x"])

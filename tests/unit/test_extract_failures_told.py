"""What one machine's extractions could not do reaches the bucket, and comes back to another machine."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from durastore.clock import ManualClock
from durastore.errors import DiskFailed, EndpointUnreachable
from durastore.extract import failure_teller
from durastore.extract.failure_book import FailureBook, load_failures
from durastore.extract.failure_teller import FailureTeller, hear_failures, telling_failures
from durastore.extract.failure_words import shareable
from durastore.extract.rows import RowFailure
from durastore.extract.shared_failures import SharedFailure, fetch_failures
from durastore.extract.work_db import WORK_FILE, WorkDb
from durastore.formats.keys import failures_listing_prefix
from durastore.model import Digest, ObjectKey, SampleId
from durastore.objectstore.memory import MemoryStore
from durastore.objectstore.port import Body, WriteReply
from tests.unit.failure_lab import Lists, failed
from tests.unit.manifest_bucket import RUN, Bucket, encode

INPUT = Digest.of(b"tokens")
HOME = f"/{'home'}/ada"


def _failure(name: str | None, line: int = 1, reason: str = "state 2 is zero everywhere") -> RowFailure:
    sample_id = SampleId(name) if name is not None else None
    digest = INPUT if name is not None else None
    return RowFailure(line=line, sample_id=sample_id, stage="states", reason=reason, input_digest=digest)


class Host:
    """One machine with a root of its own, and the bucket that all share."""

    def __init__(self, bucket: Bucket, root: Path, *, ahead_s: float = 0.0) -> None:
        root.mkdir()
        self.bucket, self.root, self.clock = bucket, root, ManualClock()
        self.clock.step_wall(ahead_s)
        self.is_offline = False
        self.open()

    def open(self) -> None:
        """A process begins."""
        self.book = FailureBook(self.root, run=RUN.digest.hex, worker="pid 7", clock=self.clock)
        self.teller = FailureTeller(self.book, self.connected, run=RUN.digest)

    def end(self) -> None:
        self.book.close()

    def fail(self, *names: str | None, line: int = 1, reason: str = "state 2 is zero everywhere") -> None:
        self.clock.advance(1)
        for name in names:
            self.book.add(_failure(name, line, reason))

    @contextmanager
    def connected(self) -> Iterator[tuple[MemoryStore, str]]:
        if self.is_offline:
            raise EndpointUnreachable("nobody answers")
        yield self.bucket.store, self.bucket.prefix

    def hear(self) -> None:
        hear_failures(self.book, self.connected, run=RUN.digest)


@pytest.fixture
def bucket() -> Bucket:
    made = Bucket()
    made.mark()
    return made


@pytest.fixture
def host(bucket: Bucket, tmp_path: Path) -> Iterator[Host]:
    made = Host(bucket, tmp_path / "one")
    yield made
    made.end()


@pytest.fixture
def other(bucket: Bucket, tmp_path: Path) -> Iterator[Host]:
    made = Host(bucket, tmp_path / "other")
    yield made
    made.end()


def _told(bucket: Bucket) -> dict[str, SharedFailure]:
    found = fetch_failures(bucket.store, bucket.prefix)
    assert found.ignored == ()
    return {failure.sample_id or f"line {failure.line}": failure for failure in found.failures}


def _keys(bucket: Bucket) -> list[ObjectKey]:
    return [stat.key for page in bucket.store.list(failures_listing_prefix(bucket.prefix)) for stat in page]


# --- telling -------------------------------------------------------------------------------------------------------


def test_each_failure_is_told_once_and_again_when_it_fails_again(host: Host, bucket: Bucket) -> None:
    host.fail("a", "b")
    host.fail(None, line=9)
    assert (host.teller.tell(), host.teller.tell()) == (3, 0)
    assert {name: each.runs for name, each in _told(bucket).items()} == {"a": 1, "b": 1, "line 9": 1}
    assert _told(bucket)["a"].input_digest == INPUT.hex
    host.fail("b", reason="again")
    assert host.teller.tell() == 1
    assert (_told(bucket)["b"].runs, _told(bucket)["b"].reason) == (2, "again")
    assert len(_keys(bucket)) == 2


def test_a_clock_that_went_back_does_not_hide_the_later_failure(host: Host, bucket: Bucket) -> None:
    host.fail("a", reason="first")
    host.teller.tell()
    host.clock.step_wall(-3600)
    host.fail("a", reason="second")
    assert host.teller.tell() == 1
    assert _told(bucket)["a"].reason == "second"


def test_nothing_that_did_not_fail_is_told(host: Host, bucket: Bucket) -> None:
    host.fail("a")
    host.book.settle("a", 1)
    host.book.settle("never failed", 2)
    assert host.teller.tell() == 0
    assert _keys(bucket) == []


def test_what_is_settled_is_told_and_counts_once_the_manifest_has_it(host: Host, bucket: Bucket) -> None:
    host.clock.step_wall(10**6)  # ahead of the one that put the sample: no time tells which came later
    host.fail(None, line=9)
    host.teller.tell()
    host.book.settle("was-unreadable", 9)
    assert host.teller.tell() == 1
    assert list(_told(bucket)) == ["line 9"], "it was put, and is in no manifest yet"
    bucket.add_segment(bucket.add_tar([encode("was-unreadable", 1)]))
    assert _told(bucket) == {}
    host.fail(None, line=9)
    host.teller.tell()
    assert _told(bucket)["line 9"].runs == 2


def test_a_sample_that_is_stored_while_its_failure_is_on_its_way_is_settled_by_the_next_list(
    host: Host, bucket: Bucket
) -> None:
    host.fail(None, line=9)
    rows = host.book.untold(host="h", limit=9)
    host.book.settle("was-unreadable", 9)  # between the put of the list and the note of it
    host.book.told(rows)
    (settlement,) = host.book.untold(host="h", limit=9)
    assert (settlement.sample_id, settlement.line, settlement.time_ns) == (None, 9, rows[0].time_ns)
    del bucket


def test_many_failures_become_lists_of_bounded_size(
    host: Host, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failure_teller, "MAX_LIST_ROWS", 3)
    host.fail(*(f"s{number}" for number in range(8)))
    assert host.teller.tell() == 8
    assert [key.text.split("/")[-1][:12] for key in _keys(bucket)] == [f"{seq:012}" for seq in (1, 2, 3)]
    assert len(_told(bucket)) == 8


# --- kills, outages, lies ------------------------------------------------------------------------------------------


class _Killed(BaseException):
    pass


def test_a_kill_between_the_put_and_its_note_costs_a_list_that_says_the_same(
    host: Host, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.fail("a", "b")

    def killed(*_: object) -> None:
        raise _Killed

    with monkeypatch.context() as patch:
        patch.setattr(FailureBook, "told", killed)
        with pytest.raises(_Killed):
            host.teller.tell()
    before = _told(bucket)
    host.end()
    host.open()
    assert host.teller.tell() == 2
    assert (len(_keys(bucket)), _told(bucket)) == (2, before)


def test_an_outage_costs_nothing_and_the_next_process_tells(host: Host, bucket: Bucket) -> None:
    host.is_offline = True
    host.fail("a")
    with telling_failures(host.teller, is_stopping=lambda: False):
        host.fail("b")
    assert _keys(bucket) == []
    assert len(load_failures(host.root)) == 2
    host.end()
    host.is_offline = False
    host.open()
    with telling_failures(host.teller, is_stopping=lambda: False):
        pass
    assert set(_told(bucket)) == {"a", "b"}


def test_what_fails_during_the_last_pass_is_told_at_the_end(host: Host, bucket: Bucket) -> None:
    has_told = threading.Event()

    class Watched(FailureTeller):
        def tell(self) -> int:
            count = super().tell()
            has_told.set()
            return count

    with telling_failures(Watched(host.book, host.connected, run=RUN.digest), is_stopping=lambda: False):
        assert has_told.wait(60)  # what is told at the start has been, and the next time is a minute away
        host.fail("late")
    assert set(_told(bucket)) == {"late"}


def test_a_list_that_does_not_read_back_is_not_noted_as_told(host: Host, bucket: Bucket) -> None:
    class Lying(MemoryStore):
        def put(
            self, key: ObjectKey, body: Body, *, crc64nvme: str | None, metadata: Mapping[str, str], **_: Any
        ) -> Any:
            del key, body, crc64nvme, metadata
            return WriteReply(etag='"x"')

    host.fail("a")
    honest, bucket.store = bucket.store, Lying()
    with telling_failures(host.teller, is_stopping=lambda: False):
        pass
    bucket.store = honest
    assert host.teller.tell() == 1
    assert set(_told(bucket)) == {"a"}


def test_an_error_that_is_no_error_of_ours_costs_nothing_either(host: Host) -> None:
    class Broken(FailureTeller):
        def tell(self) -> int:
            raise ZeroDivisionError

    with telling_failures(Broken(host.book, host.connected, run=RUN.digest), is_stopping=lambda: False):
        pass


# --- another machine -----------------------------------------------------------------------------------------------


def test_another_machine_knows_what_failed_and_counts_on(host: Host, other: Host, bucket: Bucket) -> None:
    host.fail("a", "b")
    host.fail("a")
    host.teller.tell()
    assert not other.book.knows("a", 1)
    other.hear()
    assert (other.book.knows("a", 5), other.book.knows("b", 5), other.book.knows("c", 5)) == (True, True, False)
    assert load_failures(other.root) == [], "what failed elsewhere is no failure of this root"
    worker = FailureBook(other.root, run=RUN.digest.hex, worker="worker 2", clock=other.clock)  # a process of its own
    assert worker.knows("b", 5)
    worker.add(_failure("a"))
    worker.settle("b", 5)
    worker.close()
    other.teller.tell()
    assert (load_failures(other.root)[0].runs, _told(bucket)["a"].runs) == (3, 3)
    bucket.add_segment(bucket.add_tar([encode("b", 1)]))
    assert set(_told(bucket)) == {"a"}


def test_what_was_settled_here_and_is_failed_in_the_bucket_is_tried_again(host: Host, bucket: Bucket) -> None:
    host.fail("a")
    host.teller.tell()
    host.book.settle("a", 1)
    assert host.teller.tell() == 1
    assert set(_told(bucket)) == {"a"}, "it never came to this bucket: its spool was lost, or it went to another one"
    host.hear()
    assert host.book.knows("a", 1)
    assert load_failures(host.root) == []
    host.book.settle("a", 1)
    assert host.teller.tell() == 0, "what was told is not told at each start again"
    Lists(host.bucket.store, host.bucket.prefix).tell(failed("a", host.clock.now_ns() + 10**9))
    host.hear()
    assert host.book.knows("a", 1), "it failed elsewhere since"


def test_numbers_of_the_far_future_keep_nobody_from_telling(host: Host, bucket: Bucket) -> None:
    most = (1 << 62) - 1
    Lists(bucket.store, bucket.prefix).tell(failed("a", most, runs=most), failed(None, most, line=7))
    host.hear()
    host.fail("a", "b")
    host.fail(None, line=7)
    assert host.teller.tell() == 3
    assert set(_told(bucket)) == {"a", "b", "line 7"}


def test_where_the_bucket_cannot_be_asked_the_own_failures_are_known(host: Host) -> None:
    host.fail("a")
    host.is_offline = True
    host.hear()
    assert host.book.knows("a", 1)


def test_a_root_of_an_older_version_is_gone_on_with(tmp_path: Path) -> None:
    WorkDb(tmp_path).close()
    with sqlite3.connect(tmp_path / WORK_FILE) as conn:
        conn.execute("DROP TABLE failure_told")
        conn.execute("ALTER TABLE failure DROP COLUMN input_digest")
        conn.execute(
            "INSERT INTO failure VALUES (?, 'id a', 'a', 1, 'states', 'old', 1, 4, 'pid 1', 5, NULL)", (RUN.digest.hex,)
        )
    conn.close()
    assert [failure.reason for failure in load_failures(tmp_path)] == ["old"]
    for _ in range(2):
        book = FailureBook(tmp_path, run=RUN.digest.hex, worker="w", clock=ManualClock())
        (told,) = book.untold(host="h", limit=9)
        assert (told.sample_id, told.line) == (SampleId("a"), 1)
        book.close()


def test_an_error_that_is_no_error_of_ours_costs_no_retry(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise OverflowError

    host.fail("a")
    monkeypatch.setattr(failure_teller, "fetch_latest", broken)
    host.hear()
    assert host.book.knows("a", 1)


def test_a_reason_that_is_no_unicode_is_a_failure_like_any_other(host: Host, bucket: Bucket) -> None:
    host.fail("a", reason="OSError: '\udc80'")
    assert host.teller.tell() == 1
    assert _told(bucket)["a"].reason == "OSError: '\\udc80'"


def test_a_full_disk_is_told_as_such_and_costs_no_retry(host: Host, bucket: Bucket) -> None:
    Lists(bucket.store, bucket.prefix).tell(*(failed(f"sample-{number:06}") for number in range(5_000)))
    host.fail("a")
    with host.book._db.reading() as conn:
        (pages,) = conn.execute("PRAGMA page_count").fetchone()
        conn.execute(f"PRAGMA max_page_count = {pages}")
    host.hear()
    assert host.book.knows("a", 1)
    with pytest.raises(DiskFailed, match="disk is full"):
        host.fail(*(f"{number}-{'long' * 20}" for number in range(5_000)))


# --- what a reason may say -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "reason, shared",
    [
        ("state 2 has a NaN or an infinity", "state 2 has a NaN or an infinity"),
        ("has 41 tokens, more than 40", "has 41 tokens, more than 40"),
        ("the server counted 7 tokens, and the sample has 9", "the server counted 7 tokens, and the sample has 9"),
        ("token id 70000 is outside the vocabulary of 64", "token id 70000 is outside the vocabulary of 64"),
        (
            "OutOfMemoryError: Tried to allocate 2.00 GiB (GPU 0)",
            "OutOfMemoryError: Tried to allocate 2.00 GiB (GPU 0)",
        ),
        (f"{HOME} cannot be read", "<folder> cannot be read"),
        (f"its file {HOME}/hs/req_7.safetensors is older", "its file <folder>/req_7.safetensors is older"),
        ("[Errno 2] No such file: '~/.cache/hf/x.bin'", "[Errno 2] No such file: '<folder>/x.bin'"),
        (r"C:\Users\ada\x.bin is gone", "<folder>/x.bin is gone"),
        ("no answer: http://ada:pw@10.0.0.7:30000/generate?key=abcdefgh", "no answer: http://10.0.0.7:30000"),
        ("401: Bearer abcdefgh12345678 refused", "401: <secret> refused"),
        ("HF_TOKEN=hf_abcdefghijklmnop is bad", "HF_TOKEN=<secret> is bad"),
        ("{'api_key': 'sk-abcdefghijkl', 'n': 3}", "{'api_key': <secret>, 'n': 3}"),
        ("AKIA" + "ABCDEFGHIJKLMNOP may not", "<secret> may not"),
        ('ValueError: bad text "' + "My name is Ada and I live at " * 3 + '"', 'ValueError: bad text "<text>"'),
        ("got [1, 22, 333, 4, 5, 6, 7, 8, 9]", "got [<numbers>]"),
        ("\x1b[31mred\x1b[0m\nsecond line", "?[31mred?[0m second line"),
    ],
)
def test_a_reason_leaves_out_what_it_quotes(reason: str, shared: str) -> None:
    assert shareable(reason) == shared
    assert shareable(shared) == shared


def test_a_long_reason_is_cut_and_the_whole_stays_here(host: Host, bucket: Bucket) -> None:
    reason = "an error that says " + "much " * 200
    host.fail("a", reason=f"{reason}about {HOME}/secret.txt")
    host.teller.tell()
    assert len(_told(bucket)["a"].reason) == 300
    (here,) = load_failures(host.root)
    assert here.reason.endswith(f"{HOME}/secret.txt")
    assert all(HOME.encode() not in bucket.store.fetch(key) for key in _keys(bucket))

"""The runner with a store and an engine in memory: every row ends in one count, whatever happens."""

from __future__ import annotations

import io
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from durastore.clock import SYSTEM_CLOCK, ManualClock
from durastore.codec.staging import Staged, Staging
from durastore.errors import (
    CredentialsRefused,
    DiskFailed,
    DurastoreError,
    EngineFailed,
    InvalidInput,
    UnsupportedTensor,
)
from durastore.extract import progress
from durastore.extract.engine import Extracted, Refused
from durastore.extract.ledger import FAILURES_FILE, LOG_FILE, Ledger
from durastore.extract.progress import progress_line, shown_progress
from durastore.extract.report import ExtractReport
from durastore.extract.rows import RowFailure, TokenRow, input_digest
from durastore.extract.runner import Outcome, RunnerLimits, run_rows
from durastore.extract.switch import StopSwitch
from durastore.extract.tally import Counts, Tally
from durastore.extract.writer import StoreWriter
from durastore.model import SampleId


@dataclass
class FakeStatus:
    local_bytes: int
    only_local_ids: list[str]


class FakeStore:
    """The store's public face on a dict; `on_put` may raise or block, a flush makes everything remote."""

    def __init__(
        self, on_put: Callable[[str], None] = lambda _: None, on_flush: Callable[[], None] = lambda: None
    ) -> None:
        self.samples: dict[str, tuple[Mapping[str, Any], Mapping[str, Any] | None, str | None]] = {}
        self.local: list[str] = []
        self.put_threads: set[int] = set()
        self.groups: list[list[str]] = []
        self._on_put = on_put
        self._on_flush = on_flush

    def put_many(
        self,
        samples: Mapping[str, Mapping[str, Any]],
        *,
        meta: Mapping[str, Mapping[str, Any]] | None = None,
        input_digests: Mapping[str, str] | None = None,
    ) -> object:
        self.put_threads.add(threading.get_ident())
        self.groups.append(list(samples))
        for sample_id in samples:
            self._on_put(sample_id)  # before any of the group is stored
        for sample_id, tensors in samples.items():
            copies = {k: v.copy() for k, v in tensors.items()}
            self.samples[sample_id] = (copies, (meta or {}).get(sample_id), (input_digests or {}).get(sample_id))
            self.local.append(sample_id)
        return None

    def contains(self, sample_id: str, *, input_digest: str | None = None) -> bool:
        held = self.samples.get(sample_id)
        return held is not None and input_digest in (None, held[2])

    def flush(self, timeout_s: float | None = None) -> None:
        self._on_flush()
        self.local.clear()

    def status(self) -> FakeStatus:
        return FakeStatus(local_bytes=len(self.local), only_local_ids=list(self.local))

    def abandon(self) -> None:
        pass


class FakeEngine:
    """States that repeat the token ids. `on_extract` sees each batch first."""

    def __init__(self, on_extract: Callable[[Sequence[TokenRow]], None] = lambda _: None) -> None:
        self.starts = 0
        self.batches: list[list[str]] = []
        self.sickness: str | None = None
        self._on_extract = on_extract

    def start(self) -> None:
        self.starts += 1

    def health(self) -> str | None:
        return self.sickness

    def extract(self, batch: Sequence[TokenRow]) -> list[Extracted | Refused]:
        self.batches.append([str(row.sample_id) for row in batch])
        self._on_extract(batch)
        results: list[Extracted | Refused] = []
        for row in batch:
            if "nan" in str(row.sample_id):
                results.append(Refused(reason="state 2 has a NaN or an infinity"))
            else:
                states = row.input_ids.astype(np.float32)[:, None, None]
                results.append(Extracted(tensors={"hidden_states": states}, held_bytes=states.nbytes))
        return results

    def close(self) -> None:
        pass


def _row(name: str, length: int = 3, line: int = 1) -> TokenRow:
    ids = np.arange(length, dtype=np.int64)
    return TokenRow(
        line=line, sample_id=SampleId(name), input_ids=ids, loss_mask=None, input_digest=input_digest(ids, None)
    )


def _rows(*names: str) -> list[TokenRow | RowFailure]:
    return [_row(name, line=line) for line, name in enumerate(names, start=1)]


@dataclass
class Done:
    outcome: Outcome
    counts: Counts
    failures: list[RowFailure]
    switch: StopSwitch


def _run(
    rows: Sequence[TokenRow | RowFailure] | Iterator[TokenRow | RowFailure],
    store: FakeStore,
    engine: FakeEngine,
    *,
    inputs: int | None = None,
    switch: StopSwitch | None = None,
    limits: RunnerLimits | None = None,
) -> Done:
    failures: list[RowFailure] = []
    tally = Tally(len(rows) if isinstance(rows, Sequence) else inputs or 0, record=failures.append)
    switch = switch or StopSwitch(grace_s=5, clock=SYSTEM_CLOCK)
    outcome = run_rows(
        iter(rows), store, engine=engine, bookkeeping=(tally, switch), limits=limits or RunnerLimits(batch_tokens=6)
    )
    return Done(outcome, tally.counts(), failures, switch)


def _no_error(done: Done) -> None:
    assert done.outcome == Outcome(error=None, is_flushed=True, is_abandoned=False, checks=done.outcome.checks)


def test_every_row_is_stored_with_its_states_meta_and_digest() -> None:
    store, engine = FakeStore(), FakeEngine()
    rows = [_row("a", 2, line=7), _row("b", 5, line=9)]
    done = _run(rows, store, engine)
    _no_error(done)
    assert done.counts == Counts(inputs=2, ok=2, tokens=7, tensor_bytes=28)
    tensors, meta, digest = store.samples["b"]
    assert tensors["hidden_states"].ravel().tolist() == [0, 1, 2, 3, 4]
    assert meta == {"n_tokens": 5, "line": 9}
    assert digest == rows[1].input_digest.hex
    assert store.local == []  # flushed
    assert len(store.put_threads) == 1
    assert threading.get_ident() not in store.put_threads


def test_done_means_this_id_with_this_input() -> None:  # INV-8
    store, engine = FakeStore(), FakeEngine()
    _run(_rows("a", "b", "c"), store, engine)
    edited = [_row("a", line=1), _row("b", 4, line=2), _row("c", line=3), _row("d", line=4)]
    done = _run(edited, store, engine)
    assert (done.counts.ok, done.counts.skipped, done.counts.left) == (2, 2, 0)
    assert sorted(engine.batches[-1] + engine.batches[-2])[-2:] == ["b", "d"]


def test_a_finished_run_does_not_load_the_model() -> None:
    store, engine = FakeStore(), FakeEngine()
    _run(_rows("a", "b"), store, engine)
    again = FakeEngine()
    assert _run(_rows("a", "b"), store, again).counts.skipped == 2
    assert (engine.starts, again.starts) == (1, 0)


def test_failures_of_all_stages_are_counted_and_the_rest_goes_on() -> None:  # INV-10
    def refuse(name: str) -> None:
        if name == "odd":
            raise UnsupportedTensor("tensor hidden_states is sparse")

    unreadable = RowFailure(line=9, sample_id=None, stage="read", reason="is not JSON")
    done = _run([*_rows("a", "nan-1", "odd", "b"), unreadable], FakeStore(refuse), FakeEngine())
    _no_error(done)
    assert (done.counts.ok, done.counts.failed, done.counts.left) == (2, 3, 0)
    assert {(f.line, f.stage) for f in done.failures} == {(2, "states"), (3, "store"), (9, "read")}
    assert all(failure.reason for failure in done.failures)


def test_a_batch_that_raises_is_halved_until_the_sample_stands_alone() -> None:
    def poison(batch: Sequence[TokenRow]) -> None:
        if any(str(row.sample_id) == "bad" for row in batch):
            raise RuntimeError("CUDA out\nof memory")

    store = FakeStore()
    done = _run(_rows("a", "b", "bad", "d"), store, FakeEngine(poison), limits=RunnerLimits(batch_tokens=100))
    _no_error(done)
    assert sorted(store.samples) == ["a", "b", "d"]
    assert [(str(f.sample_id), f.reason) for f in done.failures] == [("bad", "RuntimeError: CUDA out of memory")]


def test_a_sick_model_ends_the_run_instead_of_failing_every_sample() -> None:
    store, engine = FakeStore(), FakeEngine()

    def die(batch: Sequence[TokenRow]) -> None:
        if len(engine.batches) > 1:
            engine.sickness = "device lost"
            raise RuntimeError("device-side assert")

    engine._on_extract = die
    done = _run(_rows("a", "b", "c", "d", "e", "f"), store, engine)
    assert done.outcome.error is not None
    assert done.outcome.error.code == "engine"
    assert "device lost" in done.outcome.error.message
    assert (done.counts.ok, done.counts.failed, done.counts.left) == (2, 0, 4)
    assert store.local == []  # what was extracted before is stored and flushed


@pytest.mark.parametrize("error", [CredentialsRefused("expired"), DiskFailed("EIO"), OSError("odd")])
def test_what_stops_put_stops_the_run_and_is_reported(error: Exception) -> None:
    def refuse(name: str) -> None:
        if name == "c":
            raise error

    names = [chr(ord("a") + n) for n in range(26)]
    done = _run(_rows(*names), FakeStore(refuse), FakeEngine(), limits=RunnerLimits(batch_tokens=3, queue_bytes=1))
    assert done.outcome.error is not None
    assert done.outcome.error is error or done.outcome.error.__cause__ is error
    assert (done.counts.ok, done.counts.failed) == (2, 0)
    assert done.counts.left == 24


def test_a_pack_that_cannot_reach_the_bucket_surfaces_at_the_flush() -> None:
    def refuse() -> None:
        raise DurastoreError("pack 3 cannot be uploaded")

    store = FakeStore(on_flush=refuse)
    done = _run(_rows("a"), store, FakeEngine())
    assert done.outcome.error is not None
    assert done.outcome.error.message == "pack 3 cannot be uploaded"
    assert not done.outcome.is_flushed
    assert store.status().only_local_ids == ["a"]


def test_an_input_that_changes_under_the_run_is_reported_after_what_came_before_is_stored() -> None:
    def rows() -> Iterator[TokenRow | RowFailure]:
        yield from _rows("a", "b")
        raise InvalidInput("changed while it was being read")

    store = FakeStore()
    done = _run(rows(), store, FakeEngine(), inputs=2, limits=RunnerLimits(batch_tokens=3))
    assert done.outcome.error is not None
    assert done.outcome.error.exit_code == 2
    assert done.counts.ok + done.counts.left == 2


def test_a_signal_finishes_the_batch_and_flushes() -> None:
    switch = StopSwitch(grace_s=30, clock=SYSTEM_CLOCK)
    store = FakeStore()
    engine = FakeEngine(lambda _: switch.request(signal.SIGTERM))
    done = _run(_rows("a", "b", "c", "d", "e"), store, engine, switch=switch)
    _no_error(done)
    assert engine.batches == [["a", "b"]]
    assert sorted(store.samples) == ["a", "b"]
    assert (done.counts.ok, done.counts.left, store.local) == (2, 3, [])


def test_the_grace_time_ends_a_flush_that_cannot_end() -> None:
    never = threading.Event()
    switch = StopSwitch(grace_s=0.2, clock=SYSTEM_CLOCK)

    def block() -> None:
        switch.request(signal.SIGINT)
        never.wait()

    store = FakeStore(on_flush=block)
    done = _run(_rows("a"), store, FakeEngine(), switch=switch)
    assert done.outcome == Outcome(error=None, is_flushed=False, is_abandoned=True)
    assert store.status().only_local_ids == ["a"]
    never.set()


def test_the_grace_time_ends_a_wait_for_a_full_spool() -> None:
    never = threading.Event()
    switch = StopSwitch(grace_s=0.2, clock=SYSTEM_CLOCK)

    def block(_: str) -> None:
        switch.request(signal.SIGTERM)
        never.wait()

    limits = RunnerLimits(batch_tokens=6, queue_bytes=1)
    done = _run(_rows("a", "b", "c", "d"), FakeStore(block), FakeEngine(), switch=switch, limits=limits)
    assert done.outcome.is_abandoned
    assert (done.counts.ok, done.counts.left) == (0, 4)
    never.set()


def test_the_queue_is_bounded_in_bytes_and_takes_one_oversized_sample() -> None:
    gate = threading.Event()

    def wait(_: str) -> None:
        gate.wait()

    store = FakeStore(wait)
    writer = StoreWriter(store, Tally(3, record=lambda _: None), limit_bytes=10)
    writer.start()
    big = Extracted(tensors={}, held_bytes=50)
    assert writer.submit(_row("a"), big, may_wait=lambda: False)
    assert not writer.submit(_row("b"), Extracted(tensors={}, held_bytes=1), may_wait=lambda: False)
    gate.set()
    assert writer.submit(_row("b"), Extracted(tensors={}, held_bytes=1), may_wait=lambda: True)
    writer.finish()
    while not writer.wait():
        pass
    assert writer.error is None
    assert list(store.samples) == ["a", "b"]


def _handed(
    store: FakeStore, *samples: tuple[str, Extracted], after: Callable[[], None] = lambda: None
) -> tuple[StoreWriter, Tally, list[RowFailure]]:
    """The writer once all of these were handed over, `after` was called, and everything came to its end."""
    failures: list[RowFailure] = []
    tally = Tally(len(samples), record=failures.append)
    writer = StoreWriter(store, tally, limit_bytes=1 << 20, staging=Staging(cuda=None, size_bytes=4096))
    writer.start()
    for name, extracted in samples:
        writer.submit(_row(name), extracted, may_wait=lambda: True)
    after()
    writer.finish()
    while not writer.wait():
        pass
    return writer, tally, failures


def test_a_sample_is_what_it_was_when_it_was_handed_over() -> None:
    gate = threading.Event()
    states = np.arange(3.0)

    def wait(_: str) -> None:
        gate.wait()

    def go_on() -> None:
        states[:] = -1  # the engine's next pass
        gate.set()

    store = FakeStore(wait)
    sample = Extracted(tensors={"hidden_states": states}, held_bytes=48)
    writer, _, _ = _handed(store, ("a", sample), ("b", sample), after=go_on)
    assert writer.error is None
    assert [list(held[0]["hidden_states"]) for held in store.samples.values()] == [list(range(3))] * 2


def _waiting(store: FakeStore, samples: Sequence[tuple[str, int]]) -> Tally:
    """All of these (id, bytes) wait before the writer takes the first."""
    tally = Tally(len(samples), record=lambda _: None)
    writer = StoreWriter(store, tally, limit_bytes=1 << 30)
    for name, size in samples:
        assert writer.submit(_row(name), Extracted(tensors={"h": np.ones(2)}, held_bytes=size), may_wait=lambda: True)
    writer.start()
    writer.finish()
    while not writer.wait():
        pass
    assert writer.error is None
    return tally


def test_samples_that_wait_are_one_durable_group_up_to_a_limit() -> None:
    store = FakeStore()
    tally = _waiting(store, [("a", 1), ("b", 1), ("a", 1), ("big", 20 << 20), ("c", 9 << 20), ("d", 9 << 20)])
    assert store.groups == [["a", "b"], ["a"], ["big"], ["c"], ["d"]]
    assert tally.counts().ok == 6
    store = FakeStore()
    _waiting(store, [(f"s{n}", 0) for n in range(70)])
    assert [len(group) for group in store.groups] == [64, 6]


def test_one_sample_that_cannot_be_stored_does_not_cost_its_group() -> None:
    def refuse(name: str) -> None:
        if name == "odd":
            raise InvalidInput("planned")

    store = FakeStore(refuse)
    tally = _waiting(store, [("a", 1), ("odd", 1), ("b", 1)])
    assert list(store.samples) == ["a", "b"]
    assert (tally.counts().ok, tally.counts().failed) == (2, 1)


def test_a_fault_is_found_by_the_thread_that_stores_and_costs_only_its_sample() -> None:
    threads: list[int] = []

    def find_fault(tensors: Mapping[str, Any]) -> str | None:
        threads.append(threading.get_ident())
        return "state 3 is zero everywhere" if not tensors["h"].any() else None

    samples = [
        (name, Extracted(tensors={"h": np.array([value])}, held_bytes=8, find_fault=find_fault))
        for name, value in (("good", 1.0), ("zero", 0.0), ("other", 2.0))
    ]
    store = FakeStore()
    _, tally, failures = _handed(store, *samples)
    assert list(store.samples) == ["good", "other"]
    assert [(str(f.sample_id), f.stage, f.reason) for f in failures] == [
        ("zero", "states", "state 3 is zero everywhere")
    ]
    assert (tally.counts().ok, tally.counts().failed) == (2, 1)
    assert set(threads) == store.put_threads


def test_more_samples_than_memory_pass_through_one_after_another() -> None:
    samples = [(f"s{n}", Extracted(tensors={"h": np.full(3000, n, np.uint8)}, held_bytes=3000)) for n in range(20)]
    store = FakeStore()
    writer, _, _ = _handed(store, *samples)
    assert writer.error is None
    assert [int(held[0]["h"].max()) for held in store.samples.values()] == list(range(20))


def test_a_copy_that_fails_on_its_way_ends_the_run_with_the_devices_words() -> None:
    class Broken(Staging):
        def begin(self, tensors: Mapping[str, Any], *, may_wait: Callable[[], bool] = lambda: True) -> Staged | None:
            staged = super().begin(tensors, may_wait=may_wait)
            assert staged is not None
            staged.note(self)  # in an event's place
            return staged

        def synchronize(self) -> None:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    store = FakeStore()
    writer = StoreWriter(store, Tally(1, record=lambda _: None), limit_bytes=9, staging=Broken(cuda=None))
    writer.submit(_row("a"), Extracted(tensors={"h": np.ones(2)}, held_bytes=16), may_wait=lambda: True)
    writer.submit(_row("b"), Extracted(tensors={"h": np.ones(2)}, held_bytes=0), may_wait=lambda: False)
    writer.start()
    writer.finish()
    while not writer.wait():
        pass
    assert isinstance(writer.error, EngineFailed)
    assert "illegal memory access" in writer.error.message
    assert store.samples == {}


def test_a_librarys_panic_in_the_storing_thread_ends_the_run() -> None:
    """What Rust libraries raise for a panic is no `Exception`: who waits for a thread that is gone waits for ever."""

    class Panic(BaseException):
        pass

    def panic(_: str) -> None:
        raise Panic("index out of bounds")

    writer = StoreWriter(FakeStore(panic), Tally(1, record=lambda _: None), limit_bytes=9)
    writer.submit(_row("a"), Extracted(tensors={"h": np.ones(2)}, held_bytes=16), may_wait=lambda: True)
    writer.start()
    writer.finish()
    deadline = time.monotonic() + 20
    while not writer.wait():
        assert time.monotonic() < deadline, "the run waits for ever"
    assert isinstance(writer.error, DurastoreError)
    assert "Panic: index out of bounds" in writer.error.message


# --- signals -------------------------------------------------------------------------------------------------------


def test_the_first_signal_counts_and_the_deadline_starts_with_it() -> None:
    clock = ManualClock()
    switch = StopSwitch(grace_s=60, clock=clock)
    assert not switch.is_expired
    switch.request(signal.SIGTERM)
    clock.advance(59)
    switch.request(signal.SIGINT)
    assert (switch.signal, switch.is_expired) == (signal.SIGTERM, False)
    clock.advance(1)
    assert switch.is_expired


def test_handlers_are_installed_and_put_back() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    switch = StopSwitch(grace_s=60, clock=SYSTEM_CLOCK)
    with switch.installed():
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)  # a second SIGTERM does not hurry
    assert switch.signal == signal.SIGTERM
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


# --- ledger, report, progress --------------------------------------------------------------------------------------


@contextmanager
def _ledger(root: Path) -> Iterator[Ledger]:
    ledger = Ledger(root, clock=ManualClock())
    try:
        yield ledger
    finally:
        ledger.close()


def test_the_log_is_appended_with_restart_markers(tmp_path: Path) -> None:
    for _ in range(2):
        with _ledger(tmp_path) as ledger:
            ledger.start(run="ab" * 16, inputs=3)
            ledger.failure(RowFailure(line=4, sample_id=SampleId("x\u00e9"), stage="read", reason="bad\nrow"))
            ledger.note("END", error=None)
    lines = (tmp_path / LOG_FILE).read_text(encoding="utf-8").splitlines()
    assert [line.split()[1] for line in lines] == ["START", "END", "RESTART", "END"]
    assert 'run="abab' in lines[0]
    entries = [json.loads(line) for line in (tmp_path / FAILURES_FILE).read_text(encoding="utf-8").splitlines()]
    assert [(e["line"], e["id"], e["reason"]) for e in entries] == [(4, "x\u00e9", "bad\nrow")] * 2


def test_a_ledger_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / LOG_FILE).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DiskFailed, match=LOG_FILE):
        Ledger(tmp_path, clock=ManualClock())
    assert not (tmp_path / "elsewhere").exists()


def _report(**changes: Any) -> ExtractReport:
    values: dict[str, Any] = {
        "run": "r",
        "counts": Counts(inputs=3, ok=2, skipped=1),
        "rows": 3,
        "duplicates": 0,
        "failures": (),
        "shard": "0/1",
        "failures_file": "f",
        "elapsed_s": 1.0,
        "signal": None,
        "error": None,
        "local_only": (),
        "is_abandoned": False,
    }
    return ExtractReport(**{**values, **changes})


@pytest.mark.parametrize(
    "changes, code",
    [
        ({}, 0),
        ({"counts": Counts(inputs=3, ok=2, failed=1)}, 3),
        ({"counts": Counts(inputs=3, ok=2)}, 3),
        ({"local_only": ("a",)}, 3),
        ({"error": CredentialsRefused("x")}, 21),
        ({"signal": signal.SIGTERM, "error": CredentialsRefused("x")}, 143),
        ({"signal": signal.SIGINT}, 130),
    ],
)
def test_exit_codes(changes: dict[str, Any], code: int) -> None:
    report = _report(**changes)
    assert report.exit_code == code
    assert json.loads(json.dumps(report.render()))["exit_code"] == code


def test_progress_is_one_plain_line_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.01)
    said, out = threading.Event(), io.StringIO()

    def counts() -> Counts:
        said.set()
        return Counts(inputs=10, ok=4, failed=1, tokens=100)

    with shown_progress(counts, local_bytes=lambda: None, clock=SYSTEM_CLOCK, stream=out):
        assert said.wait(5)
    lines = out.getvalue().splitlines()
    assert len(lines) >= 2
    assert all(line.startswith("durastore extract: 5/10 (50.0%), ok 4, failed 1") for line in lines)
    assert "\x1b" not in out.getvalue()


def test_the_progress_line_has_rate_eta_and_local_bytes() -> None:
    line = progress_line(Counts(inputs=7210, ok=10, tokens=500), elapsed_s=10, local_bytes=3 << 30)
    assert "1.00 samples/s, 50 tokens/s, eta 2h00m00s, local 3.00 GiB" in line
    assert "100.0%" in progress_line(Counts(inputs=0), elapsed_s=0, local_bytes=None)


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_there_is_a_bar() -> None:
    out = _Terminal()
    with shown_progress(lambda: Counts(inputs=10, ok=10), local_bytes=lambda: 0, clock=SYSTEM_CLOCK, stream=out):
        pass
    assert "10/10" in out.getvalue()

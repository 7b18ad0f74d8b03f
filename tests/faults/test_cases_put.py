"""Losses of other tools while samples are taken in and sent, tried on a whole store: what was acknowledged stays."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from durastore.codec.encode import SampleContext, encode_sample
from durastore.codec.render import render_header
from durastore.errors import (
    CredentialsRefused,
    DiskFailed,
    DurastoreError,
    IntegrityError,
    InvalidSampleId,
    PackFailed,
    SampleExists,
    SpoolFull,
    StoreClosed,
    UnsupportedTensor,
)
from durastore.formats.segment import parse_segment
from durastore.fsio.sys import SYS
from durastore.model import ObjectKey, Run, SampleId
from durastore.objectstore.memory import MemoryStore
from durastore.objectstore.port import Body, WriteReply
from durastore.testing.faulty import Fault, FaultRule, FaultyStore
from tests.faults.trial import CLOCK, Trial, tensors_of, trial

__all__ = ["trial"]

NAMES = [f"s/{number}" for number in range(10)]
FORMS, RENDER = "durastore.codec.encode._FORMS", "durastore.codec.encode.render_header"


# --- what a put leaves behind when it does not end well ---------------------------------------------------------------


def test_a_put_that_fails_half_way_leaves_nothing_visible(trial: Trial) -> None:
    # case B76
    store = trial.open()
    trial.put(store, "whole")
    with pytest.raises(UnsupportedTensor), store:
        store.put("half", {"a": np.zeros(10), "b": np.ones(10), "c": np.array([object()])})
    assert trial.object_keys("manifest") == []  # the error left at once, without a flush
    with trial.open() as store:
        assert "half" not in store
        store.flush(400)
        assert store.rows_of("half") == []
    trial.check_nothing_lost()


def test_an_error_in_the_with_block_neither_completes_nor_loses(trial: Trial) -> None:
    # case B76
    store = trial.open()
    trial.put(store, *NAMES[:3])
    with pytest.raises(RuntimeError, match="extractor"), store:
        raise RuntimeError("the extractor failed")
    trial.check_nothing_lost()
    assert trial.stop(trial.open()) is None
    trial.check_nothing_lost()


@pytest.mark.parametrize("code,error", [(errno.EIO, DiskFailed), (errno.ENOSPC, SpoolFull), (errno.EDQUOT, SpoolFull)])
def test_a_write_that_fails_in_the_middle_acknowledges_nothing(
    trial: Trial, monkeypatch: pytest.MonkeyPatch, code: int, error: type[DurastoreError]
) -> None:
    # cases B89, B83: the third of five buffers cannot be written; a full disk is waited for before that is said
    store = trial.open(pack_target_bytes=1 << 20, stall_s=5.0)
    trial.put(store, "before")
    plain = SYS.writev

    def writev(fd: int, buffers: Any) -> int:
        plain(fd, [b"".join(bytes(buffer) for buffer in buffers)[:1000]])
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(SYS, "writev", writev)
        with pytest.raises(error) as caught:
            store.put("torn", {f"t{number}": np.full(500, number) for number in range(5)})
        assert caught.value.exit_code != 0
    assert "torn" not in store
    store.abandon()
    with closing(trial.open()) as store:
        assert "torn" not in store
        assert store.put("torn", tensors_of("torn")).is_new
        trial.acknowledged["torn"] = tensors_of("torn")
        assert trial.stop(store) is None
    trial.check_nothing_lost()


@pytest.mark.parametrize("is_flushed", [False, True])
@pytest.mark.parametrize("before,after", [("none", "auto"), ("auto", "none"), ("planes-zstd", "auto")])
def test_the_same_content_under_another_codec_is_known(trial: Trial, before: str, after: str, is_flushed: bool) -> None:
    tensors = {"h": np.sin(np.arange(50_000, dtype=np.float32))}
    with closing(trial.open(compress=before, reclaim="never")) as store:
        assert store.put("s", tensors, meta={"a": 1}).is_new
        if is_flushed:
            store.flush(400)
    with closing(trial.open(compress=after, reclaim="never")) as store:
        assert not store.put("s", tensors, meta={"a": 1}).is_new
        for other in ({"h": tensors["h"] + 1}, {"h": tensors["h"].view(np.int32)}):
            with pytest.raises(SampleExists):
                store.put("s", other, meta={"a": 1})
        with pytest.raises(SampleExists):
            store.put("s", tensors, meta={"a": 2})
        assert np.array_equal(np.asarray(store.get("s").tensors["h"]), tensors["h"])


def test_nothing_is_taken_after_close(trial: Trial) -> None:
    # case B77
    store = trial.open()
    trial.put(store, "s/0")
    store.close()
    before = trial.journal("SELECT count(*) FROM packs")
    with pytest.raises(StoreClosed):
        store.put("s/1", tensors_of("s/1"))
    with pytest.raises(StoreClosed):
        store.put_many({"s/2": tensors_of("s/2")})
    assert trial.journal("SELECT count(*) FROM packs") == before
    with closing(trial.open()) as store:
        assert "s/1" not in store
        assert "s/2" not in store
    trial.check_nothing_lost()


@pytest.mark.parametrize("text", ["", ".", "..", "/x", "a//b", "a/../b", "a/", "./a", "a\0b", "a\nb", "x" * 513])
def test_an_id_that_no_path_or_key_should_have_is_refused_before_any_write(trial: Trial, text: str) -> None:
    # case B136
    with closing(trial.open()) as store:
        with pytest.raises(InvalidSampleId):
            store.put(text, tensors_of("x"))
        assert trial.packs == []
        assert store.status().samples_put == 0


def test_ids_that_look_alike_are_kept_apart(trial: Trial) -> None:
    # cases B29, B128, B130, B133: compared by their bytes, and never part of a key
    names = ["a-b", "a/b", "a.b", "a%2Fb", "a+b c%2B", "a b c+", "p*?[]#&;", "p", "!'()*", "A.npy", "a.npy", "ümlaut"]
    store = trial.open(pack_target_bytes=8000)
    trial.put(store, *names)
    assert trial.stop(store) is None
    trial.check_nothing_lost()
    with closing(trial.open()) as store:
        assert all(name in store for name in names)
        assert "a" not in store
        assert "a%2fb" not in store
    assert not [key for key in trial.object_keys() if key.text.rpartition("/")[2].partition(".")[0] == "a"]


# --- what "it is there already" may rest on ---------------------------------------------------------------------------


def test_resume_tells_whole_samples_from_cut_and_zeroed_ones(trial: Trial) -> None:
    # case B88: 100 files that all exist, 7 of them cut and 3 zeroed at full length
    store = trial.open()
    trial.objects.add(FaultRule(op="put", fault=Fault.DROP_REQUEST, count=None))
    names = [f"s/{number}" for number in range(30)]
    trial.put(store, *names)
    store.abandon()
    for number, path in enumerate(trial.packs[:10]):
        size = path.stat().st_size
        os.truncate(path, size * (number + 1) // 11 if number < 7 else 0)
        os.truncate(path, size if number >= 7 else path.stat().st_size)
    trial.objects.heal()
    store = trial.open()
    assert [name for name in names if name not in store] == names[:10]
    for name in names[:10]:
        assert store.put(name, tensors_of(name)).is_new
    assert trial.stop(store) is None
    assert len(trial.quarantined) == 10
    trial.check_nothing_lost()


def test_a_row_whose_object_is_gone_does_not_stop_a_put(trial: Trial) -> None:
    # cases B69, B72: the manifest says "there"; before a put is skipped for it, the object is looked at
    store = trial.open()
    trial.put(store, *NAMES[:3])
    assert trial.stop(store) is None
    assert trial.packs == []
    gone = trial.object_keys()[1]
    trial.objects.lose(gone)
    with closing(trial.open()) as store:
        assert not store.put("s/0", trial.acknowledged["s/0"]).is_new
        assert store.put("s/1", trial.acknowledged["s/1"]).is_new
        assert not store.put("s/1", trial.acknowledged["s/1"]).is_new
        store.flush(400)
        (row,) = store.rows_of("s/1")
        assert row.object.key != gone
        with pytest.raises(SampleExists):
            store.put("s/0", tensors_of("other content"))
    trial.check_nothing_lost()


def test_the_manifest_comes_last_and_is_no_proof_of_its_members(trial: Trial) -> None:
    # case B71
    store = trial.open()
    trial.put(store, *NAMES)
    store.flush(400)
    store.abandon()
    calls = trial.objects.calls
    for segment in trial.object_keys("manifest"):
        written = calls.index(("put", segment.text))
        for row in parse_segment(trial.objects.inner.fetch(segment)).rows:
            key = row.object.key.text
            assert ("put", key) in calls[:written]
            assert ("fetch_chunks", key) in calls[:written], "a row names only what was read back before"
    trial.objects.lose(trial.object_keys()[0])
    begun = len(trial.objects.calls)
    trial.stop(trial.open())  # where the lost one is taken for the canary, this ends before the pack was sent again
    with trial.open() as store:
        store.flush(400)
    assert ("put", trial.object_keys()[0].text) in trial.objects.calls[begun:], "the missing member is sent again"
    trial.check_nothing_lost()


def test_the_same_command_again_goes_on_and_removes_nothing(trial: Trial) -> None:
    # case B104
    store = trial.open()
    trial.put(store, *NAMES[:5])
    store.abandon()
    before = {path.name: path.read_bytes() for path in trial.packs}
    store = trial.open(reclaim="never")
    for name in NAMES[:5]:
        assert not store.put(name, tensors_of(name)).is_new
    trial.put(store, *NAMES[5:])
    store.flush(400)
    store.abandon()
    after = {path.name: path.read_bytes() for path in trial.packs}
    assert {name: after[name] for name in before} == before
    assert trial.unlinked == []
    trial.check_nothing_lost()


def test_interruptions_cost_little_upload(trial: Trial) -> None:
    # case B94: 30 samples, 6 lives; what was on record as sent is not sent again
    names = [f"s/{number}" for number in range(30)]
    sent: list[str] = []
    for start in range(0, 30, 5):
        store = trial.open()
        trial.put(store, *names[start : start + 5])
        if start % 10:
            store.flush(400)
        store.abandon()
        known = trial.journal("SELECT key FROM packs WHERE state IN ('uploaded', 'verified', 'manifested')")
        begun = len(trial.objects.calls)
        sent = [key for (key,) in known]
        assert len(sent) >= start // 10 * 10
        with trial.open(reclaim="never") as again:
            again.flush(400)
        assert not {("put", key) for key in sent} & set(trial.objects.calls[begun:])
    assert trial.stop(trial.open()) is None
    assert len(sent) >= 25
    trial.check_nothing_lost()


# --- files that change under an upload --------------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["cut", "grown", "one byte"])
def test_a_file_changed_before_its_upload_is_never_sent(trial: Trial, change: str) -> None:
    # cases B44, B25, B124
    store = trial.open()
    trial.objects.add(FaultRule(op="put", fault=Fault.DROP_REQUEST, count=None, key_part="packs/"))
    trial.put(store, "s/0", "s/1")
    with pytest.raises(TimeoutError):
        store.flush(1)
    store.abandon()
    trial.objects.heal()
    victim = trial.packs[0]
    data = victim.read_bytes()
    at = len(data) - 2500  # in the tensor's bytes: behind them come padding and the trailer
    changed = {
        "cut": data[:1500],
        "grown": data + b"more",
        "one byte": data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :],
    }[change]
    assert changed != data
    victim.write_bytes(changed)
    store = trial.open()
    assert ("s/0" in store) == (change == "grown"), "what matches its digest is copied out, the rest is made again"
    store.flush(400)
    store.abandon()
    assert changed not in [trial.content(key) for key in trial.object_keys()]
    assert [path.read_bytes() for path in trial.quarantined] == [changed]
    assert trial.unlinked == []


# --- endpoints that say yes -------------------------------------------------------------------------------------------


LIES = [
    pytest.param(FaultRule(op="put", fault=Fault.LOSE_OBJECT, count=None, key_part="packs/"), id="B05 forgets"),
    pytest.param(FaultRule(op="put", fault=Fault.SERVER_ERROR, count=None, key_part="packs/"), id="B06 B156 500"),
    pytest.param(FaultRule(op="put", fault=Fault.DROP_REQUEST, count=None, key_part="packs/"), id="unreachable"),
    pytest.param(FaultRule(op="put", fault=Fault.SLOW_DOWN, count=None, key_part="packs/"), id="B157 SlowDown"),
    pytest.param(FaultRule(op="put", fault=Fault.FLIP_BYTE, count=None, key_part="packs/"), id="B65 other bytes"),
    pytest.param(FaultRule(op="put", fault=Fault.STORE_EMPTY, count=None, key_part="packs/"), id="B75 stores nothing"),
    pytest.param(FaultRule(op="put", fault=Fault.ZERO_BLOCK, count=None, key_part="packs/"), id="B79 zero block"),
    pytest.param(FaultRule(op="put", fault=Fault.FORBIDDEN, count=None, key_part="packs/"), id="403 on PUT"),
    pytest.param(FaultRule(op="head", fault=Fault.FORBIDDEN, count=None, key_part="packs/"), id="B165 403 on HEAD"),
    pytest.param(FaultRule(op="fetch_chunks", fault=Fault.SHORT_READ, count=None), id="B56 short read"),
    pytest.param(FaultRule(op="fetch_chunks", fault=Fault.CUT_BODY, count=None), id="B56 cut read"),
    pytest.param(FaultRule(op="put", fault=Fault.SERVER_ERROR, count=None, key_part="manifest/"), id="no manifest"),
    pytest.param(FaultRule(op="put", fault=Fault.LOSE_OBJECT, count=None, key_part="manifest/"), id="lost manifest"),
]


@pytest.mark.parametrize("rule", LIES)
def test_no_lie_ends_with_success_or_frees_a_byte(trial: Trial, rule: FaultRule) -> None:
    # cases B123, B43: the job ends with an error that has an exit code, and every file is where it was
    store = trial.open(reclaim="eager")
    trial.objects.add(rule)
    with contextlib.suppress(CredentialsRefused):  # which stops puts, as soon as it is known
        trial.put(store, *NAMES[:3])
    error = trial.stop(store, timeout_s=12)
    assert error is not None
    assert getattr(error, "exit_code", 1) != 0
    assert len(trial.packs) == len(trial.acknowledged) >= 1
    assert trial.unlinked == []
    assert "reclaimed" not in trial.states().values()
    trial.check_nothing_lost()
    trial.objects.heal()
    again = trial.open()
    again.flush(400)  # and once the endpoint is well, the same command ends well
    again.abandon()
    trial.check_nothing_lost()


PASSING = [
    pytest.param(FaultRule(op="put", fault=Fault.DROP_RESPONSE, count=2, key_part="packs/"), id="B98 answer lost"),
    pytest.param(FaultRule(op="put", fault=Fault.DROP_RESPONSE, count=2, key_part="manifest/"), id="B98 of a segment"),
    pytest.param(FaultRule(op="head", fault=Fault.STALE_HEAD, count=2, key_part="packs/"), id="B27 stale HEAD"),
    pytest.param(FaultRule(op="head", fault=Fault.ABSENT, count=2, key_part="packs/"), id="B167 lagging replica"),
    pytest.param(FaultRule(op="fetch_chunks", fault=Fault.ABSENT, count=2, key_part="packs/"), id="B167 lagging GET"),
    pytest.param(FaultRule(op="put", fault=Fault.LOSE_OBJECT, count=3, key_part="packs/"), id="B93 loses three"),
]


@pytest.mark.parametrize("rule", PASSING)
def test_what_passes_is_outlasted_without_taking_anything_away(trial: Trial, rule: FaultRule) -> None:
    store = trial.open()
    trial.objects.add(rule)
    trial.put(store, *NAMES)
    assert trial.stop(store) is None
    assert len(trial.unlinked) == len(NAMES)
    assert trial.packs == []
    held = [trial.content(key) for key in trial.object_keys()]
    assert len(held) == len(NAMES)
    assert None not in held
    trial.check_nothing_lost()


def test_a_conflict_is_told_in_every_session_until_it_is_gone(trial: Trial) -> None:
    # cases B80, B123: acknowledged samples that are only here are no success, also on the second day
    store = trial.open()
    trial.objects.add(FaultRule(op="put", fault=Fault.DROP_REQUEST, count=None, key_part="packs/"))
    trial.put(store, "s/0")
    with pytest.raises(TimeoutError):
        store.flush(2)
    store.abandon()
    ((text,),) = trial.journal("SELECT key FROM packs")
    foreign = b"somebody else's"
    trial.objects.inner.put(ObjectKey(text), foreign, crc64nvme=None, metadata={})
    trial.objects.heal()
    (held,) = [path.read_bytes() for path in trial.packs]
    for _ in range(3):
        store = trial.open()
        with pytest.raises(PackFailed, match="conflict"):
            store.flush(400)
        store.abandon()
        assert [path.read_bytes() for path in trial.packs] == [held]
        assert trial.content(ObjectKey(text)) == foreign
    trial.objects.lose(ObjectKey(text))
    store = trial.open()
    store.flush(400)
    store.abandon()
    assert trial.content(ObjectKey(text)) == held
    trial.check_nothing_lost()


class Unconditional(MemoryStore):
    """An endpoint that takes conditions and does not keep them."""

    def put(
        self, key: ObjectKey, body: Body, *, crc64nvme: str | None, metadata: Mapping[str, str], if_absent: bool = False
    ) -> WriteReply:
        del if_absent
        return super().put(key, body, crc64nvme=crc64nvme, metadata=metadata)


def test_two_writers_are_safe_where_conditions_are_ignored(trial: Trial) -> None:
    # case B161: nobody's key is anybody else's, because keys carry writer, number and digest
    trial.objects = FaultyStore(Unconditional(name="unconditional", clock=CLOCK))
    stores = [trial.open(), trial.open()]
    for number in range(10):
        trial.put(stores[number % 2], f"s/{number}")
    for store in stores:
        assert trial.stop(store) is None
    assert len(set(trial.object_keys())) == 10
    assert len(trial.object_keys("")) == len({key.text for key in trial.object_keys("")})
    trial.check_nothing_lost()


# --- an encoder that is wrong -----------------------------------------------------------------------------------------


def test_a_header_that_cannot_be_read_back_is_refused_before_it_is_stored(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    # case B67: what cannot be decoded must not be acknowledged
    plain = render_header

    def wrong(*args: Any, **kwargs: Any) -> bytes:
        return plain(*args, **kwargs).replace(b"rows_per_chunk", b"rows_per_chunt")

    with closing(trial.open()) as store:
        with monkeypatch.context() as patch:
            patch.setattr(FORMS, {})
            patch.setattr(RENDER, wrong)
            with pytest.raises(DurastoreError) as caught:
                store.put("s/0", tensors_of("s/0"))
        assert isinstance(caught.value, IntegrityError)
        assert "s/0" not in store
        assert trial.packs == []


def test_a_header_that_tells_of_other_tensors_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    # case B67
    plain = render_header

    def wrong(facts: Any, specs: Any, **kwargs: Any) -> bytes:
        return plain(facts, [replace(spec, name="other") for spec in specs], **kwargs)

    monkeypatch.setattr(FORMS, {})
    monkeypatch.setattr(RENDER, wrong)
    with pytest.raises(IntegrityError):
        encode_sample(
            SampleId("a"), {"x": np.zeros(3)}, context=SampleContext(run=Run.of({}), meta=None, input_digest=None)
        )

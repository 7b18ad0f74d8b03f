"""A receipt is good once, for one file, for a short time, and for nobody who makes or copies it."""

from __future__ import annotations

import copy
import json
import pickle
import threading

import pytest

from durastore.clock import ManualClock
from durastore.errors import ReceiptRefused
from durastore.fsio.identity import FileIdentity
from durastore.model import EvidenceLevel
from durastore.verify.receipt import Receipt, mint
from tests.unit.verify_lab import DIGEST, KEY, evidence

FILE = FileIdentity(dev=1, inode=2, size_bytes=3, mtime_ns=4, ctime_ns=5)


def receipt(clock: ManualClock, ttl_s: float = 60.0) -> Receipt:
    return mint(pack_id=1, identity=FILE, evidence=evidence(clock), clock=clock, ttl_s=ttl_s)


def test_it_is_good_once() -> None:
    one = receipt(ManualClock())
    one.spend(FILE)
    with pytest.raises(ReceiptRefused, match="spent"):
        one.spend(FILE)


def test_of_many_threads_one_spends_it() -> None:
    one = receipt(ManualClock())
    spent: list[bool] = []
    barrier = threading.Barrier(8)

    def spend() -> None:
        barrier.wait()
        try:
            one.spend(FILE)
        except ReceiptRefused:
            return
        spent.append(True)

    threads = [threading.Thread(target=spend) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert spent == [True]


def test_a_receipt_expires() -> None:
    clock = ManualClock()
    one = receipt(clock)
    clock.advance(60)
    with pytest.raises(ReceiptRefused, match="expired"):
        one.spend(FILE)


@pytest.mark.parametrize("field", ["dev", "inode", "size_bytes", "mtime_ns", "ctime_ns"])
def test_it_is_for_one_file_in_one_state(field: str) -> None:
    one = receipt(ManualClock())
    other = FileIdentity(**{**{name: getattr(FILE, name) for name in FileIdentity.__slots__}, field: 99})
    with pytest.raises(ReceiptRefused, match="changed"):
        one.spend(other)
    with pytest.raises(ReceiptRefused, match="spent"):  # a refused try uses it up
        one.spend(FILE)


def test_it_cannot_be_made_copied_or_pickled() -> None:
    clock = ManualClock()
    with pytest.raises(TypeError):
        Receipt(object(), pack_id=1, identity=FILE, evidence=evidence(clock), expiry=(clock, 1e9))
    for act in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError):
            act(receipt(clock))


def test_the_intent_it_renders_names_key_level_and_digest() -> None:
    clock = ManualClock()
    read = receipt(clock)
    assert read.key == KEY
    facts = json.loads(read.render())
    assert (facts["key"], facts["level"], facts["digest"]) == (KEY.text, "READ_BACK", DIGEST.hex)
    proof = evidence(clock, level=EvidenceLevel.ATTESTED, digest=None, probe="00112233445566ff")
    attested = mint(pack_id=1, identity=FILE, evidence=proof, clock=clock, ttl_s=1.0)
    facts = json.loads(attested.render())
    assert (facts["level"], facts["digest"], facts["probe"]) == ("ATTESTED", None, "00112233445566ff")

"""The whole life of samples on a real S3 server: put, flush, reclaim, read, resume, rebuild, and clear refusals."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import durastore
from durastore import errors
from durastore.demo.seaweed import SeaweedServer
from durastore.spool.journal import Journal
from durastore.store.store import Store
from durastore_cli.main import run

pytestmark = pytest.mark.usefixtures("aws_env")
RUN = {"model": "m", "layers": [2, 15]}


@pytest.fixture
def place(seaweed: SeaweedServer, bucket: str, tmp_path: Path) -> dict[str, Any]:
    return {
        "url": f"s3://{bucket}/data/set",
        "local": tmp_path / "spool",
        "endpoint_url": seaweed.endpoint_url,
        "addressing_style": "path",
        "reclaim": "eager",
        "settle_s": 0.0,
    }


def open_at(place: dict[str, Any], **changes: Any) -> Store:
    merged = {"run": RUN} | place | changes
    return durastore.open(merged.pop("url"), **merged)


def states(number: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(number)
    return {
        "hidden_states": torch.randn(5 + number, 3, 64, generator=generator).to(torch.bfloat16),
        "input_ids": np.arange(5 + number),
    }


def same(sample: durastore.Sample, number: int) -> bool:
    want = states(number)
    ids = torch.from_numpy(want["input_ids"])
    return torch.equal(sample.tensors["hidden_states"], want["hidden_states"]) and torch.equal(
        sample.tensors["input_ids"], ids
    )


def dataset(place: dict[str, Any]) -> durastore.Dataset:
    return durastore.Dataset(place["url"], endpoint_url=place["endpoint_url"], addressing_style="path")


def test_put_prove_reclaim_and_read_back(place: dict[str, Any]) -> None:
    with open_at(place) as store:
        tickets = [store.put(f"doc/{n}", states(n), meta={"n": n}, input_digest=f"{n:032x}") for n in range(30)]
        assert "doc/3" in store
        assert same(store.get("doc/3"), 3)  # from the spool
        evidence = tickets[0].wait(60)
        assert evidence.level >= durastore.EvidenceLevel.ATTESTED
        store.drain(60)
        assert store.status().local_bytes == 0
        assert same(store.get("doc/3"), 3)  # from the bucket
        part = store.get("doc/9", tensors=["hidden_states"], rows=slice(2, 4)).tensors
        assert torch.equal(part["hidden_states"], states(9)["hidden_states"][2:4])
    with dataset(place) as read:
        assert len(read) == 30
        assert all(same(read[f"doc/{n}"], n) for n in range(30))
        assert read["doc/7"].meta == {"n": 7}


def test_a_probed_endpoint_attests_and_the_receipts_name_the_probe(
    place: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    intents: list[str] = []
    plain = Journal.record_intent

    def record(self: Journal, pack_id: int, text: str) -> None:
        intents.append(text)
        plain(self, pack_id, text)

    monkeypatch.setattr(Journal, "record_intent", record)
    with open_at(place) as store:  # the first session probes in the background
        store.put("first", states(0)).wait(60)
        wait_until(lambda: list(place["local"].glob("probe-*.json")) != [])
    (saved,) = place["local"].glob("probe-*.json")
    probe = json.loads(saved.read_bytes())
    with open_at(place, audit_share=0.0) as store:
        # the first copy of a session is read in full: a probe saw what it wrote itself, not what came after
        assert store.put("second", states(1)).wait(60).level is durastore.EvidenceLevel.READ_BACK
        evidence = store.put("third", states(2)).wait(60)
        assert (evidence.level, evidence.probe) == (durastore.EvidenceLevel.ATTESTED, probe["id"])
        store.drain(60)
    assert json.loads(intents[-1])["level"] in ("ATTESTED", "READ_BACK")  # the canary of a batch is read back
    with open_at(place, audit_share=0.0, probe="never") as store:
        assert store.put("fourth", states(3)).wait(60).level is durastore.EvidenceLevel.READ_BACK


def wait_until(is_done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_done():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_large_samples_go_in_parts(place: dict[str, Any]) -> None:
    big = {"h": torch.arange(20_000_000, dtype=torch.int16)}  # 40 MB: three parts
    with open_at(place, compress="none") as store:
        store.put("big", big)
        store.drain(100)
    with dataset(place) as read:
        assert torch.equal(read["big"].tensors["h"], big["h"])
        assert read.row("big").object.key.text.endswith(".safetensors")


def test_the_next_open_knows_what_is_done(place: dict[str, Any]) -> None:
    with open_at(place) as store:
        store.put("a", states(1), input_digest="1" * 32)
        store.drain(60)
    with open_at(place) as store:
        assert store.contains("a", input_digest="1" * 32)
        assert not store.contains("a", input_digest="2" * 32)
        assert not store.put("a", states(1), input_digest="1" * 32).is_new
        with pytest.raises(errors.SampleExists):
            store.put("a", states(2), input_digest="1" * 32)
        assert store.put("a", states(2), input_digest="2" * 32).is_new  # another input supersedes
        store.flush(60)
    with dataset(place) as read:
        assert len(read) == 1
        assert same(read["a"], 2)
        assert read.duplicates == ()


def test_a_store_that_was_never_closed_goes_on(place: dict[str, Any]) -> None:
    store = open_at(place)
    for n in range(5):
        store.put(f"s{n}", states(n))
    store.abandon()
    with open_at(place) as again:
        assert all(f"s{n}" in again for n in range(5))
        again.drain(60)
    with dataset(place) as read:
        assert all(same(read[f"s{n}"], n) for n in range(5))


def test_journal_and_manifest_lost_are_rebuilt_from_the_packs(
    place: dict[str, Any], s3_client: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_at(place) as store:
        for n in range(20):
            store.put(f"doc/{n}", states(n), meta={"n": n}, input_digest=f"{n:032x}")
        store.put("big", {"h": torch.zeros(9_000_000, dtype=torch.int16)})
        store.drain(100)
    before = {row.entry.sample_id.text: row for row in rows(place)}
    name = place["url"].split("/")[2]
    for entry in s3_client.list_objects_v2(Bucket=name, Prefix="data/set/manifest/")["Contents"]:
        s3_client.delete_object(Bucket=name, Key=entry["Key"])
    assert rows(place) == []
    place["local"] = place["local"].with_name("fresh")  # the journal is gone as well
    with open_at(place) as store:
        assert "doc/3" not in store
    command = ["manifest", "rebuild", "--bucket", place["url"], "--endpoint-url", place["endpoint_url"], "--json"]
    assert run(command) == 0
    assert json.loads(capsys.readouterr().out)["rows_published"] == 21
    after = {row.entry.sample_id.text: row for row in rows(place)}
    assert after.keys() == before.keys()
    for sample_id, row in before.items():
        again = after[sample_id]
        assert again.object.key == row.object.key
        assert replace(again.entry, time_ns=0) == replace(row.entry, time_ns=0)  # the time is not in the packs
    with open_at(place) as store:
        assert store.contains("doc/3", input_digest=f"{3:032x}")


def rows(place: dict[str, Any]) -> list[Any]:
    with dataset(place) as read:
        return [read.row(at) for at in range(len(read))]


def test_another_run_is_refused_with_the_difference(place: dict[str, Any]) -> None:
    open_at(place).close()
    with pytest.raises(errors.RunMismatch, match=r"layers: \[2, 15\] -> \[2, 16\]"):
        open_at(place, run={"model": "m", "layers": [2, 16]})


def test_wrong_places_are_named(place: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(errors.BucketMissing):
        open_at(place, url="s3://no-such-bucket-here/x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(errors.CredentialsRefused):
        open_at(place)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(errors.CredentialsRefused, match="credentials"):
        open_at(place)


class Gate:
    """A TCP relay that can be shut: an endpoint that goes away and comes back under the same address."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.is_open = True
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            if not self.is_open:
                client.close()
                continue
            server = socket.create_connection(("127.0.0.1", self.target))
            for one, other in ((client, server), (server, client)):
                threading.Thread(target=self._pump, args=(one, other), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while (data := source.recv(65536)) and self.is_open:
                sink.sendall(data)
        except OSError:
            pass
        finally:
            source.close()
            sink.close()


def test_an_outage_is_spooled_through(
    place: dict[str, Any], seaweed: SeaweedServer, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate(seaweed.port)
    place["endpoint_url"] = gate.url
    with open_at(place) as store:
        store.put("before", states(1))
        store.flush(60)
        gate.is_open = False
        with caplog.at_level(logging.WARNING, logger="durastore"):
            for n in range(5):
                store.put(f"during/{n}", states(n))  # transient errors never reach the caller
            with pytest.raises(TimeoutError):
                store.flush(2)
        assert len(store.status().only_local_ids) == 5
        gate.is_open = True
        store.drain(100)
        assert store.status().local_bytes == 0
    gate.listener.close()
    place["endpoint_url"] = seaweed.endpoint_url
    with dataset(place) as read:
        assert len(read) == 6


def test_an_unreachable_endpoint_is_said_at_open(place: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("durastore.store.opening._PATIENCE_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(errors.EndpointUnreachable):
        open_at(place, endpoint_url=f"http://127.0.0.1:{port}")

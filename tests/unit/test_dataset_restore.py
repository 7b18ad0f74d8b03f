"""Samples into files: what is written, what is refused, and what a damaged or cut-off object leaves."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from durastore.codec.decode import scan_sample
from durastore.codec.encode import SampleContext, encode_sample
from durastore.codec.header import parse_header
from durastore.dataset import restore as restore_module
from durastore.dataset.restore import RestoreReport, RestoreRequest, restore_samples
from durastore.errors import (
    BucketMissing,
    CredentialsRefused,
    DurastoreError,
    EndpointUnreachable,
    InvalidInput,
    StoreMissing,
)
from durastore.fsio.publish import publish
from durastore.fsio.relocate import relocate
from durastore.model import VERBATIM_SCHEMA, Digest, ManifestRow, ObjectFacts, ObjectKey, SampleEntry, SampleId
from durastore.objectstore.memory import MemoryStore
from durastore.read import landing as landing_module
from durastore.testing.faulty import Fault, FaultRule, FaultyStore
from tests.unit.forking import fork_in_c
from tests.unit.manifest_bucket import RUN, Bucket, assert_tensors, encode, tensors_of


@pytest.fixture
def bucket() -> Bucket:
    bucket = Bucket()
    bucket.add_segment(bucket.add_tar([encode(f"doc/{n}", n) for n in range(6)]))
    bucket.add_segment([bucket.add_single(encode("v1.5/deep/a.b%c", 9))])
    return bucket


def get(bucket: Bucket, out: Path, *ids: str, store: Any = None, **changes: Any) -> RestoreReport:
    request = RestoreRequest(out=out, ids=ids or None, **changes)
    return restore_samples(store if store is not None else bucket.store, bucket.prefix, request=request)


def test_every_sample_lands_as_it_is_stored(bucket: Bucket, tmp_path: Path) -> None:
    report = get(bucket, tmp_path / "new" / "out")
    assert (report.written, report.present, report.failed, report.exit_code) == (7, 0, (), 0)
    for number in range(6):
        data = (tmp_path / "new/out/doc" / f"{number}.safetensors").read_bytes()
        assert data == b"".join(encode(f"doc/{number}", number).chunks())
    odd = tmp_path / "new/out/v1.5/deep/a%2Eb%25c.safetensors"
    assert scan_sample(odd.read_bytes()).sample_id == SampleId("v1.5/deep/a.b%c")
    assert_tensors(load_file(odd), tensors_of(9))


def test_the_same_again_keeps_what_is_there(bucket: Bucket, tmp_path: Path) -> None:
    get(bucket, tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors")}
    store = FaultyStore(bucket.store)
    report = get(bucket, tmp_path, store=store)
    assert (report.written, report.present, report.bytes_fetched) == (0, 7, 0)
    assert not any("/packs/" in key for op, key in store.calls if op == "fetch")
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors")} == before


@pytest.mark.parametrize("large_bytes", [1, 1 << 30])
def test_another_file_of_that_name_is_left_alone(
    bucket: Bucket, tmp_path: Path, large_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # case B15: what is there is never opened for writing; case B41
    monkeypatch.setattr(restore_module, "_LARGE_BYTES", large_bytes)
    (tmp_path / "doc").mkdir()
    mine = tmp_path / "doc/2.safetensors"
    mine.write_bytes(b"mine")
    report = get(bucket, tmp_path)
    assert (report.written, report.exit_code) == (6, 3)
    (failed,) = report.failed
    assert (failed.id, failed.error.code) == ("doc/2", "invalid-input")
    assert mine.read_bytes() == b"mine"


@pytest.mark.parametrize("large_bytes", [1, 1 << 30])
def test_a_damaged_file_of_that_name_is_no_copy(
    bucket: Bucket, tmp_path: Path, large_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restore_module, "_LARGE_BYTES", large_bytes)
    get(bucket, tmp_path, "doc/1")
    path = tmp_path / "doc/1.safetensors"
    damaged = path.read_bytes()[:-1] + b"?"
    path.write_bytes(damaged)  # the size is right, the mtime new: neither decides
    assert get(bucket, tmp_path, "doc/1").failed[0].error.code == "invalid-input"
    assert path.read_bytes() == damaged


def test_no_link_leads_out_of_the_folder(bucket: Bucket, tmp_path: Path) -> None:
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    out.mkdir()
    elsewhere.mkdir()
    (out / "doc").symlink_to(elsewhere)
    (out / "v1.5").write_bytes(b"a file where a folder has to be")
    report = get(bucket, out)
    assert report.written == 0
    assert {failure.error.code for failure in report.failed} == {"invalid-input"}
    assert list(elsewhere.iterdir()) == []


def test_a_link_of_that_name_is_neither_followed_nor_replaced(bucket: Bucket, tmp_path: Path) -> None:
    target = tmp_path / "target"
    (tmp_path / "doc").mkdir()
    (tmp_path / "doc/1.safetensors").symlink_to(target)
    assert get(bucket, tmp_path, "doc/1").failed[0].error.code == "invalid-input"
    assert not target.exists()


def test_an_id_too_long_for_a_file_is_told(tmp_path: Path) -> None:
    bucket = Bucket()
    bucket.add_segment(bucket.add_tar([encode("x" * 300, 1), encode("y", 2)]))
    report = get(bucket, tmp_path)
    assert (report.written, report.exit_code) == (1, 3)
    assert "cannot name a file" in report.failed[0].error.message


def test_ids_that_are_not_there_are_named(bucket: Bucket, tmp_path: Path) -> None:
    report = get(bucket, tmp_path, "doc/1", "no", "../doc/1", "bad\ud800", "doc/1")
    assert report.written == 1
    assert [(f.id, f.error.code) for f in report.failed] == [
        ("no", "sample-absent"),
        ("../doc/1", "invalid-sample-id"),
        ("bad\ud800", "invalid-sample-id"),
    ]
    assert report.exit_code == 3
    assert get(bucket, tmp_path, "no").exit_code == get(bucket, tmp_path, "no", "nor").exit_code == 3


def test_one_id_may_name_its_file(bucket: Bucket, tmp_path: Path) -> None:
    out = tmp_path / "mine.safetensors"
    assert get(bucket, out, "doc/4").exit_code == 0
    assert_tensors(load_file(out), tensors_of(4))
    with pytest.raises(InvalidInput, match="names one file"):
        get(bucket, tmp_path / "other.safetensors", "doc/4", "doc/5")
    assert get(bucket, tmp_path / "as.safetensors" / "x", "doc/4").written == 1


def test_a_mistyped_prefix_is_no_empty_store(tmp_path: Path) -> None:
    with pytest.raises(StoreMissing):
        restore_samples(MemoryStore(), "nothing", request=RestoreRequest(out=tmp_path, ids=None))


# --- other forms ---------------------------------------------------------------------------------------------------


def _compressed(bucket: Bucket) -> dict[str, Any]:
    rng = np.random.default_rng(7)
    tensors = {"h": (rng.standard_normal((64, 512)) / 8).astype(np.float32), "ids": np.arange(64)}
    context = SampleContext(run=RUN, meta={"k": 1}, input_digest=None, compress="planes-zstd")
    sample = encode_sample(SampleId("packed"), tensors, context=context)
    assert "planes-zstd" in sample.schema
    bucket.add_segment(bucket.add_tar([sample]))
    return tensors


def test_plain_tensors_for_any_reader(bucket: Bucket, tmp_path: Path) -> None:
    tensors = _compressed(bucket)
    report = get(bucket, tmp_path / "stored", "packed", "doc/1")
    assert (report.written, report.compressed) == (2, 1)
    assert load_file(tmp_path / "stored/packed.safetensors")["h"].dtype == np.uint8
    report = get(bucket, tmp_path / "plain", "packed", is_plain=True)
    assert (report.written, report.compressed) == (1, 0)
    assert_tensors(load_file(tmp_path / "plain/packed.safetensors"), tensors)
    header = scan_sample((tmp_path / "plain/packed.safetensors").read_bytes())  # still describes and checks itself
    assert (header.sample_id.text, json.loads(header.meta), header.run) == ("packed", {"k": 1}, RUN.digest)
    assert get(bucket, tmp_path / "plain", "packed", is_plain=True).present == 1


def test_some_tensors_only(bucket: Bucket, tmp_path: Path) -> None:
    tensors = _compressed(bucket)
    get(bucket, tmp_path, "packed", tensors=("h",))
    found = load_file(tmp_path / "packed.safetensors")
    assert found.keys() == {"h"}
    assert np.array_equal(found["h"], tensors["h"])
    report = get(bucket, tmp_path / "x", "packed", tensors=("none",))
    assert report.failed[0].error.code == "invalid-input"
    assert not (tmp_path / "x/packed.safetensors").exists()


# --- damage and interruption ---------------------------------------------------------------------------------------


def _large(bucket: Bucket) -> ManifestRow:
    """A sample of several chunks."""
    tensors = {"h": np.random.default_rng(1).integers(0, 1 << 30, (10, 1 << 18), dtype=np.int32)}
    context = SampleContext(run=RUN, meta=None, input_digest=None)
    row = bucket.add_single(encode_sample(SampleId("large"), tensors, context=context))
    bucket.add_segment([row])
    return row


def kept_header(row: ManifestRow, bucket: Bucket) -> bytes:
    return bucket.store.fetch(row.object.key, length=row.entry.header_length)


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Part files for the samples here, one request a chunk."""
    monkeypatch.setattr(restore_module, "_LARGE_BYTES", 1 << 20)
    monkeypatch.setattr(landing_module, "_RANGE_BYTES", 1 << 20)


@pytest.mark.usefixtures("parts")
def test_a_large_sample_goes_on_where_it_was_cut_off(bucket: Bucket, tmp_path: Path) -> None:
    row = _large(bucket)
    cut = FaultyStore(
        bucket.store, FaultRule(op="fetch", key_part=row.object.key.text, fault=Fault.DROP_REQUEST, first=4)
    )
    with pytest.raises(EndpointUnreachable):
        get(bucket, tmp_path, "large", store=cut)
    assert not (tmp_path / "large.safetensors").exists()
    (part,) = tmp_path.glob(".*.part")
    kept = part.read_bytes()
    damaged = bytes([kept[100_000] ^ 1])
    part.write_bytes(kept[:100_000] + damaged + kept[100_001:])  # case B101: the first chunk of it is damaged
    report = get(bucket, tmp_path, "large")
    assert (report.written, report.failed) == (1, ())
    (tensor,) = parse_header(kept_header(row, bucket), total_length=row.entry.length).tensors
    assert len(tensor.chunk_sizes) > 3
    # one of the two chunks that were there still matched
    assert report.bytes_fetched == row.entry.length - tensor.chunk_sizes[1]
    assert scan_sample((tmp_path / "large.safetensors").read_bytes()).digest == row.entry.header_digest
    assert list(tmp_path.glob(".*.part")) == []


@pytest.mark.usefixtures("parts")
def test_an_empty_part_file_is_begun_anew(bucket: Bucket, tmp_path: Path) -> None:
    # case B103
    row = _large(bucket)
    (tmp_path / landing_module._part_name(row.entry, "large.safetensors")).touch()
    assert get(bucket, tmp_path, "large").bytes_fetched == row.entry.length
    assert scan_sample((tmp_path / "large.safetensors").read_bytes()).digest == row.entry.header_digest


@pytest.mark.usefixtures("parts")
def test_a_part_file_of_something_else_is_left_alone(bucket: Bucket, tmp_path: Path) -> None:
    row = _large(bucket)
    part = tmp_path / landing_module._part_name(row.entry, "large.safetensors")
    part.write_bytes(bytes(row.entry.length + 1))
    report = get(bucket, tmp_path, "large")
    assert "move it out of the way" in str(report.failed[0].error)
    assert part.stat().st_size == row.entry.length + 1
    assert not (tmp_path / "large.safetensors").exists()


@pytest.mark.usefixtures("parts")
def test_a_large_sample_that_is_damaged_gets_no_name(bucket: Bucket, tmp_path: Path) -> None:
    row = _large(bucket)
    bucket.damage(row.object.key, at=row.entry.length - 5)
    report = get(bucket, tmp_path, "large")
    assert (report.failed[0].error.code, report.exit_code) == ("integrity", 3)
    assert not (tmp_path / "large.safetensors").exists()


def test_bit_rot_costs_only_the_sample_it_is_in(bucket: Bucket, tmp_path: Path) -> None:
    row = bucket.view().row(SampleId("doc/3"))
    assert row is not None
    bucket.damage(row.object.key, at=row.entry.offset + row.entry.length - 3)
    report = get(bucket, tmp_path)
    assert (report.written, report.exit_code) == (6, 3)
    assert [(f.id, f.error.code) for f in report.failed] == [("doc/3", "integrity")]
    assert not (tmp_path / "doc/3.safetensors").exists()


def test_an_object_that_is_gone_costs_only_its_samples(bucket: Bucket, tmp_path: Path) -> None:
    row = bucket.view().row(SampleId("doc/3"))
    assert row is not None
    store = FaultyStore(bucket.store)
    store.lose(row.object.key)
    report = get(bucket, tmp_path, store=store)
    assert (report.written, len(report.failed)) == (1, 6)
    assert "doc/0" in report.failed[0].error.message


@pytest.mark.parametrize("error", [BucketMissing, CredentialsRefused, EndpointUnreachable])
@pytest.mark.parametrize("large_bytes", [1, 1 << 30])
def test_what_no_other_sample_fares_better_with_ends_it(
    bucket: Bucket,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: type[DurastoreError],
    large_bytes: int,
) -> None:
    class Refusing(FaultyStore):
        def fetch(self, key: ObjectKey, **asked: Any) -> bytes:
            if "/packs/" in key.text:
                raise error("for every key")
            return super().fetch(key, **asked)

    monkeypatch.setattr(restore_module, "_LARGE_BYTES", large_bytes)
    with pytest.raises(error, match="for every key"):
        get(bucket, tmp_path, store=Refusing(bucket.store))


@pytest.mark.parametrize("fault", [Fault.WRONG_BYTE, Fault.SHORT_READ, Fault.TRUNCATE])
def test_a_damaged_transfer_is_asked_for_again(bucket: Bucket, tmp_path: Path, fault: Fault) -> None:
    # case B56
    store = FaultyStore(bucket.store, FaultRule(op="fetch", key_part="packs/", fault=fault))
    assert get(bucket, tmp_path, store=store).written == 7


class Pinning(MemoryStore):
    """Knows one version of each object, and how it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[str | None, str | None]] = []

    def fetch(self, key: ObjectKey, **asked: Any) -> bytes:
        if "/packs/" in key.text:
            self.asked.append((asked.get("version_id"), asked.get("if_match")))
        if asked.pop("version_id", None) not in (None, "v1"):
            asked["version_id"] = "no such version"
        return super().fetch(key, **asked)


@pytest.mark.parametrize("large_bytes", [1, 1 << 30])
def test_versions_and_etags_are_asked_for_and_do_not_bind_a_copied_bucket(
    tmp_path: Path, large_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restore_module, "_LARGE_BYTES", large_bytes)
    store = Pinning()
    bucket = Bucket(store)
    row = bucket.add_single(encode("s", 1))
    pinned = replace(row, object=replace(row.object, version_id="v1"))
    bucket.add_segment([pinned])
    assert get(bucket, tmp_path / "one").written == 1
    assert {version for version, _ in store.asked} == {"v1"}
    copied = Bucket(Pinning())
    row = copied.add_single(encode("s", 1))
    copied.add_segment([replace(row, object=replace(row.object, version_id="of the first", etag='"of the first"'))])
    assert get(copied, tmp_path / "two").written == 1


# --- files that are kept as they were ------------------------------------------------------------------------------


def _verbatim(bucket: Bucket, path: str, data: bytes) -> ManifestRow:
    """A row of a file, as docs/format/segment.md describes it."""
    digest = Digest.of(data)
    key = ObjectKey(f"{bucket.prefix}/files/{digest.short}/{path}")
    reply = bucket.store.put(key, data, crc64nvme=None, metadata={})
    entry = SampleEntry(
        sample_id=SampleId(path),
        offset=0,
        length=len(data),
        header_length=len(data),
        header_digest=digest,
        schema=VERBATIM_SCHEMA,
        meta="{}",
        run=RUN.digest,
        input_digest=None,
        provenance="asserted",
        time_ns=1,
    )
    facts = ObjectFacts(
        key=key,
        size_bytes=len(data),
        digest=digest,
        crc64nvme="",
        etag=reply.etag,
        version_id=None,
        writer=bucket.writer,
    )
    row = ManifestRow(entry=entry, object=facts)
    bucket.add_segment([row])
    return row


@pytest.mark.parametrize("large_bytes", [1, 1 << 30])
def test_a_file_kept_as_it_was_comes_back_under_its_path(
    bucket: Bucket, tmp_path: Path, large_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restore_module, "_LARGE_BYTES", large_bytes)
    data = bytes(range(256)) * 4_000
    _verbatim(bucket, "old/states.v2.pt", data)
    assert get(bucket, tmp_path, "old/states.v2.pt").written == 1
    assert (tmp_path / "old/states.v2.pt").read_bytes() == data
    assert get(bucket, tmp_path, "old/states.v2.pt").present == 1
    report = get(bucket, tmp_path / "plain", "old/states.v2.pt", is_plain=True)
    assert report.failed[0].error.code == "invalid-input"


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_large_file_goes_on_where_it_was_cut_off(bucket: Bucket, tmp_path: Path, is_damaged: bool) -> None:
    data = np.random.default_rng(3).bytes(5 << 20)
    row = _verbatim(bucket, "old/big.bin", data)
    cut = FaultyStore(bucket.store, FaultRule(op="fetch", key_part="files/", fault=Fault.DROP_REQUEST, first=4))
    with pytest.raises(EndpointUnreachable):
        get(bucket, tmp_path, "old/big.bin", store=cut)
    (part,) = (tmp_path / "old").glob(".*.part")
    assert part.stat().st_size == 3 << 20
    if is_damaged:
        part.write_bytes(b"?" + part.read_bytes()[1:])
    report = get(bucket, tmp_path, "old/big.bin")
    assert report.bytes_fetched == ((2 + 5) << 20 if is_damaged else 2 << 20)
    assert (tmp_path / "old/big.bin").read_bytes() == data
    bucket.damage(row.object.key, at=7)
    assert get(bucket, tmp_path / "again", "old/big.bin").failed[0].error.code == "integrity"


def test_large_files_of_one_content_in_one_folder_all_land(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restore_module, "_LARGE_BYTES", 1)
    bucket = Bucket()
    data = bytes(range(256)) * 20_000
    for name in "abcd":
        _verbatim(bucket, f"old/{name}.bin", data)
    report = get(bucket, tmp_path)
    assert report.failed == ()
    assert report.written == 4
    assert sorted(path.name for path in (tmp_path / "old").iterdir()) == [f"{name}.bin" for name in "abcd"]
    assert all(path.read_bytes() == data for path in (tmp_path / "old").iterdir())


@pytest.mark.parametrize("is_plain", [False, True])
def test_a_file_that_another_get_made_a_moment_ago_is_the_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_plain: bool
) -> None:
    bucket = Bucket()
    bucket.add_segment(bucket.add_tar([encode("a", 1)]))
    get(bucket, tmp_path / "other", "a", is_plain=is_plain)
    data = (tmp_path / "other/a.safetensors").read_bytes()

    def beaten(folder: Any, name: str, **options: Any) -> Any:
        monkeypatch.setattr(landing_module, "publish", publish)
        publish(folder, name, chunks=[data])
        return publish(folder, name, **options)

    monkeypatch.setattr(landing_module, "publish", beaten)
    report = get(bucket, tmp_path, "a", is_plain=is_plain)
    assert (report.written, report.present, report.failed) == (0, 1, ())
    assert (tmp_path / "a.safetensors").read_bytes() == data


def test_a_large_file_that_was_made_meanwhile_is_not_counted_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restore_module, "_LARGE_BYTES", 1)
    bucket = Bucket()
    bucket.add_segment(bucket.add_tar([encode("a", 1)]))
    data = b"".join(encode("a", 1).chunks())

    def beaten(folder: Any, name: str, **options: Any) -> None:
        publish(options["target"], options["new_name"], chunks=[data])
        relocate(folder, name, **options)

    monkeypatch.setattr(landing_module, "relocate", beaten)
    report = get(bucket, tmp_path, "a")
    assert (report.written, report.present, report.failed) == (0, 1, ())
    assert (tmp_path / "a.safetensors").read_bytes() == data


class _Forking(FaultyStore):
    """Its first fetch of a file forks a child that lives until `end`, and then fails."""

    child: int | None = None

    def fetch(self, key: ObjectKey, **asked: Any) -> bytes:
        if self.child is None and "/files/" in key.text:
            self.child = fork_in_c(signal.pause)
            raise EndpointUnreachable("cut off")
        return super().fetch(key, **asked)

    def end(self) -> None:
        """By a signal: a child that Python does not know of may have a lock of Python's that nobody lets go of."""
        assert self.child is not None
        os.kill(self.child, signal.SIGKILL)
        os.waitpid(self.child, 0)


@pytest.mark.usefixtures("parts")
def test_a_fetch_that_was_cut_off_goes_on_while_a_child_of_that_time_lives(bucket: Bucket, tmp_path: Path) -> None:
    data = np.random.default_rng(3).bytes(5 << 20)
    _verbatim(bucket, "old/big.bin", data)
    store = _Forking(bucket.store)
    with pytest.raises(EndpointUnreachable):
        get(bucket, tmp_path, "old/big.bin", store=store)
    try:
        assert get(bucket, tmp_path, "old/big.bin", store=store).written == 1
        assert (tmp_path / "old/big.bin").read_bytes() == data
    finally:
        store.end()

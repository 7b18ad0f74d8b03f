"""The worked bytes of docs/format are what the pages say: taken apart by hand here, and read by the library."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pyarrow.parquet as pq
import xxhash

from durastore.codec import decode_tensors, plan_rows, scan_sample
from durastore.codec.planes import decode_chunk
from durastore.formats.artifact_list import ArtifactList, parse_list_key
from durastore.formats.failure_list import parse_failure_table
from durastore.formats.file_keys import parse_file_key
from durastore.formats.keys import parse_failures_key, parse_pack_key
from durastore.formats.marker import Marker
from durastore.formats.pack import iter_pack
from durastore.formats.spool_root import parse_root
from durastore.formats.stop import StopRecord
from durastore.fsio.folder import Folder
from durastore.manifest.failure_lists import latest_failures
from durastore.model import Digest, ObjectKey, WriterId
from durastore.spool.journal import Journal
from tests.architecture.source_tree import REPO

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def _page(name: str) -> str:
    """The part of a page that has its worked bytes."""
    return (REPO / "docs/format" / name).read_text(encoding="utf-8").split("\n## Worked bytes\n")[1]


def _blocks(name: str, kind: str) -> list[str]:
    return [text for what, text in _BLOCK.findall(_page(name)) if what == kind]


def _undump(text: str) -> bytes:
    """The bytes of `hexdump -C`: a `*` repeats the line before it up to the next offset."""
    data, last = bytearray(), b""
    for line in text.splitlines():
        if line == "*":
            continue
        at, _, rest = line.partition("  ")
        while len(data) < int(at, 16):
            data += last
        assert len(data) == int(at, 16)
        last = bytes.fromhex(rest.partition("|")[0])
        data += last
        assert rest.partition("|")[2].rstrip("|") == "".join(chr(b) if 32 <= b < 127 else "." for b in last)
    return bytes(data)


def _digest(data: bytes) -> str:
    return xxhash.xxh3_128_hexdigest(data)


def _sample() -> bytes:
    return _undump(*_blocks("sample.md", "hexdump"))


def test_the_sample_says_what_the_page_says() -> None:
    data, page = _sample(), _page("sample.md")
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    about = header["__metadata__"]
    facts = json.loads(about["durastore.sample"])
    assert (length, len(data)) == (464, 484)
    assert (facts["id"], facts["meta"], facts["run"]) == ("doc/0", {"n": 1}, _digest(b'{"layers":[1],"model":"demo"}'))
    at, end = header["x"]["data_offsets"]
    elements = data[8 + length + at : 8 + length + end]
    assert facts["tensors"]["x"]["digests"] == _digest(elements)
    value = np.frombuffer(elements, ml_dtypes.bfloat16).reshape(header["x"]["shape"])
    assert value.astype(float).tolist() == [[1, 2, 3], [-1, 0.5, 0]]
    check = about["durastore.check"]
    assert _digest(data[: 8 + length].replace(check.encode(), b"0" * 32)) == check
    assert f"with its 32 digits as `0`: `{check}`" in page
    assert f"as manifest rows have it: `{_digest(data[: 8 + length])}`" in page


def test_the_library_reads_the_sample() -> None:
    data = _sample()
    header = scan_sample(data)
    plan = plan_rows(header, None, rows=None)
    found = decode_tensors(
        header, plan, buffers=[data[r.offset : r.offset + r.length] for r in plan], framework="numpy"
    )
    assert header.sample_id.text == "doc/0"
    assert found["x"].astype(float).tolist() == [[1, 2, 3], [-1, 0.5, 0]]


def test_the_chunks_of_planes_unpack_to_the_elements() -> None:
    words = np.array([0x3F80, 0xC000, 0x3F00, 0x0000], "<u2")
    assert words.view(ml_dtypes.bfloat16).astype(float).tolist() == [1, -2, 0.5, 0]
    plain, rowed = (bytes.fromhex(text) for text in _blocks("sample.md", "hex"))
    for stored in (plain, rowed):
        out = np.empty(8, np.uint8)
        decode_chunk(memoryview(stored), "BF16", out=out)
        assert out.tobytes() == words.tobytes()
    exponents = [(word >> 7) & 0xFF for word in words.tolist()]
    assert list(plain[2:6]) == exponents
    assert [(high + row) % 256 for high, row in zip(rowed[6:10], [*rowed[3:5]] * 2, strict=True)] == exponents


def test_the_pack_is_header_sample_and_trailer() -> None:
    head, sample, page = _undump(*_blocks("pack.md", "hexdump")), _sample(), _page("pack.md")
    pack = head + sample + bytes(-len(sample) % 512) + bytes(1024)
    run, member = iter_pack(lambda at, length: pack[at : at + length], len(pack))
    assert (run.name, pack[run.offset : run.offset + run.length]) == (
        "__durastore_run__",
        b'{"layers":[1],"model":"demo"}',
    )
    assert (member.name, member.offset, member.length) == ("doc/0.safetensors", len(head), len(sample))
    assert (int(head[0x7C:0x87], 8), int(head[0x47C:0x487], 8)) == (29, len(sample))
    assert f"{len(pack):,} bytes".replace(",", "") in page
    assert f"XXH3-128 of the whole: `{_digest(pack)}`" in page


def test_the_keys_carry_their_digests() -> None:
    packs, files = (text.split() for text in _blocks("keys.md", "key"))
    parts = parse_pack_key("runs/7", ObjectKey(packs[0]))
    assert parts is not None
    assert parts.short_digest in _page("pack.md")
    assert (parts.writer.hex, parts.seq) == ("0123456789abcdef", 1)
    for key in files:
        found = parse_file_key("runs/7", ObjectKey(key))
        assert found is not None
        assert (found.path.text, found.short_digest) == ("logs/a.txt", _digest(b"hello\n")[:16])


def test_the_marker_is_the_old_one() -> None:
    (text,) = _blocks("marker.md", "json")
    assert text.encode() == (REPO / "tests/formats/v1/marker.json").read_bytes()
    marker = Marker.parse(text.encode())
    assert marker.render() == text.encode()
    assert marker.run is not None
    assert f"`{_digest(json.loads(text)['run'].encode())}`" in _page("marker.md")


def test_the_list_of_artifacts_is_under_its_digest() -> None:
    area = "runs/7/artifacts"
    data = _blocks("artifacts.md", "json")[0].rstrip("\n").encode()
    found = ArtifactList.parse(data, area=area)
    assert found.render(area) == data
    assert [(file.path.text, file.size_bytes) for file in found.files] == [("logs/a.txt", 6)]
    assert found.files[0].digest.hex == _digest(b"hello\n")
    ref = parse_list_key(area, ObjectKey(_blocks("artifacts.md", "key")[0].strip()))
    assert ref is not None
    assert (ref.name.text, ref.seq) == ("out", 1)
    assert _digest(data)[:16] in _blocks("artifacts.md", "key")[0]


def test_the_files_of_a_root_parse() -> None:
    root, stop = (text.encode() for text in _blocks("spool.md", "json"))
    assert (parse_root(root).directory_inode, parse_root(root).root_id[:4]) == (2, "0011")
    record = StopRecord.parse(stop)
    assert record.render() == stop
    assert record.place is not None
    assert (record.id, record.place.bucket) == ("00112233445566ff", "my-bucket")


def test_the_slot_of_a_status_file_has_its_frame() -> None:
    slot = _undump(*_blocks("status.md", "hexdump"))
    magic, number, length, digest = struct.unpack_from("<8sQIQ", slot)
    text = slot[28:]
    assert (magic, number, length) == (b"DSTATUS1", 7, len(text))
    assert digest == xxhash.xxh3_64_intdigest((7).to_bytes(8, "little") + text)
    assert json.loads(text) == {"kind": "WorkerRecord"}


def test_a_new_journal_has_the_numbers_of_the_page(tmp_path: Path) -> None:
    (tmp_path / "quarantine").mkdir()
    with Folder.open(tmp_path) as folder, Folder.open(tmp_path / "quarantine") as quarantine:
        Journal(folder, quarantine, writer=WriterId("0123456789abcdef")).close()
    (path,) = tmp_path.glob("journal-*.sqlite")
    version, application = (bytes.fromhex(line) for line in _blocks("journal.md", "hex")[0].splitlines())
    data = path.read_bytes()
    assert (data[60:64], data[68:72]) == (version, application)
    assert (int.from_bytes(version, "big"), application) == (101, b"dura")


def test_the_segment_has_the_rows_of_the_page() -> None:
    page = _page("segment.md")
    space: dict[str, Any] = {}
    code = re.sub("tests/formats", str(REPO / "tests/formats"), _blocks("segment.md", "python")[0])
    exec(compile(code, "segment.md", "exec"), space)  # noqa: S102 - our own documentation
    shown = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in page.splitlines() if line[:2] == "| "]
    assert shown[1:] == [["" if v is None else str(v) for v in row.values()] for row in space["shown"]]
    table, pack = pq.read_table(REPO / "tests/formats/v1/segment.parquet"), REPO / "tests/formats/v1/pack.tar"
    assert _digest(pack.read_bytes()[1536:2528]) == table.column("header_digest")[0].as_py().hex()
    assert f"`{_digest(pack.read_bytes()[1536:2528])}`" in page


def test_the_failure_list_has_the_rows_of_the_page() -> None:
    page, data = _page("failures.md"), (REPO / "tests/formats/v1/failures.parquet").read_bytes()
    space: dict[str, Any] = {}
    code = re.sub("tests/formats", str(REPO / "tests/formats"), _blocks("failures.md", "python")[0])
    exec(compile(code, "failures.md", "exec"), space)  # noqa: S102 - our own documentation
    shown = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in page.splitlines() if line[:2] == "| "]
    assert shown[1:] == [["" if v is None else str(v) for v in row.values()] for row in space["shown"]]
    run = Digest(_digest(b'{"layers":[1],"model":"demo"}'))
    assert space["run"].decode() == run.hex
    assert f"`{run.hex}`" in page
    (key,) = (text.strip() for text in _blocks("failures.md", "key"))
    parts = parse_failures_key("runs/7", ObjectKey(key))
    assert parts is not None
    assert (parts.writer.hex, parts.seq, parts.short_digest) == ("0123456789abcdef", 1, _digest(data)[:16])
    table = parse_failure_table(data, run=run)
    assert table.column("sample_id").to_pylist() == ["doc/7", None, None]
    assert table.column("input_digest")[0].as_py().hex() == _digest(b"tokens of doc/7")
    assert [(row["sample_id"], row["line"], row["stored_id"]) for row in latest_failures(table).to_pylist()] == [
        ("doc/7", 8, None),
        (None, 12, "doc/12"),
    ]


def test_every_format_has_worked_bytes() -> None:
    pages = sorted(path.name for path in (REPO / "docs/format").glob("*.md") if path.name != "README.md")
    assert [name for name in pages if not _BLOCK.search(_page(name))] == []
    assert all(f"({name})" in (REPO / "docs/format/README.md").read_text(encoding="utf-8") for name in pages)

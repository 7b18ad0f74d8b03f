"""Fuzz targets of the small texts: marker, run, upload session, root marker, snapshot, journal columns, server XML."""

from __future__ import annotations

import json
import os
import random
import re
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Any

from durastore.errors import (
    ConfigError,
    FormatUnsupported,
    IntegrityError,
    InvalidInput,
    InvalidSampleId,
    InventoryIncomplete,
    ManifestIncomplete,
    UnknownAnswer,
)
from durastore.extract.rows import RawRow, RowFailure, parse_row
from durastore.formats.journal import parse_entry, parse_evidence, render_evidence
from durastore.formats.keys import parse_pack_key, parse_segment_key
from durastore.formats.marker import Marker
from durastore.formats.pack import member_name
from durastore.formats.runs import parse_run
from durastore.formats.spool_root import parse_root
from durastore.formats.stop import LiftRecord, StopRecord
from durastore.fsio.identity import FileIdentity
from durastore.manifest.snapshot import SegmentRef, Snapshot, segments_id
from durastore.model import EvidenceLevel, ObjectKey, SampleId
from durastore.objectstore.crc import parse_crc64nvme
from durastore.objectstore.directory_notes import parse_note
from durastore.objectstore.directory_object import segments_of
from durastore.objectstore.location import BucketUrl, S3Options
from durastore.objectstore.probe.result import ProbeResult
from durastore.objectstore.s3_list import parse_page
from durastore.spool.journal_rows import parse_pack
from durastore.texts import parse_size
from tests.fuzz.mutate import mutate_bytes
from tests.fuzz.target import FuzzTarget

__all__ = ["TEXT_TARGETS"]

_ROOT = PurePosixPath("/target/folder")


def _text(data: bytes) -> str:
    """Any text a caller may have got: from JSON (lone surrogates), from the file system (escaped bytes)."""
    return data.decode("utf-8", "surrogatepass" if data[:1] == b"\xed" else "surrogateescape") if data else ""


def _texts(data: bytes) -> list[str]:
    found = []
    with suppress(UnicodeDecodeError):
        found.append(_text(data))
    with suppress(ValueError, RecursionError):
        value = json.loads(data)
        if isinstance(value, str):
            found.append(value)
    return found


# --- checks --------------------------------------------------------------------------------------------------------


def check_marker(data: bytes) -> None:
    with suppress(IntegrityError, FormatUnsupported):
        marker = Marker.parse(data)
        assert Marker.parse(marker.render()) == marker


def check_run(data: bytes) -> None:
    with suppress(IntegrityError):
        run = parse_run(data)
        assert parse_run(run.text) == run
    for text in _texts(data):
        with suppress(IntegrityError):
            parse_run(text)


def check_probe(data: bytes) -> None:
    with suppress(IntegrityError, FormatUnsupported):
        result = ProbeResult.parse(data)
        assert ProbeResult.parse(result.render()) == result
        assert result.is_blocking in (True, False)
        assert result.level in (EvidenceLevel.ATTESTED, EvidenceLevel.READ_BACK)


def check_stop(data: bytes) -> None:
    for kind in (StopRecord, LiftRecord):
        with suppress(IntegrityError, FormatUnsupported):
            record = kind.parse(data)
            assert kind.parse(record.render()) == record


def check_root(data: bytes) -> None:
    with suppress(IntegrityError, FormatUnsupported):
        parse_root(data)


def check_snapshot(data: bytes) -> None:
    for text in _texts(data):
        for form in (text, _with_right_id(text)):
            with suppress(InvalidInput, FormatUnsupported, ManifestIncomplete):
                snapshot = Snapshot.parse(form)
                assert Snapshot.parse(snapshot.render()) == snapshot


def _with_right_id(text: str) -> str:
    """The text with the id of the segments it lists, so that more than the id is judged."""
    try:
        value = json.loads(text)
        refs = {row[0]: SegmentRef(key=ObjectKey(row[0]), size_bytes=None) for row in value["segments"]}
        value["id"] = segments_id(tuple(refs.values())).hex
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, InvalidInput):
        return text
    return json.dumps(value)


def check_journal_columns(data: bytes) -> None:
    """A row as SQLite could give it: any value in any column."""
    with suppress(IntegrityError):
        for text in _texts(data):
            parse_evidence(text)
    try:
        row = json.loads(data)
    except (ValueError, RecursionError):
        return
    if not isinstance(row, list):
        return
    values = [os.fsencode(v[1:]) if isinstance(v, str) and v[:1] == "\x01" else v for v in _storable(row)]
    with suppress(IntegrityError):
        parse_entry(values)
    with suppress(IntegrityError):
        record = parse_pack([*values, *[None] * (23 - len(values))][:23])
        assert "/" not in record.name
        if record.evidence is not None:
            assert parse_evidence(render_evidence(record.evidence)) == record.evidence
    for value in values:
        if isinstance(value, str):
            with suppress(ValueError):
                FileIdentity.parse(value)


def _storable(row: list[Any]) -> list[Any]:
    """What an SQLite column can hold: NULL, 64-bit integers, floats, texts (and blobs, made above)."""
    found: list[Any] = []
    for value in row:
        if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
            found.append(float("inf"))
        elif value is None or isinstance(value, int | float):
            found.append(value)
        else:
            found.append(str(value).encode("utf-8", "replace").decode())
    return found


def check_bucket_url(data: bytes) -> None:
    for text in _texts(data):
        with suppress(ConfigError):
            url = BucketUrl.parse(text)
            assert BucketUrl.parse(url.render()) == url
            if url.prefix:
                ObjectKey(url.prefix)
            if url.kind == "file":
                assert url.bucket.startswith("/")
        with suppress(ConfigError):
            S3Options(endpoint_url=text)
        with suppress(ValueError):
            parse_size(text)
        with suppress(InvalidInput):
            parse_crc64nvme(text)


def check_names(data: bytes) -> None:
    """Ids and keys from anywhere: refused, or unable to leave a folder they are put below."""
    for text in _texts(data):
        with suppress(InvalidSampleId):
            sample_id = SampleId(text)
            _check_inside(sample_id.text)
            _check_inside(member_name(sample_id))
            sample_id.digest()
        with suppress(InvalidInput):
            key = ObjectKey(text)
            _check_inside(key.text)
            parse_pack_key("p", key)
            parse_segment_key("p", key)
            assert all(len(segment.encode()) <= 255 for segment in segments_of(key))


def _check_inside(relative: str) -> None:
    assert "\0" not in relative
    assert not relative.startswith("/")
    assert os.path.normpath(_ROOT / relative).startswith(f"{_ROOT}/")
    assert (_ROOT / relative).as_posix() == f"{_ROOT}/{relative}"


def check_list_page(data: bytes) -> None:
    with suppress(UnknownAnswer, InventoryIncomplete):
        page = parse_page(data, "p/")
        assert all(row.size_bytes is not None and row.size_bytes >= 0 for row in page.rows)
        assert page.next_token != ""


def check_note(data: bytes) -> None:
    identity = FileIdentity(dev=1, inode=2, size_bytes=3, mtime_ns=4, ctime_ns=5)
    note = parse_note(data, ObjectKey("a/b"), identity=identity)
    assert note is None or note.size_bytes == 3


def check_input_row(data: bytes) -> None:
    assert isinstance(parse_row(data, line=1), RawRow | RowFailure)


# --- reshaping -----------------------------------------------------------------------------------------------------

_XML_TEXTS = (
    b"",
    b"true",
    b"false",
    b"url",
    b"p/",
    b"p/..%2f",
    b"p/%00",
    b"p/%ff",
    b"p/a//b",
    b"&#x0;",
    b"&#xd800;",
    b"&#55296;",
    b"&a;",
    b"-1",
    b"1_0",
    b"\xd9\xa1",
    b"9" * 30,
    b"9" * 5000,
    b"1e3",
    b"0",
    b"+1",
    b" 1 ",
    b"0001-01-01T00:00:00+23:59",
    b"p/z",
    b"p/e\xcc\x81",
    b"9999-12-31T23:59:59-23:59",
    b"0001-01-01",
    b"2024-W01-1",
    b"2024-01-01T00:00:00",
    b"GLACIER",
    b"<![CDATA[<]]>",
    b"p/" + b"k" * 1100,
)
_XML_HEADS = (
    b'<?xml version="1.0" encoding="utf-16"?>',
    b'<?xml version="1.0" encoding="x-none"?>',
    b"\xef\xbb\xbf",
    b'<!DOCTYPE a [<!ENTITY a "aaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>',
    b'<?xml version="1.0" encoding="idna"?>',
    b'<!DOCTYPE a [<!ENTITY a SYSTEM "file:///etc/passwd">]>',
    b"<html>",
    b'<?xml version="1.0" encoding="cp932"?>',
)
_ELEMENT = re.compile(rb"<(\w+)>([^<]*)</\1>")


def reshape_page(data: bytes, rng: random.Random) -> bytes:
    """Doubles, drops or empties elements of a listing, or gives them odd texts."""
    if rng.randrange(12) == 0:
        return rng.choice(_XML_HEADS) + data[data.find(b"?>") + 2 if rng.randrange(2) else 0 :]
    for _ in range(1 + rng.randrange(3)):
        elements = list(_ELEMENT.finditer(data))
        if not elements:
            break
        found = rng.choice(elements)
        tag = rng.choice((found[1], rng.choice(elements)[1]))
        text = rng.choice((found[2], *rng.sample(_XML_TEXTS, 3)))
        new = rng.choice(
            (b"", found[0] * 2, b"<%b>%b</%b>" % (tag, text, tag), b"<%b>%b</%b>" % (found[1], text, found[1]))
        )
        data = data[: found.start()] + new + data[found.end() :]
    return data


_URL = (
    b"s3://",
    b"file:///",
    b"memory://",
    b"://",
    b"//",
    b"/",
    b"..",
    b"%2e%2e",
    b"%00",
    b"@",
    b":",
    b"[::1]",
    b"#",
    b"?",
    b"\xff",
    b"\xed\xa0\x80",
    b"e\xcc\x81",
    b"\xe2\x80\xa8",
    b"\\",
    b"C:",
    b"~",
    b"http://u:p@h",
    b"MiB",
    b"1.5",
    b"\x7f",
)


def _insert(pieces: tuple[bytes, ...]) -> Any:
    def reshape(data: bytes, rng: random.Random) -> bytes:
        for _ in range(1 + rng.randrange(3)):
            at = rng.randrange(len(data) + 1)
            data = data[:at] + rng.choice(pieces) + data[at + rng.choice((0, 0, 1, 8)) :]
        return data if rng.randrange(3) else mutate_bytes(data, rng)

    return reshape


TEXT_TARGETS = (
    FuzzTarget(name="marker", check=check_marker),
    FuzzTarget(name="run", check=check_run),
    FuzzTarget(name="probe_result", check=check_probe),
    FuzzTarget(name="stop_of_reclaiming", check=check_stop),
    FuzzTarget(name="spool_root", check=check_root),
    FuzzTarget(name="snapshot", check=check_snapshot),
    FuzzTarget(name="journal_columns", check=check_journal_columns),
    FuzzTarget(name="bucket_url", check=check_bucket_url, max_bytes=1200, reshape=_insert(_URL)),
    FuzzTarget(name="names", check=check_names, max_bytes=1200, reshape=_insert(_URL)),
    FuzzTarget(name="list_page", check=check_list_page, reshape=reshape_page),
    FuzzTarget(name="directory_note", check=check_note),
    FuzzTarget(name="input_row", check=check_input_row),
)

"""The record of a multipart upload: what is written is what is read, and nothing odd is taken for a record."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durastore.errors import FormatUnsupported, IntegrityError
from durastore.formats.upload_session import PartRecord, UploadSession, parse_session, render_session

_parts = st.lists(
    st.builds(
        PartRecord,
        number=st.integers(1, 10_000),
        etag=st.text(min_size=1, max_size=40),
        size_bytes=st.integers(0, 1 << 40),
        crc64nvme=st.text(max_size=12),
    ),
    max_size=8,
    unique_by=lambda part: part.number,
).map(lambda parts: tuple(sorted(parts, key=lambda part: part.number)))


@given(upload_id=st.text(min_size=1, max_size=60), part_bytes=st.integers(1, 1 << 40), parts=_parts)
def test_a_record_reads_back_equal(upload_id: str, part_bytes: int, parts: tuple[PartRecord, ...]) -> None:
    session = UploadSession(upload_id=upload_id, part_bytes=part_bytes, parts=parts)
    assert parse_session(render_session(session)) == session


def _part(number: int, etag: str = '"e"') -> PartRecord:
    return PartRecord(number=number, etag=etag, size_bytes=5, crc64nvme="AAAAAAAAAAA=")


def test_a_part_sent_again_takes_the_place_of_the_earlier_one() -> None:
    session = UploadSession(upload_id="u", part_bytes=5)
    session = session.with_part(_part(2)).with_part(_part(1)).with_part(_part(2, '"again"'))
    assert [(part.number, part.etag) for part in session.parts] == [(1, '"e"'), (2, '"again"')]


@pytest.mark.parametrize(
    "change",
    [
        {"upload_id": ""},
        {"upload_id": 3},
        {"part_bytes": 0},
        {"part_bytes": True},
        {"part_bytes": 2.0},
        {"parts": [[2, "e", 5, "c"], [1, "e", 5, "c"]]},
        {"parts": [[1, "e", 5, "c"], [1, "e", 5, "c"]]},
        {"parts": [[0, "e", 5, "c"]]},
        {"parts": [[10_001, "e", 5, "c"]]},
        {"parts": [[1, "", 5, "c"]]},
        {"parts": [[1, "e", -1, "c"]]},
        {"parts": [[1, "e", 5]]},
        {"parts": None},
        {"format": "1"},
    ],
)
def test_an_odd_record_is_refused(change: dict[str, object]) -> None:
    value = json.loads(render_session(UploadSession(upload_id="u", part_bytes=5, parts=(_part(1),)))) | change
    with pytest.raises(IntegrityError):
        parse_session(json.dumps(value))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 5000, '{"format":1}'])
def test_garbage_is_refused(text: str) -> None:
    with pytest.raises(IntegrityError):
        parse_session(text)


def test_a_newer_format_is_refused_and_not_guessed_at() -> None:
    with pytest.raises(FormatUnsupported):
        parse_session('{"format":2,"upload_id":"u","part_bytes":5,"parts":[]}')

"""CRC64NVME as S3 writes it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durastore.errors import InvalidInput
from durastore.objectstore.crc import Crc64Nvme, combine, crc64nvme_b64, parse_crc64nvme, render_crc64nvme


def test_the_published_check_value() -> None:
    assert parse_crc64nvme(crc64nvme_b64(b"123456789")) == 0xAE8B14860A799888
    assert crc64nvme_b64(b"") == "AAAAAAAAAAA="


@given(first=st.binary(max_size=200), second=st.binary(max_size=200))
def test_running_and_combined_equal_the_whole(first: bytes, second: bytes) -> None:
    whole = crc64nvme_b64(first + second)
    running = Crc64Nvme()
    running.update(memoryview(first))
    running.update(bytearray(second))
    assert running.text() == whole
    assert running.size_bytes == len(first) + len(second)
    assert combine(crc64nvme_b64(first), crc64nvme_b64(second), second_size_bytes=len(second)) == whole
    assert crc64nvme_b64(second, parse_crc64nvme(crc64nvme_b64(first))) == whole


def test_views_of_other_shapes_are_their_bytes() -> None:
    view = memoryview(b"0123456789abcdef").cast("I")
    assert crc64nvme_b64(view) == crc64nvme_b64(b"0123456789abcdef")


@given(value=st.integers(0, 2**64 - 1))
def test_texts_parse_back(value: int) -> None:
    assert parse_crc64nvme(render_crc64nvme(value)) == value


@pytest.mark.parametrize("text", ["", "AAAA", "not base64!!", "AAAAAAAAAAAAAAAA", "AAAAAAAAAAA=-2"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_crc64nvme(text)

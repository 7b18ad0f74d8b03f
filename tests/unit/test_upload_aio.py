"""What the aio transport hands to its client, and what it makes of broken connections."""

from __future__ import annotations

import io
import sys
import tracemalloc

import pytest

from durastore.errors import AmbiguousWrite, ConfigError, DurastoreError, EndpointUnreachable
from durastore.model import ObjectKey
from durastore.objectstore.location import S3Options
from durastore.upload.aio import _Body, _classified, _is_path_style, aio_transport

KEY = ObjectKey("p/x")


def test_a_body_is_measured_without_a_copy_and_read_once() -> None:
    data = bytes(range(256)) * 4096 * 8
    tracemalloc.start()
    body = _Body(memoryview(data))
    with body.getbuffer() as view:
        assert len(view) - body.tell() == len(data)
    assert tracemalloc.get_traced_memory()[1] < len(data) // 2
    tracemalloc.stop()
    assert body.seek(0, io.SEEK_END) == len(data)
    body.seek(0)
    tracemalloc.start()
    pieces = list(iter(lambda: body.read(1 << 16), b""))  # what aiohttp asks for
    assert tracemalloc.get_traced_memory()[1] < len(data) // 2
    tracemalloc.stop()
    assert b"".join(pieces) == data
    assert {len(piece) for piece in pieces} == {256 << 10}
    for second_use in (body.tell, lambda: body.seek(0)):
        with pytest.raises(OSError, match="sent once"):
            second_use()


def test_only_a_connection_that_never_stood_counts_as_not_sent() -> None:
    from aiohttp import ClientConnectorError, ClientOSError
    from aiohttp.client_reqrep import ConnectionKey
    from botocore.exceptions import EndpointConnectionError

    target = ConnectionKey("h", 1, False, True, None, None, None)
    never = EndpointConnectionError(
        endpoint_url="http://h", error=ClientConnectorError(target, OSError(111, "refused"))
    )
    broke = EndpointConnectionError(endpoint_url="http://h", error=ClientOSError(104, "reset by peer"))

    def kind(exc: Exception, *, is_write: bool) -> type[DurastoreError]:
        return type(_classified(exc, is_write=is_write, what="put", key=KEY))

    assert kind(never, is_write=True) is EndpointUnreachable
    assert kind(broke, is_write=True) is AmbiguousWrite
    assert kind(broke, is_write=False) is EndpointUnreachable


@pytest.mark.parametrize(
    "bucket, endpoint, is_path",
    [
        ("b", "https://s3.eu-west-1.amazonaws.com", False),
        ("b.c", "https://s3.eu-west-1.amazonaws.com", True),
        ("b", "http://127.0.0.1:9000", True),
        ("b", "https://notamazonaws.com", True),
    ],
)
def test_the_bucket_is_in_the_host_only_for_aws_and_a_name_without_dots(
    bucket: str, endpoint: str, is_path: bool
) -> None:
    assert _is_path_style(bucket, endpoint) is is_path


def test_without_the_package_the_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

    monkeypatch.setitem(sys.modules, "aioboto3", None)
    monkeypatch.setattr("durastore.extras.find_spec", lambda _: None)

    async def enter() -> None:
        async with aio_transport("b", options=S3Options(), max_requests=1)():
            raise AssertionError("opened")

    with pytest.raises(ConfigError, match=r"durastore\[aio\]"):
        asyncio.run(enter())

"""The `aio` transport: one aioboto3 client on the engine's loop.

Duty: single low-level S3 requests with explicit checksum headers, botocore's own retries off. Must never use a managed
transfer, a streaming trailer or a payload signature, and never say "not sent" of a request that may have been.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from durastore.errors import (
    AmbiguousWrite,
    CredentialsRefused,
    DurastoreError,
    RequestRefused,
    UnknownAnswer,
)
from durastore.extras import ensure_extra
from durastore.model import ObjectKey
from durastore.objectstore.classify import NO_CREDENTIALS_HINT, classify
from durastore.objectstore.location import S3Options
from durastore.objectstore.media_type import name_media_type
from durastore.objectstore.port import Body, ObjectStat, PartReply, WriteReply
from durastore.objectstore.s3_client import expecting_owner, refuse_blind_redirect, shared_loader, without_expect
from durastore.objectstore.s3_read import is_archived, server_time_of
from durastore.objectstore.s3_thrift import spare_repeated_work
from durastore.upload.port import Transport, TransportFactory

__all__ = ["AioTransport", "aio_transport"]

_PIECE_BYTES = 256 << 10
_NEVER_CONNECTED = frozenset(("ClientConnectorError", "gaierror"))


class AioTransport:
    """`Transport` over an aiobotocore client. Belongs to the loop the client was made on."""

    def __init__(self, client: Any, *, bucket: str, options: S3Options) -> None:
        self._client = client
        self._bucket = bucket
        self._options = options
        self._sent = options.sent

    async def put(
        self, key: ObjectKey, body: Body, *, crc64nvme: str, metadata: Mapping[str, str], if_absent: bool
    ) -> WriteReply:
        arguments = {**self._creation(metadata), **await _body(body, crc64nvme, kind=self._sent.single)}
        if if_absent:
            arguments["IfNoneMatch"] = "*"
        return _reply(await self._ask("put_object", key, what="put", arguments=arguments), f"put {key}")

    async def create(self, key: ObjectKey, *, metadata: Mapping[str, str]) -> str:
        arguments, kind = self._creation(metadata), self._sent.multipart
        if kind == "crc64nvme":
            arguments |= {"ChecksumAlgorithm": "CRC64NVME", "ChecksumType": "FULL_OBJECT"}
        answer = await self._ask("create_multipart_upload", key, what="create upload of", arguments=arguments)
        upload_id = answer.get("UploadId")
        if not upload_id:
            raise UnknownAnswer(f"create upload of {key}: the answer carries no upload id")
        self._sent.begin(str(upload_id), kind=kind)
        return str(upload_id)

    async def upload_part(
        self, key: ObjectKey, upload_id: str, *, number: int, body: Body, crc64nvme: str
    ) -> PartReply:
        content = await _body(body, crc64nvme, kind=self._sent.of(upload_id))
        arguments = {"UploadId": upload_id, "PartNumber": number, **content}
        answer = await self._ask("upload_part", key, what=f"upload part {number} of", arguments=arguments)
        reply = _reply(answer, f"upload part {number} of {key}")
        return PartReply(number=number, etag=reply.etag, size_bytes=len(body), crc64nvme=crc64nvme)

    async def complete(
        self, key: ObjectKey, upload_id: str, *, parts: Sequence[PartReply], size_bytes: int, crc64nvme: str
    ) -> WriteReply:
        has_checksum = self._sent.of(upload_id) == "crc64nvme"
        listed: list[dict[str, Any]] = []
        for part in parts:
            checksum = {"ChecksumCRC64NVME": part.crc64nvme} if has_checksum and part.crc64nvme else {}
            listed.append({"PartNumber": part.number, "ETag": part.etag, **checksum})
        arguments: dict[str, Any] = {"UploadId": upload_id, "MultipartUpload": {"Parts": listed}}
        if has_checksum:
            arguments |= {"ChecksumCRC64NVME": crc64nvme, "ChecksumType": "FULL_OBJECT", "MpuObjectSize": size_bytes}
        answer = await self._ask("complete_multipart_upload", key, what="complete", arguments=arguments)
        if answer.get("Key") not in (key.text, None):
            raise AmbiguousWrite(f"complete {key}: answered 200 about another object", status=200)
        reply = _reply(answer, f"complete {key}")
        self._sent.end(upload_id)  # an answer without an etag raised: it is completed again, with the same headers
        return reply

    async def abort(self, key: ObjectKey, upload_id: str) -> None:
        try:
            await self._ask("abort_multipart_upload", key, what="abort upload of", arguments={"UploadId": upload_id})
        except RequestRefused as exc:
            if exc.facts.get("server_code") != "NoSuchUpload":
                raise
        self._sent.end(upload_id)

    async def head(self, key: ObjectKey) -> ObjectStat:
        """As the port says. A 404 is taken as it stands: here absence only ever leads to sending again."""
        answer = await self._ask("head_object", key, what="head", arguments={"ChecksumMode": "ENABLED"})
        return _stat(key, answer)

    async def list_parts(self, key: ObjectKey, upload_id: str) -> list[PartReply]:
        found: list[PartReply] = []
        marker = 0
        while True:
            arguments = {"UploadId": upload_id, "PartNumberMarker": marker}
            answer = await self._ask("list_parts", key, what="list parts of", arguments=arguments)
            for part in answer.get("Parts", []):
                checksum = part.get("ChecksumCRC64NVME", "")
                found.append(
                    PartReply(number=part["PartNumber"], etag=part["ETag"], size_bytes=part["Size"], crc64nvme=checksum)
                )
            if answer.get("IsTruncated") is False:
                return found
            following = int(answer.get("NextPartNumberMarker") or 0)
            if following <= marker:
                raise UnknownAnswer(f"list parts of {key}: the answer does not say where it goes on")
            marker = following

    async def _ask(self, operation: str, key: ObjectKey, *, what: str, arguments: dict[str, Any]) -> dict[str, Any]:
        is_write = operation not in ("head_object", "list_parts")
        try:
            answer: dict[str, Any] = await getattr(self._client, operation)(
                Bucket=self._bucket, Key=key.text, **arguments
            )
        except Exception as exc:
            raise _classified(exc, is_write=is_write, what=what, key=key) from exc
        return answer

    def _creation(self, metadata: Mapping[str, str]) -> dict[str, Any]:
        options = self._options
        arguments: dict[str, Any] = {"Metadata": dict(metadata)}
        if options.storage_class:
            arguments["StorageClass"] = options.storage_class
        if options.sse:
            arguments["ServerSideEncryption"] = options.sse
        if options.kms_key:
            arguments["SSEKMSKeyId"] = options.kms_key
        return arguments


async def _body(body: Body, crc64nvme: str, *, kind: str) -> dict[str, Any]:
    if kind == "crc64nvme":
        return {"Body": _Body(body), "ChecksumCRC64NVME": crc64nvme}
    if kind == "md5":
        digest = await asyncio.to_thread(lambda: hashlib.md5(body, usedforsecurity=False).digest())
        return {"Body": _Body(body), "ContentMD5": base64.b64encode(digest).decode("ascii")}
    return {"Body": _Body(body)}


class _Body(io.BytesIO):
    """A part's bytes as a stream that can be sent once.

    A BytesIO by name only, which aiohttp knows how to send: a real one would copy what is not `bytes`, and again to
    tell its length. aiohttp also sends a PUT again by itself when a connection breaks, in some versions only what the
    first sending left unread (case B50): a body that was read from refuses to be measured or rewound.
    """

    def __init__(self, data: Body) -> None:
        super().__init__()
        self._data = memoryview(data)
        self._at = 0
        self._is_begun = False

    def getbuffer(self) -> memoryview:
        return self._data[:]

    def read(self, size: int | None = -1, /) -> memoryview:  # type: ignore[override]  # copied by the socket alone
        """The next piece, not copied, and a larger one than the 64 KiB that aiohttp asks for: each costs it a round of
        the loop, whatever it holds.
        """
        self._is_begun = True
        stop = len(self._data) if size is None or size < 0 else self._at + max(size, _PIECE_BYTES)
        piece = self._data[self._at : stop]
        self._at += len(piece)
        return piece

    def tell(self) -> int:
        self._refuse_second_use()
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        self._refuse_second_use()
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: len(self._data)}[whence]
        self._at = min(max(origin + offset, 0), len(self._data))
        return self._at

    def _refuse_second_use(self) -> None:
        if self._is_begun:
            raise OSError("a request's body is sent once; another attempt brings its own")


def _classified(exc: Exception, *, is_write: bool, what: str, key: ObjectKey) -> DurastoreError:
    # aiobotocore calls every broken connection "could not connect", also one that broke after the body was sent.
    error = getattr(exc, "kwargs", {}).get("error")
    if type(exc).__name__ == "EndpointConnectionError" and isinstance(error, Exception):
        names = {kind.__name__ for kind in type(error).__mro__}
        if not names & _NEVER_CONNECTED:
            return classify(error, write=is_write, what=what, key=key)
    return classify(exc, write=is_write, what=what, key=key)


def _reply(answer: Mapping[str, Any], title: str) -> WriteReply:
    etag = answer.get("ETag")
    if not etag:  # a 200 with an empty or unrelated body parses to this (case B53)
        raise AmbiguousWrite(f"{title}: answered success without an etag", status=200)
    return WriteReply(etag=str(etag), version_id=answer.get("VersionId"), server_time_s=server_time_of(answer))


def _stat(key: ObjectKey, answer: Mapping[str, Any]) -> ObjectStat:
    headers = answer["ResponseMetadata"]["HTTPHeaders"]
    checksum = answer.get("ChecksumCRC64NVME")
    modified = answer.get("LastModified")
    return ObjectStat(
        key=key,
        size_bytes=answer.get("ContentLength") if "content-length" in headers else None,
        etag=answer.get("ETag", ""),
        version_id=answer.get("VersionId"),
        crc64nvme=checksum if checksum and answer.get("ChecksumType", "FULL_OBJECT") == "FULL_OBJECT" else None,
        metadata=tuple(sorted((name.lower(), value) for name, value in answer.get("Metadata", {}).items())),
        storage_class=answer.get("StorageClass"),
        is_readable=not is_archived(
            answer.get("StorageClass"), answer.get("ArchiveStatus"), restore=answer.get("Restore")
        ),
        server_time_s=server_time_of(answer),
        last_modified_s=modified.timestamp() if modified is not None else None,
    )


def _config(options: S3Options, *, style: str, max_requests: int) -> Any:
    from aiobotocore.config import AioConfig
    from aiobotocore.httpsession import AIOHTTPSession

    class OneAttempt(AIOHTTPSession):  # type: ignore[misc]  # its package has no types
        """aiohttp's own second attempt at a broken PUT is switched off: retries have one home."""

        async def _get_session(self, proxy_url: str | None) -> Any:
            session = await super()._get_session(proxy_url)
            session._retry_connection = False
            return session

    return AioConfig(
        http_session_cls=OneAttempt,
        connect_timeout=options.connect_timeout_s,
        read_timeout=options.read_timeout_s,
        retries={"total_max_attempts": 1, "mode": "standard"},
        max_pool_connections=max_requests,
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={"addressing_style": style, "payload_signing_enabled": False},
        user_agent_extra="durastore",
    )


def _is_path_style(bucket: str, endpoint_url: str) -> bool:
    """Only AWS can be relied on to resolve bucket.host; and a dotted bucket name breaks its wildcard certificate."""
    host = urlsplit(endpoint_url).hostname or ""
    return "." in bucket or not host.endswith((".amazonaws.com", ".amazonaws.com.cn"))


async def _open_client(stack: AsyncExitStack, bucket: str, *, options: S3Options, max_requests: int) -> Any:
    import aioboto3
    from aiobotocore.session import AioSession

    core = AioSession(profile=options.profile)
    core.register_component("data_loader", shared_loader(core.get_config_variable("data_path")))
    session = aioboto3.Session(botocore_session=core, region_name=options.region)
    if await session.get_credentials() is None:
        raise CredentialsRefused("no AWS credentials found", hint=NO_CREDENTIALS_HINT)

    async def opened(style: str) -> Any:
        config = _config(options, style=style, max_requests=max_requests)
        client = session.client("s3", endpoint_url=options.endpoint_url, config=config, verify=options.ca_bundle)
        return await stack.enter_async_context(client)

    style = options.addressing_style
    if style == "auto" and options.endpoint_url and _is_path_style(bucket, options.endpoint_url):
        style = "path"
    client = await opened(style)
    # The endpoint may also come from the environment or a profile: then only the client can tell what it is.
    if style == "auto" and _is_path_style(bucket, str(client.meta.endpoint_url)):
        client = await opened("path")
    spare_repeated_work(client, core.get_component("data_loader"))
    client.meta.events.register("before-sign.s3", without_expect)
    client.meta.events.register("before-sign.s3", name_media_type)
    client.meta.events.register("response-received.s3", refuse_blind_redirect)
    if options.bucket_owner is not None:
        client.meta.events.register("before-sign.s3", expecting_owner(options.bucket_owner))
    return client


def aio_transport(bucket: str, *, options: S3Options, max_requests: int) -> TransportFactory:
    """A factory of transports for `bucket`. On opening: `ConfigError` where aioboto3 is not installed,
    `CredentialsRefused` where there are no credentials.
    """

    @asynccontextmanager
    async def open_transport() -> AsyncIterator[Transport]:
        ensure_extra("aio", "aioboto3", what="transport aio (others: threads, auto)")
        async with AsyncExitStack() as stack:
            try:
                client = await _open_client(stack, bucket, options=options, max_requests=max_requests)
            except Exception as exc:
                raise classify(exc, write=False, what="opening a client") from exc
            yield AioTransport(client, bucket=bucket, options=options)

    return open_transport

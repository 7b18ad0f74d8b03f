"""An S3 endpoint in memory behind the probe's port: honest, or dishonest in exactly the ways a test asks for."""

from __future__ import annotations

import hashlib
import random
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from durastore.objectstore.probe.lies import md5_hex, multipart_etag_md5, true_checksum
from durastore.objectstore.probe.port import (
    NO_CLAIMS,
    Answer,
    Claims,
    Condition,
    ExpiryRule,
    ListedPage,
    ListQuery,
    PartClaim,
    WholeClaim,
)
from durastore.objectstore.probe.result import ChecksumKind

CRC, MD5 = ChecksumKind.CRC64NVME, ChecksumKind.CONTENT_MD5
NO_CONDITION = Condition()


class Guard(Enum):
    """What the endpoint does with a checksum it is sent."""

    REFUSE = "refuse it when wrong"
    IGNORE = "store, and forget the claim"
    ECHO = "store, and return the claim as its own"
    REJECT = "refuse it always"
    UNKNOWN_HEADER = "say that it does not know it"
    COIN = "refuse it when wrong and a coin says so"


@dataclass(kw_only=True)
class Ways:
    """How this endpoint is. The default is an honest one that checks everything."""

    put: Mapping[ChecksumKind, Guard] = field(default_factory=dict)
    part: Mapping[ChecksumKind, Guard] = field(default_factory=dict)
    complete: Guard = Guard.REFUSE
    is_size_checked: bool = True
    tells_single: bool = True
    tells_multipart: bool = True
    is_etag_md5: bool = True
    is_multipart_etag_md5: bool = True
    create_only: str = "honour"
    """honour, ignore, unsupported, always-412, replace."""
    if_match: str = "honour"
    range_answer: str = "honour"
    """honour, whole, 200, shifted."""
    stores_torn: bool = False
    stores_refused: bool = False
    ends_upload_on_refusal: bool = False
    may_list: bool = True
    may_head: bool = True
    folds_case: bool = False
    lists: str = "honour"
    """honour, unordered, omit, endless."""
    versioning: str | None = ""
    rules: tuple[ExpiryRule, ...] | None = ()
    expiration: str | None = None
    skew_s: float = 0.0
    damages: bool = False


@dataclass(kw_only=True)
class _Object:
    body: bytes
    etag: str
    claims: dict[ChecksumKind, str]
    is_multipart: bool = False


@dataclass(kw_only=True)
class _Upload:
    key: str
    kind: ChecksumKind | None
    parts: dict[int, bytes] = field(default_factory=dict)
    etags: dict[int, str] = field(default_factory=dict)


REFUSED = Answer(status=400, code="BadDigest")
DENIED = Answer(status=403, code="AccessDenied")
MISSING = Answer(status=404, code="NoSuchKey")
NO_UPLOAD = Answer(status=404, code="NoSuchUpload")
NOT_IMPLEMENTED = Answer(status=501, code="NotImplemented")
STALE = Answer(status=412, code="PreconditionFailed")


class FakeEndpoint:
    """`ProbePort` over a dictionary. `meddle(number, operation)` may put another answer in the place of a request's."""

    endpoint, bucket, account = "https://objects.example", "data", "0" * 32

    def __init__(
        self,
        ways: Ways | None = None,
        *,
        meddle: Callable[[int, str], Answer | None] | None = None,
        now_s: Callable[[], float] = lambda: 1_700_000_000.0,
        seed: int = 0,
    ) -> None:
        self.ways = ways or Ways()
        self.objects: dict[str, _Object] = {}
        self.uploads: dict[str, _Upload] = {}
        self.requests: list[tuple[str, str]] = []
        self._meddle = meddle
        self._now_s = now_s
        self._coin = random.Random(seed)

    def close(self) -> None:
        pass

    def put(self, key: str, body: bytes, *, claims: Claims = NO_CLAIMS, condition: Condition = NO_CONDITION) -> Answer:
        return self._serve("put", key, lambda: self._put(key, body, claims=claims, condition=condition))

    def put_truncated(self, key: str, body: bytes, *, sent_bytes: int) -> Answer:
        def act() -> Answer:
            if self.ways.stores_torn:
                self._keep(key, body[:sent_bytes], claims={})
            return Answer(status=400, code="IncompleteBody")

        return self._serve("put_truncated", key, act)

    def head(self, key: str) -> Answer:
        return self._serve("head", key, lambda: self._look(key) if self.ways.may_head else DENIED)

    def get(self, key: str, *, span: tuple[int, int] | None = None, condition: Condition = NO_CONDITION) -> Answer:
        return self._serve("get", key, lambda: self._get(key, span, condition=condition))

    def create_upload(self, key: str, *, kind: ChecksumKind | None) -> Answer:
        def act() -> Answer:
            upload_id = secrets.token_hex(8)
            self.uploads[upload_id] = _Upload(key=key, kind=kind)
            return Answer(status=200, upload_id=upload_id)

        return self._serve("create_upload", key, act)

    def upload_part(self, key: str, upload_id: str, *, number: int, body: bytes, claims: Claims) -> Answer:
        def act() -> Answer:
            upload = self.uploads.get(upload_id)
            if upload is None:
                return NO_UPLOAD
            refusal = self._judge(self.ways.part, claims, body=body)
            if refusal is not None:
                if self.ways.ends_upload_on_refusal:
                    del self.uploads[upload_id]
                return refusal
            upload.parts[number] = body
            upload.etags[number] = f'"{md5_hex(body)}"' if self.ways.is_multipart_etag_md5 else '"opaque"'
            return Answer(status=200, etag=upload.etags[number])

        return self._serve("upload_part", key, act)

    def complete_upload(self, key: str, upload_id: str, *, parts: Sequence[PartClaim], whole: WholeClaim) -> Answer:
        return self._serve("complete_upload", key, lambda: self._complete(upload_id, parts, whole=whole))

    def abort_upload(self, key: str, upload_id: str) -> Answer:
        def act() -> Answer:
            return NO_UPLOAD if self.uploads.pop(upload_id, None) is None else Answer(status=204)

        return self._serve("abort_upload", key, act)

    def list_page(self, query: ListQuery) -> Answer:
        return self._serve("list", query.prefix, lambda: self._list(query) if self.ways.may_list else DENIED)

    def fetch_versioning(self) -> Answer:
        word = self.ways.versioning
        return self._serve("versioning", "", lambda: DENIED if word is None else Answer(status=200, versioning=word))

    def fetch_lifecycle(self) -> Answer:
        rules = self.ways.rules
        return self._serve("lifecycle", "", lambda: DENIED if rules is None else Answer(status=200, rules=rules))

    def _serve(self, operation: str, key: str, act: Callable[[], Answer]) -> Answer:
        from dataclasses import replace

        self.requests.append((operation, key))
        meddled = self._meddle(len(self.requests), operation) if self._meddle is not None else None
        answer = act() if meddled is None else meddled
        if answer.status is None:
            return answer
        return replace(answer, server_time_s=float(int(self._now_s() + self.ways.skew_s)))

    def _put(self, key: str, body: bytes, *, claims: Claims, condition: Condition) -> Answer:
        ways, held = self.ways, self.objects.get(self._name(key))
        if condition.is_create_only:
            if ways.create_only == "unsupported":
                return NOT_IMPLEMENTED
            if ways.create_only == "always-412":
                return STALE
            if held is not None and ways.create_only in ("honour", "replace"):
                if ways.create_only == "replace":
                    self._keep(key, body, claims={})
                return STALE
        if condition.if_match is not None:
            if ways.if_match == "unsupported":
                return NOT_IMPLEMENTED
            if ways.if_match == "honour" and (held is None or held.etag != condition.if_match):
                return STALE
        refusal = self._judge(ways.put, claims, body=body)
        if refusal is not None:
            if ways.stores_refused:
                self._keep(key, body, claims={})
            return refusal
        echoed = {kind: value for kind, value in claims.items() if ways.put.get(kind) is Guard.ECHO}
        kept = self._keep(key, body, claims=echoed)
        return Answer(status=200, etag=kept.etag, expiration=ways.expiration)

    def _judge(self, guards: Mapping[ChecksumKind, Guard], claims: Claims, *, body: bytes) -> Answer | None:
        for kind, value in claims.items():
            guard, is_wrong = guards.get(kind, Guard.REFUSE), value != true_checksum(kind, body)
            if guard is Guard.UNKNOWN_HEADER:
                return NOT_IMPLEMENTED
            is_unlucky = guard is Guard.COIN and is_wrong and self._coin.random() < 0.5
            if guard is Guard.REJECT or (guard is Guard.REFUSE and is_wrong) or is_unlucky:
                return REFUSED
        return None

    def _keep(self, key: str, body: bytes, *, claims: dict[ChecksumKind, str]) -> _Object:
        ways = self.ways
        etag = f'"{md5_hex(body)}"' if ways.is_etag_md5 else f'"x{hashlib.sha256(body).hexdigest()[:31]}"'
        if MD5 in claims:
            import base64

            etag = f'"{base64.b64decode(claims.pop(MD5)).hex()}"'
        told = {kind: true_checksum(kind, body) for kind in (CRC,) if ways.tells_single}
        self.objects[self._name(key)] = _Object(body=body, etag=etag, claims=told | claims)
        return self.objects[self._name(key)]

    def _complete(self, upload_id: str, parts: Sequence[PartClaim], *, whole: WholeClaim) -> Answer:
        ways, upload = self.ways, self.uploads.get(upload_id)
        if upload is None:
            return NO_UPLOAD
        if any(upload.etags.get(part.number) != part.etag for part in parts):
            return Answer(status=400, code="InvalidPart")
        bodies = [upload.parts[part.number] for part in parts]
        content = b"".join(bodies)
        is_wrong = whole.crc64nvme is not None and whole.crc64nvme != true_checksum(CRC, content)
        is_refused = ways.complete is Guard.REFUSE or (ways.complete is Guard.COIN and self._coin.random() < 0.5)
        is_misfit = ways.is_size_checked and whole.size_bytes not in (None, len(content))
        if (is_wrong and is_refused) or is_misfit or (ways.complete is Guard.REJECT and whole.crc64nvme is not None):
            if ways.ends_upload_on_refusal:
                del self.uploads[upload_id]
            return REFUSED
        del self.uploads[upload_id]
        told = {CRC: true_checksum(CRC, content)} if ways.tells_multipart and upload.kind is CRC else {}
        if ways.complete is Guard.ECHO and whole.crc64nvme is not None:
            told[CRC] = whole.crc64nvme
        etag = f'"{multipart_etag_md5(bodies)}"' if ways.is_multipart_etag_md5 else '"opaque-2"'
        self.objects[self._name(upload.key)] = _Object(body=content, etag=etag, claims=told, is_multipart=True)
        return Answer(status=200, etag=etag)

    def _look(self, key: str) -> Answer:
        held = self.objects.get(self._name(key))
        if held is None:
            return MISSING if self.ways.may_list else DENIED
        return Answer(status=200, etag=held.etag, size_bytes=len(held.body), checksums=held.claims)

    def _get(self, key: str, span: tuple[int, int] | None, *, condition: Condition) -> Answer:
        held = self.objects.get(self._name(key))
        if held is None:
            return MISSING if self.ways.may_list else DENIED
        if condition.if_match is not None and self.ways.if_match == "honour" and condition.if_match != held.etag:
            return STALE
        body = held.body[:-1] + b"!" if self.ways.damages else held.body
        if span is None or self.ways.range_answer == "whole":
            return Answer(status=200, body=body, etag=held.etag)
        start, stop = span
        if self.ways.range_answer == "shifted":
            start, stop = start + 1, stop + 1
        told = f"bytes {span[0]}-{span[1] - 1}/{len(body)}"
        status = 200 if self.ways.range_answer == "200" else 206
        return Answer(status=status, body=body[start:stop], etag=held.etag, content_range=told)

    def _list(self, query: ListQuery) -> Answer:
        keys = sorted((key for key in self.objects if key.startswith(query.prefix)), key=str.encode)
        if self.ways.lists == "unordered":
            keys.reverse()
        if self.ways.lists == "omit":
            keys = keys[1:]
        if query.start_after is not None:
            keys = [key for key in keys if key.encode() > query.start_after.encode()]
        start = int(query.token or 0)
        stop = start + query.max_keys
        is_more = self.ways.lists == "endless" or stop < len(keys)
        page = ListedPage(keys=tuple(keys[start:stop]), is_truncated=is_more, next_token=str(stop) if is_more else None)
        return Answer(status=200, page=page)

    def _name(self, key: str) -> str:
        return key.lower() if self.ways.folds_case else key

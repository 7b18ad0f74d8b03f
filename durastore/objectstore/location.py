"""Where the remote side is: bucket URLs, the options of an S3 connection, and opening what they name.

Duty: parse once, at the edge, into checked values; choose the adapter. Must never hold, accept or show a credential.
"""

from __future__ import annotations

import os
import re
import unicodedata
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal
from urllib.parse import unquote_to_bytes

from durastore.config import StoreOptions
from durastore.errors import ConfigError, InvalidInput
from durastore.model import ObjectKey
from durastore.objectstore.port import ObjectStore
from durastore.objectstore.sent_checksums import SentChecksums
from durastore.texts import checked_address, checked_ends, expanded, has_unseen_end

__all__ = ["BucketUrl", "S3Options", "open_object_store"]

_BUCKET_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")
_MEMORY_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")
_HINT = "use s3://bucket/prefix, a bucket name, /directory, ./directory, file:///directory or memory://name"

Kind = Literal["s3", "file", "memory"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketUrl:
    """A bucket and the prefix inside it. For a directory the whole path is the bucket and the prefix is empty."""

    kind: Kind
    bucket: str
    """Bucket name, memory name, or the absolute path of the directory."""
    prefix: str = ""
    """Without leading or trailing slash; empty for the whole bucket."""

    @classmethod
    def parse(cls, text: str | os.PathLike[str]) -> BucketUrl:
        """`s3://bucket[/prefix]`, a bare bucket name, `file:///path`, `/path`, `./path`, `memory://name[/prefix]`.

        A `Path` is a directory, however it is written. `ConfigError` on anything else. Does no I/O: a relative path is
        resolved against the working directory by name. A blank at an end is refused, unless a slash follows it.
        """
        if not isinstance(text, str):
            return cls(kind="file", bucket=_checked_path(os.fspath(text)))
        checked_ends(text, name="the bucket's address")
        scheme, mark, rest = text.partition("://")
        if not mark:
            return _parse_plain(text)
        if scheme == "s3":
            bucket, _, prefix = rest.partition("/")
            return cls(kind="s3", bucket=_checked_bucket(bucket), prefix=_checked_prefix(prefix))
        if scheme == "memory":
            name, _, prefix = rest.partition("/")
            if not _MEMORY_NAME.fullmatch(name):
                raise ConfigError("not a usable memory:// name", hint=_HINT)
            return cls(kind="memory", bucket=name, prefix=_checked_prefix(prefix))
        if scheme == "file" and rest.startswith("/"):
            return cls(kind="file", bucket=_checked_path(_unquoted(rest)))
        raise ConfigError("not a bucket URL that durastore knows", hint=_HINT)  # not quoted: it may hold a secret

    def render(self) -> str:
        """The URL that parses to this value."""
        if self.kind == "file":
            return Path(self.bucket).as_uri()
        slash = "/" if has_unseen_end(self.prefix[-1:]) else ""  # without it `parse` takes the blank for a slip
        return f"{self.kind}://{self.bucket}" + (f"/{self.prefix}{slash}" if self.prefix else "")

    def __str__(self) -> str:
        return self.render()


def _parse_plain(text: str) -> BucketUrl:
    if text.startswith(("/", "./", "../", "~/")) or text in (".", "..", "~"):
        return BucketUrl(kind="file", bucket=_checked_path(text))
    if "/" in text:
        slip = "s3: takes two slashes:" if text.startswith("s3:") else "did you forget the s3:// in front?"
        raise ConfigError("neither a bucket name nor a path", hint=f"{slip} {_HINT}")  # not quoted: maybe a secret
    return BucketUrl(kind="s3", bucket=_checked_bucket(text))


def _checked_bucket(name: str) -> str:
    if not _BUCKET_NAME.fullmatch(name):
        raise ConfigError("not a usable bucket name", hint=f"{_HINT}; credentials never go into a URL")
    return name


def _checked_prefix(prefix: str) -> str:
    prefix = prefix.removesuffix("/")
    if prefix:
        if any(unicodedata.category(c) == "Cc" for c in prefix):
            raise ConfigError("the prefix holds a control character", hint="take it out: a line end, a tab?")
        try:
            ObjectKey(prefix)
        except InvalidInput as exc:
            raise ConfigError(f"prefix {ascii(prefix)[:100]} has an empty or dot segment, or is too long") from exc
    return prefix


def _unquoted(path: str) -> str:
    """As bytes, since a path need not be text: `Path.as_uri` writes its bytes too."""
    return os.fsdecode(unquote_to_bytes(_path_bytes(path)))


def _path_bytes(path: str) -> bytes:
    try:
        return os.fsencode(path)
    except UnicodeEncodeError as exc:
        raise ConfigError(f"{ascii(path)[:100]} cannot be a path") from exc


def _checked_path(text: str) -> str:
    if b"\0" in _path_bytes(text):
        raise ConfigError("the path holds a NUL")
    return str(expanded(text).absolute())


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Options:
    """How to reach an S3 endpoint. Credentials have no field: they come by the standard AWS chain only."""

    endpoint_url: str | None = None
    region: str | None = None
    profile: str | None = None
    addressing_style: str = "auto"
    """`path`, `virtual`, or `auto`: path for an endpoint of one's own, virtual for AWS."""
    ca_bundle: str | None = None
    connect_timeout_s: float = 10.0
    read_timeout_s: float = 60.0
    storage_class: str | None = None
    sse: str | None = None
    kms_key: str | None = None
    bucket_owner: str | None = None
    """The AWS account (12 digits) the bucket has to belong to; requests say so, and another's bucket refuses them."""
    checksum: str = "auto"
    """What is sent with bodies: `crc64nvme`, `md5` (Content-MD5), `none`; `auto`: what a probe saw work."""
    sent: SentChecksums = field(init=False, repr=False, compare=False)
    """The choice as it stands, shared by everything that is opened with these options."""

    @classmethod
    def of(cls, options: StoreOptions) -> S3Options:
        """The part of a store's options that is about reaching the endpoint."""
        shared = {each.name for each in fields(StoreOptions)} & {each.name for each in fields(cls)}
        return cls(**{name: getattr(options, name) for name in shared})

    def __post_init__(self) -> None:
        if self.addressing_style not in ("auto", "path", "virtual"):
            raise ConfigError(f"addressing_style is {self.addressing_style!r}", hint="use auto, path or virtual")
        object.__setattr__(self, "sent", SentChecksums(self.checksum))
        if self.connect_timeout_s <= 0 or self.read_timeout_s <= 0:
            raise ConfigError("timeouts have to be positive")
        if self.endpoint_url is not None:
            checked_address(self.endpoint_url, name="endpoint_url")


def open_object_store(url: BucketUrl, *, s3: S3Options) -> ObjectStore:
    """The adapter for `url`. Opens no connection for S3 (see `check_bucket`); `BucketMissing` for a missing directory.

    Retries nothing: wrap it in `RetryingStore` where that is wanted.
    """
    if url.kind == "s3":
        from durastore.objectstore.s3 import S3Store

        return S3Store(url.bucket, options=s3)
    if url.kind == "file":
        from durastore.objectstore.directory import DirectoryStore

        return DirectoryStore(Path(url.bucket))
    from durastore.objectstore.memory import MemoryStore

    return MemoryStore.named(url.bucket)

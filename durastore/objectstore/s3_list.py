"""Listing a bucket over boto3's transport, with a parser of our own for the pages.

Duty: every key exactly as it is, and an end only where the server announced one. Pages are parsed here because
botocore's own parser costs four times the CPU, and because obstore's listing takes any 200 for a page (an HTML page
lists as an empty bucket), ends where a page marker lacks, and folds `a/` into `a`. Must never filter by time.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any
from urllib.parse import unquote_plus
from xml.etree import ElementTree as ET

from durastore.errors import InventoryIncomplete, UnknownAnswer
from durastore.objectstore.classify import classify
from durastore.objectstore.columns import ColumnListing, ColumnPage
from durastore.objectstore.folders import FolderPage
from durastore.objectstore.listing import Listing, RawPage, listed_key
from durastore.objectstore.port import ObjectStat
from durastore.objectstore.s3_client import PAGE_BODY
from durastore.objectstore.s3_read import S3Reader, is_archived

__all__ = ["fetch_folder", "open_columns", "open_listing", "parse_columns", "parse_folder", "parse_page"]


def open_listing(reader: S3Reader, bucket: str, *, prefix: str, start_after: str | None) -> Listing:
    """A checked listing; each page is one request, sent when the page is asked for."""

    def fetch_page(token: str | None) -> RawPage:
        return parse_page(_fetch_body(reader, bucket, prefix=prefix, token=token, start_after=start_after), prefix)

    return Listing(fetch_page, prefix=prefix, start_after=start_after)


def open_columns(reader: S3Reader, bucket: str, *, prefix: str) -> ColumnListing:
    """The same as columns, at a third of the cost: no object is made of an entry."""

    def fetch_page(token: str | None) -> ColumnPage:
        return parse_columns(_fetch_body(reader, bucket, prefix=prefix, token=token, start_after=None), prefix)

    return ColumnListing(fetch_page, prefix=prefix)


def fetch_folder(reader: S3Reader, bucket: str, *, prefix: str) -> FolderPage:
    """The first page of what is right below `prefix`; more than one page has a token. One request."""
    return parse_folder(_ask(reader, bucket, prefix=prefix, arguments={"Delimiter": "/"}), prefix)


def _fetch_body(reader: S3Reader, bucket: str, *, prefix: str, token: str | None, start_after: str | None) -> bytes:
    arguments: dict[str, Any] = {}
    if token is not None:
        arguments["ContinuationToken"] = token
    elif start_after is not None:
        arguments["StartAfter"] = start_after
    return _ask(reader, bucket, prefix=prefix, arguments=arguments)


def _ask(reader: S3Reader, bucket: str, *, prefix: str, arguments: dict[str, Any]) -> bytes:
    arguments = {"Bucket": bucket, "Prefix": prefix, "EncodingType": "url", **arguments}
    try:
        answer = reader.client().list_objects_v2(**arguments)
    except Exception as exc:
        raise classify(exc, write=False, what=f"list {prefix!r}") from exc
    body: bytes = answer.get(PAGE_BODY, b"")
    return body


def parse_page(body: bytes, prefix: str) -> RawPage:
    """The page in an answer's body. `UnknownAnswer` or `InventoryIncomplete` where it cannot be relied on."""
    root, space, token = _parse_frame(body, prefix)
    is_encoded = _is_encoded(root, space)
    try:
        rows = [_parse_row(element, space, is_encoded=is_encoded) for element in root.iterfind(f"{space}Contents")]
    except (KeyError, TypeError, ValueError) as exc:
        raise UnknownAnswer(f"list {prefix!r}: an entry lacks its key, size or time") from exc
    return RawPage(rows=[row for row in rows if row is not None], next_token=token)


_PLAIN_ENTRY = re.compile(
    rb"<Contents>\s*<Key>([^<&\]]*)</Key>\s*"
    rb"(?:<(?!Size)[A-Za-z]+>[^<]*</[A-Za-z]+>\s*){0,8}?<Size>([0-9]{1,19})</Size>\s*"
    rb"(?:<(?!Size|Key)[A-Za-z]+>[^<]*</[A-Za-z]+>\s*|<Owner>(?:\s*<[A-Za-z]+>[^<]*</[A-Za-z]+>)*\s*</Owner>\s*){0,8}"
    rb"</Contents>"
)
"""An entry as every known server writes it. What differs is left for the parser of XML, with the whole page."""


def parse_columns(body: bytes, prefix: str) -> ColumnPage:
    """Keys and sizes of the page in an answer's body. Raises as `parse_page`."""
    pieces = _PLAIN_ENTRY.split(body)  # what lies between, a key, a size, what lies between, ...
    rest = b"".join(pieces[::3])
    if len(pieces) > 1 and b"<Contents" not in rest and b"<!" not in rest:
        root, space, token = _parse_frame(rest, prefix)
        try:
            keys = b"\n".join(pieces[1::3]).decode().split("\n")
            return _column_page(keys, list(map(int, pieces[2::3])), is_encoded=_is_encoded(root, space), token=token)
        except ValueError:
            pass  # a line break in a key, or no UTF-8: for the parser of XML to judge
    root, space, token = _parse_frame(body, prefix)
    entries = root.findall(f"{space}Contents")
    keys = [element.text or "" for element in root.iter(f"{space}Key")]
    sizes = [element.text or "" for element in root.iter(f"{space}Size")]
    try:
        if not len(entries) == len(keys) == len(sizes):
            raise ValueError("an entry lacks something")
        return _column_page(keys, list(map(_size, sizes)), is_encoded=_is_encoded(root, space), token=token)
    except ValueError as exc:
        raise UnknownAnswer(f"list {prefix!r}: an entry lacks its key or size") from exc


def parse_folder(body: bytes, prefix: str) -> FolderPage:
    """Folders and objects in the body of an answer to a delimiter. Raises as `parse_page`."""
    root, space, _ = _parse_frame(body, prefix)
    is_encoded = _is_encoded(root, space)
    folders = [each.findtext(f"{space}Prefix") or "" for each in root.iterfind(f"{space}CommonPrefixes")]
    try:
        folders = [unquote_plus(name, errors="strict") if is_encoded else name for name in folders]
    except ValueError as exc:
        raise UnknownAnswer(f"list {prefix!r}: a folder's name is no text") from exc
    return FolderPage(folders=tuple(folders), page=parse_columns(body, prefix))


def _column_page(keys: list[str], sizes: list[int], *, is_encoded: bool, token: str | None) -> ColumnPage:
    if len(keys) != len(sizes):
        raise ValueError("not as many keys as sizes")
    if is_encoded:
        keys = [unquote_plus(key, errors="strict") if "%" in key or "+" in key else key for key in keys]
    return ColumnPage(keys=keys, sizes=sizes, next_token=token)


def _is_encoded(root: ET.Element, space: str) -> bool:
    return root.findtext(f"{space}EncodingType") == "url"


def _parse_frame(body: bytes, prefix: str) -> tuple[ET.Element, str, str | None]:
    """The document, the name space of its tags, and the token of the next page."""
    try:
        root = ET.fromstring(body)  # noqa: S314  # expat limits entity growth itself, and resolves no external one
    except (ET.ParseError, LookupError, ValueError) as exc:  # also an encoding that nobody knows
        raise UnknownAnswer(f"list {prefix!r}: the answer is no XML document ({len(body)} bytes)") from exc
    space, brace, name = root.tag.rpartition("}")
    if name != "ListBucketResult":
        raise UnknownAnswer(
            f"list {prefix!r}: the answer is a {ascii(name)[:60]}, not a listing",
            hint="is endpoint_url an S3 endpoint?",
        )
    space += brace
    is_truncated = root.findtext(f"{space}IsTruncated")
    if is_truncated not in ("true", "false"):
        raise UnknownAnswer(f"list {prefix!r}: the answer does not say whether it is complete")
    token = root.findtext(f"{space}NextContinuationToken") if is_truncated == "true" else None
    if is_truncated == "true" and not token:
        raise InventoryIncomplete(
            f"list {prefix!r}: the answer says that more follows but not how to ask for it",
            hint="the endpoint does not implement ListObjectsV2",
        )
    return root, space, token


def _parse_row(element: ET.Element, space: str, *, is_encoded: bool) -> ObjectStat | None:
    values = {child.tag: child.text for child in element}
    text = values[f"{space}Key"] or ""
    size_bytes = _size(values[f"{space}Size"] or "")
    key = listed_key(unquote_plus(text, errors="strict") if is_encoded else text, size_bytes=size_bytes)
    if key is None:
        return None
    modified = values.get(f"{space}LastModified")
    storage_class = values.get(f"{space}StorageClass")
    return ObjectStat(
        key=key,
        size_bytes=size_bytes,
        etag=values.get(f"{space}ETag") or "",
        storage_class=storage_class,
        is_readable=not is_archived(storage_class),
        last_modified_s=datetime.fromisoformat(modified).timestamp() if modified else None,
    )


def _size(text: str) -> int:
    # int() would also take "-1", "1_0" and the digits of other scripts
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        raise ValueError(f"not a size: {text[:40]!r}")
    return int(text)

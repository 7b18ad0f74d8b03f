"""The faults of an endpoint that a history may meet: operation, fault, and part of the key it strikes."""

from __future__ import annotations

from durastore.testing.faulty import Fault

__all__ = ["BUCKET_FAULTS", "MISREADS"]

BUCKET_FAULTS = [
    ("put", Fault.DROP_REQUEST, "packs/"),
    ("put", Fault.DROP_RESPONSE, "packs/"),
    ("put", Fault.SERVER_ERROR, "packs/"),
    ("put", Fault.SLOW_DOWN, "packs/"),
    ("put", Fault.FORBIDDEN, "packs/"),
    ("put", Fault.STORE_EMPTY, "packs/"),
    ("put", Fault.LOSE_OBJECT, "packs/"),
    ("put", Fault.FLIP_BYTE, "packs/"),
    ("put", Fault.ZERO_BLOCK, "packs/"),
    ("put", Fault.DROP_RESPONSE, "manifest/"),
    ("put", Fault.SERVER_ERROR, "manifest/"),
    ("put", Fault.FORBIDDEN, "manifest/"),
    ("fetch", Fault.WRONG_BYTE, "manifest/"),
    ("fetch", Fault.SERVER_ERROR, ""),
    ("fetch_chunks", Fault.CUT_BODY, ""),
    ("fetch_chunks", Fault.SHORT_READ, ""),
    ("fetch_chunks", Fault.WRONG_BYTE, ""),
    ("fetch_chunks", Fault.FORBIDDEN, ""),
    ("head", Fault.SERVER_ERROR, ""),
    ("head", Fault.FORBIDDEN, ""),
    ("head", Fault.STALE_HEAD, ""),
    ("list", Fault.SERVER_ERROR, ""),
    ("list", Fault.REPEAT_PAGE, ""),
]
# with these a whole object reads as a damaged one
MISREADS = [("fetch_chunks", Fault.SHORT_READ), ("fetch_chunks", Fault.WRONG_BYTE)]

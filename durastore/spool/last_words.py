"""The record in a status file of a spool: what the process that wrote it said last of itself.

Duty: read it, for whoever shows it and for the next process that writes there. For people only: must never decide
anything, and never raise for what it finds.
"""

from __future__ import annotations

from typing import TypeVar

from durastore.formats.status import SLOT_BYTES, STORE_STATUS_NAME, WORKER_STATUS_NAME, parse_status
from durastore.fsio.folder import Folder
from durastore.fsio.status_file import load_status_bytes
from durastore.observe.status import StoreRecord, WorkerRecord

__all__ = ["load_last_record", "load_unended_pid"]

_NAMES = {StoreRecord: STORE_STATUS_NAME, WorkerRecord: WORKER_STATUS_NAME}
Record = TypeVar("Record", StoreRecord, WorkerRecord)


def load_last_record(spool: Folder, kind: type[Record]) -> Record | None:
    """None where there is none that can be read."""
    return parse_status(load_status_bytes(spool, _NAMES[kind], slot_bytes=SLOT_BYTES), kind)


def load_unended_pid(spool: Folder, kind: type[Record]) -> int | None:
    """The process that wrote the last record, if that does not say that it ended: it was killed."""
    last = load_last_record(spool, kind)
    return None if last is None or last.teller.is_ended else last.teller.pid

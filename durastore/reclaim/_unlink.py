"""The only unlink that can remove the last name of data, and the drop of a folder that holds nothing.

Must never be called without a receipt, never follow a link, never loop, and never run in a cleanup handler.
"""

from __future__ import annotations

import os

from durastore.errors import DiskFailed
from durastore.fsio.folder import Folder
from durastore.fsio.identity import identify
from durastore.fsio.sys import SYS
from durastore.verify.receipt import CopyReceipt, Receipt, StagingReceipt

__all__ = ["drop_empty_folder", "unlink_proven"]


def unlink_proven(folder: Folder, name: str, *, receipt: Receipt | CopyReceipt | StagingReceipt) -> int:
    """Spend the receipt and drop the one name; returns the bytes freed. The durable intent must already be written.

    `ReceiptRefused` if the file now under that name is not the one proven; `DiskFailed` if the kernel says no. In both
    cases the file stays.
    """
    fd = folder.open_read(name)
    try:
        identity = identify(fd)
        receipt.spend(identity)  # INV-3: last look and removal of the name, with nothing in between
        try:
            SYS.unlink(name, dir_fd=folder.fd)
            folder.sync()  # else a power cut brings the name back, and the journal would say RECLAIMED
        except OSError as exc:
            raise DiskFailed(f"reclaiming {folder.path / name}: {exc.strerror}", errno=exc.errno) from exc
    finally:
        os.close(fd)
    return identity.size_bytes


def drop_empty_folder(folder: Folder, name: str) -> bool:
    """Drop a folder that holds nothing: the kernel refuses any other. False if it holds something, or is none."""
    try:
        SYS.rmdir(name, dir_fd=folder.fd)
    except OSError:
        return False
    return True

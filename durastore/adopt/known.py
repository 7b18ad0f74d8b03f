"""The lists of hashed files (`ledger`) as a look-up by file.

Duty: mark -> digest. Must never answer for a file of another inode, size or time.
"""

from __future__ import annotations

from durastore.adopt.ledger import load_ledger
from durastore.fsio.folder import Folder

__all__ = ["load_known"]


def load_known(folder: Folder) -> dict[bytes, str]:
    """Digest (hex) of each file on record, by its mark (`ledger.mark_of`). OSError passes."""
    ledger = load_ledger(folder)
    marks, digests = ledger.marks.to_pylist(), ledger.digests.to_pylist()
    return {str(mark).encode(): str(digest) for mark, digest in zip(marks, digests, strict=True)}

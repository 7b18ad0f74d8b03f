"""Where data can leave a disk, and that it can leave a bucket nowhere.

A new line in `EXPECTED` needs an ADR (docs/adr/README.md).
"""

from __future__ import annotations

from tests.architecture.destructive_calls import find_destructive_calls, find_remote_deletes
from tests.architecture.source_tree import REPO, Use

EXPECTED = [
    # Gives back a file of nothing but zeros that the same module made (ADR 0006).
    Use(file="durastore/fsio/ballast.py", function="Ballast._drop", what="durastore.fsio.sys.SYS.unlink"),
    # Copies of what the bucket has, in a folder that is marked as a cache, while nobody reads them (ADR 0010).
    Use(file="durastore/fsio/evict.py", function="CacheFolder._reserve", what="durastore.fsio.sys.SYS.unlink"),
    Use(file="durastore/fsio/evict.py", function="CacheFolder._settle", what="durastore.fsio.sys.SYS.unlink"),
    Use(file="durastore/fsio/evict.py", function="_drop", what="durastore.fsio.sys.SYS.unlink"),
    # Drops the temp name that the same object made.
    Use(file="durastore/fsio/publish.py", function="TempFile.drop_temp", what="durastore.fsio.sys.SYS.unlink"),
    # Drops a name after another one of the same inode was linked and synced.
    Use(file="durastore/fsio/relocate.py", function="relocate", what="durastore.fsio.sys.SYS.unlink"),
    # The system call itself, one method, so that crash tests can stop at it (ADR 0001).
    # One step that overwrites nothing: how a file of others is moved out of its folder (ADR 0007).
    Use(file="durastore/fsio/sys.py", function="SystemCalls.rename_new", what="getattr(None, 'renameat2')"),
    # A folder that holds nothing; the kernel refuses any other (ADR 0014).
    Use(file="durastore/fsio/sys.py", function="SystemCalls.rmdir", what="os.rmdir"),
    Use(file="durastore/fsio/sys.py", function="SystemCalls.unlink", what="os.unlink"),
    # An entry of a model server's staging folder, once its files went through the door (ADR 0014).
    Use(file="durastore/reclaim/_unlink.py", function="drop_empty_folder", what="durastore.fsio.sys.SYS.rmdir"),
    # The only one that can drop the last name of data; it spends a receipt.
    Use(file="durastore/reclaim/_unlink.py", function="unlink_proven", what="durastore.fsio.sys.SYS.unlink"),
    # Test kit: judges each unlink of the process under test, then lets it happen (ADR 0001).
]

NOT_REMOTE = [
    # SQLite's word for its rollback mode, in `PRAGMA journal_mode`.
    Use(file="durastore/spool/journal_db.py", function="JournalDatabase._set_pragmas", what="DELETE"),
]


def test_names_and_bytes_are_taken_away_only_where_expected() -> None:
    assert find_destructive_calls(REPO) == EXPECTED


def test_nothing_deletes_in_a_bucket() -> None:
    assert find_remote_deletes(REPO) == NOT_REMOTE

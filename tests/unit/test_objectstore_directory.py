"""A directory bucket never leaves its directory, never overwrites, and believes no stale note."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from durastore import errors
from durastore.fsio.sys import SYS
from durastore.model import ObjectKey
from durastore.objectstore.crc import crc64nvme_b64
from durastore.objectstore.directory import DirectoryStore

KEY = ObjectKey("packs/w/1.tar")
BODY = b"pack bytes " * 1000
CRC = crc64nvme_b64(BODY)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "bucket").mkdir()
    return tmp_path / "bucket"


@pytest.fixture
def store(root: Path) -> Iterator[DirectoryStore]:
    with_root = DirectoryStore(root)
    yield with_root
    with_root.close()


def _put(store: DirectoryStore, key: ObjectKey = KEY, body: bytes = BODY) -> None:
    store.put(key, body, crc64nvme=crc64nvme_b64(body), metadata={"note": "n"})


def _keys(store: DirectoryStore, prefix: str = "") -> list[str]:
    return [row.key.text for page in store.list(prefix) for row in page]


def test_an_object_is_a_plain_file(store: DirectoryStore, root: Path) -> None:
    _put(store)
    assert (root / KEY.text).read_bytes() == BODY
    assert _keys(store) == [KEY.text]


def test_an_existing_object_keeps_its_bytes(store: DirectoryStore, root: Path) -> None:
    _put(store)
    _put(store)
    for if_absent in (False, True):
        with pytest.raises(errors.ObjectExists):
            store.put(KEY, b"other", crc64nvme=None, metadata={}, if_absent=if_absent)
    with pytest.raises(errors.ObjectExists):
        store.put(KEY, BODY + b"!", crc64nvme=None, metadata={})
    with pytest.raises(errors.ObjectExists):
        store.put(KEY, BODY[:-1], crc64nvme=None, metadata={})
    assert (root / KEY.text).read_bytes() == BODY


def test_an_upload_in_parts_does_not_overwrite_either(store: DirectoryStore, root: Path) -> None:
    _put(store)
    upload_id = store.create_upload(KEY, metadata={})
    part = store.upload_part(KEY, upload_id, number=1, body=b"other", crc64nvme=crc64nvme_b64(b"other"))
    with pytest.raises(errors.ObjectExists):
        store.complete_upload(KEY, upload_id, parts=[part], size_bytes=5, crc64nvme=crc64nvme_b64(b"other"))
    assert (root / KEY.text).read_bytes() == BODY


def test_uploads_leave_no_file_behind(store: DirectoryStore, root: Path) -> None:
    upload_id = store.create_upload(KEY, metadata={})
    store.upload_part(KEY, upload_id, number=1, body=BODY, crc64nvme=CRC)
    assert [path for path in root.rglob("*") if path.is_file()] == []
    store.abort_upload(KEY, upload_id)
    assert [path for path in root.rglob("*") if path.is_file()] == []
    with pytest.raises(errors.RequestRefused) as caught:
        store.list_parts(KEY, upload_id)
    assert caught.value.facts["server_code"] == "NoSuchUpload"


def test_parts_are_refused_unless_they_are_what_was_acknowledged(store: DirectoryStore) -> None:
    upload_id = store.create_upload(KEY, metadata={})
    one = store.upload_part(KEY, upload_id, number=1, body=b"one", crc64nvme=crc64nvme_b64(b"one"))
    two = store.upload_part(KEY, upload_id, number=2, body=b"two", crc64nvme=crc64nvme_b64(b"two"))
    crc = crc64nvme_b64(b"onetwo")
    for parts, size_bytes in (([two, one], 6), ([one, one], 6), ([one, two], 7), ([], 0)):
        with pytest.raises(errors.RequestRefused):
            store.complete_upload(KEY, upload_id, parts=parts, size_bytes=size_bytes, crc64nvme=crc)
    store.upload_part(KEY, upload_id, number=2, body=b"TWO", crc64nvme=crc64nvme_b64(b"TWO"))
    with pytest.raises(errors.RequestRefused):
        store.complete_upload(KEY, upload_id, parts=[one, two], size_bytes=6, crc64nvme=crc)
    assert _keys(store) == []


@pytest.mark.parametrize("text", [".durastore/notes/x", "a/.tmp-1/b", "a/" + "x" * 256])
def test_keys_a_directory_cannot_hold_are_refused(store: DirectoryStore, root: Path, text: str) -> None:
    with pytest.raises(errors.InvalidInput):
        _put(store, ObjectKey(text))
    with pytest.raises(errors.InvalidInput):
        store.create_upload(ObjectKey(text), metadata={})
    assert not list(root.iterdir())


def test_links_are_not_followed(store: DirectoryStore, root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    (root / "linked").symlink_to(outside)
    (root / "alias").symlink_to(outside / "secret")
    for text in ("linked/secret", "alias"):
        with pytest.raises(errors.UnknownAnswer):
            store.fetch(ObjectKey(text))
        with pytest.raises(errors.DurastoreError):
            _put(store, ObjectKey(text))
    with pytest.raises(errors.UnknownAnswer):
        _put(store, ObjectKey("linked/new"))
    assert sorted(path.name for path in outside.iterdir()) == ["secret"]
    assert (outside / "secret").read_bytes() == b"secret"
    with pytest.raises(errors.InventoryIncomplete):
        _keys(store)


def test_a_file_where_a_folder_is_needed_is_refused(store: DirectoryStore) -> None:
    _put(store)
    with pytest.raises(errors.RequestRefused):
        _put(store, ObjectKey(KEY.text + "/below"))
    with pytest.raises(errors.RequestRefused):
        _put(store, ObjectKey("packs/w"))


def test_a_wrong_checksum_stores_nothing(store: DirectoryStore, root: Path) -> None:
    with pytest.raises(errors.RequestRefused):
        store.put(KEY, BODY, crc64nvme=crc64nvme_b64(b"x"), metadata={})
    assert not (root / KEY.text).exists()


def test_a_changed_file_is_read_instead_of_believed(store: DirectoryStore, root: Path) -> None:
    # case B65: what was noted at the time of the write is no statement about the bytes there now
    _put(store)
    told = store.head(KEY)
    assert (told.crc64nvme, told.metadata) == (CRC, (("note", "n"),))
    path = root / KEY.text
    times = os.stat(path)
    damaged = b"X" + BODY[1:]
    path.write_bytes(damaged)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    now = store.head(KEY)
    assert now.crc64nvme == crc64nvme_b64(damaged)
    assert now.etag != told.etag
    assert now.metadata == ()


def test_a_file_put_there_by_hand_is_an_object(store: DirectoryStore, root: Path) -> None:
    (root / "by").mkdir()
    (root / "by" / "hand").write_bytes(BODY)
    stat = store.head(ObjectKey("by/hand"))
    assert (stat.size_bytes, stat.crc64nvme, stat.metadata) == (len(BODY), CRC, ())
    (row,) = [row for page in store.list("") for row in page]
    assert row.etag == ""


def test_a_truncated_file_is_no_whole_object(store: DirectoryStore, root: Path) -> None:
    _put(store)
    chunks = store.fetch_chunks(KEY, chunk_bytes=4096)
    next(chunks)
    os.truncate(root / KEY.text, 5000)
    with pytest.raises(errors.IntegrityError):
        list(chunks)


def test_a_replaced_directory_stops_writes_and_listings(store: DirectoryStore, root: Path) -> None:
    # case B20: what an unmount leaves behind must not be filled
    _put(store)
    root.rename(root.with_name("unmounted"))
    root.mkdir()
    for action in (store.check_bucket, lambda: _put(store, ObjectKey("new")), lambda: _keys(store)):
        with pytest.raises(errors.BucketMissing):
            action()
    assert list(root.iterdir()) == []


def test_names_that_are_no_keys_are_not_passed_over(store: DirectoryStore, root: Path) -> None:
    # case B132
    (root / os.fsdecode(b"\xff\xfe.npy")).write_bytes(b"x")
    with pytest.raises(errors.InventoryIncomplete):
        _keys(store)


def test_an_unreadable_folder_is_an_incomplete_inventory(
    store: DirectoryStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # case B16
    _put(store)
    real, folder = os.scandir, os.stat(root / "packs").st_ino

    def scandir(target: int) -> object:
        if isinstance(target, int) and os.fstat(target).st_ino == folder:
            raise PermissionError(13, "Permission denied")
        return real(target)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(errors.InventoryIncomplete):
        _keys(store)


def test_leftovers_of_a_crashed_write_are_no_objects(store: DirectoryStore, root: Path) -> None:
    _put(store)
    (root / "packs" / ".tmp-0123456789abcdef").write_bytes(b"half")
    assert _keys(store) == [KEY.text]


def test_a_full_disk_is_a_write_that_may_not_have_happened(
    store: DirectoryStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_space(_: int, __: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    upload_id = store.create_upload(KEY, metadata={})
    with monkeypatch.context() as patch:
        patch.setattr(SYS, "writev", no_space)
        with pytest.raises(errors.AmbiguousWrite):
            _put(store)
    assert not (root / KEY.text).exists()
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", lambda *_: no_space(0, b""))
        with pytest.raises(errors.AmbiguousWrite):
            store.upload_part(KEY, upload_id, number=1, body=BODY, crc64nvme=CRC)
    assert store.list_parts(KEY, upload_id) == ()
    _put(store)
    assert store.fetch(KEY) == BODY


def test_what_may_not_be_read_is_not_absent(store: DirectoryStore, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _put(store)
    real, folder = os.open, os.stat(root / "packs").st_ino

    def refuse(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if dir_fd is not None and os.fstat(dir_fd).st_ino == folder:
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(errors.PermissionRefused):
        store.head(KEY)


def test_the_listing_is_in_byte_order(store: DirectoryStore) -> None:
    names = ["a/b", "a-b/c", "a.b", "a0", "a/b0/c", "ä", "z"]
    for name in names:
        _put(store, ObjectKey(name), b"x")
    expected = sorted(names, key=str.encode)
    assert _keys(store) == expected
    for at, name in enumerate(expected):
        after = [row.key.text for page in store.list("", start_after=name) for row in page]
        assert after == expected[at + 1 :]


def test_listings_beside_each_other_are_each_whole(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    for number in range(40):
        for folder in ("files", "packs"):
            store.put(ObjectKey(f"{folder}/{number:02d}"), b"x", crc64nvme=None, metadata={})
    with ThreadPoolExecutor(4) as pool:
        counts = pool.map(lambda at: sum(map(len, store.list("files/" if at % 2 else "packs/"))), range(400))
        assert set(counts) == {40}
    store.close()

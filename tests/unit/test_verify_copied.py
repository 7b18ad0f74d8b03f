"""A copy proves its source only from another device, read back, under its name, with both sides as they were."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from durastore.clock import ManualClock
from durastore.errors import NotVerified, ReceiptRefused
from durastore.fsio import space
from durastore.fsio.folder import Folder
from durastore.fsio.identity import identify
from durastore.fsio.space import Filesystem
from durastore.model import Digest
from durastore.verify import copied as copied_module
from durastore.verify.copied import RECEIPT_TTL_S, CopiedFile, TargetFile, verify_copy
from durastore.verify.local import digest_of
from durastore.verify.receipt import CopyReceipt
from tests.unit.migrate_lab import MigrateLab, mig

__all__ = ["mig"]

DATA = b"the bytes" * 500


class Pair:
    """A source and its copy, open."""

    def __init__(self, mig: MigrateLab) -> None:
        self.source = mig.write("f", DATA)
        mig.target.mkdir()
        self.copy = mig.target / "f"
        self.copy.write_bytes(DATA)
        self.clock = ManualClock()
        self.note()

    def note(self, *, is_quiet: bool = True, is_read_back: bool = True) -> CopiedFile:
        """What a migration would have seen now."""
        with self.source.open("rb") as one, self.copy.open("rb") as other:
            self.copied = CopiedFile(
                path="f",
                source=identify(one.fileno()),
                target=identify(other.fileno()),
                digest=Digest.of(DATA),
                is_quiet=is_quiet,
                is_read_back=is_read_back,
            )
        return self.copied

    def prove(self, *, before: Callable[[], None] = lambda: None) -> CopyReceipt:
        with Folder.open(self.copy.parent) as folder:
            source_fd, fd = os.open(self.source, os.O_RDONLY), folder.open_read("f")
            try:
                before()
                target = TargetFile(fd=fd, folder=folder, name="f")
                return verify_copy(self.copied, source_fd=source_fd, target=target, clock=self.clock)
            finally:
                os.close(source_fd)
                os.close(fd)


@pytest.fixture
def pair(mig: MigrateLab) -> Pair:
    return Pair(mig)


def overwrite(path: Path, data: bytes) -> None:
    """Other bytes under the same inode, size and time of change of the content."""
    times = path.stat()
    with path.open("r+b") as file:
        file.write(data)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def test_a_receipt_is_for_the_source_as_it_is_now(pair: Pair) -> None:
    receipt = pair.prove()
    assert (receipt.identity, receipt.target) == (pair.copied.source, pair.copied.target)
    assert Digest.of(DATA).hex in receipt.render()
    receipt.spend(pair.copied.source)
    with pytest.raises(ReceiptRefused):
        receipt.spend(pair.copied.source)
    late = pair.prove()
    pair.clock.advance(RECEIPT_TTL_S)
    with pytest.raises(ReceiptRefused, match="expired"):
        late.spend(pair.copied.source)


def test_one_device_proves_nothing(pair: Pair) -> None:
    # case B11
    pair.copy = pair.source.parent / "sub" / "f"
    pair.copy.parent.mkdir()
    pair.copy.write_bytes(DATA)
    pair.note()
    with pytest.raises(NotVerified, match="one device"):
        pair.prove()


@pytest.mark.parametrize(
    "types, uuids, is_proof",
    [
        (("ext4", "ext4"), ("1", "1"), True),  # a clone of a disk has its id
        (("btrfs", "btrfs"), ("1", "1"), False),
        (("btrfs", "btrfs"), ("1", "2"), True),
        (("btrfs", "btrfs"), ("1", "fsid-2"), False),
        (("btrfs", "btrfs"), ("fsid-1", "fsid-2"), False),  # made of the subvolume too
        (("zfs", "zfs"), ("1", "2"), False),
        (("btrfs", "ext4"), ("1", "2"), True),
    ],
)
def test_subvolumes_of_one_disk_prove_nothing(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, types: tuple[str, str], uuids: tuple[str, str], is_proof: bool
) -> None:
    found = {
        os.path.realpath(path): Filesystem(type_name=kind, is_local_disk=True, uuid=uuid, st_dev=path.stat().st_dev)
        for path, kind, uuid in zip((pair.source, pair.copy), types, uuids, strict=True)
    }
    monkeypatch.setattr(space, "filesystem_of", lambda path: found[str(path)])
    if is_proof:
        assert pair.prove().target == pair.copied.target
    else:
        with pytest.raises(NotVerified, match="one device"):
            pair.prove()


def test_a_moved_source_is_still_the_one(pair: Pair) -> None:
    moved = pair.source.with_name("g")
    pair.source.rename(moved)
    pair.source = moved
    assert pair.prove().identity.ctime_ns != pair.copied.source.ctime_ns


@pytest.mark.parametrize("change", ["inode", "size_bytes", "mtime_ns"])
def test_another_source_is_refused(pair: Pair, change: str) -> None:
    pair.copied = replace(pair.copied, source=replace(pair.copied.source, **{change: 1}))
    with pytest.raises(NotVerified, match="not the file that was copied"):
        pair.prove()


def test_a_copy_whose_name_leads_elsewhere_is_refused(pair: Pair) -> None:
    def swap() -> None:
        pair.copy.rename(pair.copy.with_name("away"))
        pair.copy.write_bytes(DATA)

    with pytest.raises(NotVerified, match="another file has the name"):
        pair.prove(before=swap)


def test_a_copy_that_was_freed_is_refused(pair: Pair) -> None:
    # case B21
    with pytest.raises(FileNotFoundError):
        pair.prove(before=pair.copy.unlink)


def test_a_changed_copy_is_read_again(pair: Pair) -> None:
    os.utime(pair.copy, ns=(1, 1))  # now may be the tick of the write
    pair.prove()
    overwrite(pair.copy, b"THE")
    with pytest.raises(NotVerified, match="does not have the bytes"):
        pair.prove()
    pair.copy.write_bytes(DATA[:-1])
    with pytest.raises(NotVerified, match="bytes, the source"):
        pair.prove()


def test_a_copy_that_only_a_record_tells_of_is_read(pair: Pair) -> None:
    pair.note(is_read_back=False)
    pair.prove()
    overwrite(pair.copy, b"THE")
    pair.note(is_read_back=False)
    with pytest.raises(NotVerified, match="does not have the bytes"):
        pair.prove()


def test_a_copy_that_changes_while_it_is_read_is_refused(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = digest_of

    def late(fd: int) -> Digest:
        digest = plain(fd)
        os.utime(pair.copy, ns=(1, 1))  # now may be the tick of the write
        return digest

    pair.note(is_read_back=False)
    monkeypatch.setattr(copied_module, "digest_of", late)
    with pytest.raises(NotVerified, match="changes while"):
        pair.prove()


def test_a_source_that_somebody_had_open_for_writing_is_read_again(pair: Pair) -> None:
    pair.note(is_quiet=False)
    pair.prove()
    overwrite(pair.source, b"THE")
    pair.note(is_quiet=False)
    with pytest.raises(NotVerified, match="written to"):
        pair.prove()

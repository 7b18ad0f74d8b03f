"""Mutated journals: the bytes of the database, its WAL or rollback file, or sound SQLite with odd values in it."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from durastore.clock import Stamp
from durastore.errors import DurastoreError, FormatUnsupported, JournalFailed
from durastore.formats.upload_session import PartRecord, UploadSession
from durastore.fsio.folder import Folder
from durastore.fsio.identity import FileIdentity
from durastore.model import Digest, Evidence, EvidenceLevel, PackKind, PackState, SampleId, Tombstone, WriterId
from durastore.spool.journal import Journal
from durastore.spool.records import PackFile, SealFacts
from durastore.upload.job import UploadReply
from tests.fuzz.mutate import mutate_bytes
from tests.fuzz.seeds import CRC, KEY, RUN, SEGMENT_KEYS, samples

__all__ = ["NAME", "WRITER", "SqliteFiles", "edited_journal", "open_journal"]

WRITER = WriterId("0123456789abcdef")
NAME = "journal-1.sqlite"
_MARK = b"\n--durastore-fuzz-wal--\n"
_MAX_BYTES = 256 << 10
_ODD_CELLS = (
    None,
    0,
    -1,
    1 << 62,
    -(1 << 63),
    1.5,
    float("inf"),
    "",
    "x",
    "../../x",
    "\x00",
    b"\xff\xfe",
    b"",
    "9" * 400,
)
_SCHEMA_CHANGES = (
    "DROP TABLE {table}", "ALTER TABLE {table} RENAME COLUMN {column} TO gone", "DELETE FROM {table}",
    "PRAGMA user_version=100", "PRAGMA user_version=199", "PRAGMA user_version=200", "PRAGMA application_id=7",
    "CREATE TRIGGER t AFTER UPDATE ON {table} BEGIN DELETE FROM {table}; END",
    "CREATE TABLE more (a, b)", "DROP INDEX packs_by_state", "ALTER TABLE {table} ADD COLUMN more",
)  # fmt: skip


def open_journal(data: bytes) -> bool:
    """Open `data` as a spool's journal, ask and change everything, close, open again. False where it was not usable.

    Whatever is wrong with the file, it stays: under its name, or in quarantine.
    """
    main, _, extra = data.partition(_MARK)
    base = Path(tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
    try:
        (base / "spool").mkdir()
        (base / "quarantine").mkdir()
        (base / "spool" / NAME).write_bytes(main)
        if extra:
            (base / "spool" / (NAME + ("-wal" if extra[0] == 0x37 else "-journal"))).write_bytes(extra)
        is_usable = _life(base, main)
        _life(base, main)
        return is_usable
    finally:
        shutil.rmtree(base)


def _life(base: Path, original: bytes) -> bool:
    spool, quarantine = base / "spool", base / "quarantine"
    is_usable = False
    with Folder.open(spool) as folder, Folder.open(quarantine) as aside:
        try:
            journal = Journal(folder, aside, writer=WRITER, is_wal=len(original) % 2 == 0, has_packs=True)
        except FormatUnsupported:
            assert (spool / NAME).read_bytes() == original  # refused before anything is changed
        except DurastoreError:
            pass
        else:
            is_usable = journal.replaced is None and _ask(journal)
            journal.close() if is_usable else _close(journal)
    assert any(folder_path.joinpath(NAME).exists() for folder_path in (spool, quarantine))
    return is_usable


def _close(journal: Journal) -> None:
    with suppress(JournalFailed):
        journal.close()


def _ask(journal: Journal) -> bool:
    """Every question and some steps; True if the last question still got an answer."""
    ids = [1, 2, 3]
    with suppress(DurastoreError):
        ids += [record.pack_id for record in journal.packs()][:20]
    calls: list[Callable[[], object]] = [
        journal.count_by_state, journal.writers, journal.runs, journal.intents, journal.used_bytes,
        lambda: list(journal.unmanifested()), lambda: journal.find_sample(SampleId("a/b")),
        lambda: journal.tombstones(ids), lambda: journal.next_pack_seq(WRITER), lambda: journal.get_fact("rebuild"),
        lambda: journal.set_fact("store", "x"), lambda: journal.add_run(RUN), journal.drop_reclaimed,
        lambda: journal.record_segment_started(3, []),
        lambda: journal.add_open_pack(PackFile(writer=WRITER, seq=77, kind=PackKind.TAR)),
    ]  # fmt: skip
    of_one: tuple[Callable[[int], object], ...] = (journal.pack, journal.entries, journal.session, journal.write_id)
    for pack_id in ids:
        calls += [partial(question, pack_id) for question in of_one]
        calls.append(partial(journal.move_back, pack_id, PackState.SEALED, reason="doubt"))
    for call in calls:
        with suppress(DurastoreError):
            call()
    with suppress(DurastoreError):
        journal.packs()
        return True
    return False


def _seed_files() -> list[bytes]:
    """A journal with one of everything: closed, and with its last transactions still in the WAL."""
    base = Path(tempfile.mkdtemp())
    try:
        (base / "q").mkdir()
        with Folder.open(base) as folder, Folder.open(base / "q") as aside:
            journal = Journal(folder, aside, writer=WRITER)
            _fill(journal)
            path = base / NAME
            open_form = path.read_bytes() + _MARK + (base / f"{NAME}-wal").read_bytes()
            journal.close()
        return [path.read_bytes(), open_form]
    finally:
        shutil.rmtree(base)


def _fill(journal: Journal) -> None:
    entries = [one.entry(offset=512 + 4096 * n, time_ns=7) for n, one in enumerate(samples())]
    identity = FileIdentity(dev=1, inode=2, size_bytes=99, mtime_ns=4, ctime_ns=5)
    facts = SealFacts(size_bytes=1 << 20, digest=Digest.of(b"p"), crc64nvme=CRC, key=KEY, identity=identity)
    open_pack = journal.add_open_pack(PackFile(writer=WRITER, seq=1, kind=PackKind.TAR))
    journal.append_samples(open_pack.pack_id, entries, size_bytes=1 << 20)
    pack_id = 0
    gone = Tombstone(sample_id=SampleId("t"), key=KEY, offset=0)
    for seq in (2, 3):
        file = PackFile(writer=WRITER, seq=seq, kind=PackKind.TAR)
        pack_id = journal.add_sealed_pack(file, facts=facts, entries=entries[:seq], tombstones=[gone]).pack_id
        journal.write_id(pack_id)
        part = PartRecord(number=1, etag='"e"', size_bytes=8, crc64nvme=CRC)
        journal.record_session(pack_id, UploadSession(upload_id="u", part_bytes=8, parts=(part,)))
    stamp = Stamp(wall_ns=1, boottime_ns=2, boot_id="boot")
    reply = UploadReply(
        etag='"e"', version_id="v", server_time_s=1.5, write_id="w", settled_by="answer", part_bytes=8
    )  # fmt: skip
    journal.record_uploaded(pack_id, reply=reply, at=stamp)
    evidence = Evidence(
        level=EvidenceLevel.READ_BACK, key=KEY, size_bytes=1 << 20, digest=Digest.of(b"p"), etag='"e"', version_id="v",
        taken=stamp.render(), server_time_s=1.5,
    )  # fmt: skip
    journal.record_verified(pack_id, evidence)
    journal.record_segment_started(1, [pack_id])
    journal.record_manifested([pack_id], SEGMENT_KEYS[0], at=stamp)
    journal.record_intent(pack_id, "intent")
    journal.add_run(RUN)
    journal.set_fact("bucket", "s3://b/p")


class SqliteFiles:
    """A `FileKind`."""

    batch = 25

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._files = _seed_files()
        self.seed_count = len(self._files)

    def make(self, number: int) -> bytes:
        if number < 0:
            return self._files[number]
        rng = random.Random(f"{self._seed}:{number}")
        closed, with_wal = self._files
        how = rng.randrange(8)
        if how < 3:
            return _with_odd_values(closed, rng)
        if how == 3:
            return mutate_bytes(closed, rng, others=self._files, max_bytes=_MAX_BYTES)
        if how == 4:
            main, _, wal = with_wal.partition(_MARK)
            return main + _MARK + b"\x37" + _changed(wal, rng)[1:]
        if how == 5:
            return closed + _MARK + rng.choice((b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7", b"")) + rng.randbytes(600)
        return _changed(_with_odd_values(closed, rng) if how == 6 else closed, rng)

    def check(self, data: bytes) -> bool:
        return open_journal(data)


def _changed(data: bytes, rng: random.Random) -> bytes:
    """A few bytes, more of them where a page begins: there lie its kind, its count of cells and their places."""
    out = bytearray(data)
    for _ in range(1 + rng.randrange(8)):
        page = rng.randrange(max(1, len(out) // 4096)) * 4096
        at = page + rng.choice((rng.randrange(112), rng.randrange(32), rng.randrange(4096)))
        if at < len(out):
            out[at] = rng.choice((rng.randrange(256), 0, 1, 0x0D, 0x7F, 0xFF, out[at] ^ 1))
    return bytes(out)


def edited_journal(statement: str) -> bytes:
    """The closed seed journal after one SQL statement."""
    memory = sqlite3.connect(":memory:", isolation_level=None)
    try:
        data = _seed_files()[0]
        memory.deserialize(data[:18] + b"\x01\x01" + data[20:])  # as if not in WAL mode, which memory has not
        memory.execute("PRAGMA ignore_check_constraints=ON")
        memory.execute(statement)
        return memory.serialize()
    finally:
        memory.close()


def _with_odd_values(data: bytes, rng: random.Random) -> bytes:
    """A database that SQLite finds nothing wrong with."""
    memory = sqlite3.connect(":memory:", isolation_level=None)
    try:
        memory.deserialize(data[:18] + b"\x01\x01" + data[20:])  # as if not in WAL mode, which memory has not
        memory.execute("PRAGMA ignore_check_constraints=ON")
        names = [row[0] for row in memory.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
        tables = [name for name in names if not name.startswith("sqlite_")]
        for _ in range(1 + rng.randrange(3)):
            table = rng.choice(tables)
            columns = [row[1] for row in memory.execute(f"PRAGMA table_info({table})")]
            if not columns:
                break
            column = rng.choice(columns)
            with suppress(sqlite3.Error, UnicodeError):
                if rng.randrange(6) == 0:
                    memory.execute(rng.choice(_SCHEMA_CHANGES).format(table=table, column=column))
                else:
                    memory.execute(f"UPDATE {table} SET {column} = ?", (rng.choice(_ODD_CELLS),))  # noqa: S608  # our own names
        return memory.serialize()
    finally:
        memory.close()

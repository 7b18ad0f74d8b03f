"""The journal: this spool's record of its packs and of the samples not yet safely elsewhere.

Duty: one durable transaction for each method (INV-2): a method is called after the bytes it speaks of are durable, and
before anyone is told. Each step checks the state it starts from. Thread-safe. After any SQLite error but a full disk
(`DiskFailed`, without effect) every method raises `JournalFailed`, and the next open goes on in a new file. Must never
keep samples of a reclaimed pack.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence

from durastore.clock import Stamp
from durastore.errors import DurastoreError
from durastore.formats.entry_columns import EntryColumns
from durastore.formats.upload_session import PartRecord, UploadSession
from durastore.fsio.ballast import Ballast
from durastore.fsio.folder import Folder
from durastore.fsio.identity import FileIdentity
from durastore.model import Digest, Evidence, ObjectKey, PackState, Run, SampleEntry, SampleId, Tombstone, WriterId
from durastore.spool import journal_notes as notes
from durastore.spool import journal_rows as stored
from durastore.spool import journal_steps as steps
from durastore.spool.journal_file import open_database
from durastore.spool.records import (
    FACT_DOUBTFUL,
    FACT_REBUILD,
    UNMANIFESTED,
    PackFile,
    PackRecord,
    Replacement,
    SealFacts,
    UploadAnswer,
    WriterRecord,
)
from durastore.spool.standing import Standing, load_standing
from durastore.spool.used_bytes import UsedBytes

__all__ = ["Journal", "PackRecord", "SealFacts", "WriterRecord"]


class Journal:
    """The open journal of one spool."""

    def __init__(
        self, folder: Folder, quarantine: Folder, *, writer: WriterId, is_wal: bool = True, has_packs: bool = False
    ) -> None:
        """Open, make or follow up the journal in `folder`. Errors as `open_database`; safe to repeat."""
        facts = {FACT_REBUILD: "pending"} if has_packs else {}
        opened = open_database(folder, quarantine, is_wal=is_wal, fresh_facts=facts)
        self._db, self._writer = opened.database, writer
        self._lists = stored.PackLists()
        self._reserved: dict[WriterId, int] = {}
        try:
            with self._db.reading() as conn:
                self._used = UsedBytes(self._db, stored.sum_sizes(conn))
        except BaseException:
            self._db.close()
            raise
        self.replaced = opened.replaced
        """Name of the failed or damaged journal that this one follows, now in quarantine."""

    @property
    def name(self) -> str:
        return self._db.name

    def rest_on(self, ballast: Ballast) -> None:
        """From now on this space is given up for a transaction that begins on a full disk."""
        self._db.ballast = ballast

    def close(self) -> None:
        """Checkpoint and close; a failed or forked journal is left as it is. Safe to repeat."""
        self._db.close()

    # --- packs and their samples -----------------------------------------------------------------------------------

    def add_open_pack(self, file: PackFile) -> PackRecord:
        """A new OPEN pack. Its empty file must be durable under this name."""
        with self._db.writing() as conn:
            return stored.load_pack(conn, steps.insert_pack(conn, file, facts=None))

    def read_back(
        self, file: PackFile, *, entries: Sequence[SampleEntry], size_bytes: int, is_doubtful: bool
    ) -> PackRecord:
        """An OPEN pack of a file that was found, durable up to `size_bytes`, with all of its samples at once: after a
        crash in between, a pack without samples would be set aside as one that never held any.

        `is_doubtful`: they may not count any more (`doubtful_packs`).
        """
        with self._db.writing() as conn:
            pack_id = steps.insert_pack(conn, file, facts=None)
            self._used.grow(by_bytes=steps.grow_pack(conn, pack_id, size_bytes=size_bytes))
            steps.insert_entries(conn, entries, pack_id=pack_id)
            if is_doubtful:
                notes.write_fact(conn, f"{FACT_DOUBTFUL}{pack_id}", value="read back")
            return stored.load_pack(conn, pack_id)

    def append_samples(
        self,
        pack_id: int,
        entries: Sequence[SampleEntry],
        *,
        size_bytes: int,
        tombstones: Iterable[Tombstone] = (),
    ) -> None:
        """Rows of samples in an OPEN pack, whose file is durable up to `size_bytes` (INV-2: bytes before rows).

        `tombstones`: rows that the samples supersede, to be taken out of the view by the segment that will carry this
        pack. In one transaction, or a crash in between would leave both versions live.
        """
        with self._db.writing() as conn:
            self._used.grow(by_bytes=steps.grow_pack(conn, pack_id, size_bytes=size_bytes))
            steps.insert_entries(conn, entries, pack_id=pack_id)
            notes.write_tombstones(conn, pack_id, tombstones=tombstones)

    def seal(self, pack_id: int, facts: SealFacts) -> PackRecord:
        """OPEN → SEALED; the file must be durable in full."""
        with self._db.writing() as conn:
            steps.seal_pack(conn, pack_id, facts=facts)
            self._used.recount(conn)
            return stored.load_pack(conn, pack_id)

    def add_sealed_pack(
        self,
        file: PackFile,
        *,
        facts: SealFacts,
        entries: Sequence[SampleEntry],
        tombstones: Iterable[Tombstone] = (),
    ) -> PackRecord:
        """A new SEALED pack with all of its samples, and the rows that they supersede; its whole file must be published
        under this name.
        """
        with self._db.writing() as conn:
            pack_id = steps.insert_pack(conn, file, facts=facts)
            steps.insert_entries(conn, entries, pack_id=pack_id)
            notes.write_tombstones(conn, pack_id, tombstones=tombstones)
            self._used.grow(by_bytes=facts.size_bytes)
            return stored.load_pack(conn, pack_id)

    def replace_file(self, pack_id: int, new: Replacement, *, reason: str) -> int | None:
        """Give a damaged pack the published file `new` under the same pack id, SEALED.

        Entries that `new` does not hold become a LOST pack of the old name, whose id is returned (None: nothing lost).
        """
        with self._db.writing() as conn:
            lost_id = steps.replace_pack(conn, pack_id, new=new, reason=reason)
            self._used.recount(conn)
            return lost_id

    def doubtful_packs(self) -> list[PackRecord]:
        """The packs that `FACT_DOUBTFUL` is set for."""
        with self._db.reading() as conn:
            facts = {name for (name,) in conn.execute("SELECT name FROM facts")}
            return [record for record in stored.load_packs(conn, ()) if f"{FACT_DOUBTFUL}{record.pack_id}" in facts]

    def drop_samples(self, pack_id: int, sample_ids: Sequence[SampleId]) -> None:
        """Samples of the pack that were put again, with other content, count no more."""
        with self._db.writing() as conn:
            steps.drop_entries(conn, pack_id, sample_ids=sample_ids)

    def drop_empty(self, pack_id: int) -> None:
        """Forget a pack without samples: one that never held an acknowledged sample, or a RECLAIMED one."""
        with self._db.writing() as conn:
            if stored.load_pack(conn, pack_id).sample_count:
                raise DurastoreError(f"pack {pack_id} holds acknowledged samples")
            steps.drop_belongings(conn, pack_id)
            conn.execute("DELETE FROM packs WHERE pack_id = ?", (pack_id,))  # a sample row left behind refuses this

    def drop_reclaimed(self) -> int:
        """Forget the packs RECLAIMED before this open; returns how many. Nobody waits on them any more."""
        with self._db.writing() as conn:
            return conn.execute("DELETE FROM packs WHERE state = 'reclaimed'").rowcount

    def record_identity(self, pack_id: int, identity: FileIdentity) -> None:
        """The file has new numbers (reboot, copy, touch), and its bytes were hashed again and are the sealed ones."""
        with self._db.writing() as conn:
            conn.execute("UPDATE packs SET identity = ? WHERE pack_id = ?", (identity.render(), pack_id))

    # --- upload, proof, reclaim ------------------------------------------------------------------------------------

    def write_id(self, pack_id: int) -> str:
        """The id that this pack's upload carries: recorded before the first byte is sent, so that a lost answer can be
        told from a foreign object. The same one until the pack is moved back to SEALED.
        """
        with self._db.writing() as conn:
            record = steps.require_state(conn, pack_id, PackState.SEALED, PackState.UNKNOWN)
            if record.write_id is not None:
                return record.write_id
            fresh = secrets.token_hex(16)
            conn.execute("UPDATE packs SET write_id = ? WHERE pack_id = ?", (fresh, pack_id))
            return fresh

    def record_session(self, pack_id: int, session: UploadSession | None) -> None:
        """Remember a multipart upload under way with its parts; None forgets it."""
        with self._db.writing() as conn:
            notes.write_session(conn, pack_id, session=session)

    def session(self, pack_id: int) -> UploadSession | None:
        """The multipart upload under way, if one is on record."""
        with self._db.reading() as conn:
            return notes.load_session(conn, pack_id)

    def record_part(self, pack_id: int, part: PartRecord) -> None:
        """A part was acknowledged; sent again, it takes the place of the earlier record. The session must be there."""
        with self._db.writing() as conn:
            notes.write_part(conn, pack_id, part=part)

    def record_uploaded(self, pack_id: int, *, reply: UploadAnswer, at: Stamp) -> None:
        """SEALED (or UNKNOWN) → UPLOADED: the endpoint acknowledged the object. Proves nothing."""
        with self._db.writing() as conn:
            notes.write_session(conn, pack_id, session=None)
            steps.upload_pack(conn, pack_id, reply=reply, at=at)

    def record_verified(self, pack_id: int, evidence: Evidence) -> None:
        """UPLOADED → VERIFIED; for a pack already further on, its evidence is renewed. LISTED is refused (INV-5)."""
        with self._db.writing() as conn:
            steps.verify_pack(conn, pack_id, evidence=evidence)

    def record_manifested(self, pack_ids: Sequence[int], segment_key: ObjectKey, *, at: Stamp) -> None:
        """VERIFIED → MANIFESTED for all of them at once: the segment with their rows was read back `at` this time.

        Their tombstones stay until the packs are reclaimed: the segment that carried them may yet be forgotten.
        """
        with self._db.writing() as conn:
            for pack_id in pack_ids:
                steps.manifest_pack(conn, pack_id, segment_key=segment_key, at=at)

    def record_intent(self, pack_id: int, text: str) -> None:
        """Announce that the file is about to be freed, before it is (INV-3)."""
        with self._db.writing() as conn:
            steps.require_state(conn, pack_id, PackState.MANIFESTED)
            conn.execute("UPDATE packs SET intent = ? WHERE pack_id = ?", (text, pack_id))

    def intents(self) -> list[tuple[PackRecord, str]]:
        """Packs whose file was about to be freed, with the announced text."""
        return [(record, record.intent) for record in self.packs() if record.intent is not None]

    def record_reclaimed(self, pack_id: int) -> None:
        """MANIFESTED with an intent → RECLAIMED: its samples leave now, the pack's own row at the next open."""
        with self._db.writing() as conn:
            if steps.require_state(conn, pack_id, PackState.MANIFESTED).intent is None:
                raise DurastoreError(f"pack {pack_id} has no intent: its file was never about to be freed")
            steps.reclaim_pack(conn, pack_id)
            self._used.recount(conn)

    def record_verified_without_file(self, pack_id: int, evidence: Evidence) -> None:
        """The local file is gone and the object gave every byte back (READ_BACK) → VERIFIED, and not to be uploaded.

        Its rows go into a segment; one that carried them before is gone from the bucket, or this is not the step.
        """
        with self._db.writing() as conn:
            conn.execute("UPDATE packs SET manifested_in = NULL, manifested_at = NULL WHERE pack_id = ?", (pack_id,))
            steps.prove_without_file(conn, pack_id, evidence=evidence)

    def record_found_remote(self, pack_id: int, evidence: Evidence) -> None:
        """The local file is gone, the rows are in a segment, and the object gave every byte back → RECLAIMED."""
        with self._db.writing() as conn:
            if stored.load_pack(conn, pack_id).manifested_in is None:
                raise DurastoreError(f"pack {pack_id} is in no manifest segment")
            steps.prove_without_file(conn, pack_id, evidence=evidence)
            self._used.recount(conn)

    def move_back(self, pack_id: int, state: PackState, *, reason: str) -> None:
        """To an earlier state or a side state; what the pack claimed beyond that is taken back. Never forward."""
        with self._db.writing() as conn:
            steps.step_back(conn, pack_id, state=state, reason=reason)
            self._used.recount(conn)

    # --- questions -------------------------------------------------------------------------------------------------

    def packs(self, *states: PackState) -> list[PackRecord]:
        """Packs in one of these states (all of them without any), oldest first."""
        with self._db.reading() as conn:
            return self._lists.load(conn, states, writes=self._db.writes)

    def pack(self, pack_id: int) -> PackRecord:
        """`DurastoreError` if there is none of this number (any more)."""
        with self._db.reading() as conn:
            return stored.load_pack(conn, pack_id)

    def entries(self, pack_id: int) -> list[SampleEntry]:
        """The samples of a pack in the order of their offsets."""
        with self._db.reading() as conn:
            return stored.load_entries(conn, pack_id)

    def entry_columns(self, pack_id: int) -> EntryColumns:
        """As `entries`, as columns: what a manifest segment takes."""
        with self._db.reading() as conn:
            return stored.load_entry_columns(conn, pack_id)

    def find_sample(self, sample_id: SampleId) -> list[tuple[PackRecord, SampleEntry]]:
        """Every place where this journal has the sample, oldest first; LOST and QUARANTINED packs included."""
        with self._db.reading() as conn:
            return [(stored.load_pack(conn, pack_id), entry) for pack_id, entry in stored.find_entries(conn, sample_id)]

    def unmanifested(self) -> Iterator[tuple[PackRecord, SampleEntry]]:
        """Samples that are durable here and in no manifest segment yet; without LOST and QUARANTINED ones."""
        for record in self.packs(*UNMANIFESTED):
            for entry in self.entries(record.pack_id):
                yield record, entry

    def count_by_state(self) -> dict[PackState, int]:
        """How many packs are in each state that has any."""
        with self._db.reading() as conn:
            return stored.count_states(conn)

    def standing(self) -> Standing:
        """Sums over all packs."""
        with self._db.reading() as conn:
            return load_standing(conn)

    def used_bytes(self) -> int:
        """Bytes of the pack files on record. Takes no lock: a put asks while another one's commit is being synced."""
        return self._used.size_bytes

    # --- manifest segments and numbers -----------------------------------------------------------------------------

    def tombstones(self, pack_ids: Sequence[int]) -> list[Tombstone]:
        """The tombstones that go into every segment that carries these packs."""
        with self._db.reading() as conn:
            return [stone for pack_id in pack_ids for stone in notes.load_tombstones(conn, pack_id)]

    def announce_burial(self, pack_id: int) -> list[Tombstone]:
        """The rows of a LOST pack are about to be taken out of the view: recorded before it is done, because from then
        on nothing may be listed under them. Returns the tombstones for it; the same again if repeated.
        """
        with self._db.writing() as conn:
            key = steps.require_state(conn, pack_id, PackState.LOST).key
            notes.bury_rows(conn, pack_id)
            return [stone for stone in notes.load_tombstones(conn, pack_id) if stone.key == key]

    def dead_rows(self, pack_id: int) -> list[SampleId]:
        """Samples of the pack whose rows under its key are, or may be, taken out of the view for ever."""
        with self._db.reading() as conn:
            return notes.load_dead_rows(conn, pack_id)

    def next_pack_seq(self, writer: WriterId) -> int:
        """A pack number this writer never used before. Reserved in memory: a writer id does not outlive its process."""
        with self._db.reading() as conn:
            seq = max(notes.last_seqs(conn, writer)[0], self._reserved.get(writer, 0)) + 1
            self._reserved[writer] = seq
            return seq

    def announce_writer(self) -> None:
        """This spool's writer may make files from now on: a journal that does not know a file's writer is an older one.
        Safe to repeat.
        """
        with self._db.writing() as conn:
            notes.announce_writer(conn, self._writer)

    def record_segment_started(self, seq: int, pack_ids: Sequence[int]) -> None:
        """Announce that this spool's writer puts segment `seq` with these VERIFIED packs, before it is put: a journal
        restored from an older copy is known by it. The same number again until the segment is through; no gaps.
        """
        with self._db.writing() as conn:
            for pack_id in pack_ids:
                steps.require_state(conn, pack_id, PackState.VERIFIED)
            notes.announce_segment(conn, self._writer, seq=seq)

    def writers(self) -> list[WriterRecord]:
        """Every writer id that this spool was opened with, with the highest numbers it used."""
        with self._db.reading() as conn:
            return notes.load_writers(conn)

    # --- facts and runs --------------------------------------------------------------------------------------------

    def get_fact(self, name: str) -> str | None:
        with self._db.reading() as conn:
            row = conn.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
            return None if row is None else str(row[0])

    def set_fact(self, name: str, value: str | None) -> None:
        """Record a fact of this spool (store id, bucket URL, ...); None takes it back. Safe to repeat."""
        with self._db.writing() as conn:
            notes.write_fact(conn, name, value=value)

    def add_run(self, run: Run) -> None:
        """Keep a run's text: packs made by recovery and manifest segments need it. Safe to repeat."""
        with self._db.writing() as conn:
            conn.execute("INSERT OR IGNORE INTO runs (digest, text) VALUES (?, ?)", (run.digest.hex, run.text))

    def runs(self) -> dict[Digest, Run]:
        """Every run on record by its digest."""
        with self._db.reading() as conn:
            return notes.load_runs(conn)

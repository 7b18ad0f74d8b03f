"""What a spool's journal still claims when it is opened, held against the files and the bucket.

Duty: local recovery, then the questions only the bucket can answer: is this the bucket it was, was the journal rolled
back, where is a pack whose file is gone. Doubt moves packs back to SEALED; nothing is unlinked here (INV-9).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial

from durastore.errors import ConfigError, DiskFailed, DurastoreError, IntegrityError, JournalFailed, ObjectAbsent
from durastore.formats.keys import pack_listing_prefix, parse_pack_key, parse_segment_key, segment_listing_prefix
from durastore.model import Evidence, ObjectKey, PackState, WriterId
from durastore.observe.events import LOGGER
from durastore.spool.journal import PackRecord
from durastore.spool.records import FACT_OLDER, FACT_STORE_ID, FACT_URL
from durastore.spool.spool import Spool, how_to_empty
from durastore.store.made_again import drop_made_again, fetch_tombstones, move_buried, settle_doubtful
from durastore.store.segmenter import bury
from durastore.store.services import Services

__all__ = ["Settling"]

_PROVEN = (PackState.UPLOADED, PackState.VERIFIED, PackState.MANIFESTED, PackState.UNKNOWN)
_SECOND_LOOK_S = 1.0
_ROOT_ID = "root_id"
_COPIED_FROM = "copied_from"
"""The root that the packs of this spool were copied from, which may still be in use."""
_PLACE = "bucket_place"


class Settling:
    """Brings one spool to a state from which its lane can go on. Safe to repeat."""

    def __init__(self, services: Services, *, url: str, store_id: str) -> None:
        self._services = services
        self._url = url
        self._store_id = store_id
        # read once for all spools of an opening: what one of them takes out meanwhile are rows of its own lost packs
        self._tombstones = cache(partial(fetch_tombstones, services))

    def settle(self, spool: Spool) -> None:
        """Run every check. `ConfigError` if the spool still holds packs for another bucket; network errors pass."""
        spool.bind(self._services.prefix)
        report = spool.recover()
        for line in report.lines():
            LOGGER.warning("recovery of %s: %s", spool.path, line)
        self._check_root(spool)
        self._check_bucket(spool)
        self._check_rollback(spool, is_older=report.is_older)
        self._retry_conflicts(spool)
        self._find_missing(spool, report.missing_files)
        self._bury_lost(spool)
        move_buried(spool, self._tombstones)
        drop_made_again(spool, self._services, records=spool.journal.packs())
        settle_doubtful(spool, self._services)

    def _check_root(self, spool: Spool) -> None:
        """A root that was copied by other means (cp, rsync, a clone) got a marker of its own, as the refusal said: the
        one it was copied from may go on with the same packs, and every proof is void.
        """
        root_id = spool.root.identity.root_id
        known = spool.journal.get_fact(_ROOT_ID)
        if known is not None and known != root_id:
            LOGGER.error("%s was copied from another root: every proof is void", spool.path)
            self._void(spool, "the root was copied")
            spool.journal.set_fact(_COPIED_FROM, known)
        if known != root_id:
            spool.journal.set_fact(_ROOT_ID, root_id)

    def _check_bucket(self, spool: Spool) -> None:
        """The spool was filled for this bucket; one re-created under the same name voids every proof (case B164)."""
        journal = spool.journal
        known_id, known_url = journal.get_fact(FACT_STORE_ID), journal.get_fact(FACT_URL)
        if known_id is not None and known_id != self._store_id:
            left = [r for r in journal.packs(PackState.SEALED, PackState.CONFLICT, *_PROVEN) if r.sample_count]
            left += [r for r in journal.packs(PackState.LOST) if _is_unburied(spool, r)]
            if left and known_url != self._url:
                raise ConfigError(
                    f"spool {spool.path} still holds {len(left)} packs for {known_url}",
                    hint=how_to_empty(spool.root.path, url=known_url),
                )
            LOGGER.error("the bucket at %s is not the one this spool knew: every proof is void", self._url)
            self._void(spool, "the bucket was re-created")
        elif journal.get_fact(_PLACE) not in (None, self._place):
            self._doubt_copy(spool)
        journal.set_fact(FACT_STORE_ID, self._store_id)
        journal.set_fact(FACT_URL, self._url)
        journal.set_fact(_PLACE, self._place)

    @property
    def _place(self) -> str:
        domain = self._services.objects.failure_domain
        return f"{self._url} {domain}" if domain.startswith("host:") else self._url

    def _doubt_copy(self, spool: Spool) -> None:
        """The marker is the same and the place another: a copy of the bucket (replication, a migration) may lack any
        object that the first one was seen to hold.
        """
        LOGGER.warning("the bucket of %s is reached at %s now: what is here is proven anew", spool.path, self._place)
        for record in spool.journal.packs(PackState.VERIFIED, PackState.MANIFESTED):
            if spool.packs_folder.has(record.name):
                reason = "the bucket is at another place"
                spool.journal.move_back(record.pack_id, PackState.UPLOADED, reason=reason)

    def _void(self, spool: Spool, reason: str) -> None:
        for record in spool.journal.packs(*_PROVEN):
            if spool.packs_folder.has(record.name):
                spool.journal.move_back(record.pack_id, PackState.SEALED, reason=reason)

    def _check_rollback(self, spool: Spool, *, is_older: bool) -> None:
        """A journal older than its spool's files (`is_older`), or than what its writers have in the bucket, was put
        back from a copy: trust no state.
        """
        younger = self._younger_in_bucket(spool)
        if not is_older and not younger:
            return
        than = "its packs" if is_older else "the bucket"
        LOGGER.error("the journal of %s is older than %s: every pack is proven anew", spool.path, than)
        if is_older:
            self._void(spool, "the journal was restored from an older copy")
        else:
            self._void(spool, "the journal was rolled back")
        for writer, numbers in younger.items():
            spool.journal.set_fact(_voided(writer), numbers)
        spool.journal.set_fact(FACT_OLDER, None)

    def _younger_in_bucket(self, spool: Spool) -> dict[WriterId, str]:
        """Writers of this spool that have more in the bucket than the journal knows, and what.

        Once every pack was voided for that, it says nothing new: a journal that was made again from its packs never
        learns of its old writers' segments, and would void them at every opening.
        """
        found: dict[WriterId, str] = {}
        for writer, pack_seq, segment_seq in spool.journal.writers():
            if writer == spool.writer or not pack_seq + segment_seq:
                continue
            packs, segments = self._last_in_bucket(writer)
            numbers = f"{packs} {segments}"
            is_younger = packs > pack_seq or segments > segment_seq
            if is_younger and spool.journal.get_fact(_voided(writer)) != numbers:
                found[writer] = numbers
        return found

    def _retry_conflicts(self, spool: Spool) -> None:
        """What was set aside because other bytes lay under its key is looked at once a session: else a later session
        would end well while acknowledged samples are only here.
        """
        for record in spool.journal.packs(PackState.CONFLICT):
            if spool.packs_folder.has(record.name):
                spool.journal.move_back(record.pack_id, PackState.SEALED, reason="a conflict is looked at again")

    def _last_in_bucket(self, writer: WriterId) -> tuple[int, int]:
        prefix = self._services.prefix
        packs = segments = 0
        for page in self._services.objects.list(pack_listing_prefix(prefix, writer)):
            parts = [parse_pack_key(prefix, stat.key) for stat in page]
            packs = max([packs, *(p.seq for p in parts if p is not None)])
        for page in self._services.objects.list(segment_listing_prefix(prefix, writer)):
            found = [parse_segment_key(prefix, stat.key) for stat in page]
            segments = max([segments, *(p.seq for p in found if p is not None)])
        return packs, segments

    def _find_missing(self, spool: Spool, missing: Sequence[PackRecord]) -> None:
        """Packs whose file is gone: settled if the bucket gives every byte back, LOST if it proves not to have them."""
        for record in missing:
            try:
                evidence = self._services.verifier.look_twice(record)
            except (ObjectAbsent, IntegrityError) as exc:
                self._record_lost(spool, record, error=exc)
                continue
            self._record_found(spool, record, evidence=evidence)

    def _record_found(self, spool: Spool, record: PackRecord, *, evidence: Evidence) -> None:
        """The rows are looked for as well: a segment that the server forgot is written again from the journal."""
        if record.manifested_in is not None and self._services.verifier.holds_segment(record.manifested_in):
            spool.journal.record_found_remote(record.pack_id, evidence)
        else:
            spool.journal.record_verified_without_file(record.pack_id, evidence)

    def _record_lost(self, spool: Spool, record: PackRecord, *, error: DurastoreError) -> None:
        """The record first: a crash in between leaves a LOST pack, whose rows leave the view at the next open."""
        entries = spool.journal.entries(record.pack_id)
        report = spool.record_lost(record.pack_id, reason=str(error))
        names = ", ".join(sample.sample_id.text for sample in report.lost[:10])
        # before the bucket is asked for anything: an endpoint that fails now must not take this along
        LOGGER.error("pack %s: %d of %d samples are LOST: %s", record.name, len(report.lost), len(entries), names)
        report.raise_unless_full()
        if record.manifested_in is not None and spool.journal.get_fact(_COPIED_FROM) is None:
            for lost in spool.journal.packs(PackState.LOST):
                if lost.key == record.key:
                    self._bury(spool, lost)

    def _bury_lost(self, spool: Spool) -> None:
        """Rows of every LOST pack leave the view, once: a loss found within a session had no time for it, and a
        tombstone for a row that is not there harms nothing (INV-8).

        The bucket is asked first. A journal taken back to before the upload calls lost what the bucket holds, and a
        tombstone would take that out of the view for ever. In a copy of a root nothing is buried: what was cut off in
        the copying is not lost, and the original, which may yet send it, would list it in vain.
        """
        journal = spool.journal
        if journal.get_fact(_COPIED_FROM) is not None:
            return
        for record in journal.packs(PackState.LOST):
            if not _is_unburied(spool, record):
                continue
            try:
                evidence = self._services.verifier.look_twice(record)
            except (ObjectAbsent, IntegrityError):
                self._bury(spool, record)
                continue
            LOGGER.warning("pack %s was taken for LOST and is in the bucket", record.name)
            if journal.dead_rows(record.pack_id):
                self._bring_back(spool, record)
            else:
                self._record_found(spool, record, evidence=evidence)

    def _bury(self, spool: Spool, record: PackRecord) -> None:
        """Announced first: after a crash in between nobody can tell whether the rows are still in the view."""
        stones = spool.journal.announce_burial(record.pack_id)
        # an earlier row of a sample that was saved once, and is lost now, is the last one: it goes if it leads nowhere
        moved = [stone for stone in spool.journal.tombstones([record.pack_id]) if stone.reason == "moved"]
        stones += [stone for stone in moved if self._is_gone(stone.key)]
        bury(spool, self._services, stones=stones)
        spool.journal.set_fact(_buried(record.pack_id), str(record.key))

    def _is_gone(self, key: ObjectKey) -> bool:
        """As a loss: only after two looks."""
        for _ in range(2):
            reader = self._services.objects.fresh_reader()
            try:
                reader.head(key)
            except ObjectAbsent:
                self._services.clock.sleep(_SECOND_LOOK_S)
            else:
                return False
            finally:
                reader.close()
        return True

    def _bring_back(self, spool: Spool, record: PackRecord) -> None:
        """The object is there after all, and its rows are taken out or may be: it is fetched, to be sent under another
        key. What keeps us from that here leaves it LOST, and the next open tries again.
        """
        assert record.key is not None
        reader = self._services.objects.fresh_reader()
        try:
            report = spool.bring_back(record.pack_id, reader.fetch_chunks(record.key))
        except JournalFailed:
            raise
        except (DiskFailed, FileExistsError, ObjectAbsent, IntegrityError) as exc:
            LOGGER.error("pack %s is in the bucket, unlisted, and cannot be fetched: %s", record.name, exc)
        else:
            LOGGER.warning("pack %s: %d samples were fetched, to be sent again", record.name, report.saved)
        finally:
            reader.close()


def _is_unburied(spool: Spool, record: PackRecord) -> bool:
    """Whether rows of a LOST pack may be in the view of its bucket. By key: a pack that came back has another one."""
    if record.key is None or not record.sample_count:
        return False
    return spool.journal.get_fact(_buried(record.pack_id)) != record.key.text


def _voided(writer: WriterId) -> str:
    return f"voided {writer}"


def _buried(pack_id: int) -> str:
    return f"buried {pack_id}"

"""Mutants of what keeps manifest rows alive or takes them out: moved, buried and superseded rows, and old journals."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["ROWS"]

STEPS = "durastore/spool/journal_steps.py"
_STEP_TESTS = "tests/unit/test_journal_steps.py"
_HISTORIES = "tests/property/test_store_histories.py"

_SETTLING_TESTS = "tests/unit/test_store_settling.py"
_SEGMENTER_TESTS = "tests/unit/test_store_segmenter.py"
SETTLING = "durastore/store/settling.py"

_RECOVERY_TESTS = "tests/unit/test_spool_recovery.py"
RECOVERY = "durastore/spool/recovery.py"

_OLDER = "a journal older than its spool: back to SEALED"
_BURIED = "a row taken out stays out"
_SPOOLS = "tests/unit/test_reconcile_spools.py"
_AGAIN = "the last put counts"
_MOVED = "done means: a live row (INV-8)"

ROWS = (
    Mutant(
        name="old-row-of-a-saved-sample-stays",
        clause=_MOVED,
        file=STEPS,
        before="    conn.executemany(_MOVE_ROW, rows)\n",
        after="",
        tests=(f"{_HISTORIES}::test_the_row_of_a_forgotten_object_gives_way_to_that_of_the_saved_copy",),
    ),
    Mutant(
        name="superseded-row-escapes-by-moving",
        clause=_MOVED,
        file=STEPS,
        before="    conn.executemany(_FOLLOW_ROW, rows)\n",
        after="",
        tests=(f"{_STEP_TESTS}::test_a_superseded_sample_is_superseded_at_its_new_place_as_well",),
    ),
    Mutant(
        name="a-row-that-gave-way-is-read",
        clause=_MOVED,
        file="durastore/store/catalog.py",
        before="            if fresh is None or fresh.object.key == row.object.key:\n",
        after="            if True:\n",
        tests=(f"{_HISTORIES}::test_the_row_of_a_forgotten_object_gives_way_to_that_of_the_saved_copy",),
    ),
    Mutant(
        name="lost-pack-sent-under-its-old-key",
        clause=_BURIED,
        file=RECOVERY,
        before='        _salvage(place, record, reason="its file is back", report=report)\n',
        after='        place.journal.move_back(record.pack_id, PackState.SEALED, reason="its file is back")\n',
        tests=("tests/unit/test_spool_recovery.py::test_a_sealed_pack_that_was_never_uploaded_is_lost_with_its_file",),
    ),
    Mutant(
        name="dead-row-listed-again",
        clause=_BURIED,
        file="durastore/store/segmenter.py",
        before="            if dead:\n",
        after="            if False:\n",
        tests=(f"{_SEGMENTER_TESTS}::test_a_row_that_was_taken_out_for_good_is_not_listed_again",),
    ),
    Mutant(
        name="superseded-row-taken-for-dead",
        clause=_BURIED,
        file="durastore/spool/journal_notes.py",
        before=" AND stone.reason <> 'superseded')",
        after=")",
        tests=(f"{_SEGMENTER_TESTS}::test_a_row_that_is_superseded_soon_is_listed_until_then",),
    ),
    Mutant(
        name="burial-cut-short-forgotten",
        clause=_BURIED,
        file=SETTLING,
        before="            if journal.dead_rows(record.pack_id):\n",
        after="            if False:\n",
        tests=(f"{_HISTORIES}::test_a_burial_that_was_cut_short_hides_no_object_that_is_there",),
    ),
    Mutant(
        name="buried-once-is-buried-for-ever",
        clause=_MOVED,
        file=SETTLING,
        before="    return spool.journal.get_fact(_buried(record.pack_id)) != record.key.text\n",
        after="    return spool.journal.get_fact(_buried(record.pack_id)) is None\n",
        tests=(f"{_HISTORIES}::test_a_pack_that_came_back_and_is_lost_again_is_buried_again",),
    ),
    Mutant(
        name="earlier-row-of-a-lost-sample-stays",
        clause=_MOVED,
        file=SETTLING,
        before=" if self._is_gone(stone.key)]",
        after=" if False]",
        tests=(f"{_SETTLING_TESTS}::test_the_earlier_row_of_a_lost_sample_goes_if_its_object_is_gone",),
    ),
    Mutant(
        name="earlier-row-goes-unasked",
        clause="ambiguity is not absence",
        file=SETTLING,
        before=" if self._is_gone(stone.key)]",
        after="]",
        tests=(f"{_SETTLING_TESTS}::test_the_earlier_row_of_a_lost_sample_goes_if_its_object_is_gone",),
    ),
    Mutant(
        name="lost-pack-turned-to-another-bucket",
        clause=_BURIED,
        file=SETTLING,
        before="            left += [r for r in journal.packs(PackState.LOST) if _is_unburied(spool, r)]\n",
        after="",
        tests=(
            f"{_SETTLING_TESTS}::test_a_spool_with_a_pack_that_the_bucket_must_still_settle_is_not_turned_to_another",
        ),
    ),
    Mutant(
        name="conflict-turned-to-another-bucket",
        clause=_BURIED,
        file=SETTLING,
        before="journal.packs(PackState.SEALED, PackState.CONFLICT, *_PROVEN)",
        after="journal.packs(PackState.SEALED, *_PROVEN)",
        tests=(
            f"{_SETTLING_TESTS}::test_a_spool_with_a_pack_that_the_bucket_must_still_settle_is_not_turned_to_another",
        ),
    ),
    Mutant(
        name="younger-files-set-aside",
        clause=_OLDER,
        file=RECOVERY,
        before="    _read_back_younger(place, untracked, report=report)\n",
        after="",
        tests=(f"{_RECOVERY_TESTS}::test_a_rolled_back_journal_loses_no_bytes",),
    ),
    Mutant(
        name="younger-files-of-known-writers-set-aside",
        clause=_OLDER,
        file=RECOVERY,
        before="if file.seq > known.get(file.writer, -1)]",
        after="if file.writer not in known]",
        tests=(f"{_RECOVERY_TESTS}::test_a_journal_rolled_back_within_a_session_loses_no_bytes",),
    ),
    Mutant(
        name="replaced-file-taken-for-younger",
        clause=_OLDER,
        file=RECOVERY,
        before="if file.seq > known.get(file.writer, -1)]",
        after="]",
        tests=(f"{_RECOVERY_TESTS}::test_a_file_that_this_journal_let_go_is_not_taken_back",),
    ),
    Mutant(
        name="copies-of-what-is-held-read-back",
        clause=_OLDER,
        file=RECOVERY,
        before="held=_held_digests(place), is_lost=False))",
        after="is_lost=False))",
        tests=(f"{_RECOVERY_TESTS}::test_the_copy_of_a_salvage_that_was_cut_short_is_not_a_second_pack",),
    ),
    Mutant(
        name="copies-of-what-is-set-aside-read-back",
        clause=_OLDER,
        file=RECOVERY,
        before="if place.packs.has(record.name) or place.quarantine.has(record.name)",
        after="if place.packs.has(record.name)",
        tests=(f"{_RECOVERY_TESTS}::test_the_copy_of_a_salvage_that_was_cut_short_is_not_a_second_pack",),
    ),
    Mutant(
        name="crash-taken-for-an-older-journal",
        clause=_OLDER,
        file=RECOVERY,
        before="    journal.announce_writer()\n",
        after="",
        tests=(f"{_RECOVERY_TESTS}::test_a_file_whose_row_was_cut_off_is_a_pack_and_no_older_journal",),
    ),
    Mutant(
        name="older-journal-noted-too-late",
        clause=_OLDER,
        file=RECOVERY,
        before='        journal.set_fact(FACT_OLDER, "found")\n',
        after="        report.is_older = True\n",
        tests=(f"{_RECOVERY_TESTS}::test_reading_back_can_end_at_any_commit_and_goes_on",),
    ),
    Mutant(
        name="older-journal-trusted",
        clause=_OLDER,
        file=SETTLING,
        before='            self._void(spool, "the journal was restored from an older copy")\n',
        after="            pass\n",
        tests=(f"{_SETTLING_TESTS}::test_a_journal_older_than_its_files_is_trusted_in_nothing",),
    ),
    Mutant(
        name="content-back-hides-a-later-one",
        clause=_AGAIN,
        file=SETTLING,
        before="        drop_made_again(spool, self._services, records=spool.journal.packs())\n",
        after="",
        tests=(f"{_HISTORIES}::test_a_lost_content_that_comes_back_does_not_hide_one_put_since",),
    ),
    Mutant(
        name="buried-rows-sent-again-dead",
        clause="never under the old key again",
        file=SETTLING,
        before="        move_buried(spool, self._tombstones)\n",
        after="",
        tests=(f"{_SPOOLS}::test_rows_buried_by_another_root_are_live_after_the_packs_are_sent_again",),
    ),
    Mutant(
        name="content-saved-hides-a-later-one",
        clause=_AGAIN,
        file="durastore/store/segmenter.py",
        before="in drop_made_again(self._spool, self._services, records=records):",
        after="in ():",
        tests=(
            f"{_HISTORIES}::test_a_content_superseded_by_another_process_stays_so_when_it_is_saved_into_another_file",
        ),
    ),
    Mutant(
        name="copy-of-a-listed-content-let-go",
        clause="losing data is worse",
        file="durastore/store/made_again.py",
        before="    return bool(others) and all(other.header_digest != entry.header_digest for other in others)\n",
        after="    return bool(others)\n",
        tests=(f"{_HISTORIES}::test_the_same_content_put_since_is_no_reason_to_let_the_copy_go",),
    ),
    Mutant(
        name="content-put-again-here-not-seen",
        clause=_AGAIN,
        file="durastore/store/made_again.py",
        before="                or _is_other_here(spool, record, entry=entry, is_newer=not is_doubtful)\n",
        after="",
        tests=(f"{_HISTORIES}::test_a_lost_content_that_comes_back_does_not_hide_one_put_since",),
    ),
    Mutant(
        name="a-copied-marker-proves-all",
        clause="bucket marker as recorded",
        file="durastore/store/settling.py",
        before="elif journal.get_fact(_PLACE) not in (None, self._place):",
        after="elif False:",
        tests=(
            "tests/unit/test_store_settling.py::test_a_copy_of_the_bucket_with_its_marker_proves_nothing_by_itself",
        ),
    ),
    Mutant(
        name="read-back-content-is-a-second-one",
        clause=_AGAIN,
        file=SETTLING,
        before="        settle_doubtful(spool, self._services)\n",
        after="",
        tests=(f"{_HISTORIES}::test_a_put_whose_row_was_cut_off_leaves_one_content",),
    ),
    Mutant(
        name="listed-content-let-go",
        clause="losing data is worse",
        file="durastore/store/made_again.py",
        before="            and not _is_listed(view, record, entry=entry)\n",
        after="",
        tests=(f"{_HISTORIES}::test_an_older_journal_takes_no_listed_content_out_of_the_view",),
    ),
)

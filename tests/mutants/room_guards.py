"""Mutants of what is done on a full disk: what may be dropped for it, what counts as one, and who goes first."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["ROOM"]

_FULL = "a full disk is waited for (ADR 0006)"
_TOLD = "a loss is told, whatever fails after it"
_ONCE = "only what is still the writer's is saved"
_BALLAST_TESTS = "tests/unit/test_fsio_ballast.py"
_JOURNAL_TESTS = "tests/unit/test_journal_file.py"
_ROOM_TESTS = "tests/unit/test_store_room.py"
_STEP_TESTS = "tests/faults/test_full_disk_steps.py"
_WRITER_TESTS = "tests/unit/test_spool_pack_writer.py"
_RECOVERY_TESTS = "tests/unit/test_spool_recovery.py"
_RECLAIM_TESTS = "tests/unit/test_store_lane_reclaim.py"
JOURNAL = "durastore/spool/journal_db.py"

ROOM = (
    Mutant(
        name="ballast-with-data-dropped",
        clause=_FULL,
        file="durastore/fsio/ballast.py",
        before="            if not _is_all_zeros(fd):\n",
        after="            if False:\n",
        tests=(f"{_BALLAST_TESTS}::test_a_file_with_a_single_byte_in_it_is_never_dropped",),
    ),
    Mutant(
        name="ballast-not-synced",
        clause=_FULL,
        file="durastore/fsio/ballast.py",
        before="            SYS.fsync(fd)\n",
        after="",
        tests=(f"{_BALLAST_TESTS}::test_what_is_held_is_durable",),
    ),
    Mutant(
        name="puts-before-the-ballast",
        clause=_FULL,
        file="durastore/store/room.py",
        before='return None if not ballast.is_wanted or ballast.ensure() else "disk full"',
        after="return None",
        tests=(_ROOM_TESTS,),
    ),
    Mutant(
        name="any-error-counts-as-full",
        clause=_FULL,
        file="durastore/spool/journal_errors.py",
        before="& 0xFF == sqlite3.SQLITE_FULL\n",
        after="& 0xFF in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)\n",
        tests=(f"{_JOURNAL_TESTS}::test_the_first_error_ends_the_journal_and_the_next_open_goes_on_in_a_new_file",),
    ),
    Mutant(
        name="full-journal-ends",
        clause=_FULL,
        file=JOURNAL,
        before="if isinstance(exc, SQLITE_ERRORS) and not is_disk_full(exc):",
        after="if isinstance(exc, SQLITE_ERRORS):",
        tests=(f"{_JOURNAL_TESTS}::test_a_full_disk_undoes_one_transaction_and_ends_nothing",),
    ),
    Mutant(
        name="unread-checkpoint-at-close",
        clause=_FULL,
        file=JOURNAL,
        before="                else:\n                    self._let_go()\n",
        after="                else:\n                    self._connection.close()\n",
        tests=(f"{_JOURNAL_TESTS}::test_a_checkpoint_without_room_costs_no_commit_and_is_made_later",),
    ),
    Mutant(
        name="full-disk-ends-the-lane",
        clause=_FULL,
        file="durastore/store/lane.py",
        before="        if not error.is_full:\n            raise error\n",
        after="        raise error\n",
        tests=(_STEP_TESTS,),
    ),
    Mutant(
        name="full-disk-ends-the-put",
        clause=_FULL,
        file="durastore/store/room.py",
        before="                if not exc.is_full:\n                    raise\n",
        after="                raise\n",
        tests=(_STEP_TESTS,),
    ),
    Mutant(
        name="a-waiting-copy-keeps-the-tar-open",
        clause=_FULL,
        file="durastore/spool/pack_writer.py",
        before="            waiting = self._save_abandoned()\n",
        after="            if (waiting := self._save_abandoned()) is not None:\n                raise waiting\n",
        tests=(f"{_WRITER_TESTS}::test_a_copy_without_room_keeps_neither_the_open_tar_nor_another_copy_waiting",),
    ),
    Mutant(
        name="a-waiting-copy-keeps-the-others-waiting",
        clause=_FULL,
        file="durastore/spool/pack_writer.py",
        before="                waiting = waiting or exc\n",
        after="                return exc\n",
        tests=(f"{_WRITER_TESTS}::test_a_copy_without_room_keeps_neither_the_open_tar_nor_another_copy_waiting",),
    ),
    Mutant(
        name="loss-untold-where-the-file-cannot-be-moved",
        clause=_TOLD,
        file="durastore/spool/salvage.py",
        before="            left = exc\n",
        after="            raise\n",
        tests=(
            f"{_STEP_TESTS}::test_a_sample_lost_before_its_upload_is_told_although_its_file_cannot_be_set_aside",
            f"{_STEP_TESTS}::test_a_sample_lost_in_an_abandoned_tar_is_told_although_its_file_cannot_be_set_aside",
        ),
    ),
    Mutant(
        name="loss-told-with-the-report-only",
        clause=_TOLD,
        file="durastore/reclaim/engine.py",
        before="                self._listener.on_lost(salvaged.lost)\n",
        after="                pass\n",
        tests=(f"{_RECLAIM_TESTS}::test_a_loss_is_told_although_the_same_batch_ends_in_an_error",),
    ),
    Mutant(
        name="doubt-told-with-the-report-only",
        clause=_TOLD,
        file="durastore/reclaim/engine.py",
        before="                self._listener.on_unexplained(record.pack_id, exc.message)\n",
        after="                pass\n",
        tests=(
            f"{_RECLAIM_TESTS}::test_a_pack_that_neither_side_has_is_told_although_the_same_batch_ends_in_an_error",
        ),
    ),
    Mutant(
        name="loss-untold-where-recovery-is-cut-short",
        clause=_TOLD,
        file="durastore/spool/recovery.py",
        before="        for line in report.lines():  # a",
        after="        for line in ():  # a",
        tests=(f"{_RECOVERY_TESTS}::test_a_loss_is_told_although_the_recovery_ends_in_an_error",),
    ),
    Mutant(
        name="saved-whatever-its-state",
        clause=_ONCE,
        file="durastore/spool/pack_writer.py",
        before="        if record.state is not PackState.OPEN:\n",
        after="        if False:\n",
        tests=(f"{_WRITER_TESTS}::test_a_tar_that_was_sealed_before_its_sealing_was_interrupted_is_not_copied",),
    ),
    Mutant(
        name="saved-and-saved-again",
        clause=_ONCE,
        file="durastore/spool/salvage.py",
        before="    if record.state in _HELD_ELSEWHERE:\n",
        after="    if False:\n",
        tests=(f"{_RECOVERY_TESTS}::test_a_pack_that_the_bucket_holds_whole_is_not_salvaged",),
    ),
)

"""Mutants of what is done on a full disk: what may be dropped for it, what counts as one, and who goes first."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["ROOM"]

_FULL = "a full disk is waited for (ADR 0006)"
_BALLAST_TESTS = "tests/unit/test_fsio_ballast.py"
_JOURNAL_TESTS = "tests/unit/test_journal_file.py"
_ROOM_TESTS = "tests/unit/test_store_room.py"
_STEP_TESTS = "tests/faults/test_full_disk_steps.py"
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
        file=JOURNAL,
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
        before="                    _pin(self._connection)  # as if killed",
        after="                    self._connection.close()  # as if killed",
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
)

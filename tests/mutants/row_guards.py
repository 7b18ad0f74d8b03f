"""Mutants of what keeps manifest rows alive or takes them out: moved, buried and superseded rows, and old journals."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["ROWS"]

STEPS = "durastore/spool/journal_steps.py"
_STEP_TESTS = "tests/unit/test_journal_steps.py"
_HISTORIES = "tests/property/test_store_histories.py"

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
        tests=(f"{_HISTORIES}::test_a_superseded_content_that_was_saved_into_another_file_stays_superseded",),
    ),
    Mutant(
        name="a-row-that-gave-way-is-read",
        clause=_MOVED,
        file="durastore/store/catalog.py",
        before="            if fresh is None or fresh.object.key == row.object.key:\n",
        after="            if True:\n",
        tests=(f"{_HISTORIES}::test_the_row_of_a_forgotten_object_gives_way_to_that_of_the_saved_copy",),
    ),
)

"""Mutants of what keeps a list of failures from being more than history: a word about what is stored."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["FAILURES"]

_LISTS = "tests/unit/test_manifest_failure_lists.py"
_BYTES = "tests/unit/test_formats_failure_list.py"
_TOLD = "tests/unit/test_extract_failures_told.py"
_DOCTOR = "tests/integration/test_doctor_extract.py"
_WORDS = "tests/unit/test_extract_failure_words.py"
_SETTLED = "a failure is over only by a live row of the run"
_NAMED = "a list that is not sound is named and left out"
_NOTED = "told is noted after the list was read back"


def _mutant(file: str, name: str, *, clause: str, change: tuple[str, str], test: str) -> Mutant:
    before, after = change
    return Mutant(name=name, clause=clause, file=f"durastore/{file}", before=before, after=after, tests=(test,))


FAILURES = (
    _mutant(
        "extract/shared_failures.py",
        "settlement-without-a-row",
        clause=_SETTLED,
        change=(' and failure["stored_id"] in stored\n', "\n"),
        test=f"{_LISTS}::test_no_list_makes_a_sample_count_as_stored",
    ),
    _mutant(
        "extract/shared_failures.py",
        "row-of-another-run-settles",
        clause=_SETTLED,
        change=('        if row["run"].hex() == run.hex:  # INV-8\n', "        if True:\n"),
        test=f"{_LISTS}::test_no_list_makes_a_sample_count_as_stored",
    ),
    _mutant(
        "extract/shared_failures.py",
        "older-row-from-another-input-settles",
        clause=_SETTLED,
        change=('is_same_input or time_ns > failure["time_ns"]', "is_same_input or True"),
        test=f"{_LISTS}::test_an_older_row_from_another_input_settles_nothing_and_a_later_one_does",
    ),
    _mutant(
        "extract/shared_failures.py",
        "unreadable-manifest-settles",
        clause=_SETTLED,
        change=(
            "            problem = exc.message\n",
            "            latest, problem = latest.slice(0, 0), exc.message\n",
        ),
        test=f"{_LISTS}::test_a_manifest_that_cannot_be_read_hides_no_failure",
    ),
    _mutant(
        "manifest/failure_lists.py",
        "settlement-of-an-earlier-failure-counts",
        clause=_SETTLED,
        change=("pc.if_else(is_later, ", "pc.if_else(pc.is_valid(is_later), "),
        test=f"{_LISTS}::test_order_and_repeats_of_rows_and_lists_change_nothing",
    ),
    _mutant(
        "formats/failure_list.py",
        "settled-by-another-sample",
        clause=_SETTLED,
        change=("    if pc.any(pc.not_equal(own, stored)).as_py():\n", "    if False:\n"),
        test=f"{_BYTES}::test_a_settlement_names_its_sample_and_no_other",
    ),
    _mutant(
        "manifest/failure_lists.py",
        "failures-digest-not-compared",
        clause=_NAMED,
        change=("            if Digest.of(data).short != parts.short_digest:  # INV-7\n", "            if False:\n"),
        test=f"{_LISTS}::test_what_is_no_sound_list_is_named_and_the_others_are_read",
    ),
    _mutant(
        "manifest/failure_lists.py",
        "failures-of-any-size-fetched",
        clause=_NAMED,
        change=("stat.size_bytes is None or stat.size_bytes > MAX_LIST_BYTES", "stat.size_bytes is None"),
        test=f"{_LISTS}::test_what_is_no_sound_list_is_named_and_the_others_are_read",
    ),
    _mutant(
        "formats/failure_list.py",
        "failures-of-another-run-read",
        clause=_NAMED,
        change=("    if metadata.get(_KEY_RUN) != run.hex.encode():\n", "    if False:\n"),
        test=f"{_BYTES}::test_the_list_of_another_run_is_refused",
    ),
    _mutant(
        "formats/failure_list.py",
        "failures-texts-not-checked",
        clause=_NAMED,
        change=("(len(text) > TEXT_LIMITS[name] or _UNSEEN.search(text))", "len(text) > TEXT_LIMITS[name]"),
        test=f"{_BYTES}::test_what_no_writer_writes_is_refused",
    ),
    _mutant(
        "formats/failure_list.py",
        "failures-ids-not-checked",
        clause=_NAMED,
        change=("            SampleId(text)\n", "            pass\n"),
        test=f"{_BYTES}::test_what_no_writer_writes_is_refused",
    ),
    _mutant(
        "extract/failure_teller.py",
        "failures-noted-before-they-are-told",
        clause=_NOTED,
        change=(
            "            data = render_failure_list(",
            "            self._book.told(rows)\n            data = render_failure_list(",
        ),
        test=f"{_TOLD}::test_a_list_that_does_not_read_back_is_not_noted_as_told",
    ),
    _mutant(
        "extract/failure_teller.py",
        "failures-not-told-at-the-end",
        clause="what fails in the last pass is told",
        change=("    while not is_last:\n        is_last = over.is_set()\n", "    while not over.is_set():\n"),
        test=f"{_TOLD}::test_what_fails_during_the_last_pass_is_told_at_the_end",
    ),
    _mutant(
        "extract/failure_book.py",
        "failures-before-the-told-one",
        clause="the later failure has the later time",
        change=("max(self._clock.now_ns(), told_ns + 1)", "self._clock.now_ns()"),
        test=f"{_TOLD}::test_a_clock_that_went_back_does_not_hide_the_later_failure",
    ),
    _mutant(
        "extract/failure_book.py",
        "failures-settled-on-their-way-forgotten",
        clause="what is settled while it is told is told next",
        change=(
            "INSERT INTO failure_told (run, name, line, stored_id) VALUES (?, ?, ?, ?)",
            "INSERT INTO failure_told (run, name, line, stored_id) SELECT ?, ?, ?, ? WHERE 0",
        ),
        test=f"{_TOLD}::test_a_sample_that_is_stored_while_its_failure_is_on_its_way_is_settled_by_the_next_list",
    ),
    _mutant(
        "doctor/inventory.py",
        "failed-samples-are-nothing-left",
        clause="what failed is not done",
        change=("found.missing + found.only_here + found.failed\n", "found.missing + found.only_here\n"),
        test=f"{_DOCTOR}::test_what_others_say_of_a_sample_never_makes_it_done",
    ),
    _mutant(
        "doctor/inventory.py",
        "failure-of-another-input-counts",
        clause="what failed is not done",
        change=("why if not is_other_input else None", "why"),
        test=f"{_DOCTOR}::test_what_others_say_of_a_sample_never_makes_it_done",
    ),
    _mutant(
        "extract/failure_book.py",
        "failures-settled-here-not-tried-again",
        clause="what is not in the bucket is tried again",
        change=("            self._known.update(name for _, name, *_ in rows)\n", ""),
        test=f"{_TOLD}::test_what_was_settled_here_and_is_failed_in_the_bucket_is_tried_again",
    ),
    _mutant(
        "extract/failure_words.py",
        "failures-cut-quotes-told",
        clause="what a reason quotes stays here",
        change=("'(?=\\w))*(?:'|\\\\?$)|", "'(?=\\w))*'|"),
        test=f"{_WORDS}::test_quotes_without_an_end_and_paths_anywhere_are_left_out",
    ),
    _mutant(
        "extract/failure_words.py",
        "failures-header-values-told",
        clause="no secret in what is told",
        change=('    text = _SECRET_HEADER.sub(lambda found: f"{found[1]}{found[2]}<secret>", text)\n', ""),
        test=f"{_WORDS}::test_no_secret_goes_out_whatever_announces_it",
    ),
    _mutant(
        "extract/failure_words.py",
        "failures-secrets-told",
        clause="no secret in what is told",
        change=('    text = _SECRET.sub("<secret>", text)\n', ""),
        test=f"{_TOLD}::test_a_reason_leaves_out_what_it_quotes",
    ),
    _mutant(
        "extract/failure_book.py",
        "failures-told-as-they-are-written-here",
        clause="what a reason quotes stays here",
        change=("        reason=shareable(reason),\n", "        reason=plain_text(reason, limit=500),\n"),
        test=f"{_TOLD}::test_a_long_reason_is_cut_and_the_whole_stays_here",
    ),
)

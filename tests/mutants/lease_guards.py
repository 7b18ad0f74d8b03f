"""Mutants of what keeps several workers from losing, doubling or blaming samples."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["LEASES"]

_LEASES = "durastore/extract/leases.py"
_TESTS = "tests/unit/test_extract_leases.py"
_CREW = "durastore/extract/cluster_crew.py"
_CREW_TESTS = "tests/unit/test_extract_cluster_crew.py"
_CLAUSE = "leases end with their worker or their time, and no sample is blamed for another's"


def _lease(name: str, *, before: str, after: str, test: str, file: str = _LEASES, tests: str = _TESTS) -> Mutant:
    return Mutant(name=name, clause=_CLAUSE, file=file, before=before, after=after, tests=(f"{tests}::{test}",))


LEASES = (
    _lease(
        "leases-of-the-gone-kept-until-their-time",
        before='self._clock.monotonic() if self._alive.is_held(number) else float("inf")',
        after="self._clock.monotonic()",
        test="test_leases_of_a_worker_that_is_gone_are_taken_back_at_once",
    ),
    _lease(
        "leases-of-the-living-taken",
        before='self._clock.monotonic() if self._alive.is_held(number) else float("inf")',
        after='float("inf")',
        test="test_a_lease_of_a_silent_worker_ends_with_its_time_and_not_before",
    ),
    _lease(
        "worker-number-not-held",
        before="            self._alive.hold(number)  # before anybody can see the number\n",
        after="",
        test="test_the_living_are_told_from_the_gone",
    ),
    _lease(
        "failure-of-another-workers-sample-recorded",
        before="state = 'leased' AND worker = ?\",\n                (self._job, sample_id, self._worker),",
        after="state = 'leased' AND ? > 0\",\n                (self._job, sample_id, self._worker),",
        test="test_a_lease_of_a_silent_worker_ends_with_its_time_and_not_before",
    ),
    _lease(
        "stored-whatever-it-was-made-of",
        before='" WHERE job = ? AND sample_id = ? AND input_digest = ?",',
        after='" WHERE job = ? AND sample_id = ? AND ? IS NOT NULL",',
        test="test_an_edited_sample_is_open_again_and_what_was_made_of_the_old_text_does_not_count",
    ),
    _lease(
        "lapsed-samples-in-batches",
        before="            if lapses and (batch or in_work):\n                break\n",
        after="",
        test="test_a_sample_that_lapsed_waits_until_its_next_worker_has_nothing_else_in_work",
    ),
    _lease(
        "more-work-beside-a-lapsed-sample",
        before="        if worst:\n",
        after="        if False:\n",
        test="test_a_sample_that_lapsed_waits_until_its_next_worker_has_nothing_else_in_work",
    ),
    _lease(
        "stuck-workers-renew",
        file="durastore/extract/watched_passes.py",
        before="                if self.is_stuck:\n                    continue\n",
        after="",
        test="test_a_stuck_pass_is_silent",
    ),
    _lease(
        "rows-not-counted-against-tokens",
        file="durastore/extract/semantic.py",
        before="    if states is not None and len(states) != len(row.input_ids):",
        after="    if False:",
        tests="tests/unit/test_extract_checks.py",
        test="test_states_have_to_be_as_many_as_the_tokens_and_the_tokens_those_of_the_sample",
    ),
    _lease(
        "audit-difference-ignored",
        file="durastore/extract/audit.py",
        before="        if differences[worst] <= ",
        after="        if True or differences[worst] <= ",
        tests="tests/unit/test_extract_checks.py",
        test="test_a_batch_that_changes_its_samples_is_found",
    ),
    _lease(
        "seats-of-given-up-actors-kept",
        file=_CREW,
        before="        if member.seat is not None:\n            member.seat.close()\n",
        after="",
        tests=_CREW_TESTS,
        test="test_files_of_given_up_seats_are_closed",
    ),
    _lease(
        "other-versions-welcome",
        file=_CREW,
        before="        if hello.version != self._version:",
        after="        if False:",
        tests=_CREW_TESTS,
        test="test_another_version_on_a_machine_is_refused_before_anything_is_sent_there",
    ),
    _lease(
        "actors-given-up-at-the-first-lost-answer",
        file=_CREW,
        before="        if not lost.is_gone and silent_s < member.order.request.lease_s:",
        after="        if False:",
        tests=_CREW_TESTS,
        test="test_a_worker_that_may_be_there_is_asked_the_same_again",
    ),
    _lease(
        "a-question-asked-again-answered-anew",
        file="durastore/extract/lease_line.py",
        before="            if self._answered is not None and self._answered[0] == given.number:",
        after="            if False:",
        tests="tests/unit/test_extract_lease_line.py",
        test="test_the_same_question_has_the_same_answer",
    ),
    _lease(
        "spools-of-workers-that-cannot-go-on-not-named",
        file=_CREW,
        before="            self._leftovers.note(member.hello, member.spool)\n            what =",
        after="            what =",
        tests=_CREW_TESTS,
        test="test_a_worker_whose_answer_cannot_be_had_leaves_a_spool_that_is_named",
    ),
    _lease(
        "samples-leased-to-a-worker-that-leaves",
        file=_CREW,
        before=" or told.is_leaving or told.is_handed_back:",
        after=":",
        tests=_CREW_TESTS,
        test="test_a_worker_that_leaves_is_given_no_samples",
    ),
    _lease(
        "work-begun-twice",
        file="durastore/extract/remote_worker.py",
        before="        if self._line is not None:\n            return\n",
        after="",
        tests="tests/unit/test_extract_lease_line.py",
        test="test_to_begin_twice_is_to_begin_once",
    ),
    _lease(
        "spools-called-empty-that-nobody-looked-into",
        file="durastore/extract/leftovers.py",
        before="                stay = set(known)  # nothing was looked into",
        after="                stay = set()",
        tests=_CREW_TESTS,
        test="test_a_spool_that_its_machine_could_not_drain_is_named",
    ),
)

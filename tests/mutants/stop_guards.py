"""Mutants of what keeps all reclaiming stopped: a probe's word that objects do not stay, and the stop switch."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["STOP"]

VERIFIER = "durastore/verify/verifier.py"
PROBING = "durastore/store/probing.py"
SAVED = "durastore/objectstore/probe/saved.py"
STOPPING = "durastore/store/stopping.py"
STOPS = "durastore/spool/stops.py"
_PROBING_TESTS = "tests/unit/test_store_probing.py"
_STOPPING_TESTS = "tests/unit/test_store_stopping.py"
_LIFE = "a lifecycle rule that expires our prefix blocks"
_STOP = "one mismatch stops all reclaiming"
_SIBLINGS = "        spools = claim()  # before the pool, whose work needs their locks to its end\n"
_SERVICES = (
    "        services = self._services(objects, url.prefix, run=run, store_id=marker.store_id, transport=transport)\n"
)
_LOCK_TEST = "test_the_lock_of_a_drained_spool_is_held_until_the_last_work_on_it_has_ended"


def _known(name: str, *, file: str, before: str, after: str, test: str) -> Mutant:
    return Mutant(name=name, clause=_LIFE, file=file, before=before, after=after, tests=(f"{_PROBING_TESTS}::{test}",))


def _kept(name: str, *, file: str, before: str, after: str, test: str) -> Mutant:
    return Mutant(name=name, clause=_STOP, file=file, before=before, after=after, tests=(f"{_STOPPING_TESTS}::{test}",))


_KNOWN_BLOCKS = (
    _known(
        "receipts-before-the-probe-ended",
        file=VERIFIER,
        before="        if self._is_probe_awaited:\n            raise NotVerified(",
        after="        if False:\n            raise NotVerified(",
        test="test_nothing_goes_before_the_probe_has_ended",
    ),
    _known(
        "lane-does-not-await-the-probe",
        file=VERIFIER,
        before="return self.distrust is None and not self._is_probe_awaited",
        after="return self.distrust is None",
        test="test_nothing_goes_before_the_probe_has_ended",
    ),
    _known(
        "probe-not-awaited",
        file=PROBING,
        before="            self._services.verifier.await_probe()  # else",
        after="            pass  # else",
        test="test_nothing_goes_before_the_probe_has_ended",
    ),
    _known(
        "block-fades-where-no-probe-ended",
        file=PROBING,
        before="self._services.verifier.use(replace(self._policy, block=standing_block(self._saved)))",
        after="self._services.verifier.use(self._policy)",
        test="test_a_lifecycle_rule_once_seen_blocks_until_a_probe_sees_that_it_is_gone",
    ),
    _known(
        "block-fades-with-any-new-result",
        file=PROBING,
        before="self._services.verifier.use(replace(self._policy, probe=result, block=block))",
        after="self._services.verifier.use(replace(self._policy, probe=result))",
        test="test_a_lifecycle_rule_once_seen_blocks_until_a_probe_sees_that_it_is_gone",
    ),
    _known(
        "no-answer-contradicts-a-block",
        file=SAVED,
        before="c.outcome not in (Outcome.BLOCKING, Outcome.UNKNOWN) for c in answers",
        after="c.outcome is not Outcome.BLOCKING for c in answers",
        test="test_a_lifecycle_rule_once_seen_blocks_until_a_probe_sees_that_it_is_gone",
    ),
    _known(
        "older-good-word-stands",
        file=SAVED,
        before="    if first.boot_id == second.boot_id:\n",
        after="    if False:\n",
        test="test_an_older_good_word_does_not_stand_against_a_newer_block",
    ),
)

_KEPT_STOPS = (
    _kept(
        "any-persons-probe-lifts",
        file=STOPS,
        before="if stop.id in result.answers_stops and stop.place == asked:",
        after="if result.is_by_person and stop.place == asked:",
        test="test_a_persons_probe_that_was_begun_before_it_lifts_nothing",
    ),
    _kept(
        "any-probe-lifts",
        file=STOPS,
        before="if stop.id in result.answers_stops and stop.place == asked:",
        after="if stop.place == asked:",
        test="test_a_probe_that_the_store_ran_by_itself_lifts_nothing",
    ),
    _kept(
        "a-probe-of-elsewhere-lifts",
        file=STOPS,
        before="if stop.id in result.answers_stops and stop.place == asked:",
        after="if stop.id in result.answers_stops:",
        test="test_a_probe_of_another_place_lifts_nothing",
    ),
    _kept(
        "any-name-lifts",
        file=STOPS,
        before="    except (IntegrityError, FormatUnsupported, SpoolUnreadable):\n        return False\n",
        after="    except (IntegrityError, FormatUnsupported, SpoolUnreadable):\n        return True\n",
        test="test_a_lift_that_cannot_be_read_lifts_nothing",
    ),
    _kept(
        "a-lift-of-another-lifts",
        file=STOPS,
        before="limit_bytes=MAX_STOP_BYTES)).stop == stop_id",
        after="limit_bytes=MAX_STOP_BYTES)).stop is not None",
        test="test_a_lift_of_another_stop_lifts_nothing",
    ),
    _kept(
        "stop-only-in-the-journals",
        file=STOPPING,
        before="        self._publish(record)\n        for spool in self._spools:\n",
        after="        for spool in self._spools:\n",
        test="test_a_wrong_copy_found_after_another_session_lifted_the_stop_stops_anew",
    ),
    _kept(
        "stop-only-in-the-root",
        file=STOPPING,
        before="stops_in_force(self._folder, also=kept)",
        after="stops_in_force(self._folder)",
        test="test_on_a_full_disk_the_journal_keeps_it",
    ),
    _kept(
        "a-lift-need-not-be-kept",
        file=STOPPING,
        before='that cannot be kept: %s", answer.id, exc)\n            return False\n',
        after='that cannot be kept: %s", answer.id, exc)\n            return True\n',
        test="test_on_a_full_disk_the_journal_keeps_it",
    ),
    _kept(
        "recovery-throws-no-stop-of-its-own",
        file=STOPPING,
        before="            self._throw(verifier.distrust)  # recovery",
        after="            pass  # recovery",
        test="test_what_recovery_found_is_a_new_stop",
    ),
    _kept(
        "one-stop-a-session",
        file=STOPPING,
        before="verifier.on_distrust(self._throw, again=self._throw_again, look=self._look)",
        after="verifier.on_distrust(self._throw, look=self._look)",
        test="test_a_wrong_copy_found_while_stopped_needs_a_probe_after_it",
    ),
    _kept(
        "others-stops-not-looked-for",
        file=STOPPING,
        before="verifier.on_distrust(self._throw, again=self._throw_again, look=self._look)",
        after="verifier.on_distrust(self._throw, again=self._throw_again)",
        test="test_a_stop_that_another_store_throws_holds_before_the_next_batch",
    ),
    _kept(
        "others-stops-not-looked-for-by-pack",
        file=VERIFIER,
        before="        self.heed()\n        if self.distrust is not None:\n",
        after="        if self.distrust is not None:\n",
        test="test_a_stop_that_another_store_throws_holds_before_the_next_pack",
    ),
    _kept(
        "others-stops-doubt-the-batch",
        file="durastore/reclaim/engine.py",
        before="was_trusted = self._verifier.heed() is None",
        after="was_trusted = self._verifier.distrust is None",
        test="test_a_stop_that_another_store_throws_holds_before_the_next_batch",
    ),
    Mutant(
        name="a-store-answers-a-stop",
        clause=_STOP,
        file="durastore/objectstore/probe/result.py",
        before="if self.answers_stops and not self.is_by_person:",
        after="if False:",
        tests=("tests/unit/test_probe_result.py::test_a_result_that_does_not_tell_who_asked_is_no_persons",),
    ),
)

_EVENTS = (
    *(
        Mutant(
            name=f"{event}-told-before-the-stop",
            clause=_STOP,
            file=VERIFIER,
            before=f"            self.stop_reclaiming(exc.message)\n            {emit}\n",
            after=f"            {emit}\n            self.stop_reclaiming(exc.message)\n",
            tests=(test,),
        )
        for event, emit, test in (
            (
                event,
                f'self._observer.emit("verify.{event}", pack=record.name)',
                f"{tests}::test_the_switch_is_thrown_before_anybody_hears_of_{what}",
            )
            for event, tests, what in (
                ("mismatch", "tests/unit/test_verify_attest.py", "the_mismatch"),
                ("canary_failed", "tests/unit/test_reclaim_engine.py", "a_wrong_copy"),
                ("spot_mismatch", "tests/unit/test_reclaim_engine.py", "a_wrong_copy"),
            )
        )
    ),
    Mutant(
        name="an-observer-breaks-the-pipeline",
        clause="an observer must not raise into the work",
        file="durastore/observe/events.py",
        before="            except Exception as exc:  # noqa: BLE001 - a caller's code, called in the middle of ours\n",
        after="            except AssertionError as exc:\n",
        tests=("tests/faults/test_store_lies.py::test_an_observer_that_raises_changes_nothing",),
    ),
    Mutant(
        name="a-pipeline-outlives-a-failed-opening",
        clause="spool flock held",
        file="durastore/store/opening.py",
        before="            self._stack.callback(lane.stop, STOP_TIMEOUT_S)\n",
        after="",
        tests=("tests/unit/test_store_slips.py::test_an_opening_that_ends_with_a_warning_leaves_nothing_at_work",),
    ),
    Mutant(
        name="siblings-close-before-the-pool",
        clause="spool flock held",
        file="durastore/store/opening.py",
        before=_SIBLINGS + _SERVICES,
        after=_SERVICES + _SIBLINGS,
        tests=(f"tests/faults/test_store_lies.py::{_LOCK_TEST}",),
    ),
)

STOP = (*_KNOWN_BLOCKS, *_KEPT_STOPS, *_EVENTS)

"""Mutants of what keeps all reclaiming stopped: a probe's word that objects do not stay, and the stop switch."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["STOP"]

VERIFIER = "durastore/verify/verifier.py"
PROBING = "durastore/store/probing.py"
SAVED = "durastore/objectstore/probe/saved.py"
_PROBING_TESTS = "tests/unit/test_store_probing.py"
_LIFE = "a lifecycle rule that expires our prefix blocks"


def _known(name: str, *, file: str, before: str, after: str, test: str) -> Mutant:
    return Mutant(name=name, clause=_LIFE, file=file, before=before, after=after, tests=(f"{_PROBING_TESTS}::{test}",))


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

STOP = (*_KNOWN_BLOCKS,)

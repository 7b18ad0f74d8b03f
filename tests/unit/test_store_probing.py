"""The stop switch outlives its session, until somebody probed the endpoint after it was thrown."""

from __future__ import annotations

import pytest

from durastore.errors import NotVerified
from durastore.store.probing import Probing
from tests.unit.reclaim_lab import ReclaimLab, lab, services_of
from tests.unit.verify_lab import policy, probe_result

__all__ = ["lab"]


def restore(lab: ReclaimLab, *, probed_s: float | None = None) -> None:
    """A new session: a verifier that knows nothing, and perhaps a probe made so long after the start."""
    lab.verifier = lab.make_verifier(policy())
    probe = None
    if probed_s is not None:
        lab.clock.advance(probed_s)
        probe = probe_result(taken=lab.clock.stamp().render())
        lab.clock.advance(-probed_s)
    Probing(services_of(lab), policy(), spools=[lab.spool]).restore_stop(probe)


def test_the_next_session_starts_stopped(lab: ReclaimLab) -> None:
    records = lab.settled("a")
    restore(lab)
    before = lab.verifier.distrust
    assert before is None
    lab.verifier.stop_reclaiming("object x holds other bytes")
    for probed_s in (None, -1.0, 0.0):
        restore(lab, probed_s=probed_s)
        assert lab.verifier.distrust == "object x holds other bytes"
        with pytest.raises(NotVerified, match="holds other bytes"):
            lab.verifier.open_batch(records)


def test_a_later_probe_lifts_it(lab: ReclaimLab) -> None:
    restore(lab)
    lab.verifier.stop_reclaiming("object x holds other bytes")
    restore(lab, probed_s=1.0)
    assert lab.verifier.distrust is None
    restore(lab)
    assert lab.verifier.distrust is None

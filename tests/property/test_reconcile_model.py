"""Random folders and buckets: whatever state they are in, applying twice is applying once, and nothing is lost."""

from __future__ import annotations

import tempfile
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from durastore.errors import DurastoreError, NotVerified
from durastore.model import ObjectKey
from durastore.reconcile.report import ReconcileReport
from tests.unit.reconcile_lab import FolderLab, npy

PATHS = ("a/0.npy", "a/1.npy", "b.npy", "c+d.npy", "notes.txt")
_STEPS = st.one_of(
    st.tuples(st.just("write"), st.sampled_from(PATHS), st.integers(0, 3)),
    st.tuples(st.just("cut"), st.sampled_from(PATHS), st.integers(1, 60)),
    st.tuples(st.just("flip"), st.sampled_from(PATHS), st.integers(1, 60)),
    st.tuples(st.just("lose"), st.integers(0, 9), st.just(0)),
    st.tuples(st.just("lose-segment"), st.integers(0, 9), st.just(0)),
    st.tuples(st.just("spoil"), st.integers(0, 9), st.just(0)),
    st.tuples(st.sampled_from(["look", "apply", "deep", "clear"]), st.just(0), st.just(0)),
)


@given(st.lists(_STEPS, max_size=14))
@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
def test_applying_twice_is_once_and_nothing_goes_unproven(steps: list[tuple[str, object, int]]) -> None:
    _apply_twice(steps)


@pytest.mark.exhaustive
@given(st.lists(_STEPS, max_size=14))
@settings(max_examples=1_000, suppress_health_check=[HealthCheck.too_slow])
def test_applying_twice_is_once_in_a_thousand_states(steps: list[tuple[str, object, int]]) -> None:
    _apply_twice(steps)


def _apply_twice(steps: list[tuple[str, object, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        lab = FolderLab(Path(folder) / "data")
        lab.write("a/0.npy", npy(0))
        for step in steps:
            _step(lab, *step)
        first = _ended(lab, is_clearing=False)
        second = _ended(lab, is_clearing=False)
        if first is not None and second is not None and not first.applied_failures:
            assert second.is_idle, second.report.applied
            assert second.report.findings == first.report.findings
        _ended(lab, is_clearing=True)


class _Ended:
    def __init__(self, report: ReconcileReport) -> None:
        assert report.applied is not None
        self.report = report
        done = report.applied
        self.applied_failures = {**done.failed, **done.unproven}
        self.is_idle = not (done.uploaded or done.quarantined or done.rows_rebuilt or done.rows_buried)


def _ended(lab: FolderLab, *, is_clearing: bool) -> _Ended | None:
    """Apply, and hold what left the folder against the bucket."""
    before = lab.files()
    sure = lab.aside()
    try:
        report = lab.clear() if is_clearing else lab.apply()
    except NotVerified:
        report = None  # a wrong copy was found: reclaiming is stopped
    except DurastoreError as exc:
        assert exc.exit_code in (10, 12)  # noqa: PT017 - the bucket is not what it was
        report = None
    after, there, aside = lab.files(), lab.bucket_files(), lab.aside()
    assert sure <= aside
    for path, data in before.items():
        if path in after:
            assert after[path] == data
        else:
            assert data in aside or (is_clearing and data in there.get(path, set())), path
    assert before.get("notes.txt") == after.get("notes.txt")
    return _Ended(report) if report is not None else None


def _step(lab: FolderLab, what: str, on: object, amount: int) -> None:
    if what in ("look", "apply", "deep", "clear"):
        if what in ("look", "deep"):
            files, objects = lab.files(), dict(lab.memory._objects)
            try:
                lab.run(is_deep=what == "deep")
            except DurastoreError:
                pass
            assert (lab.files(), lab.memory._objects) == (files, objects)
        else:
            _ended(lab, is_clearing=what == "clear")
        return
    if isinstance(on, int):
        keys = lab.keys("manifest" if what == "lose-segment" else "files")
        if keys:
            key = ObjectKey(keys[on % len(keys)])
            held = lab.memory._objects.pop(key)
            if what == "spoil":
                lab.memory.put(key, held.data[:-1] + bytes([held.data[-1] ^ 1]), crc64nvme=None, metadata={})
        return
    path = lab.folder / str(on)
    if what == "write":
        lab.write(str(on), npy(amount))
    elif path.exists():
        data = bytearray(path.read_bytes())
        if what == "cut":
            data = data[:-amount]
        else:
            data[-amount] ^= 1
        lab.write(str(on), bytes(data))

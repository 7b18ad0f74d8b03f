"""The whole life of a store against a small model, with crashes at any step, lies of the server and damage to the disk.

One history is one seed: hypothesis draws the steps, and nothing runs beside them (see `store_world`). Its settings
print a failing history as a program, and the blob that repeats it.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from durastore.errors import DurastoreError, SampleExists
from durastore.model import ObjectKey, PackState, SampleId
from durastore.read.remote import fetch_sample
from durastore.store.store import Store
from durastore.testing.faulty import Fault, FaultRule
from tests.property.disk_image import DiskImage, pack_files
from tests.property.pack_steps import journaled_packs
from tests.property.store_model import RUN, Model, Version, input_digest
from tests.property.store_troubles import BUCKET_FAULTS, MISREADS
from tests.property.store_world import World, installed

IDS = [f"s/{number}" for number in range(4)]

versions = st.builds(
    Version, sample_id=st.sampled_from(IDS), content=st.integers(0, 2), input=st.sampled_from([None, 0, 1, 2])
)
fuses = st.integers(1, 60)


class StoreLife(RuleBasedStateMachine):
    """One root, one bucket, one process at a time (and now and then a second one)."""

    base: Path
    worlds: list[World]
    numbers = itertools.count()

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.store: Store | None = None
        self.own_ids = 0
        self.is_misread = False
        self.saved: list[tuple[int, DiskImage]] = []
        self.folder = self.base / f"life-{next(self.numbers)}"

    @initialize(seed=st.integers(0, 2**16))
    def begin(self, seed: int) -> None:
        self.folder.mkdir()
        self.world = World(self.folder, seed=seed)
        self.worlds[:] = [self.world]
        self.store = self.world.open(run=RUN)

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        try:
            self._end()
        finally:
            if self.store is not None:
                self.world.stop(self.store)
            shutil.rmtree(self.folder, ignore_errors=True)

    def _end(self) -> None:
        """The endpoint is well again: everything that was not destroyed comes back, and reaches the bucket."""
        self.kill()
        self.heal()
        self.reopen()
        assert self.store is not None, "the endpoint is well, and the store does not open"
        self.check()
        self.flush()
        self.check()

    # --- what a user does ------------------------------------------------------------------------------------------

    @precondition(lambda self: self.store is not None)
    @rule(version=versions)
    def put(self, version: Version) -> None:
        self._put([version])

    @precondition(lambda self: self.store is not None)
    @rule(group=st.lists(versions, min_size=2, max_size=3, unique_by=lambda version: version.sample_id))
    def put_many(self, group: list[Version]) -> None:
        self._put(group)

    def _put(self, group: list[Version]) -> None:
        store, must_clash = self._used(), any(self.model.must_clash(version) for version in group)
        known = {version for version in group if version in self.model.of(version.sample_id).allowed}
        for version in group:
            self.model.attempt(version)
        self.world.begin()
        inputs = {version.sample_id: input_digest(version.input) for version in group}
        try:
            tickets = store.put_many(
                {version.sample_id: version.tensors() for version in group},
                input_digests={name: digest for name, digest in inputs.items() if digest is not None},
            )
        except SampleExists:
            for version in group:
                if version not in known:
                    self.model.refused(version)
            assert any(self.model.may_clash(version) for version in group)
            return
        except DurastoreError as exc:
            note(f"put: {exc!r}")
            return
        if self.world.is_dead:
            return
        assert not must_clash
        for version in group:
            self.model.acknowledge(version, is_new=tickets[version.sample_id].is_new)

    @precondition(lambda self: self.store is not None)
    @rule()
    def flush(self) -> None:
        self._wait(self._used().flush)

    @precondition(lambda self: self.store is not None)
    @rule()
    def drain(self) -> None:
        self._wait(self._used().drain)

    def _wait(self, call: Callable[[float], None], *, is_checked: bool = True) -> None:
        self.world.begin()
        try:
            call(600.0)
        except (DurastoreError, TimeoutError) as exc:
            note(f"{call.__name__}: {exc!r}")
            return
        if is_checked and not self.world.is_dead:
            self._check_flushed()

    @precondition(lambda self: self.store is not None)
    @rule(seconds=st.sampled_from([0.0, 1.0, 40.0, 100_000.0]))
    def work(self, seconds: float) -> None:
        self.world.clock.advance(seconds)
        self.world.work()

    @rule(seconds=st.sampled_from([-90_000.0, -5.0, 100.0, 90_000.0]))
    def step_wall_clock(self, seconds: float) -> None:
        self.world.clock.step_wall(seconds)

    # --- ends and beginnings ---------------------------------------------------------------------------------------

    @precondition(lambda self: self.store is not None)
    @rule()
    def kill(self) -> None:
        store, self.store = self.store, None
        self.world.stop(store)
        self.saved = [*self.saved[-2:], (self.model.moment, DiskImage(self.world.local))]

    @precondition(lambda self: self.store is not None)
    @rule()
    def reboot(self) -> None:
        self.kill()
        self.world.clock.reboot()
        self.reopen()

    @precondition(lambda self: self.store is None)
    @rule()
    def reopen(self) -> None:
        """Recovery twice is recovery once (INV-9)."""
        try:
            self.store = self._open()
            first = self._facts()
            store, self.store = self.store, None
            self.world.stop(store)
            self.store = self._open()
        except DurastoreError as exc:
            note(f"open: {exc!r}")
            return
        again = self._facts()
        assert again == first or self.is_misread, f"a second recovery did more:\n{first}\n{again}"

    def _open(self) -> Store:
        self._excuse_misread()
        return self.world.open()

    def _excuse_misread(self) -> None:
        """What is only in the bucket may be taken for lost while it cannot be read right even twice."""
        if self.is_misread:
            self.model.excuse(lambda version: not self._has_file(version))

    def _has_file(self, version: Version) -> bool:
        return self.world.has_file_of(version.sample_id, version.data())

    def _facts(self) -> Any:
        """Each pack's state and samples, and every file, as a recovery left them."""
        packs = [
            (row.name, row.state.value, samples)
            for row, samples in journaled_packs(self.world.local)
            if row.state is not PackState.RECLAIMED
        ]
        return packs, [(path.parent.name, path.name, path.stat().st_size) for path in pack_files(self.world.local)]

    @precondition(lambda self: self.store is not None)
    @rule(fuse=fuses, group=st.lists(versions, min_size=1, max_size=3, unique_by=lambda version: version.sample_id))
    def die_in_put(self, fuse: int, group: list[Version]) -> None:
        self._die(fuse, lambda: self._put(group))

    @precondition(lambda self: self.store is not None)
    @rule(fuse=fuses, is_draining=st.booleans())
    def die_waiting(self, fuse: int, is_draining: bool) -> None:
        self._die(fuse, self.drain if is_draining else self.flush)

    @precondition(lambda self: self.store is None)
    @rule(fuse=fuses)
    def die_opening(self, fuse: int) -> None:
        self._die(fuse, self._open_once)

    def _open_once(self) -> None:
        try:
            self.store = self._open()
        except DurastoreError as exc:
            note(f"open: {exc!r}")

    def _die(self, fuse: int, action: Callable[[], None]) -> None:
        self.world.dying(fuse, action)
        store, self.store = self.store, None
        self.world.stop(store)

    @rule(
        group=st.lists(versions, min_size=1, max_size=2, unique_by=lambda version: version.sample_id),
        ends=st.booleans(),
    )
    def second_process(self, group: list[Version], ends: bool) -> None:
        """Another process of the same root puts samples of its own; if the first is gone, it drains its spool."""
        main = self.store
        try:
            self.store = self._open()
        except DurastoreError as exc:
            note(f"open: {exc!r}")
            self.store = main
            return
        try:
            self._put(group if main is None else [self._own(version) for version in group])
            if ends:
                self._wait(self._used().flush, is_checked=main is None)
        finally:
            second, self.store = self.store, main
            self.world.stop(second)
            if main is not None:
                self.kill()

    def _own(self, version: Version) -> Version:
        """Under an id that no other process knows: processes side by side do not agree on contents."""
        self.own_ids += 1
        return Version(f"own/{self.own_ids}", version.content, version.input)

    # --- what happens to the bucket --------------------------------------------------------------------------------

    @rule(what=st.sampled_from(BUCKET_FAULTS), first=st.integers(1, 2), count=st.sampled_from([1, 2, 4, None]))
    def trouble(self, what: tuple[str, Fault, str], first: int, count: int | None) -> None:
        op, fault, key_part = what
        self.is_misread = self.is_misread or (op, fault) in MISREADS
        self._excuse_misread()
        self.world.bucket.add(FaultRule(op=op, fault=fault, first=first, count=count, key_part=key_part))

    @rule()
    def heal(self) -> None:
        self.world.bucket.heal()
        self.is_misread = False

    @rule(at=st.integers(0, 50), fault=st.sampled_from([None, Fault.FLIP_BYTE, Fault.ZERO_BLOCK]))
    def forget_object(self, at: int, fault: Fault | None) -> None:
        """The server loses or damages an object that it held."""
        held = self.world.objects()
        if not held:
            return
        key = ObjectKey(sorted(held)[at % len(held)])
        if fault is None:
            self.world.bucket.lose(key)
        else:
            self.world.bucket.damage(key, fault)
        # another object with the same samples may be one that no manifest names: left by a crash, for people
        self.model.excuse(lambda version: version.data() in held[key.text] and not self._has_file(version))

    # --- what happens to the disk ----------------------------------------------------------------------------------

    @rule(
        at=st.integers(0, 50),
        how=st.sampled_from(["flip", "drop", "cut", "grow", "touch", "copy"]),
        where=st.integers(0, 99),
    )
    def harm_file(self, at: int, how: str, where: int) -> None:
        paths = pack_files(self.world.local, with_quarantine=False)
        if self.store is not None:  # what is taken away under a writer's hands is not found before it is sealed
            written = {row.name for row, _ in journaled_packs(self.world.local) if row.state is PackState.OPEN}
            paths = [path for path in paths if path.name not in written]
        if not paths:
            return
        path = paths[at % len(paths)]
        before = path.read_bytes()
        self._harm(path, how=how, position=len(before) * where // 100)
        after = path.read_bytes() if path.exists() else b""
        self.model.excuse(
            lambda version: (
                version.data() in before and version.data() not in after and not self._is_still_held(version)
            )
        )
        self._excuse_misread()

    def _is_still_held(self, version: Version) -> bool:
        return self._has_file(version) or self.world.has_object_of(version.sample_id, version.data())

    def _harm(self, path: Path, *, how: str, position: int) -> None:
        data = path.read_bytes()
        if how == "drop":
            path.unlink()
        elif how == "touch":
            path.touch()
        elif how == "copy":
            path.rename(self.folder / "moved")
            path.write_bytes(data)
        elif how == "grow":
            path.write_bytes(data + b"torn")
        elif how == "cut":
            path.write_bytes(data[:position])
        elif data:
            path.write_bytes(data[:position] + bytes([data[position] ^ 0x10]) + data[position + 1 :])

    @precondition(lambda self: self.store is None and self.saved)
    @rule(at=st.integers(0, 2))
    def roll_back_journal(self, at: int) -> None:
        moment, image = self.saved[at % len(self.saved)]
        image.restore_journals()
        self.model.excuse_since(moment)

    # --- what has to hold ------------------------------------------------------------------------------------------

    def _used(self) -> Store:
        assert self.store is not None
        return self.store

    @invariant()
    def check(self) -> None:
        if not hasattr(self, "world"):
            return
        assert not self.world.breaches, "\n".join(self.world.breaches)
        for version in self.model.expected():
            assert self.world.holds(version.data()), f"{version} is nowhere any more"
        if self.store is not None:
            with self.world.bucket.truthful():
                faults = self.model.faults(self.store)
            assert not faults, "\n".join(faults)

    def _check_flushed(self) -> None:
        """What was said to be in the bucket is in it, for a reader that knows nothing of this disk."""
        view = self.world.view()
        with self.world.bucket.truthful():
            for version in self.model.expected():
                if not self.world.has_remote(version.data()):
                    continue  # the server forgot it since; the disk has it
                row = view.row(SampleId(version.sample_id))
                assert row is not None, f"{version} is flushed, and has no row"
                if row.object.key.text in self.world.whole_objects():
                    sample = fetch_sample(self.world.bucket, row)
                    allowed = self.model.of(version.sample_id).allowed
                    is_right = any(other.is_in(sample) for other in allowed)
                    assert is_right, (
                        f"{version}: the bucket gives {sample.input_digest}, {len(sample.tensors['h'])} rows"
                    )


def live(base: Path, monkeypatch: pytest.MonkeyPatch, *, examples: int, steps: int) -> None:
    with installed(monkeypatch) as worlds:
        machine = type("StoreLife", (StoreLife,), {"base": base, "worlds": worlds})
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=examples,
                stateful_step_count=steps,
                deadline=None,
                print_blob=True,
                suppress_health_check=list(HealthCheck),
            ),
        )


def test_no_history_loses_a_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    live(tmp_path, monkeypatch, examples=20, steps=25)


@pytest.mark.exhaustive
def test_no_long_history_loses_a_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    live(tmp_path, monkeypatch, examples=600, steps=50)

"""Mutants of what keeps training exact: the order, the count, the cache."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["TRAINING"]

EVICT = "durastore/fsio/evict.py"
COURSE = "durastore/dataset/course.py"
STREAM = "durastore/dataset/stream.py"
REMOTE = "durastore/read/remote.py"
CACHE = "durastore/dataset/cache.py"
ARENA = "durastore/dataset/arena.py"
HANDOVER = "durastore/dataset/handover.py"

_EVICT_TESTS = "tests/unit/test_fsio_evict.py"
_COURSE_TESTS = "tests/unit/test_dataset_course.py"
_STREAM_TESTS = "tests/unit/test_dataset_stream.py"
_CACHE_TESTS = "tests/integration/test_dataset_cache.py"

_LIMIT = "a cache is never above its limit"
_READ = "nothing goes that is read"
_STATE = "a state counts what the loop was given"
_LENT = "memory that somebody may still see is not lent again"

TRAINING = (
    Mutant(
        name="cache-drops-what-is-read",
        clause=_READ,
        file=EVICT,
        before="        if not _is_locked(fd, fcntl.LOCK_EX):\n            return 0\n",
        after="",
        tests=(f"{_EVICT_TESTS}::test_what_is_read_stays",),
    ),
    Mutant(
        name="cache-drops-without-a-marker",
        clause=_READ,
        file=EVICT,
        before="    if name in _OWN or not folder.has(CACHE_MARKER_NAME):\n",
        after="    if name in _OWN:\n",
        tests=(f"{_EVICT_TESTS}::test_a_folder_whose_marker_went_loses_nothing_more",),
    ),
    Mutant(
        name="cache-made-of-any-folder",
        clause=_READ,
        file=EVICT,
        before="        if strangers and not folder.has(CACHE_MARKER_NAME):\n",
        after="        if False:\n",
        tests=(f"{_EVICT_TESTS}::test_nothing_but_a_cache_is_used_as_one",),
    ),
    Mutant(
        name="cache-file-read-while-written",
        clause=_READ,
        file=EVICT,
        before="            if not _is_locked(fd, fcntl.LOCK_SH):\n",
        after="            if False:\n",
        tests=(f"{_EVICT_TESTS}::test_what_is_being_written_is_neither_read_nor_dropped",),
    ),
    Mutant(
        name="cache-forgets-what-it-reserved",
        clause=_LIMIT,
        file=EVICT,
        before="            _note(ledger, used + taken)\n",
        after="            _note(ledger, used)\n",
        tests=(f"{_EVICT_TESTS}::test_a_full_cache_keeps_what_is_no_spare",),
    ),
    Mutant(
        name="cache-takes-any-limit",
        clause=_LIMIT,
        file=CACHE,
        before="        if self._cache.limit_bytes < need:\n",
        after="        if False:\n",
        tests=(f"{_CACHE_TESTS}::test_limits_that_cannot_work_are_refused",),
    ),
    Mutant(
        name="cache-in-a-spool-root",
        clause="a cache never touches a spool",
        file=CACHE,
        before="        _refuse_spools(cache.folder)\n",
        after="",
        tests=(f"{_CACHE_TESTS}::test_a_spool_is_no_place_for_a_cache",),
    ),
    Mutant(
        name="damaged-cache-file-not-told",
        clause="only bytes whose digest matched (INV-7)",
        file=REMOTE,
        before="            shelf.reject(row, exc)\n",
        after="            pass\n",
        tests=(f"{_CACHE_TESTS}::test_a_flipped_byte_in_the_cache_is_told_and_read_from_the_bucket",),
    ),
    Mutant(
        name="state-of-another-selection-taken",
        clause=_STATE,
        file=COURSE,
        before="if state.get(name) != here.get(name)]\n",
        after="if False]\n",
        tests=(f"{_COURSE_TESTS}::test_the_state_of_another_run_is_refused",),
    ),
    Mutant(
        name="state-of-other-blocks-taken",
        clause=_STATE,
        file=COURSE,
        before='"shuffle", "block")\n',
        after='"shuffle")\n',
        tests=(f"{_COURSE_TESTS}::test_blocks_are_part_of_the_state",),
    ),
    Mutant(
        name="epoch-of-other-lanes-goes-on-in-ours",
        clause=_STATE,
        file=COURSE,
        before="lanes=None if lanes == self.lanes else lanes)\n",
        after="lanes=None)\n",
        tests=(
            f"{_COURSE_TESTS}::test_a_state_of_a_version_without_lanes_ends_its_epoch_as_it_was_begun",
            f"{_COURSE_TESTS}::test_lanes_are_part_of_the_state",
        ),
    ),
    Mutant(
        name="lanes-in-a-state-that-older-versions-read",
        clause=_STATE,
        file=COURSE,
        before='"format": _LANED if lanes else _PLAIN,\n',
        after='"format": _PLAIN,\n',
        tests=(f"{_COURSE_TESTS}::test_lanes_are_part_of_the_state",),
    ),
    Mutant(
        name="lanes-one-after-the-other",
        clause="a block is read by one worker",
        file="durastore/dataset/order.py",
        before="        turn, lane = at // width, at % width\n",
        after="        turn, lane = at % self.block, at // self.block\n",
        tests=(f"{_STREAM_TESTS}::test_a_block_is_fetched_once_whoever_reads_it",),
    ),
    Mutant(
        name="blocks-all-in-one-order",
        clause="what is read together lies together",
        file="durastore/dataset/order.py",
        before="of_turns._keys[-1])\n",
        after="of_turns._keys[-1])[:1] * np.uint64(0)\n",
        tests=("tests/unit/test_dataset_order.py::test_every_block_has_an_order_of_its_own_and_all_are_as_likely",),
    ),
    Mutant(
        name="more-requests-than-allowed",
        clause="no more requests at a time than allowed",
        file="durastore/read/requests.py",
        before="            self._freed.wait_for(lambda: self._free >= requests)\n",
        after="",
        tests=("tests/unit/test_read_requests.py::test_a_call_of_several_requests_waits_until_all_are_allowed",),
    ),
    Mutant(
        name="blocks-in-order-of-ids",
        clause="what is read together lies together",
        file="durastore/dataset/selection.py",
        before="    layout = np.lexsort((offsets, rank[keys.indices.to_numpy()])).astype(np.int64)\n",
        after="    layout = np.arange(len(offsets))\n",
        tests=(f"{_STREAM_TESTS}::test_blocks_follow_the_bucket_and_not_the_ids",),
    ),
    Mutant(
        name="damaged-transfer-not-read-again",
        clause="only bytes whose digest matched (INV-7)",
        file=REMOTE,
        before="                    pass  # a transfer may be damaged: once more, by itself\n",
        after="                    raise\n",
        tests=("tests/unit/test_read_sample.py::test_a_damaged_shared_transfer_is_read_again_sample_by_sample",),
    ),
    Mutant(
        name="uneven-ranks",
        clause="no rank waits for ever for another",
        file=COURSE,
        before='        return left // world if self.uneven == "drop" else -(-left // world)\n',
        after="        return left // world + (self.share.rank < left % world)\n",
        tests=(f"{_COURSE_TESTS}::test_a_remainder_is_padded_or_dropped_as_said",),
    ),
    Mutant(
        name="stream-reads-ahead-without-limit",
        clause="prefetch is bounded in bytes",
        file=STREAM,
        before="held + _size(waiting) <= self._options.prefetch_bytes",
        after="True",
        tests=(f"{_STREAM_TESTS}::test_no_more_is_fetched_ahead_than_allowed",),
    ),
    Mutant(
        name="gpu-touched-in-a-worker",
        clause="no GPU is touched in a loader's worker",
        file="durastore/dataset/pinning.py",
        before="        if data is not None and data.get_worker_info() is not None:\n",
        after="        if False:\n",
        tests=("tests/integration/test_dataset_handover.py::test_a_loaders_worker_touches_no_gpu",),
    ),
    Mutant(
        name="early-end-of-a-loader-not-noticed",
        clause=_STATE,
        file="durastore/dataset/counted.py",
        before="        if not self._drops_last and own < count:\n",
        after="        if False:\n",
        tests=("tests/integration/test_dataset_training.py::test_a_loader_that_ends_early_is_noticed",),
    ),
    Mutant(
        name="piece-lent-while-its-borrower-sees-it",
        clause=_LENT,
        file=ARENA,
        before="cell in self._borrowed or ",
        after="",
        tests=("tests/unit/test_dataset_arena.py",),
    ),
    Mutant(
        name="piece-lent-while-the-loop-sees-it",
        clause=_LENT,
        file=ARENA,
        before=" or self._cells.state[cell] != FREE\n",
        after="\n",
        tests=("tests/unit/test_dataset_arena.py",),
    ),
    Mutant(
        name="piece-lent-after-a-fork",
        clause=_LENT,
        file=ARENA,
        before="        self._kept.update(self._borrowed)\n",
        after="        pass\n",
        tests=("tests/unit/test_dataset_arena.py",),
    ),
    Mutant(
        name="piece-sent-twice",
        clause=_LENT,
        file=ARENA,
        before=" or self._cells.state[cell] != _LENT:\n",
        after=":\n",
        tests=("tests/unit/test_dataset_arena.py",),
    ),
    Mutant(
        name="piece-received-twice",
        clause=_LENT,
        file=HANDOVER,
        before="        if self._cells.state[cell] != SENT or self._cells.generation[cell] != piece.generation:\n",
        after="        if False:\n",
        tests=("tests/unit/test_dataset_arena.py",),
    ),
    Mutant(
        name="piece-lent-under-an-array-of-it",
        clause=_LENT,
        file=ARENA,
        before="    vector.untyped_storage().piece = piece\n",
        after="",
        tests=("tests/unit/test_dataset_arena.py",),
    ),
    Mutant(
        name="piece-lent-after-the-end",
        clause=_LENT,
        file=ARENA,
        before="None if self._is_over else self._find(size_bytes)",
        after="self._find(size_bytes)",
        tests=("tests/unit/test_dataset_arena.py",),
    ),
    Mutant(
        name="piece-copied-twice",
        clause=_LENT,
        file=ARENA,
        before="    if state != SENT or number != piece.generation:\n",
        after="    if False:\n",
        tests=("tests/unit/test_dataset_arena.py",),
    ),
    Mutant(
        name="stacked-drops-what-is-beside-the-bytes",
        clause="a batch has the values of its samples",
        file="durastore/dataset/stacked.py",
        before="    if any(one.requires_grad or one.is_conj() or one.is_neg() for one in tensors):\n",
        after="    if first.requires_grad:\n",
        tests=("tests/unit/test_read_rooms.py",),
    ),
    Mutant(
        name="piece-given-back-under-a-forked-child",
        clause=_LENT,
        file=HANDOVER,
        before="            if all(fork.is_over for fork in forks):\n",
        after="            if True:\n",
        tests=(
            "tests/integration/test_dataset_handover.py::test_what_a_fork_shares_does_not_change_while_one_of_both_holds_it",
        ),
    ),
    Mutant(
        name="piece-let-go-in-the-moment-of-a-fork",
        clause=_LENT,
        file=HANDOVER,
        before="        forks = (*self._seen.pop(cell, ()), *_FORKS.values())\n",
        after="        forks = self._seen.pop(cell, ())\n",
        tests=("tests/unit/test_dataset_arena.py",),
    ),
    Mutant(
        name="child-lets-go-of-what-tells-that-it-lives",
        clause=_LENT,
        file="durastore/dataset/forks.py",
        before="            _INHERITED.append(self._token)\n",
        after="            pass\n",
        tests=("tests/unit/test_dataset_forks.py", "tests/integration/test_dataset_handover.py"),
    ),
    Mutant(
        name="memory-of-children-never-used-again",
        clause="memory does not run out for the length of a run",
        file=HANDOVER,
        before="                del self._left[cell]\n",
        after="                continue\n",
        tests=(
            "tests/integration/test_dataset_handover.py::test_what_children_were_left_with_is_used_again_when_they_are_gone",
        ),
    ),
)

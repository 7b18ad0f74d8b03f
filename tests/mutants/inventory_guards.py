"""Mutants of what looks, gets and compacts: two looks, no name before the digest, nothing overwritten."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["INVENTORY"]

LANDING = "durastore/read/landing.py"
COMPACTION = "durastore/manifest/compaction.py"
SCRUB = "durastore/reconcile/scrub.py"
_RESTORE_TESTS = "tests/unit/test_dataset_restore.py"
_COMPACTION_TESTS = "tests/unit/test_manifest_compaction.py"
_SCRUB_TESTS = "tests/unit/test_scrub.py"
_LISTING_TESTS = "tests/faults/test_reconcile_listings.py"
_TRACES_TESTS = "tests/unit/test_reconcile_traces.py"
_TRACES = "only what a write would change the times of is put on record"
_WHOLE = "an incomplete inventory yields no plan (INV-6)"
_CHECKED = "only bytes whose digest matched (INV-7)"
_KEPT = "nothing is overwritten"
_SAME = "a compacted manifest is the same dataset"
_LOOK = "missing only after two looks"

INVENTORY = (
    Mutant(
        name="list-folders-of-no-delimiter",
        clause=_WHOLE,
        file="durastore/objectstore/folders.py",
        before="or not are_folders or not is_flat or",
        after="or not are_folders or",
        tests=(f"{_LISTING_TESTS}::test_answers_that_are_not_all_folders_and_objects_below",),
    ),
    Mutant(
        name="list-folders-without-what-lies-beside-them",
        clause=_WHOLE,
        file="durastore/reconcile/bucket.py",
        before="tables = [own, *(",
        after="tables = [*(",
        tests=(f"{_LISTING_TESTS}::test_folders_are_listed_beside_each_other_and_nothing_is_missed",),
    ),
    Mutant(
        name="get-trusts-what-a-part-file-holds",
        clause=_CHECKED,
        file=LANDING,
        before="if not _matches(fd, read)]",
        after="if os.fstat(fd).st_size < read.offset + read.length]",
        tests=(f"{_RESTORE_TESTS}::test_a_large_sample_goes_on_where_it_was_cut_off",),
    ),
    Mutant(
        name="get-writes-a-range-unchecked",
        clause=_CHECKED,
        file=LANDING,
        before="        if wrong is None:\n            return data\n",
        after="        return data\n",
        tests=(f"{_RESTORE_TESTS}::test_a_large_sample_that_is_damaged_gets_no_name",),
    ),
    Mutant(
        name="get-names-a-small-sample-unchecked",
        clause=_CHECKED,
        file="durastore/dataset/restore.py",
        before="            if fault is not None:\n                raise IntegrityError(",
        after="            if False:\n                raise IntegrityError(",
        tests=(f"{_RESTORE_TESTS}::test_bit_rot_costs_only_the_sample_it_is_in",),
    ),
    Mutant(
        name="get-takes-any-file-for-its-own",
        clause=_KEPT,
        file=LANDING,
        before="    if not is_same:\n        raise InvalidInput(",
        after="    if False:\n        raise InvalidInput(",
        tests=(f"{_RESTORE_TESTS}::test_another_file_of_that_name_is_left_alone",),
    ),
    Mutant(
        name="compaction-drops-tombstones",
        clause=_SAME,
        file=COMPACTION,
        before="        table = pa.concat_tables([live, stones])\n",
        after="        table = live\n",
        tests=(f"{_COMPACTION_TESTS}::test_one_segment_takes_the_place_of_all",),
    ),
    Mutant(
        name="compaction-forgets-what-was-covered",
        clause=_SAME,
        file=COMPACTION,
        before="        named.update(segment_covers(segment.table))\n",
        after="        pass\n",
        tests=(f"{_COMPACTION_TESTS}::test_what_a_covered_segment_covered_stays_covered",),
    ),
    Mutant(
        name="compaction-covers-what-it-cannot-read",
        clause=_SAME,
        file=COMPACTION,
        before="    if fetched.unreadable:\n",
        after="    if False:\n",
        tests=(f"{_COMPACTION_TESTS}::test_a_segment_that_cannot_be_read_is_never_covered",),
    ),
    Mutant(
        name="scrub-calls-missing-after-one-look",
        clause=_LOOK,
        file=SCRUB,
        before="            if doubtful:\n",
        after="            if False:\n",
        tests=(f"{_SCRUB_TESTS}::test_one_stale_answer_calls_nothing_missing",),
    ),
    Mutant(
        name="scrub-believes-one-bad-transfer",
        clause=_LOOK,
        file=SCRUB,
        before="        for look in range(2):\n",
        after="        for look in range(1):\n",
        tests=(f"{_SCRUB_TESTS}::test_a_bad_transfer_is_not_bit_rot",),
    ),
    Mutant(
        name="scrub-forgets-what-was-sound",
        clause="a killed scrub goes on",
        file="durastore/reconcile/scrub_state.py",
        before='        self._append({"ok": key})\n',
        after="        pass\n",
        tests=(f"{_SCRUB_TESTS}::test_a_scrub_goes_on_where_it_was_ended",),
    ),
    Mutant(
        name="empty-manifest-verifies",
        clause="nothing to look at is not everything in order",
        file=SCRUB,
        before="        if not listing.segments:\n            run.note_nothing_listed(prefix)\n",
        after="",
        tests=("tests/faults/test_scrub_strict.py::test_a_manifest_that_lists_nothing_is_not_all_in_order",),
    ),
    Mutant(
        name="quarantine-released-into-the-root",
        clause="a doubtful file never comes back by itself",
        file="durastore/spool/quarantine.py",
        before="        if real == real_root or real_root in real.parents:\n",
        after="        if False:\n",
        tests=("tests/unit/test_spool_quarantine.py::test_nothing_is_released_into_the_root",),
    ),
    Mutant(
        name="status-touches-the-journal",
        clause="a look writes nothing",
        file="durastore/spool/glance.py",
        before='how = "readonly_shm=1" if',
        after='how = "cache=private" if',
        tests=("tests/unit/test_spool_glance.py::test_a_look_after_a_kill_leaves_no_trace",),
    ),
    Mutant(
        name="log-without-commit-is-taken",
        clause="a frame that does not follow from the one before it is not read",
        file="durastore/spool/journal_log.py",
        before="        if not number or rest[:2] != salts_and_sums[:2] or sums != tuple(rest[2:]):\n",
        after="        if not number:\n",
        tests=("tests/unit/test_spool_journal_log.py::test_a_damaged_byte_ends_the_log_where_it_does_for_sqlite",),
    ),
    Mutant(
        name="writers-not-asked",
        clause="a file that somebody has open or mapped for writing is in-flight, whatever its times say",
        file="durastore/reconcile/contents.py",
        before="    result.busy |= _written(folder, local, at=np.flatnonzero(result.split.agreeing))\n",
        after="",
        tests=(f"{_TRACES_TESTS}::test_a_file_that_is_mapped_for_writing_is_in_flight_though_its_times_are_old",),
    ),
    Mutant(
        name="hashed-in-memory-on-record",
        clause=_TRACES,
        file="durastore/reconcile/hashing.py",
        before=" and not traces.are_left(look.identity.dev):",
        after=" and False:",
        tests=(f"{_TRACES_TESTS}::test_what_was_hashed_in_memory_is_not_put_on_record",),
    ),
    Mutant(
        name="layers-leave-traces",
        clause=_TRACES,
        file="durastore/fsio/traces.py",
        before="    return not kinds.isdisjoint(IN_MEMORY | LAYERED)\n",
        after="    return not kinds.isdisjoint(IN_MEMORY)\n",
        tests=(f"{_TRACES_TESTS}::test_traces_are_left_only_by_what_is_known_to_lie_on_a_disk",),
    ),
    Mutant(
        name="unknown-devices-leave-traces",
        clause=_TRACES,
        file="durastore/fsio/traces.py",
        before="        return not any(mount.type_name in POOLED for mount in mounts)\n",
        after="        return False\n",
        tests=(f"{_TRACES_TESTS}::test_traces_are_left_only_by_what_is_known_to_lie_on_a_disk",),
    ),
    Mutant(
        name="sent-from-memory-on-record",
        clause=_TRACES,
        file="durastore/adopt/sending.py",
        before="if not (file.is_leased and self._traces.are_left(file.identity.dev)):",
        after="if not file.is_leased:",
        tests=(f"{_TRACES_TESTS}::test_what_was_hashed_in_memory_is_not_put_on_record",),
    ),
    Mutant(
        name="unknown-file-systems-leave-traces",
        clause=_TRACES,
        file="durastore/fsio/traces.py",
        before="    except OSError:\n        return True\n",
        after="    except OSError:\n        return False\n",
        tests=(f"{_TRACES_TESTS}::test_traces_are_left_on_disks_and_unknown_without_a_table",),
    ),
)

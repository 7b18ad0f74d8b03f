"""Guards of a migration between disks, each taken out once."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["MIGRATE"]

_COPY_TESTS = "tests/unit/test_migrate_copy.py"
_DOOR_TESTS = "tests/unit/test_reclaim_copied.py"
_PROOF_TESTS = "tests/unit/test_verify_copied.py"
_DURABLE_TESTS = "tests/unit/test_migrate_durable.py"
_FLOW_TESTS = "tests/unit/test_migrate_flow.py"
_ROOT_TESTS = "tests/unit/test_migrate_roots.py"
_STOPPED_TESTS = "tests/unit/test_migrate_stopped.py"
_TRACE_TESTS = "tests/unit/test_migrate_traces.py"

_ABSENT_OR_COMPLETE = "a name in DST is absent or complete"
_NEVER = "no name in DST is overwritten"
_CHANGED = "a source that changed is named"
_PROOF = "only files proven on the other device"
_OWNER = "before DST becomes active, SRC gets a durable MOVED-TO"
_OVERLAP = "overlapping or identical trees are refused"


def _mutant(file: str, name: str, *, clause: str, change: tuple[str, str], test: str) -> Mutant:
    before, after = change
    return Mutant(name=name, clause=clause, file=f"durastore/{file}", before=before, after=after, tests=(test,))


_COPYING = (
    _mutant(
        "migrate/copying.py",
        "copy-not-compared",
        clause=_ABSENT_OR_COMPLETE,
        change=("        if digest != each.read.digest:\n", "        if False:\n"),
        test=f"{_COPY_TESTS}::test_bytes_that_come_back_otherwise_are_no_copy",
    ),
    _mutant(
        "migrate/copying.py",
        "batch-named-unsynced",
        clause=_ABSENT_OR_COMPLETE,
        change=("        self._copier.names.sync([each.temp.fd for each in written])\n", "        pass\n"),
        test=f"{_COPY_TESTS}::test_where_one_call_does_not_sync_all_each_is_synced",
    ),
    _mutant(
        "migrate/copying.py",
        "large-file-named-unsynced",
        clause=_ABSENT_OR_COMPLETE,
        change=("        sync_file(each.temp.fd)\n        proven", "        proven"),
        test=f"{_COPY_TESTS}::test_a_sync_that_fails_names_nothing",
    ),
    _mutant(
        "migrate/durable.py",
        "failed-sync-passed-over",
        clause=_ABSENT_OR_COMPLETE,
        change=("            if exc.errno != errno.ENOSYS:\n", "            if False:\n"),
        test=f"{_COPY_TESTS}::test_a_sync_that_fails_names_nothing",
    ),
    _mutant(
        "migrate/durable.py",
        "failed-sync-forgotten",
        clause=_ABSENT_OR_COMPLETE,
        change=("                self._failed = exc\n", "                pass\n"),
        test=f"{_DURABLE_TESTS}::test_a_sync_that_failed_is_never_taken_for_good",
    ),
    _mutant(
        "migrate/durable.py",
        "sync-that-began-before",
        clause=_ABSENT_OR_COMPLETE,
        change=("self._begun == begun", "not self._begun"),
        test=f"{_DURABLE_TESTS}::test_who_waits_while_one_runs_shares_the_next",
    ),
    _mutant(
        "migrate/reading.py",
        "page-in-memory-passed-by",
        clause=_CHANGED,
        change=("is_direct=self._is_local and is_uncached(fd)", "is_direct=self._is_local"),
        test=f"{_FLOW_TESTS}::test_what_is_in_memory_is_what_is_copied",
    ),
    _mutant(
        "migrate/reading.py",
        "layers-asked-for-pages",
        clause=_CHANGED,
        change=("is_direct=self._is_local and is_uncached(fd)", "is_direct=is_uncached(fd)"),
        test=f"{_FLOW_TESTS}::test_what_is_in_memory_is_what_is_copied",
    ),
    _mutant(
        "fsio/past_cache.py",
        "fork-shares-what-is-read-into",
        clause=_CHANGED,
        change=('_WIPEONFORK = 18 if sys.platform == "linux" else None', "_WIPEONFORK = None"),
        test="tests/unit/test_fsio_past_cache.py::test_a_fork_gets_no_copy_of_the_memory_that_is_read_into",
    ),
    _mutant(
        "migrate/copying.py",
        "full-disk-met-again-and-again",
        clause="ENOSPC stops at once",
        change=("            if cause.errno in NO_ROOM:\n", "            if False:\n"),
        test=f"{_COPY_TESTS}::test_a_full_disk_stops_at_once",
    ),
    _mutant(
        "migrate/copying.py",
        "unmounted-target-not-noticed",
        clause="both folders are what they were before every batch",
        change=("            self._tools.target.check()  # before", "            pass  # before"),
        test=f"{_COPY_TESTS}::test_a_destination_that_is_unmounted_stops_everything",
    ),
    _mutant(
        "migrate/places.py",
        "replaced-source-not-noticed",
        clause="both folders are what they were before every batch",
        change=("        self.trees.check()\n", "        pass\n"),
        test=f"{_COPY_TESTS}::test_a_source_that_is_replaced_stops_everything",
    ),
    _mutant(
        "migrate/record.py",
        "record-of-a-written-file-trusted",
        clause=_CHANGED,
        change=("        if self.is_unsure:\n", "        if False:\n"),
        test=f"{_COPY_TESTS}::test_what_a_writer_had_mapped_is_not_taken_for_known",
    ),
    _mutant(
        "migrate/reading.py",
        "times-in-seconds-trusted",
        clause=_CHANGED,
        change=("before is after is False and not is_young,", "before is after is False,"),
        test=f"{_DOOR_TESTS}::test_times_in_whole_seconds_are_not_believed_within_one",
    ),
    _mutant(
        "migrate/run.py",
        "written-file-not-told",
        clause=_CHANGED,
        change=("            elif proven is not None and proven.has_writer:\n", "            elif False:\n"),
        test=f"{_COPY_TESTS}::test_what_a_writer_had_mapped_is_not_taken_for_known",
    ),
    _mutant(
        "migrate/reading.py",
        "change-while-read-not-noticed",
        clause=_CHANGED,
        change=('            raise SourceChanged("it changed while it was read")\n', "            pass\n"),
        test=f"{_COPY_TESTS}::test_a_source_that_changes_is_marked",
    ),
    _mutant(
        "migrate/reading.py",
        "short-source-is-whole",
        clause=_CHANGED,
        change=(
            "    if count != size_bytes:\n        raise SourceChanged",
            "    if False:\n        raise SourceChanged",
        ),
        test=f"{_COPY_TESTS}::test_a_source_that_shrinks_unnoticed_is_still_short",
    ),
    _mutant(
        "migrate/run.py",
        "change-after-the-copy-not-noticed",
        clause=_CHANGED,
        change=("                self._compare_again(outcome)\n", "                pass\n"),
        test=f"{_COPY_TESTS}::test_a_change_after_the_copy_is_noticed_and_copied_by_the_next_run",
    ),
    _mutant(
        "migrate/existing.py",
        "name-is-content",
        clause=_NEVER,
        change=("    if digest == read.digest:\n", "    if True:\n"),
        test=f"{_COPY_TESTS}::test_the_same_bytes_by_another_tool_are_proven_and_not_copied",
    ),
    _mutant(
        "migrate/existing.py",
        "anybodys-file-is-moved-aside",
        clause=_NEVER,
        change=("item.may_copy and (item.is_ours or is_recorded)", "True"),
        test=f"{_COPY_TESTS}::test_a_damaged_beginning_is_no_beginning",
    ),
    _mutant(
        "migrate/existing.py",
        "source-is-its-own-copy",
        clause=_PROOF,
        change=("    if there.is_same_inode(ours):\n", "    if False:\n"),
        test=f"{_COPY_TESTS}::test_another_name_of_the_source_is_no_copy",
    ),
    _mutant(
        "migrate/record.py",
        "record-of-any-file",
        clause="a record counts for the very files only",
        change=("if source.is_same_remounted(then.source) and target.is_same_remounted(then.target):", "if True:"),
        test=f"{_COPY_TESTS}::test_a_record_counts_for_the_very_files_only",
    ),
    _mutant(
        "migrate/record.py",
        "damaged-record-counts",
        clause="a record counts for the very files only",
        change=(' or Digest.of(text).short.encode("ascii") != digest:', ":"),
        test=f"{_COPY_TESTS}::test_a_line_of_the_record_that_is_damaged_counts_for_nothing",
    ),
    _mutant(
        "migrate/run.py",
        "folding-asked-too-early-only",
        clause="collisions by case and NFC are refused",
        change=("        self._refuse_folding()\n", "        pass\n"),
        test=f"{_COPY_TESTS}::test_names_that_fall_together_are_refused",
    ),
    _mutant(
        "migrate/plan.py",
        "folding-not-planned",
        clause="collisions by case and NFC are refused",
        change=("    if names is not None:\n        yield names\n", "    del names\n"),
        test="tests/unit/test_migrate_plan.py",
    ),
    _mutant(
        "migrate/plan.py",
        "room-not-asked-for",
        clause="free space with a reserve",
        change=("    if needed_bytes > facts.free_bytes:\n", "    if False:\n"),
        test="tests/unit/test_migrate_plan.py",
    ),
    _mutant(
        "migrate/places.py",
        "target-inside-the-source",
        clause=_OVERLAP,
        change=("    if above_source[0] in above_target:\n", "    if False:\n"),
        test=f"{_COPY_TESTS}::test_the_inodes_above_show_an_overlap_by_themselves",
    ),
    _mutant(
        "migrate/places.py",
        "bind-mount-not-seen",
        clause=_OVERLAP,
        change=("one.holds(other) or other.holds(one)", "False"),
        test=f"{_COPY_TESTS}::test_a_bind_mount_is_seen_through",
    ),
    _mutant(
        "migrate/places.py",
        "target-found-in-the-scan",
        clause=_OVERLAP,
        change=("        if folder in scan.folder_ids:\n", "        if False:\n"),
        test=f"{_COPY_TESTS}::test_a_target_that_turns_up_in_the_scan_is_refused",
    ),
    _mutant(
        "migrate/places.py",
        "two-migrates-on-one-tree",
        clause="one migrate at a time",
        change=("    if lock is None:\n", "    if False:\n"),
        test=f"{_COPY_TESTS}::test_one_migrate_at_a_time",
    ),
)

_FREEING = (
    _mutant(
        "verify/copied.py",
        "copy-on-the-same-device",
        clause=_PROOF,
        change=("    if not are_apart(source_fd, target.fd):\n", "    if False:\n"),
        test=_PROOF_TESTS,
    ),
    _mutant(
        "fsio/space.py",
        "subvolumes-are-disks",
        clause=_PROOF,
        change=("    return first.type_name not in POOLED or", "    return True or"),
        test=f"{_PROOF_TESTS}::test_subvolumes_of_one_disk_prove_nothing",
    ),
    _mutant(
        "verify/copied.py",
        "copy-of-another-source",
        clause=_PROOF,
        change=("    if not source.is_same_renamed(copied.source):", "    if False:"),
        test=_PROOF_TESTS,
    ),
    _mutant(
        "verify/copied.py",
        "name-of-the-copy-not-compared",
        clause=_PROOF,
        change=("    if not named.is_same_inode(now):\n", "    if False:\n"),
        test=_PROOF_TESTS,
    ),
    _mutant(
        "verify/copied.py",
        "recorded-copy-not-read",
        clause=_PROOF,
        change=("if not copied.is_read_back or now != copied.target:", "if now != copied.target:"),
        test=_PROOF_TESTS,
    ),
    _mutant(
        "verify/copied.py",
        "changed-copy-not-read",
        clause=_PROOF,
        change=("if not copied.is_read_back or now != copied.target:", "if not copied.is_read_back:"),
        test=_PROOF_TESTS,
    ),
    _mutant(
        "verify/copied.py",
        "copy-read-and-not-compared",
        clause=_PROOF,
        change=("        if digest_of(target.fd) != copied.digest:\n", "        if False:\n"),
        test=_PROOF_TESTS,
    ),
    _mutant(
        "verify/copied.py",
        "writer-of-the-source-forgotten",
        clause=_PROOF,
        change=("    if not copied.is_quiet and digest_of", "    if False and digest_of"),
        test=_PROOF_TESTS,
    ),
    _mutant(
        "reclaim/copied.py",
        "tree-is-its-own-copy",
        clause=_PROOF,
        change=("    if is_one_tree(place.source, place.target):", "    if False:"),
        test=f"{_DOOR_TESTS}::test_a_tree_that_shows_the_source_itself_is_no_copy_of_it",
    ),
    _mutant(
        "fsio/one_tree.py",
        "one-way-look-for-one-tree",
        clause=_PROOF,
        change=(" or _shows(other, made_in=one)\n", "\n"),
        test="tests/unit/test_fsio_one_tree.py",
    ),
    _mutant(
        "migrate/looking.py",
        "part-of-a-root-freed",
        clause=_PROOF,
        change=('    if above is not None:\n        return [f"SRC lies', '    if False:\n        return [f"SRC lies'),
        test=f"{_ROOT_TESTS}::test_a_part_of_a_root_is_not_freed",
    ),
    _mutant(
        "migrate/looking.py",
        "spools-without-marker-freed",
        clause=_PROOF,
        change=("            if looks_like_spool(parent, name):\n", "            if False:\n"),
        test=f"{_ROOT_TESTS}::test_spools_without_their_roots_marker_are_not_freed",
    ),
    _mutant(
        "migrate/looking.py",
        "sources-freed-into-memory",
        clause=_PROOF,
        change=("    if (roots or is_reclaiming) and not", "    if roots and not"),
        test="tests/cli/test_cli_migrate.py::test_what_ends_with_the_machine_frees_nothing",
    ),
    _mutant(
        "reclaim/copied.py",
        "copied-without-lease",
        clause="a lease, which fails while any writer has the file open",
        change=("        held.enter_context(leased(source.fd))\n", ""),
        test=_DOOR_TESTS,
    ),
    _mutant(
        "reclaim/copied.py",
        "copied-changed-since",
        clause="re-stat of the source just before",
        change=("        if identify(source.fd) != copied.source:\n", "        if False:\n"),
        test=_DOOR_TESTS,
    ),
    _mutant(
        "reclaim/copied.py",
        "copied-source-shared",
        clause="of two migrates in opposite directions one is refused",
        change=("_locked(parent, name, is_shared=False)", "_locked(parent, name, is_shared=True)"),
        test=_DOOR_TESTS,
    ),
    _mutant(
        "reclaim/copied.py",
        "copied-target-not-locked",
        clause="of two migrates in opposite directions one is refused",
        change=(
            "_locked(target_folder, target_name, is_shared=True)",
            "FlockedFile(target_folder.open_read(target_name), target_folder.path)",
        ),
        test=_DOOR_TESTS,
    ),
    _mutant(
        "reclaim/copied.py",
        "copied-intent-after-the-move",
        clause="a durable intent",
        change=("    place.log.announce(private, path)  # before", "    pass  # before"),
        test=_DOOR_TESTS,
    ),
    _mutant(
        "migrate/record.py",
        "copied-intent-not-synced",
        clause="a durable intent",
        change=(
            '        self._append([["going", private, path]], is_synced=True)',
            '        self._append([["going", private, path]], is_synced=False)',
        ),
        test=_DOOR_TESTS,
    ),
    _mutant(
        "reclaim/copied.py",
        "copied-newer-file-taken",
        clause="fstat the moved inode; a mismatch is moved back",
        change=("        if not place.going.identity(private).is_same_inode(identify(fd)):\n", "        if False:\n"),
        test=_DOOR_TESTS,
    ),
    _mutant(
        "migrate/run.py",
        "damaged-source-freed",
        clause="a file that could not be verified is never unlinked",
        change=("            if proven.damage is not None:\n", "            if False:\n"),
        test=_DOOR_TESTS,
    ),
    _mutant(
        "migrate/run.py",
        "aside-not-taken-back",
        clause="a crash in between leaves the file in the private folder, and the next run takes it back",
        change=("([], []) if request.is_dry else _take_back(trees)", "([], [])"),
        test=_DOOR_TESTS,
    ),
    _mutant(
        "migrate/plan.py",
        "one-device-frees",
        clause=_PROOF,
        change=("    if facts.is_reclaiming and facts.is_one_device:\n", "    if False:\n"),
        test="tests/unit/test_migrate_plan.py",
    ),
)

_ROOTS = (
    _mutant(
        "migrate/handover.py",
        "active-before-moved-to",
        clause=_OWNER,
        change=("        _publish_moved(here, root, place=place)\n", "        pass\n"),
        test=_ROOT_TESTS,
    ),
    _mutant(
        "migrate/handover.py",
        "late-spool-not-seen",
        clause=_OWNER,
        change=("        if made_meanwhile:\n", "        if False:\n"),
        test=_ROOT_TESTS,
    ),
    _mutant(
        "spool/spool.py",
        "spool-claimed-after-the-mark",
        clause=_OWNER,
        change=("        root.check()  # with the lock", "        pass  # with the lock"),
        test=_ROOT_TESTS,
    ),
    _mutant(
        "spool/opened.py",
        "half-filled-root-opens",
        clause=_OWNER,
        change=("    if folder.has(INCOMING_NAME):\n", "    if False:\n"),
        test=_ROOT_TESTS,
    ),
    _mutant(
        "migrate/run.py",
        "busy-root-handed-over",
        clause="the last delta needs the lock",
        change=("        if root.busy:\n", "        if False:\n"),
        test=_ROOT_TESTS,
    ),
    _mutant(
        "migrate/run.py",
        "root-with-failures-handed-over",
        clause="a root that is not whole is not handed over",
        change=("        if failed:\n", "        if False:\n"),
        test=_ROOT_TESTS,
    ),
    _mutant(
        "migrate/roots.py",
        "journal-of-a-live-spool-copied",
        clause="sealed packs may be copied, the rest needs the lock",
        change=("is_free = self.locks[first] is not None or (below", "is_free = True or (below"),
        test=_ROOT_TESTS,
    ),
    _mutant(
        "migrate/tools.py",
        "seal-not-compared",
        clause="re-read against the journal's digest",
        change=("    damage = None if item.seal == copied.digest else", "    damage = None if item.seal else"),
        test=_ROOT_TESTS,
    ),
    _mutant(
        "migrate/handover.py",
        "freed-packs-brought-back",
        clause="what SRC no longer has is set aside",
        change=("        if is_in_spool and file.path not in expected:\n", "        if False:\n"),
        test=_ROOT_TESTS,
    ),
    _mutant(
        "migrate/handover.py",
        "moved-root-goes-anywhere",
        clause=_OWNER,
        change=('    if root.moved_to not in (None, "", str(place)):\n', "    if False:\n"),
        test=_ROOT_TESTS,
    ),
    _mutant(
        "migrate/handover.py",
        "roots-mixed",
        clause="a root goes to a place of its own",
        change=("            is_ours = _incoming_id(folder) == root.record.root_id\n", "            is_ours = True\n"),
        test=_ROOT_TESTS,
    ),
    _mutant(
        "store/settling.py",
        "copied-root-keeps-its-proofs",
        clause="a root copied by other means: evidence void",
        change=("        if known is not None and known != root_id:\n", "        if False:\n"),
        test="tests/unit/test_store_settling.py::test_a_root_that_was_copied_proves_nothing",
    ),
    _mutant(
        "store/settling.py",
        "copied-root-buries",
        clause="a root copied by other means: evidence void",
        change=("        if journal.get_fact(_COPIED_FROM) is not None:\n", "        if False:\n"),
        test="tests/unit/test_store_settling.py::test_a_copy_of_a_root_buries_nothing",
    ),
    _mutant(
        "fsio/space.py",
        "lasting-ids-not-compared",
        clause="a root copied by other means: evidence void",
        change=("        return not is_weak or self.type_name in _FSID_LASTS\n", "        return not is_weak\n"),
        test="tests/unit/test_spool_root.py::test_ids_of_one_kind_that_last_tell_file_systems_apart",
    ),
    _mutant(
        "migrate/existing.py",
        "record-without-traces-trusted",
        clause=_CHANGED,
        change=(" and tools.leaves_trace(ours, there) else None\n", " else None\n"),
        test=f"{_TRACE_TESTS}::test_a_source_that_changed_without_a_trace_is_not_called_copied",
    ),
    _mutant(
        "migrate/tools.py",
        "what-was-read-in-memory-stays-true",
        clause=_PROOF,
        change=("    if not tools.leaves_trace(copied.source, copied.target):\n", "    if False:\n"),
        test=f"{_TRACE_TESTS}::test_who_writes_without_a_trace_before_it_is_freed_keeps_it",
    ),
    _mutant(
        "migrate/copying.py",
        "undurable-names-called-proven",
        clause=_ABSENT_OR_COMPLETE,
        change=("            for path in self.names.undurable():\n", "            for path in ():\n"),
        test=f"{_STOPPED_TESTS}::test_a_name_that_no_sync_covered_is_not_called_proven",
    ),
    _mutant(
        "fsio/space.py",
        "one-sync-on-any-file-system",
        clause=_ABSENT_OR_COMPLETE,
        change=("        return self.is_local_disk or self.type_name in IN_MEMORY\n", "        return True\n"),
        test=f"{_STOPPED_TESTS}::test_each_is_synced_where_one_call_may_not_do_it",
    ),
    _mutant(
        "migrate/run.py",
        "record-goes-before-its-files",
        clause=_OWNER,
        change=("    return above if name == PRIVATE_ROOT_NAME else root.path\n", "    return root.path\n"),
        test="tests/unit/test_migrate_ahead.py::test_the_record_of_a_folder_stays_while_a_file_of_it_does",
    ),
    _mutant(
        "extract/stop.py",
        "who-may-not-look-sees-nobody",
        clause="an incomplete inventory yields no plan (INV-6)",
        change=("        raise InventoryIncomplete(what, hint=hint) from exc\n", "        return {}\n"),
        test="tests/unit/test_root_words.py::test_who_may_not_look_is_not_told_that_nobody_is_there",
    ),
)

MIGRATE: tuple[Mutant, ...] = (*_COPYING, *_FREEING, *_ROOTS)

"""Mutants of what is known of the local side: root, lock, folder, receipt, the order of steps, and what never goes."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["DISK"]

ROOT = "durastore/spool/root.py"
SPOOL = "durastore/spool/spool.py"
FOLDER = "durastore/fsio/folder.py"
RECEIPT = "durastore/verify/receipt.py"
UNLINK = "durastore/reclaim/_unlink.py"
ENGINE = "durastore/reclaim/engine.py"
_ROOT_TESTS = "tests/unit/test_spool_root.py"
_FORK_TESTS = "tests/unit/test_fsio_forks.py"
_ENGINE_TESTS = "tests/unit/test_reclaim_engine.py"
_FOLDER_TESTS = "tests/unit/test_fsio_folder.py"
_RECEIPT_TESTS = "tests/unit/test_verify_receipt.py"
_RECOVERY_TESTS = "tests/unit/test_spool_recovery.py"
_STEP_TESTS = "tests/unit/test_journal_steps.py"
_LANE_TESTS = "tests/unit/test_store_lane_refusals.py"
_SOURCE_TESTS = "tests/unit/test_upload_source.py"

_ROOT = "root identity (marker, inode, UUID, st_dev)"
_PATH = "path walked by held dirfds without links"
_LOCK = "spool flock held"
_FORK = "a lock ends with its owner, and no child of it has a part in it"
_SPEND = "receipt: short-lived, single-use, for one inode"
_ORDER = "intent -> spend -> unlinkat -> fsync dir -> RECLAIMED"
_RECOVERY = "recovery never redoes the unlink"
_SENT = "hashed by us and recorded before upload"

_ROOT_GUARDS = (
    Mutant(
        name="root-not-compared",
        clause=_ROOT,
        file=ROOT,
        before="if not is_same_directory or (marker.dev,",
        after="if (marker.dev,",
        tests=(f"{_ROOT_TESTS}::test_another_directory_with_the_same_marker_is_noticed",),
    ),
    Mutant(
        name="marker-not-compared",
        clause=_ROOT,
        file=ROOT,
        before="(marker.dev, marker.inode) != (self.identity.dev, self.identity.marker_inode):",
        after="False:",
        tests=(f"{_ROOT_TESTS}::test_a_marker_replaced_by_its_equal_is_noticed",),
    ),
    Mutant(
        name="copied-root-accepted",
        clause=_ROOT,
        file=ROOT,
        before="    return is_other or filesystem",
        after="    return filesystem",
        tests=(f"{_ROOT_TESTS}::test_a_copied_root_does_not_pass_for_the_original",),
    ),
    Mutant(
        name="file-system-not-compared",
        clause=_ROOT,
        file=ROOT,
        before=" or filesystem.is_surely_not(record.fs_uuid)\n",
        after="\n",
        tests=(f"{_ROOT_TESTS}::test_a_root_on_another_file_system_is_refused_if_both_ids_are_real",),
    ),
    Mutant(
        name="root-not-checked",
        clause=_ROOT,
        file=SPOOL,
        before="        self.root.check()\n",
        after="",
        tests=(f"{_ROOT_TESTS}::test_a_spool_of_a_root_without_its_marker_is_not_held",),
    ),
    Mutant(
        name="spool-folder-not-compared",
        clause=_PATH,
        file=SPOOL,
        before="is_same = _is_same(packs, self.packs_folder) and lock.is_same_inode(self._lock_identity)",
        after="is_same = lock.is_same_inode(self._lock_identity)",
        tests=(f"{_ROOT_TESTS}::test_a_spool_that_became_another_directory_is_noticed",),
    ),
    Mutant(
        name="lock-file-not-compared",
        clause=_LOCK,
        file=SPOOL,
        before="is_same = _is_same(packs, self.packs_folder) and lock.is_same_inode(self._lock_identity)",
        after="is_same = _is_same(packs, self.packs_folder)",
        tests=(f"{_ROOT_TESTS}::test_a_spool_that_became_another_directory_is_noticed",),
    ),
    Mutant(
        name="lock-not-asked",
        clause=_LOCK,
        file=SPOOL,
        before="if not self._lock.is_held:",
        after="if False:",
        tests=(f"{_ENGINE_TESTS}::test_without_the_lock_nothing_goes",),
    ),
    Mutant(
        name="lock-shared-with-a-fork",
        clause=_LOCK,
        file="durastore/fsio/lock.py",
        before="return self._fd >= 0 and os.getpid() == self._pid",
        after="return self._fd >= 0",
        tests=(f"{_FORK_TESTS}::test_a_child_cannot_unlock_what_its_parent_holds",),
    ),
    Mutant(
        name="lock-left-to-what-a-fork-copied",
        clause=_FORK,
        file="durastore/fsio/lock.py",
        before="SYS.flock(self._fd, fcntl.LOCK_UN)",
        after="pass",
        tests=(f"{_FORK_TESTS}::test_a_lock_that_was_let_go_is_free_though_a_copy_is_left_that_nobody_knows",),
    ),
    Mutant(
        name="lock-outlives-its-owner-in-a-child",
        clause=_FORK,
        file="durastore/fsio/forks.py",
        before="            holder.leave_to_parent()\n",
        after="            pass\n",
        tests=(f"{_FORK_TESTS}::test_a_lock_ends_with_its_owner_and_not_with_the_owners_children",),
    ),
    Mutant(
        name="fork-in-the-middle-of-a-lock",
        clause=_FORK,
        file="durastore/fsio/lock.py",
        before="        with FORKING:\n            try:\n",
        after="        if True:\n            try:\n",
        tests=(f"{_FORK_TESTS}::test_a_fork_in_the_middle_of_taking_a_lock_copies_nothing_that_nobody_closes",),
    ),
    Mutant(
        name="byte-left-to-what-a-fork-copied",
        clause=_FORK,
        file="durastore/fsio/alive.py",
        before="FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, 0, 0, 0)",
        after="FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, 0, 1, 0)",
        tests=(f"{_FORK_TESTS}::test_a_workers_byte_ends_when_it_leaves_though_children_of_it_live",),
    ),
    Mutant(
        name="child-lets-go-of-its-parents-byte",
        clause=_FORK,
        file="durastore/fsio/alive.py",
        before="if self._fd >= 0 and os.getpid() == self._pid:",
        after="if self._fd >= 0:",
        tests=(f"{_FORK_TESTS}::test_a_child_cannot_let_go_of_its_parents_byte",),
    ),
    Mutant(
        name="lock-does-not-exclude",
        clause=_LOCK,
        file="durastore/fsio/lock.py",
        before="SYS.flock(fd, kind | fcntl.LOCK_NB)",
        after="SYS.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)",
        tests=(f"{_ROOT_TESTS}::test_each_claim_gets_a_spool_and_a_writer_of_its_own",),
    ),
    Mutant(
        name="held-only-at-the-start",
        clause="checked in one critical section",
        file=ENGINE,
        before="                self._spool.check_held()  # the disk may",
        after="                pass  # the disk may",
        tests=(f"{_ENGINE_TESTS}::test_a_root_that_is_another_is_noticed_before_each_file",),
    ),
    Mutant(
        name="held-not-asked-first",
        clause="checked in one critical section",
        file=ENGINE,
        before="        self._spool.check_held()\n        with self._open_batch",
        after="        with self._open_batch",
        tests=(f"{_ENGINE_TESTS}::test_who_does_not_hold_the_spool_asks_the_bucket_nothing",),
    ),
    Mutant(
        name="links-followed-by-open",
        clause=_PATH,
        file=FOLDER,
        before="os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=self.fd)",
        after="os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=self.fd)",
        tests=(f"{_ENGINE_TESTS}::test_a_link_in_the_place_of_a_pack_is_never_followed",),
    ),
    Mutant(
        name="links-followed-into-folders",
        clause=_PATH,
        file=FOLDER,
        before="fd = os.open(_single(name), _DIR_FLAGS | os.O_NOFOLLOW, dir_fd=self.fd)",
        after="fd = os.open(_single(name), _DIR_FLAGS, dir_fd=self.fd)",
        tests=(_FOLDER_TESTS,),
    ),
    Mutant(
        name="opened-by-path",
        clause=_PATH,
        file=FOLDER,
        before="fd = os.open(_single(name), os.O_RDONLY",
        after="fd = os.open(self.path / _single(name), os.O_RDONLY",
        tests=(_FOLDER_TESTS,),
    ),
    Mutant(
        name="names-of-more-segments",
        clause=_PATH,
        file=FOLDER,
        before="""if not name or name in (".", "..") or "/" in name or "\\0" in name:""",
        after="if not name:",
        tests=(_FOLDER_TESTS,),
    ),
)

_RECEIPT_GUARDS = (
    Mutant(
        name="receipt-good-twice",
        clause=_SPEND,
        file=RECEIPT,
        before="            if self._is_spent:\n",
        after="            if False:\n",
        tests=(f"{_RECEIPT_TESTS}::test_it_is_good_once",),
    ),
    Mutant(
        name="refused-receipt-not-used-up",
        clause=_SPEND,
        file=RECEIPT,
        before="            self._is_spent = True  # also",
        after="            self._is_spent = identity == self.identity  # also",
        tests=(f"{_RECEIPT_TESTS}::test_it_is_for_one_file_in_one_state",),
    ),
    Mutant(
        name="receipt-never-expires",
        clause=_SPEND,
        file=RECEIPT,
        before="if self._clock.monotonic() >= self._expires_at:",
        after="if False:",
        tests=(f"{_RECEIPT_TESTS}::test_a_receipt_expires",),
    ),
    Mutant(
        name="receipt-for-any-file",
        clause=_SPEND,
        file=RECEIPT,
        before="        if identity != self.identity:\n",
        after="        if False:\n",
        tests=(f"{_RECEIPT_TESTS}::test_it_is_for_one_file_in_one_state",),
    ),
    Mutant(
        name="receipt-made-by-hand",
        clause="only the verifier makes one",
        file=RECEIPT,
        before="        if seal is not _SEAL:\n",
        after="        if False:\n",
        tests=(f"{_RECEIPT_TESTS}::test_it_cannot_be_made_copied_or_pickled",),
    ),
    Mutant(
        name="unlink-without-spending",
        clause=_ORDER,
        file=UNLINK,
        before="        receipt.spend(identity)  # INV-3",
        after="        pass  # INV-3",
        tests=(f"{_ENGINE_TESTS}::test_a_file_swapped_between_proof_and_unlink_stays",),
    ),
    Mutant(
        name="spent-for-the-proven-file",
        clause=_ORDER,
        file=UNLINK,
        before="        receipt.spend(identity)  # INV-3",
        after="        receipt.spend(receipt.identity)  # INV-3",
        tests=(f"{_ENGINE_TESTS}::test_a_file_swapped_between_proof_and_unlink_stays",),
    ),
    Mutant(
        name="folder-not-synced",
        clause=_ORDER,
        file=UNLINK,
        before="            folder.sync()  # else",
        after="            pass  # else",
        tests=(f"{_ENGINE_TESTS}::test_each_step_comes_before_the_next",),
    ),
    Mutant(
        name="failed-unlink-passed-over",
        clause=_ORDER,
        file=UNLINK,
        before='raise DiskFailed(f"reclaiming',
        after='if not name: raise DiskFailed(f"reclaiming',
        tests=(f"{_ENGINE_TESTS}::test_a_kernel_that_refuses_is_a_failure_and_never_reclaimed",),
    ),
    Mutant(
        name="unlink-before-intent",
        clause=_ORDER,
        file=ENGINE,
        before="""\
        journal.record_intent(record.pack_id, receipt.render())
        freed = unlink_proven(self._spool.packs_folder, record.name, receipt=receipt)
""",
        after="""\
        freed = unlink_proven(self._spool.packs_folder, record.name, receipt=receipt)
        journal.record_intent(record.pack_id, receipt.render())
""",
        tests=(f"{_ENGINE_TESTS}::test_each_step_comes_before_the_next",),
    ),
    Mutant(
        name="no-intent",
        clause=_ORDER,
        file=ENGINE,
        before="        journal.record_intent(record.pack_id, receipt.render())\n",
        after="",
        tests=(f"{_ENGINE_TESTS}::test_each_step_comes_before_the_next",),
    ),
    Mutant(
        name="reclaimed-before-the-unlink",
        clause=_ORDER,
        file=ENGINE,
        before="""\
        freed = unlink_proven(self._spool.packs_folder, record.name, receipt=receipt)
        journal.record_reclaimed(record.pack_id)
""",
        after="""\
        journal.record_reclaimed(record.pack_id)
        freed = unlink_proven(self._spool.packs_folder, record.name, receipt=receipt)
""",
        tests=(f"{_ENGINE_TESTS}::test_each_step_comes_before_the_next",),
    ),
    Mutant(
        name="the-old-plan-decides",
        clause="checked in one critical section",
        file=ENGINE,
        before="        if record.state is not PackState.MANIFESTED:\n            report.kept",
        after="        if planned.state is not PackState.MANIFESTED:\n            report.kept",
        tests=(f"{_ENGINE_TESTS}::test_a_plan_is_only_a_wish",),
    ),
    Mutant(
        name="a-missing-file-is-reclaimed",
        clause="absent -> look at the bucket",
        file=ENGINE,
        before="            evidence = batch.read_back(record)\n",
        after="            evidence = record.evidence\n",
        tests=(f"{_ENGINE_TESTS}::test_a_file_that_is_gone_on_both_sides_is_named",),
    ),
    Mutant(
        name="damaged-file-not-set-aside",
        clause=_ORDER,
        file=ENGINE,
        before="            self._spool.quarantine(record.pack_id, reason=exc.message)\n",
        after="            pass\n",
        tests=(f"{_ENGINE_TESTS}::test_a_file_that_is_not_what_was_sealed_is_put_aside",),
    ),
    Mutant(
        name="doubt-does-not-move-back",
        clause="doubt moves a pack back",
        file=ENGINE,
        before="elif record.evidence is not None:",
        after="elif False:",
        tests=(f"{_ENGINE_TESTS}::test_old_evidence_is_taken_anew_and_the_canarys_own_look_is_young",),
    ),
)

_JOURNAL_GUARDS = (
    Mutant(
        name="reclaimed-without-intent",
        clause=_ORDER,
        file="durastore/spool/journal.py",
        before="if steps.require_state(conn, pack_id, PackState.MANIFESTED).intent is None:",
        after="if steps.require_state(conn, pack_id, PackState.MANIFESTED) is None:",
        tests=(f"{_STEP_TESTS}::test_reclaimed_needs_an_announced_intent",),
    ),
    Mutant(
        name="intent-in-any-state",
        clause=_ORDER,
        file="durastore/spool/journal.py",
        before='PackState.MANIFESTED)\n            conn.execute("UPDATE packs SET intent',
        after='*PackState)\n            conn.execute("UPDATE packs SET intent',
        tests=(f"{_STEP_TESTS}::test_every_step_refuses_every_state_it_does_not_belong_to",),
    ),
    Mutant(
        name="intent-not-synced",
        clause="intent fsync'd",
        file="durastore/spool/journal_db.py",
        before="""PRAGMA synchronous={'FULL' if self._is_wal else 'EXTRA'}""",
        after="""PRAGMA synchronous={'NORMAL' if self._is_wal else 'EXTRA'}""",
        tests=("tests/unit/test_journal_file.py::test_every_commit_is_synced",),
    ),
    Mutant(
        name="listing-recorded-as-proof",
        clause="LISTED never frees a byte",
        file="durastore/spool/journal_steps.py",
        before="    if evidence.level < EvidenceLevel.ATTESTED:\n",
        after="    if False:\n",
        tests=(f"{_STEP_TESTS}::test_evidence_must_be_of_this_object_and_more_than_a_listing",),
    ),
    Mutant(
        name="manifested-without-proof",
        clause="states in this order only",
        file="durastore/spool/journal_steps.py",
        before="    require_state(conn, pack_id, PackState.VERIFIED)\n",
        after="",
        tests=(f"{_STEP_TESTS}::test_one_pack_that_is_not_verified_keeps_all_from_being_manifested",),
    ),
    Mutant(
        name="manifested-before-read-back",
        clause="rows in a manifest segment that was read back",
        file="durastore/store/segmenter.py",
        before="if evidence is None or evidence.level < EvidenceLevel.ATTESTED or evidence.key != record.key:",
        after="if evidence is None:",
        tests=("tests/unit/test_store_segmenter.py",),
    ),
    Mutant(
        name="doubt-keeps-its-claims",
        clause="doubt moves a pack back",
        file="durastore/spool/journal_steps.py",
        before='_PROOF_CLAIMS = "evidence = NULL, manifested_in = NULL, manifested_at = NULL, intent = NULL"',
        after='_PROOF_CLAIMS = "intent = NULL"',
        tests=(f"{_STEP_TESTS}::test_a_step_back_takes_back_what_was_claimed_beyond_it",),
    ),
    Mutant(
        name="doubt-moves-forward",
        clause="doubt moves a pack back",
        file="durastore/spool/records.py",
        before="return _ORDER.index(new) < _ORDER.index(old)",
        after="return _ORDER.index(new) != _ORDER.index(old)",
        tests=(f"{_STEP_TESTS}::test_no_order_of_steps_back_ever_leads_forward",),
    ),
    Mutant(
        name="missing-file-proven-by-attest",
        clause="absent -> look at the bucket",
        file="durastore/spool/journal_steps.py",
        before="if evidence.level is not EvidenceLevel.READ_BACK or (evidence.key,",
        after="if (evidence.key,",
        tests=(f"{_STEP_TESTS}::test_a_pack_without_a_file_is_proven_only_by_every_byte_of_its_object",),
    ),
    Mutant(
        name="recovery-trusts-the-intent",
        clause=_RECOVERY,
        file="durastore/spool/recovery.py",
        before='        journal.move_back(record.pack_id, PackState.UPLOADED, reason="reclaim was interrupted")\n',
        after="        journal.record_reclaimed(record.pack_id)\n",
        tests=(f"{_RECOVERY_TESTS}::test_an_announced_reclaim_is_never_carried_out_by_recovery",),
    ),
    Mutant(
        name="recovery-leaves-the-intent",
        clause=_RECOVERY,
        file="durastore/spool/recovery.py",
        before='        journal.move_back(record.pack_id, PackState.UPLOADED, reason="reclaim was interrupted")\n',
        after="        pass\n",
        tests=(f"{_ENGINE_TESTS}::test_a_crash_after_the_intent_leaves_a_question_and_the_file",),
    ),
    Mutant(
        name="recovery-does-not-hash",
        clause="changed numbers: re-hash",
        file="durastore/spool/recovery.py",
        before="    if identity == record.identity:\n        return\n",
        after="    return\n",
        tests=(f"{_RECOVERY_TESTS}::test_a_changed_byte_behind_the_same_size_and_time_is_found_by_hashing",),
    ),
)

_SENDING_GUARDS = (
    Mutant(
        name="sent-bytes-not-hashed",
        clause=_SENT,
        file="durastore/upload/source.py",
        before="if (self._offset, size_now, digest) != (job.size_bytes, job.size_bytes, job.digest.hex):",
        after="if (self._offset, size_now) != (job.size_bytes, job.size_bytes):",
        tests=(f"{_SOURCE_TESTS}::test_digest_and_checksum_each_decide",),
    ),
    Mutant(
        name="sent-checksum-not-compared",
        clause=_SENT,
        file="durastore/upload/source.py",
        before="if self._crc != job.crc64nvme:",
        after="if False:",
        tests=(f"{_SOURCE_TESTS}::test_digest_and_checksum_each_decide",),
    ),
    Mutant(
        name="put-before-the-hash",
        clause=_SENT,
        file="durastore/upload/single.py",
        before="        source.finish()\n",
        after="        pass\n",
        tests=("tests/faults/test_upload_faults.py::test_a_byte_that_changed_since_the_seal_is_never_completed",),
    ),
    Mutant(
        name="body-not-compared",
        clause=_SENT,
        file="durastore/upload/source.py",
        before="    if (size_bytes, digest, crc64nvme) != (job.size_bytes, job.digest, job.crc64nvme):\n",
        after="    if False:\n",
        tests=(f"{_SOURCE_TESTS}::test_bytes_in_memory_are_checked_like_those_of_the_file",),
    ),
    Mutant(
        name="blocks-shared-with-children",
        clause=_SENT,
        file="durastore/codec/blocks.py",
        before="mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS",
        after="mmap.MAP_SHARED | mmap.MAP_ANONYMOUS",
        tests=("tests/unit/test_codec_blocks.py::test_what_a_forked_child_writes_is_its_own",),
    ),
    Mutant(
        name="complete-before-the-hash",
        clause=_SENT,
        file="durastore/upload/multipart.py",
        before="            await self._context.offload.run(self._source.finish)\n",
        after="",
        tests=("tests/faults/test_upload_faults.py::test_a_byte_that_changed_since_the_seal_is_never_completed",),
    ),
)

_NEVER_GUARDS = (
    Mutant(
        name="never-is-lazy",
        clause='reclaim="never"',
        file="durastore/reclaim/plan.py",
        before='    if policy.mode == "never":\n        return ReclaimPlan(packs=())\n',
        after="",
        tests=("tests/unit/test_reclaim_plan.py::test_never_means_never",),
    ),
    Mutant(
        name="drain-overrides-never",
        clause='reclaim="never"',
        file="durastore/store/services.py",
        before='mode="eager" if self.board.is_draining and options.reclaim != "never" else options.reclaim',
        after='mode="eager"',
        tests=("tests/unit/test_store_lane_reclaim.py::test_never_means_never_also_for_a_drain",),
    ),
    Mutant(
        name="distrusted-lane-goes-on",
        clause="one mismatch stops all reclaiming",
        file="durastore/store/lane.py",
        before=" or not services.verifier.may_reclaim:",
        after=":",
        tests=("tests/unit/test_store_lane_reclaim.py::test_a_lane_that_distrusts_its_endpoint_asks_nothing",),
    ),
    Mutant(
        name="stale-evidence-not-renewed",
        clause="a clock that went back expires everything",
        file="durastore/store/lane.py",
        before='self.spool.journal.move_back(record.pack_id, PackState.UPLOADED, reason="evidence expired")',
        after="pass",
        tests=("tests/unit/test_store_lane_reclaim.py::test_expired_evidence_is_taken_anew",),
    ),
    Mutant(
        name="same-disk-accepted",
        clause="same failure domain: refused unless never",
        file="durastore/store/opening.py",
        before="    refuse_same_fate(objects, local, is_allowed=",
        after="    return\n    refuse_same_fate(objects, local, is_allowed=",
        tests=("tests/unit/test_store_failure_domain.py",),
    ),
    Mutant(
        name="a-link-is-where-it-leads-from",
        clause="same failure domain: refused unless never",
        file="durastore/objectstore/fate.py",
        before="    place = Path(os.path.realpath(local))  #",
        after="    place = local.absolute()  #",
        tests=("tests/unit/test_store_failure_domain.py",),
    ),
    Mutant(
        name="layers-are-a-disk",
        clause="same failure domain: refused unless never",
        file="durastore/objectstore/fate.py",
        before='    if kind == "layers" and not is_allowed:\n',
        after="    if False:\n",
        tests=("tests/unit/test_store_failure_domain.py",),
    ),
    Mutant(
        name="subvolumes-are-buckets-disks",
        clause="same failure domain: refused unless never",
        file="durastore/fsio/space.py",
        before="        if self.type_name not in POOLED:\n",
        after="        if True:\n",
        tests=("tests/unit/test_store_failure_domain.py",),
    ),
    Mutant(
        name="same-disk-refused-only-for-eager",
        clause="same failure domain: refused unless never",
        file="durastore/store/opening.py",
        before='    if options.reclaim == "never":\n        return\n',
        after='    if options.reclaim != "eager":\n        return\n',
        tests=("tests/unit/test_store_failure_domain.py",),
    ),
    Mutant(
        name="lazy-frees-all",
        clause="lazy: oldest first above the low watermark",
        file="durastore/reclaim/plan.py",
        before='to_free = used_bytes - policy.low_bytes if policy.mode == "lazy" else None',
        after="to_free = None",
        tests=("tests/unit/test_reclaim_plan.py::test_lazy_stops_at_the_low_watermark",),
    ),
    Mutant(
        name="re-created-bucket-trusted",
        clause="bucket marker as recorded",
        file="durastore/store/settling.py",
        before='            self._void(spool, "the bucket was re-created")\n',
        after="            pass\n",
        tests=("tests/unit/test_store_settling.py",),
    ),
    Mutant(
        name="rolled-back-journal-trusted",
        clause="a journal older than the bucket: back to SEALED",
        file="durastore/store/settling.py",
        before='            self._void(spool, "the journal was rolled back")\n',
        after="            pass\n",
        tests=("tests/unit/test_store_settling.py",),
    ),
    Mutant(
        name="lost-after-one-look",
        clause="ambiguity is not absence",
        file="durastore/verify/verifier.py",
        before="except (ObjectAbsent, IntegrityError):\n            self._clock.sleep",
        after="except AssertionError:\n            self._clock.sleep",
        tests=("tests/unit/test_store_settling.py",),
    ),
    Mutant(
        name="lost-without-a-look",
        clause="ambiguity is not absence",
        file="durastore/store/lane.py",
        before="        if not isinstance(error, ObjectAbsent | IntegrityError):\n",
        after="        if False:\n",
        tests=(f"{_LANE_TESTS}::test_a_pack_without_a_file_is_not_lost_while_the_bucket_is_silent",),
    ),
    Mutant(
        name="object-of-a-lost-answer-not-looked-for",
        clause="ambiguity is not absence",
        file="durastore/store/lane.py",
        before="if error is None:\n            self.spool.settle_without_file(record.pack_id, future",
        after="if False:\n            self.spool.settle_without_file(record.pack_id, future",
        tests=(f"{_LANE_TESTS}::test_a_pack_without_a_good_file_is_looked_for_in_the_bucket",),
    ),
    Mutant(
        name="damaged-pack-salvaged-although-it-was-sent",
        clause="ambiguity is not absence",
        file="durastore/spool/recovery.py",
        before="    elif record.state is PackState.SEALED and record.write_id is None:\n",
        after="    elif record.state is PackState.SEALED:\n",
        tests=(f"{_RECOVERY_TESTS}::test_a_pack_whose_upload_had_begun_is_a_question_to_the_bucket",),
    ),
    Mutant(
        name="damaged-file-salvaged-after-one-look",
        clause="ambiguity is not absence",
        file=ENGINE,
        before="            self._verifier.look_twice(record)\n",
        after="            raise ObjectAbsent(record.name)\n",
        tests=(f"{_ENGINE_TESTS}::test_a_damaged_file_is_not_salvaged_after_one_look_that_missed_the_object",),
    ),
)

DISK = (*_ROOT_GUARDS, *_RECEIPT_GUARDS, *_JOURNAL_GUARDS, *_SENDING_GUARDS, *_NEVER_GUARDS)

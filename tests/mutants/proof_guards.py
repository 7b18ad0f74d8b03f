"""Mutants of what is known of the remote copy: evidence, its age, the last look, the bucket and the batch."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["PROOF"]

GUARDS = "durastore/verify/guards.py"
VERIFIER = "durastore/verify/verifier.py"
ATTEST = "durastore/verify/attest.py"
REMOTE = "durastore/verify/remote.py"
POLICY = "durastore/verify/policy.py"
CLOCK = "durastore/clock.py"
_GUARD_TESTS = "tests/unit/test_verify_guards.py"
_POLICY_TESTS = "tests/unit/test_verify_policy.py"
_CLOCK_TESTS = "tests/unit/test_clock.py"
_ATTEST_TESTS = "tests/unit/test_verify_attest.py"
_ENGINE_TESTS = "tests/unit/test_reclaim_engine.py"
_UPLOAD_TESTS = "tests/faults/test_upload_stores.py"


def _guard(name: str, clause: str, *, before: str, after: str, test: str) -> Mutant:
    return Mutant(name=name, clause=clause, file=GUARDS, before=before, after=after, tests=(f"{_GUARD_TESTS}::{test}",))


def _verifier(name: str, clause: str, *, before: str, after: str, test: str) -> Mutant:
    return Mutant(
        name=name, clause=clause, file=VERIFIER, before=before, after=after, tests=(f"{_ENGINE_TESTS}::{test}",)
    )


def _attest(name: str, *, before: str, after: str, test: str) -> Mutant:
    clause = "ATTESTED only by what was seen refused"
    return Mutant(
        name=name, clause=clause, file=ATTEST, before=before, after=after, tests=(f"{_ATTEST_TESTS}::{test}",)
    )


_RECORDED = "hashed by us and recorded before upload"
_SEGMENT = "rows in a manifest segment that was read back"
_MARKER = "bucket marker as recorded"
_LEVEL = "evidence >= policy, by key (+ version)"
_TTL = "younger than its TTL"
_AGE = "ages: larger difference; boot, wall clock"
_DATE = "server Date within 60 s of the expected advance"
_SETTLE = "settle_s between upload and unlink, HEAD after that"
_HEAD = "readable class; the object that was proven"
_BATCH = "batch limits and canary"
_STOP = "one mismatch stops all reclaiming"
_LIFE = "a lifecycle rule that expires our prefix blocks"
_FILE = "dev, inode, size, mtime, ctime on the open fd; re-hash"

_RECORD_GUARDS = (
    _guard(
        "state-not-asked",
        _SEGMENT,
        before="if record.state is not PackState.MANIFESTED or record.manifested_in is None:",
        after="if record.manifested_in is None:",
        test="test_a_pack_that_was_not_recorded_in_full_is_refused",
    ),
    _guard(
        "segment-not-asked",
        _SEGMENT,
        before="if record.state is not PackState.MANIFESTED or record.manifested_in is None:",
        after="if record.state is not PackState.MANIFESTED:",
        test="test_a_pack_that_was_not_recorded_in_full_is_refused",
    ),
    _guard(
        "digest-not-on-record",
        _RECORDED,
        before=" or record.key is None or record.identity is None:",
        after=" or record.key is None:",
        test="test_a_pack_that_was_not_recorded_in_full_is_refused",
    ),
    _guard(
        "key-without-digest",
        "every key carries 16 hex digits of its bytes",
        before="if not is_carried and not carries_file(record.key, name=record.name, digest=record.digest):",
        after="if False:",
        test="test_a_pack_that_was_not_recorded_in_full_is_refused",
    ),
    _verifier(
        "segment-not-read-again",
        _SEGMENT,
        before="                check_segment(reader, segment)\n",
        after="                pass\n",
        test="test_without_its_segment_no_pack_goes",
    ),
    _verifier(
        "new-segment-not-read",
        _SEGMENT,
        before="        self._check_segment(record)\n        return self._verifier._prove",
        after="        return self._verifier._prove",
        test="test_a_segment_written_since_the_plan_is_looked_at_too",
    ),
    Mutant(
        name="segment-of-any-bytes",
        clause=_SEGMENT,
        file=REMOTE,
        before='if not key.text.endswith(f"-{Digest.of(data).short}.parquet"):',
        after="if False:",
        tests=(f"{_ENGINE_TESTS}::test_a_segment_that_holds_other_bytes_counts_for_nothing",),
    ),
    Mutant(
        name="segment-published-unread",
        clause=_SEGMENT,
        file="durastore/manifest/segments.py",
        before="if len(seen) != len(data) or Digest.of(seen) != digest:",
        after="if False:",
        tests=("tests/unit/test_manifest_segments.py::test_other_bytes_than_sent_are_no_segment",),
    ),
    _verifier(
        "recorded-guard-not-called",
        _RECORDED,
        before="digest, _ = guard_recorded(record)",
        after="digest, _ = record.digest, 0",
        test="test_a_pack_that_is_not_recorded_in_full_stays",
    ),
)

_EVIDENCE_GUARDS = (
    _guard(
        "no-evidence-needed",
        _LEVEL,
        before='        raise NotVerified(f"pack {record.name} has no evidence")\n',
        after="        return evidence  # type: ignore[return-value]\n",
        test="test_no_evidence_is_refused",
    ),
    _guard(
        "attested-on-any-path",
        "the level is chosen per write path",
        before="least = max(policy.level_for(record), EvidenceLevel.ATTESTED)",
        after="least = EvidenceLevel.ATTESTED",
        test="test_attested_passes_only_under_the_probe_that_justified_it_and_on_its_write_path",
    ),
    _guard(
        "any-level-will-do",
        "LISTED never frees a byte",
        before="if evidence.level < least:",
        after="if False:",
        test="test_listed_never_passes_whatever_the_probe_says",
    ),
    _guard(
        "evidence-of-another-key",
        _LEVEL,
        before="if evidence.key != record.key or evidence.size_bytes != record.size_bytes:",
        after="if evidence.size_bytes != record.size_bytes:",
        test="test_evidence_of_less_or_of_another_object_is_refused",
    ),
    _guard(
        "evidence-of-another-size",
        _LEVEL,
        before="if evidence.key != record.key or evidence.size_bytes != record.size_bytes:",
        after="if evidence.key != record.key:",
        test="test_evidence_of_less_or_of_another_object_is_refused",
    ),
    _guard(
        "evidence-of-another-digest",
        _LEVEL,
        before="if evidence.level is EvidenceLevel.READ_BACK and evidence.digest != record.digest:",
        after="if False:",
        test="test_evidence_of_less_or_of_another_object_is_refused",
    ),
    _guard(
        "attested-by-another-probe",
        "the probe chooses the level",
        before="if evidence.level is EvidenceLevel.ATTESTED and (evidence.probe is None or",
        after="if False and (",
        test="test_attested_passes_only_under_the_probe_that_justified_it_and_on_its_write_path",
    ),
    _verifier(
        "evidence-guard-not-called",
        _LEVEL,
        before="proof = guard_evidence(record, evidence or record.evidence, policy=self._policy)",
        after="proof = evidence or record.evidence",
        test="test_a_listing_frees_nothing",
    ),
    Mutant(
        name="single-path-speaks-for-both",
        clause="the level is chosen per write path",
        file=POLICY,
        before="return (WritePath.MULTIPART if record.part_bytes else WritePath.SINGLE,)",
        after="return (WritePath.SINGLE,)",
        tests=(f"{_POLICY_TESTS}::test_each_write_path_speaks_for_itself",),
    ),
    Mutant(
        name="an-unknown-path-is-a-single-put",
        clause="the level is chosen per write path",
        file=POLICY,
        before="            return (WritePath.SINGLE, WritePath.MULTIPART)\n",
        after="            return (WritePath.SINGLE,)\n",
        tests=(f"{_POLICY_TESTS}::test_a_pack_of_which_nobody_knows_how_it_went_needs_both_paths",),
    ),
    Mutant(
        name="found-is-sent-whole",
        clause="the level is chosen per write path",
        file="durastore/upload/single.py",
        before='part_bytes=0 if reply.settled_by == "answer" else None)',
        after="part_bytes=0)",
        tests=(f"{_UPLOAD_TESTS}::test_an_object_sent_in_parts_before_the_limit_was_raised_is_no_single_put",),
    ),
    Mutant(
        name="checksum-without-its-level",
        clause="ATTESTED only by what was seen refused",
        file=POLICY,
        before="return kind if probe.level_of(path) is EvidenceLevel.ATTESTED and kind in _COMPARED else None",
        after="return kind if kind in _COMPARED else None",
        tests=(f"{_POLICY_TESTS}::test_a_checksum_counts_only_with_its_level",),
    ),
    Mutant(
        name="attested-without-a-probe",
        clause="before the first reclaim the probe",
        file=POLICY,
        before="return EvidenceLevel.ATTESTED if self.checksum_for(record) is not None else EvidenceLevel.READ_BACK",
        after="return EvidenceLevel.ATTESTED",
        tests=(f"{_POLICY_TESTS}::test_without_a_probe_everything_is_read_back",),
    ),
    _attest(
        "head-of-another-write",
        before="if (record.etag, record.version_id) != (stat.etag, stat.version_id):",
        after="if False:",
        test="test_an_answer_that_lacks_something_is_not_believed",
    ),
    _attest(
        "checksum-not-compared",
        before="if stat.crc64nvme != record.crc64nvme:",
        after="if False:",
        test="test_an_answer_that_differs_is_damage",
    ),
    _attest(
        "empty-checksum-believed",
        before="if not stat.crc64nvme:",
        after="if stat.crc64nvme is None:",
        test="test_an_answer_that_lacks_something_is_not_believed",
    ),
    _attest(
        "etag-md5-not-compared",
        before="""if stat.etag.strip('"').lower() != _md5(fd, 0, length=size).hexdigest():""",
        after="if False:",
        test="test_md5_etags_attest_where_the_probe_saw_them",
    ),
    _attest(
        "spot-not-compared",
        before="    if remote != local:",
        after="    if False:",
        test="test_data_that_are_gone_or_wrong_behind_a_good_head_are_found",
    ),
    _attest(
        "spot-without-if-match",
        before="fd=fd, policy=policy, if_match=stat.etag)",
        after="fd=fd, policy=policy, if_match=None)",
        test="test_a_spot_of_equal_bytes_under_another_etag_is_not_taken",
    ),
    Mutant(
        name="probe-client-given-back-twice",
        clause="a look is on a connection of its own: a client has one user at a time",
        file="durastore/objectstore/probe/s3_wire.py",
        before="        client, self._client = self._client, None\n",
        after="        client = self._client\n",
        tests=("tests/unit/test_probe_connector.py::test_a_client_that_is_given_back_has_one_user_at_a_time",),
    ),
    Mutant(
        name="read-back-not-compared",
        clause="else READ_BACK: fetch and hash every byte",
        file=REMOTE,
        before="if size_bytes != record.size_bytes or digest != record.digest:",
        after="if size_bytes != record.size_bytes:",
        tests=(f"{_ATTEST_TESTS}::test_one_mismatch_stops_all_reclaiming_and_is_told_once",),
    ),
    Mutant(
        name="replaced-while-read-back",
        clause=_LEVEL,
        file=REMOTE,
        before="if (after.etag, after.version_id) != (before.etag, before.version_id):",
        after="if False:",
        tests=("tests/unit/test_verify_remote.py",),
    ),
    Mutant(
        name="one-answer-not-compared",
        clause="else READ_BACK: fetch and hash every byte",
        file=REMOTE,
        before="    if digest != record.digest:\n",
        after="    if False:\n",
        tests=("tests/unit/test_verify_remote.py",),
    ),
    Mutant(
        name="one-answer-for-a-reclaim",
        clause=_DATE,
        file=REMOTE,
        before="    if not is_for_reclaim:\n",
        after="    if True:\n",
        tests=("tests/unit/test_verify_remote.py",),
    ),
    Mutant(
        name="adopt-proof-for-a-reclaim-without-time",
        clause=_DATE,
        file="durastore/reconcile/folder_apply.py",
        before="        is_for_reclaim=session.request.is_reclaiming,\n",
        after="        is_for_reclaim=False,\n",
        tests=("tests/unit/test_adopt_folder.py::test_one_answer_proves_a_small_file_unless_it_is_to_go",),
    ),
)

_TIME_GUARDS = (
    _guard(
        "evidence-never-expires",
        _TTL,
        before="if age is None or age > policy.evidence_ttl_s:",
        after="if age is None:",
        test="test_evidence_expires_by_age_by_reboot_and_by_a_stepped_clock",
    ),
    _guard(
        "unknown-age-is-young",
        _AGE,
        before="if age is None or age > policy.evidence_ttl_s:",
        after="if age is not None and age > policy.evidence_ttl_s:",
        test="test_evidence_expires_by_age_by_reboot_and_by_a_stepped_clock",
    ),
    Mutant(
        name="other-boot-not-noticed",
        clause=_AGE,
        file=CLOCK,
        before="    if since.boot_id != now.boot_id:\n        return None\n",
        after="",
        tests=(f"{_CLOCK_TESTS}::test_an_age_over_a_reboot_is_not_known",),
    ),
    Mutant(
        name="wall-clock-back-not-noticed",
        clause=_AGE,
        file=CLOCK,
        before="return None if wall < 0 or boot < 0 else (wall, boot)",
        after="return None if boot < 0 else (wall, boot)",
        tests=(f"{_GUARD_TESTS}::test_evidence_expires_by_age_by_reboot_and_by_a_stepped_clock",),
    ),
    Mutant(
        name="smaller-difference-is-the-age",
        clause=_AGE,
        file=CLOCK,
        before="return None if passed is None else max(passed) / 1e9",
        after="return None if passed is None else min(passed) / 1e9",
        tests=(f"{_GUARD_TESTS}::test_a_wall_clock_that_jumps_ahead_does_not_hide_age",),
    ),
    _guard(
        "settle-not-waited-for",
        _SETTLE,
        before="if age is None or age < policy.settle_s:",
        after="if age is None:",
        test="test_the_settle_time_lies_between_upload_and_look",
    ),
    _verifier(
        "settle-guard-not-called",
        _SETTLE,
        before="guard_settled(record, record.evidence or proof, now=",
        after="dict(now=",
        test="test_before_settle_s_is_over_nothing_goes",
    ),
    _verifier(
        "settled-by-the-canarys-look",
        _SETTLE,
        before="guard_settled(record, record.evidence or proof,",
        after="guard_settled(record, proof,",
        test="test_after_a_reboot_also_the_canary_goes_in_the_end",
    ),
    _verifier(
        "freshness-guard-not-called",
        _TTL,
        before="        guard_freshness(record, proof, now=self._clock.stamp(), policy=self._policy)\n",
        after="",
        test="test_old_evidence_is_taken_anew_and_the_canarys_own_look_is_young",
    ),
    _guard(
        "server-clock-may-drift",
        _DATE,
        before="if abs(drift) > MAX_SERVER_DRIFT_S:",
        after="if False:",
        test="test_a_server_clock_that_drifts_or_falls_silent_is_refused",
    ),
    _guard(
        "server-clock-may-go-back",
        _DATE,
        before="if abs(drift) > MAX_SERVER_DRIFT_S:",
        after="if drift > MAX_SERVER_DRIFT_S:",
        test="test_a_server_clock_that_drifts_or_falls_silent_is_refused",
    ),
    _guard(
        "server-clock-may-fall-silent",
        _DATE,
        before="if stat.server_time_s is None or elapsed is None:\n        raise NotVerified(",
        after="if stat.server_time_s is None or elapsed is None:\n        return\n        raise NotVerified(",
        test="test_a_server_clock_that_drifts_or_falls_silent_is_refused",
    ),
    _verifier(
        "server-clock-guard-not-called",
        _DATE,
        before="        guard_server_clock(record, stat, evidence=proof, now=self._clock.stamp())\n",
        after="",
        test="test_a_server_clock_that_goes_another_way_makes_the_proof_void",
    ),
)

_LOOK_GUARDS = (
    _guard(
        "head-size-not-compared",
        _HEAD,
        before="if stat.size_bytes is None or stat.size_bytes != record.size_bytes:",
        after="if False:",
        test="test_a_head_that_shows_another_object_is_refused",
    ),
    _guard(
        "head-without-size-believed",
        _HEAD,
        before="if stat.size_bytes is None or stat.size_bytes != record.size_bytes:",
        after="if stat.size_bytes is not None and stat.size_bytes != record.size_bytes:",
        test="test_a_head_that_shows_another_object_is_refused",
    ),
    _guard(
        "head-etag-not-compared",
        _HEAD,
        before="if stat.etag != evidence.etag or not stat.etag:",
        after="if not stat.etag:",
        test="test_a_head_that_shows_another_object_is_refused",
    ),
    _guard(
        "two-empty-etags-are-equal",
        _HEAD,
        before="if stat.etag != evidence.etag or not stat.etag:",
        after="if stat.etag != evidence.etag:",
        test="test_an_empty_etag_on_both_sides_proves_nothing",
    ),
    _guard(
        "head-version-not-compared",
        _LEVEL,
        before="if evidence.version_id is not None and stat.version_id != evidence.version_id:",
        after="if False:",
        test="test_another_version_is_refused",
    ),
    _guard(
        "head-checksum-not-compared",
        _HEAD,
        before="if stat.crc64nvme is not None and stat.crc64nvme != record.crc64nvme:",
        after="if False:",
        test="test_a_head_that_shows_another_object_is_refused",
    ),
    _guard(
        "archived-is-readable",
        _HEAD,
        before="    if not stat.is_readable:\n",
        after="    if False:\n",
        test="test_a_head_that_shows_another_object_is_refused",
    ),
    Mutant(
        name="archive-class-not-known",
        clause=_HEAD,
        file="durastore/objectstore/s3_read.py",
        before="return storage_class in _ARCHIVES or bool(archive_status)",
        after="return bool(archive_status)",
        tests=("tests/faults/test_objectstore_wire.py::test_an_archived_object_is_there_and_not_readable",),
    ),
    _verifier(
        "head-guard-not-called",
        _HEAD,
        before="        guard_head(record, stat, evidence=proof)\n",
        after="",
        test="test_what_the_last_look_shows_has_to_be_what_was_proven",
    ),
    Mutant(
        name="a-404-is-passed-over",
        clause="no delete marker",
        file="durastore/reclaim/engine.py",
        before="journal.move_back(record.pack_id, PackState.SEALED, reason=",
        after="dict(reason=",
        tests=(f"{_ENGINE_TESTS}::test_a_404_sends_the_pack_again",),
    ),
    Mutant(
        name="any-404-is-absence",
        clause="ambiguity: only a 404 of the key is absence",
        file="durastore/objectstore/classify.py",
        before="    if code in _ABSENT_CODES:\n        return ObjectAbsent(",
        after="    if True:\n        return ObjectAbsent(",
        tests=("tests/faults/test_objectstore_wire.py::test_a_404_of_something_else_is_not_absence",),
    ),
)

_BATCH_GUARDS = (
    _verifier(
        "bucket-marker-not-looked-at",
        _MARKER,
        before="            self._check_bucket(reader)\n            segments = {",
        after="            segments = {",
        test="test_a_bucket_without_its_marker_or_with_another_is_not_ours",
    ),
    _verifier(
        "another-stores-marker-will-do",
        _MARKER,
        before="if marker is None or marker.store_id != self._bucket.store_id:",
        after="if marker is None:",
        test="test_a_bucket_without_its_marker_or_with_another_is_not_ours",
    ),
    _verifier(
        "no-marker-will-do",
        _MARKER,
        before="if marker is None or marker.store_id != self._bucket.store_id:",
        after="if marker is not None and marker.store_id != self._bucket.store_id:",
        test="test_a_bucket_without_its_marker_or_with_another_is_not_ours",
    ),
    _verifier(
        "no-canary",
        _BATCH,
        before="evidence = self._read_canary(reader, canary)",
        after="evidence = canary.evidence",
        test="test_a_canary_that_is_wrong_stops_everything_and_doubts_its_batch",
    ),
    _verifier(
        "canary-does-not-stop",
        _STOP,
        before='            self.stop_reclaiming(exc.message)\n            self._observer.emit("verify.canary_failed"',
        after='            self._observer.emit("verify.canary_failed"',
        test="test_a_canary_that_is_wrong_stops_everything_and_doubts_its_batch",
    ),
    _verifier(
        "stop-switch-not-read",
        _STOP,
        before="        if self.distrust is not None:\n            raise NotVerified(",
        after="        if False:\n            raise NotVerified(",
        test="test_after_the_stop_switch_nothing_goes_and_nothing_is_taken_back",
    ),
    _verifier(
        "data-not-looked-at-again",
        _HEAD,
        before="        self._look_at_data(reader, record, fd=fd)\n",
        after="",
        test="test_data_that_went_wrong_behind_a_good_head_stop_everything",
    ),
    _verifier(
        "a-wrong-block-does-not-stop",
        _STOP,
        before='            self.stop_reclaiming(exc.message)\n            self._observer.emit("verify.spot_mismatch"',
        after='            self._observer.emit("verify.spot_mismatch"',
        test="test_data_that_went_wrong_behind_a_good_head_stop_everything",
    ),
    _verifier(
        "batch-under-way-goes-on",
        _STOP,
        before="        self._refuse_if_stopped()  # another look",
        after="        pass  # another look",
        test="test_the_stop_switch_stops_a_batch_that_is_under_way",
    ),
    Mutant(
        name="a-mismatch-does-not-stop",
        clause=_STOP,
        file=VERIFIER,
        before='            self.stop_reclaiming(exc.message)\n            self._observer.emit("verify.mismatch"',
        after='            self._observer.emit("verify.mismatch"',
        tests=(f"{_ATTEST_TESTS}::test_one_mismatch_stops_all_reclaiming_and_is_told_once",),
    ),
    Mutant(
        name="stop-switch-not-kept",
        clause=_STOP,
        file="durastore/store/stopping.py",
        before="            verifier.stop_reclaiming(in_force[0].reason)\n",
        after="            pass\n",
        tests=("tests/unit/test_store_stopping.py",),
    ),
    Mutant(
        name="settled-by-a-clock-set-forward",
        clause="settle_s between upload and unlink, HEAD after that",
        file="durastore/clock.py",
        before="return None if passed is None else min(passed) / 1e9",
        after="return None if passed is None else max(passed) / 1e9",
        tests=("tests/unit/test_verify_guards.py::test_a_wall_clock_set_forward_is_no_time_passed",),
    ),
    Mutant(
        name="settled-by-an-overwritten-upload",
        clause="settle_s between upload and unlink, HEAD after that",
        file="durastore/verify/guards.py",
        before="is_ours = evidence is None or evidence.etag == record.etag",
        after="is_ours = True",
        tests=("tests/unit/test_verify_guards.py::test_an_object_written_again_by_others_settles_from_the_look_at_it",),
    ),
    Mutant(
        name="segment-need-not-settle",
        clause="settle_s between upload and unlink, HEAD after that",
        file="durastore/verify/guards.py",
        before="for since in (record.uploaded_at if is_ours else None, record.manifested_at):",
        after="for since in (record.uploaded_at if is_ours else None,):",
        tests=("tests/unit/test_verify_guards.py::test_the_settle_time_lies_between_segment_and_look_as_well",),
    ),
    Mutant(
        name="forgotten-segment-not-written-again",
        clause="rows in a manifest segment that was read back",
        file="durastore/store/settling.py",
        before="if record.manifested_in is not None and self._services.verifier.holds_segment(record.manifested_in):",
        after="if record.manifested_in is not None:",
        tests=(
            "tests/unit/test_store_settling.py::test_a_pack_without_file_whose_segment_is_forgotten_is_listed_again",
        ),
    ),
    Mutant(
        name="tombstones-leave-with-the-first-segment",
        clause="rows in a manifest segment that was read back",
        file="durastore/spool/journal_steps.py",
        before="    conn.execute(_COUNT_AGAIN, (pack_id,))\n\n\ndef step_back",
        after="    conn.execute(_COUNT_AGAIN, (pack_id,))\n"
        '    conn.execute("DELETE FROM tombstones WHERE pack_id = ?", (pack_id,))\n\n\ndef step_back',
        tests=("tests/unit/test_journal_steps.py::test_tombstones_go_into_every_segment_until_the_pack_is_reclaimed",),
    ),
    Mutant(
        name="no-audit",
        clause="a random share is read back in full",
        file=VERIFIER,
        before="return random.SystemRandom().random() < policy.audit_share",
        after="return False",
        tests=(f"{_ATTEST_TESTS}::test_the_verifier_attests_reads_back_and_audits",),
    ),
    Mutant(
        name="believed-before-one-full-read",
        clause="ATTESTED only where an endpoint guards what is really stored",
        file=VERIFIER,
        before="if any((policy.probe_id, path) not in self._earned for path in policy.paths_of(record)):",
        after="if False:",
        tests=(f"{_ATTEST_TESTS}::test_one_write_path_earns_nothing_for_the_other",),
    ),
    Mutant(
        name="believed-after-a-lie",
        clause="one mismatch stops all reclaiming",
        file=VERIFIER,
        before="if policy.checksum_for(record) is None or self._distrust is not None:",
        after="if policy.checksum_for(record) is None:",
        tests=(f"{_ATTEST_TESTS}::test_the_verifier_attests_reads_back_and_audits",),
    ),
    Mutant(
        name="one-spot-for-all-parts",
        clause="a ranged GET of one random block",
        file=ATTEST,
        before="    step = part_bytes or max(size, 1)\n",
        after="    step = max(size, 1)\n",
        tests=(f"{_ATTEST_TESTS}::test_each_part_is_looked_into",),
    ),
    Mutant(
        name="one-spot-for-a-whole-object",
        clause="a ranged GET of one random block",
        file=ATTEST,
        before="least = 1 if size > step or size <= WHOLE_BYTES else 2",
        after="least = 1",
        tests=(f"{_ATTEST_TESTS}::test_a_lost_half_of_an_object_sent_whole_is_always_noticed",),
    ),
    Mutant(
        name="one-spot-for-all-chunks",
        clause="a ranged GET of one random block",
        file=ATTEST,
        before="count = max(least, -(-room // CHUNK_BYTES))",
        after="count = least",
        tests=(f"{_ATTEST_TESTS}::test_every_stretch_that_a_server_may_lose_by_itself_gets_a_look",),
    ),
    _verifier(
        "lifecycle-does-not-block",
        _LIFE,
        before="if self._distrust is None and probe is not None and probe.is_blocking:",
        after="if False:",
        test="test_an_endpoint_that_takes_objects_away_frees_nothing",
    ),
    Mutant(
        name="expiring-rule-not-blocking",
        clause=_LIFE,
        file="durastore/objectstore/probe/result.py",
        before="return bool(self.blocking) or self.expiring_rule is not None",
        after="return bool(self.blocking)",
        tests=("tests/unit/test_probe_result.py::test_what_blocks",),
    ),
    Mutant(
        name="no-limit-of-packs",
        clause=_BATCH,
        file="durastore/reclaim/plan.py",
        before="if len(chosen) >= policy.batch_packs or (chosen and size_bytes + size > policy.batch_bytes):",
        after="if chosen and size_bytes + size > policy.batch_bytes:",
        tests=("tests/unit/test_reclaim_plan.py::test_eager_takes_the_oldest_settled_first_within_the_batch",),
    ),
    Mutant(
        name="no-limit-of-bytes",
        clause=_BATCH,
        file="durastore/reclaim/plan.py",
        before="if len(chosen) >= policy.batch_packs or (chosen and size_bytes + size > policy.batch_bytes):",
        after="if len(chosen) >= policy.batch_packs:",
        tests=("tests/unit/test_reclaim_plan.py::test_eager_takes_the_oldest_settled_first_within_the_batch",),
    ),
    _verifier(
        "identity-not-compared",
        _FILE,
        before="    if identity == record.identity:\n        return identity\n",
        after="    return identity\n",
        test="test_a_file_that_is_not_what_was_sealed_is_put_aside",
    ),
    _verifier(
        "changed-file-not-hashed",
        _FILE,
        before="if digest.hex != digest_hex or identity.size_bytes != record.size_bytes:",
        after="if identity.size_bytes != record.size_bytes:",
        test="test_a_file_that_is_not_what_was_sealed_is_put_aside",
    ),
    _verifier(
        "changes-while-hashed",
        _FILE,
        before="    if identify(fd) != identity:\n",
        after="    if False:\n",
        test="test_a_file_that_changes_while_it_is_hashed_is_kept",
    ),
    *(
        Mutant(
            name=f"{field}-not-compared",
            clause=_FILE,
            file="durastore/fsio/identity.py",
            before=f"        {line},\n",
            after=f"        {field}=0,\n",
            tests=("tests/unit/test_fsio_identity.py",),
        )
        for field, line in (
            ("dev", "dev=stat.st_dev"),
            ("inode", "inode=stat.st_ino"),
            ("size_bytes", "size_bytes=stat.st_size"),
            ("mtime_ns", "mtime_ns=stat.st_mtime_ns"),
            ("ctime_ns", "ctime_ns=stat.st_ctime_ns"),
        )
    ),
)

PROOF = (*_RECORD_GUARDS, *_EVIDENCE_GUARDS, *_TIME_GUARDS, *_LOOK_GUARDS, *_BATCH_GUARDS)

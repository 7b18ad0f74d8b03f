"""Guards of the doctor, each taken out once: what it must not call whole, done, safe or known."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["DOCTOR"]

_PACKS = "tests/unit/test_doctor_packs.py"
_HOST = "tests/unit/test_doctor_host.py"
_SERVER = "tests/unit/test_doctor_server.py"
_STAGES = "tests/unit/test_doctor_stages.py"
_STARTS = "tests/unit/test_extract_starts.py"

_WHOLE = "every local pack against the journal"
_BLOCKS = "a failed stage blocks the next"
_COMPLETE = "really producing complete hidden states"
_SECRETS = "without secrets"


def _mutant(file: str, name: str, *, clause: str, change: tuple[str, str], test: str) -> Mutant:
    before, after = change
    return Mutant(name=name, clause=clause, file=f"durastore/{file}", before=before, after=after, tests=(test,))


_PACK_GUARDS = (
    _mutant(
        "doctor/pack_look.py",
        "doctor-length-not-compared",
        clause=_WHOLE,
        change=("    if size_bytes < expected:\n", "    if False:\n"),
        test=f"{_PACKS}::test_damage_is_found_in_sealed_and_open_packs_and_nothing_changes",
    ),
    _mutant(
        "doctor/pack_look.py",
        "doctor-digest-not-compared",
        clause=_WHOLE,
        change=("            elif seen.digest.hex() != digest.hex:\n", "            elif False:\n"),
        test=f"{_PACKS}::test_damage_is_found_in_sealed_and_open_packs_and_nothing_changes",
    ),
    _mutant(
        "doctor/pack_look.py",
        "doctor-open-samples-not-read",
        clause=_WHOLE,
        change=(
            "            if fault is not None:\n                faults[",
            "            if False:\n                faults[",
        ),
        test=f"{_PACKS}::test_damage_is_found_in_sealed_and_open_packs_and_nothing_changes",
    ),
    _mutant(
        "doctor/pack_look.py",
        "doctor-works-in-a-spool-at-work",
        clause="a live process keeps its spool",
        change=("        if lock is None and folder.has(LOCK_NAME):\n", "        if False:\n"),
        test=f"{_PACKS}::test_a_spool_at_work_is_not_touched_and_nothing_is_to_be_resumed",
    ),
    _mutant(
        "doctor/pack_look.py",
        "doctor-never-sent-pack-asked-of-the-bucket",
        clause=_WHOLE,
        change=("if fault.reason is _GONE and not fault.is_only_copy:", "if fault.reason is _GONE:"),
        test=f"{_PACKS}::test_a_pack_that_is_gone_and_was_never_sent_is_told",
    ),
    _mutant(
        "doctor/packs.py",
        "doctor-acts-untold",
        clause="quarantine with --apply",
        change=("    if seen.request.is_applied and any(", "    if any("),
        test=f"{_PACKS}::test_damage_is_found_in_sealed_and_open_packs_and_nothing_changes",
    ),
    _mutant(
        "doctor/packs.py",
        "doctor-salvages-what-the-bucket-may-hold",
        clause="what only the bucket can tell is not settled here",
        change=(
            "if record.name not in damaged or record.write_id is not None or spool.is_intact(record):",
            "if record.name not in damaged or spool.is_intact(record):",
        ),
        test=f"{_PACKS}::test_a_pack_whose_upload_had_begun_is_not_salvaged_before_the_bucket_was_asked",
    ),
    _mutant(
        "doctor/hashed.py",
        "doctor-hashes-of-before-the-reboot-believed",
        clause="passed stages are re-checked cheaply",
        change=('return f"{self._boot_id}\\t{digest}', 'return f"\\t{digest}'),
        test=f"{_PACKS}::test_a_second_look_hashes_nothing_that_has_not_changed",
    ),
    _mutant(
        "doctor/hashed.py",
        "doctor-hashes-of-another-file-believed",
        clause="passed stages are re-checked cheaply",
        change=("\\t{identity.render()}\\t{pack}", "\\t{pack}"),
        test=f"{_PACKS}::test_a_second_look_hashes_nothing_that_has_not_changed",
    ),
)

_STAGE_GUARDS = (
    _mutant(
        "doctor/stages.py",
        "doctor-goes-on-over-a-failed-stage",
        clause=_BLOCKS,
        change=("in (Status.FAILED, Status.BLOCKED)]", "in (Status.BLOCKED,)]"),
        test=f"{_STAGES}::test_a_failed_stage_blocks_what_rests_on_it_and_nothing_else",
    ),
    _mutant(
        "doctor/stages.py",
        "doctor-goes-on-over-a-blocked-stage",
        clause=_BLOCKS,
        change=("in (Status.FAILED, Status.BLOCKED)]", "in (Status.FAILED,)]"),
        test=f"{_STAGES}::test_a_failed_stage_blocks_what_rests_on_it_and_nothing_else",
    ),
    _mutant(
        "doctor/report.py",
        "doctor-offers-a-command-over-a-failure",
        clause="whether it is safe to go on",
        change=('return dict(facts) if self.exit_code == 0 and "line"', 'return dict(facts) if "line"'),
        test=f"{_STAGES}::test_the_exit_code_is_that_of_the_first_stage_that_failed",
    ),
    _mutant(
        "doctor/disk.py",
        "doctor-trusts-a-read-only-disk",
        clause="disk and file system",
        change=("    if look.is_read_only:\n", "    if False:\n"),
        test=f"{_HOST}::test_each_thing_wrong_with_a_disk_is_named",
    ),
    _mutant(
        "doctor/disk.py",
        "doctor-trusts-memory",
        clause="disk and file system",
        change=("    if not look.is_local_disk and not is_any_allowed:\n", "    if False:\n"),
        test=f"{_HOST}::test_a_root_in_memory_fails_unless_it_is_allowed",
    ),
    _mutant(
        "doctor/disk.py",
        "doctor-makes-a-root",
        clause="an unmounted root is no empty one",
        change=("    with opened_root(request.local):\n        pass  #", "    if True:\n        pass  #"),
        test=f"{_HOST}::test_a_root_that_is_none_moved_or_copied_is_refused_and_none_is_made",
    ),
)

_SERVER_GUARDS = (
    _mutant(
        "doctor/server.py",
        "doctor-rows-not-counted",
        clause=_COMPLETE,
        change=("    if len(states) != len(ids):\n", "    if False:\n"),
        test=f"{_SERVER}::test_states_that_are_not_complete_fail",
    ),
    _mutant(
        "doctor/server.py",
        "doctor-asks-once",
        clause=_COMPLETE,
        change=("    for number in (1, 2):\n", "    for number in (1,):\n"),
        test=f"{_SERVER}::test_states_that_are_not_complete_fail",
    ),
    _mutant(
        "doctor/server.py",
        "doctor-numbers-not-looked-at",
        clause=_COMPLETE,
        change=("    if fault is not None:\n        yield fault\n", ""),
        test=f"{_SERVER}::test_states_that_are_not_complete_fail",
    ),
    _mutant(
        "doctor/server_protocols.py",
        "doctor-follows-any-path",
        clause="a reader must not trust a path",
        change=("    if staging is not None and file.resolve().parent != staging.resolve():\n", "    if False:\n"),
        test=f"{_SERVER}::test_an_answer_that_is_none_fails",
    ),
)

_STAGING_GUARDS = (
    _mutant(
        "doctor/staging.py",
        "doctor-clears-untold",
        clause="cleared only through the staging door",
        change=(" if seen.request.is_applied else []\n    entries", "\n    entries"),
        test=f"{_SERVER}::test_dead_requests_are_told_and_only_told",
    ),
    _mutant(
        "reclaim/staging.py",
        "doctor-calls-the-living-dead",
        clause="entries of an older server start",
        change=(
            "    if lock is None:\n        return False\n    lock.close()",
            "    if lock is None:\n        return True\n    lock.close()",
        ),
        test=f"{_SERVER}::test_dead_requests_are_told_and_only_told",
    ),
)

_START_GUARDS = (
    _mutant(
        "extract/starts.py",
        "start-keeps-all-of-the-environment",
        clause=_SECRETS,
        change=("sorted((_OURS | _OTHERS) & environ.keys())", "sorted(environ.keys())"),
        test=f"{_STARTS}::test_only_what_is_no_secret_is_kept_of_the_environment",
    ),
    _mutant(
        "extract/starts.py",
        "start-keeps-user-information",
        clause=_SECRETS,
        change=('return _USER_INFO.sub("", text.encode', "return (text.encode"),
        test=f"{_STARTS}::test_user_information_leaves_urls_and_nothing_else",
    ),
)

DOCTOR = (*_PACK_GUARDS, *_STAGE_GUARDS, *_SERVER_GUARDS, *_STAGING_GUARDS, *_START_GUARDS)

"""Guards of the way back: what an export may write, and what an artifact is."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["WAY_BACK"]

_EXPORT = "tests/unit/test_export.py"
_FORMS = "durastore/integrations/forms.py"
_EXPORTING = "durastore/integrations/exporting.py"
_NORM = "tests/integration/test_export_norm.py"
_ARTIFACTS = "tests/unit/test_artifacts.py"
_PUSHING = "durastore/artifacts/pushing.py"
_LISTS = "durastore/artifacts/lists.py"


def _guard(name: str, clause: str, test: str, *, file: str, edit: tuple[str, str]) -> Mutant:
    return Mutant(name=name, clause=clause, file=file, before=edit[0], after=edit[1], tests=(test,))


WAY_BACK: tuple[Mutant, ...] = (
    _guard(
        "artifact-freed-and-forgotten",
        "what was freed stays in the later snapshots of its folder",
        f"{_ARTIFACTS}::test_what_was_freed_stays_in_the_snapshots_beside_another_folder_of_that_name",
        file=_PUSHING,
        edit=("        for content in (newest, self._own_last()):\n", "        for content in (newest,):\n"),
    ),
    _guard(
        "export-norm-undone",
        "the side of the final norm is required",
        f"{_EXPORT}::test_the_wrong_side_of_the_final_norm_is_refused_before_anything_is_made",
        file=_FORMS,
        edit=("    if said:\n", "    if False:\n"),
    ),
    _guard(
        "export-norm-not-given",
        "the side of the final norm is required",
        f"{_EXPORT}::test_the_wrong_side_of_the_final_norm_is_refused_before_anything_is_made",
        file=_FORMS,
        edit=("    if not has_norm:\n", "    if False:\n"),
    ),
    _guard(
        "export-norm-not-recorded",
        "the side of the final norm is required",
        f"{_EXPORT}::test_the_wrong_side_of_the_final_norm_is_refused_before_anything_is_made",
        file=_FORMS,
        edit=("    if said is None:\n", "    if False:\n"),
    ),
    _guard(
        "export-norm-of-any-model",
        "the norm is that of the run's model",
        f"{_NORM}::test_another_model_is_refused",
        file="durastore/integrations/final_norm.py",
        edit=("    if differing:\n", "    if False:\n"),
    ),
    _guard(
        "export-layers-by-place",
        "layers are told apart by the run",
        f"{_EXPORT}::test_layers_are_told_apart_by_the_run_and_not_by_their_place",
        file="durastore/integrations/states.py",
        edit=("key=lambda at: shape.layers[at])", "key=lambda at: at)"),
    ),
    _guard(
        "export-any-number-of-layers",
        "what a form fixes is required",
        f"{_EXPORT}::test_what_a_form_fixes_is_required",
        file=_FORMS,
        edit=("    if form.layer_count is not None and len(chosen) != form.layer_count:\n", "    if False:\n"),
    ),
    _guard(
        "export-mask-made-up",
        "what a form fixes is required",
        f"{_EXPORT}::test_a_sample_without_what_the_form_needs_keeps_no_other",
        file=_FORMS,
        edit=("    if not recipe.is_mask_filled:\n", "    if False:\n"),
    ),
    _guard(
        "export-two-samples-of-one-name",
        "no two samples under one name",
        f"{_EXPORT}::test_row_numbers_come_from_the_input_or_from_ids",
        file="durastore/integrations/names.py",
        edit=("        if other != sample_id.text:\n", "        if False:\n"),
    ),
    _guard(
        "export-takes-any-file-for-its-own",
        "a file of that name is looked into",
        f"{_EXPORT}::test_another_file_of_the_name_is_left_alone",
        file=_EXPORTING,
        edit=("            require_same(folder, name, is_same=_holds(folder, name, arrays=arrays))\n", ""),
    ),
    _guard(
        "export-record-of-any-recipe",
        "a record counts for what its file was made of",
        f"{_EXPORT}::test_another_choice_of_layers_is_another_file",
        file=_EXPORTING,
        edit=("            list(recipe.layers),\n", ""),
    ),
    _guard(
        "artifact-of-a-folder-that-changed",
        "a snapshot is all or nothing",
        f"{_ARTIFACTS}::test_a_file_that_changes_before_it_is_hashed_gets_no_list",
        file=_PUSHING,
        edit=("            if mark_of_identity(pack.identity) == state.files[path]:\n", "            if True:\n"),
    ),
    _guard(
        "artifact-of-one-walk",
        "a snapshot is all or nothing",
        f"{_ARTIFACTS}::test_what_comes_between_two_walks_is_in_the_way",
        file="durastore/artifacts/folder_state.py",
        edit=("**after.troubles, **find_changes(before, after)}", "**after.troubles}"),
    ),
    _guard(
        "artifact-with-a-file-that-is-written-to",
        "a snapshot is all or nothing",
        f"{_ARTIFACTS}::test_damage_and_what_cannot_be_kept_is_named_and_can_be_left_out",
        file=_PUSHING,
        edit=("        report.troubles |= sent.kept\n", ""),
    ),
    _guard(
        "artifact-with-a-known-file-that-is-open",
        "a snapshot is all or nothing",
        f"{_ARTIFACTS}::test_a_file_that_looks_as_it_did_and_is_open_for_writing_is_in_the_way",
        file=_PUSHING,
        edit=("        self._report.troubles |= find_busy(self._place.folder, found)\n", ""),
    ),
    _guard(
        "artifact-not-quiet",
        "a snapshot is all or nothing",
        f"{_ARTIFACTS}::test_a_folder_has_to_be_quiet_for_as_long_as_was_asked",
        file="durastore/artifacts/folder_state.py",
        edit=("if quiet_s > 0 and max(mark.mtime_ns, mark.ctime_ns) > limit_ns", "if False"),
    ),
    _guard(
        "artifact-without-what-cannot-be-read",
        "not knowing means keeping",
        f"{_ARTIFACTS}::test_a_part_that_cannot_be_read_is_not_left_out_in_silence",
        file="durastore/artifacts/folder_state.py",
        edit=("for each in found.unreadable}", "for each in ()}"),
    ),
    _guard(
        "artifact-trusts-an-older-list",
        "a list names what was read back and is there",
        f"{_ARTIFACTS}::test_content_that_the_bucket_lost_is_sent_again",
        file=_PUSHING,
        edit=("if file.key not in vanished}", "if file.key}"),
    ),
    _guard(
        "artifact-list-of-any-bytes",
        "INV-7: a list matches the digest in its key",
        f"{_ARTIFACTS}::test_a_damaged_list_is_told_and_hides_no_other",
        file=_LISTS,
        edit=(
            '        raise IntegrityError(f"artifact list {ref.key} does not match the digest',
            '        dict(said=f"artifact list {ref.key} does not match the digest',
        ),
    ),
    _guard(
        "artifact-of-another-bucket",
        "the bucket is the one that the folder was sent to",
        f"{_ARTIFACTS}::test_another_bucket_than_before_is_refused",
        file=_PUSHING,
        edit=(
            "        check_known_id(marker.store_id, known, what=what, hint=FOLDER_HINT)\n",
            "",
        ),
    ),
    _guard(
        "artifact-forgets-what-was-freed",
        "what was freed stays part of the snapshots",
        f"{_ARTIFACTS}::test_older_checkpoints_leave_this_disk_and_stay_in_the_snapshots",
        file="durastore/artifacts/keeping.py",
        edit=("    for record in listed:\n", "    for record in ():\n"),
    ),
    _guard(
        "artifact-carries-what-others-took",
        "what was freed stays part of the snapshots",
        f"{_ARTIFACTS}::test_what_somebody_else_took_away_leaves_the_snapshots",
        file=_PUSHING,
        edit=(" and (is_freed_here or not file.is_local):", ":"),
    ),
    _guard(
        "artifact-frees-the-newest",
        "keep_last",
        f"{_ARTIFACTS}::test_the_highest_numbers_of_each_kind_stay",
        file="durastore/artifacts/keeping.py",
        edit=("sorted(numbered)[:-keep_last]", "sorted(numbered)[keep_last:]"),
    ),
    _guard(
        "artifact-list-with-a-path-twice",
        "a list is one snapshot",
        f"{_ARTIFACTS}::test_a_list_reads_back_and_nothing_else_is_one",
        file="durastore/formats/artifact_list.py",
        edit=("        if paths != sorted(set(paths)):\n", "        if False:\n"),
    ),
)

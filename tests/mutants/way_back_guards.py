"""Guards of the way back: what an export may write, and what an artifact is."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["WAY_BACK"]

_EXPORT = "tests/unit/test_export.py"
_FORMS = "durastore/integrations/forms.py"
_EXPORTING = "durastore/integrations/exporting.py"
_NORM = "tests/integration/test_export_norm.py"


def _guard(name: str, clause: str, test: str, *, file: str, edit: tuple[str, str]) -> Mutant:
    return Mutant(name=name, clause=clause, file=file, before=edit[0], after=edit[1], tests=(test,))


WAY_BACK: tuple[Mutant, ...] = (
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
)

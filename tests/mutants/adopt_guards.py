"""Guards of adopting old files, each taken out once: what may count as done, and what is whole."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["ADOPT"]

_CONVERSION = "tests/unit/test_adopt_conversion.py"
_FORMATS = "tests/unit/test_adopt_foreign_formats.py"
_SAMPLES = "tests/unit/test_adopt_samples.py"
_FOLDER = "tests/unit/test_adopt_folder.py"
_BINDING = "tests/unit/test_reconcile_binding.py"
_KEYS = "tests/unit/test_formats_file_keys.py"
_FIRST_KEYS = "tests/unit/test_first_file_keys.py"


def _guard(name: str, clause: str, test: str, *, file: str, edit: tuple[str, str]) -> Mutant:
    return Mutant(name=name, clause=clause, file=file, before=edit[0], after=edit[1], tests=(test,))


ADOPT: tuple[Mutant, ...] = (
    _guard(
        "file-key-of-a-long-name",
        "no segment of a key is longer than a file system allows",
        _KEYS,
        file="durastore/formats/file_keys.py",
        edit=(' and len(path.rpartition("/")[2].encode()) <= MAX_BESIDE_BYTES', ""),
    ),
    _guard(
        "file-key-that-reads-two-ways",
        "each key tells one path and one digest",
        _KEYS,
        file="durastore/formats/file_keys.py",
        edit=("_FIRST.fullmatch(path) is None and len(", "len("),
    ),
    _guard(
        "file-row-key-not-kept",
        "a file whose object is gone is sent to the key that its row has",
        _FIRST_KEYS,
        file="durastore/reconcile/folder.py",
        edit=("        path: known.get(path, ()) for path", "        path: () for path"),
    ),
    _guard(
        "file-key-of-another-content",
        "bytes under a key never change (INV-4)",
        _FIRST_KEYS,
        file="durastore/adopt/verbatim.py",
        edit=("(key for key in known if parse_file_key(prefix, key) == parts)", "(key for key in known)"),
    ),
    _guard(
        "file-parts-of-a-first-key-kept",
        "own stale multiparts are aborted",
        _FIRST_KEYS,
        file="durastore/adopt/sending.py",
        edit=("{pack.key, first_file_key(self._prefix, file.path, digest=file.digest)}", "{pack.key}"),
    ),
    _guard(
        "adopt-second-file-called-done",
        "a file counts only if its sample is what it holds",
        f"{_SAMPLES}::test_a_second_file_of_a_sample_that_holds_something_else_is_named",
        file="durastore/extract/adopt_samples.py",
        edit=("        if first == candidate.path:\n", "        if True:\n"),
    ),
    _guard(
        "adopt-tokens-not-compared",
        "tokens compared where stored",
        _CONVERSION,
        file="durastore/extract/conversion.py",
        edit=("    _check_tokens(sample, row)\n", ""),
    ),
    _guard(
        "adopt-padding-taken-for-granted",
        "tokens compared where stored, else row counts",
        _CONVERSION,
        file="durastore/extract/conversion.py",
        edit=("and has_mask and not sample.tokens[begin:].any()", ""),
    ),
    _guard(
        "adopt-states-not-judged",
        "what extract would not have stored is not put",
        _CONVERSION,
        file="durastore/extract/conversion.py",
        edit=("    if fault is not None:\n", "    if False:\n"),
    ),
    _guard(
        "adopt-dtype-not-compared",
        "what would differ from the run is refused",
        _CONVERSION,
        file="durastore/extract/conversion.py",
        edit=("    if shape.dtype is not None and states.dtype.name != shape.dtype:\n", "    if False:\n"),
    ),
    _guard(
        "adopt-norm-not-compared",
        "what would differ from the run is refused",
        _CONVERSION,
        file="durastore/extract/conversion.py",
        edit=("    if said is None or not shape.has_last", "    if True or not shape.has_last"),
    ),
    _guard(
        "adopt-checksums-not-looked-at",
        "a file counts as complete only if it parses",
        _FORMATS,
        file="durastore/adopt/foreign_formats/containers.py",
        edit=("                if member.CRC:", "                if False:"),
    ),
    _guard(
        "adopt-spread-tensors",
        "a few bytes are no terabytes",
        _FORMATS,
        file="durastore/adopt/foreign_formats/containers.py",
        edit=("            _check_extent(name, source.value)\n", ""),
    ),
    _guard(
        "adopt-while-it-is-written",
        "only when no process has it open for writing",
        _FORMATS,
        file="durastore/adopt/loading.py",
        edit=(
            "        with leased_where_it_can_be(fd, path) as is_leased:\n",
            "        with open(os.devnull) as is_leased:\n            is_leased = False\n",
        ),
    ),
    _guard(
        "adopt-as-computed",
        "provenance asserted is recorded",
        _SAMPLES,
        file="durastore/extract/adopt_samples.py",
        edit=('                provenance="asserted",\n', ""),
    ),
    _guard(
        "adopt-held-by-id-alone",
        "done means a row of this run with this input's digest",
        _SAMPLES,
        file="durastore/extract/adopt_samples.py",
        edit=(
            "return row is not None and target.contains(str(row.sample_id), input_digest=row.input_digest.hex)",
            "return target.contains(str(candidate.sample_id))",
        ),
    ),
    _guard(
        "adopt-other-runs",
        "another run is refused with a diff",
        _SAMPLES,
        file="durastore/extract/held.py",
        edit=("        check_run(marker, run, prefix=place.prefix)\n", ""),
    ),
    _guard(
        "adopt-moves-damaged-files",
        "damaged files are named and stay",
        _FOLDER,
        file="durastore/reconcile/folder.py",
        edit=("quarantine={}, orphan_packs=None,", "orphan_packs=None,"),
    ),
    _guard(
        "adopt-marker-not-settled",
        "nothing is sent before the marker had its time",
        _BINDING,
        file="durastore/manifest/marker_store.py",
        edit=("    left_s = begun.settle_s - (clock.monotonic() - begun.since_s)\n", "    left_s = 0.0\n"),
    ),
    _guard(
        "adopt-bound-to-a-young-marker",
        "a marker younger than its time is treated like our own write",
        f"{_BINDING}::test_a_marker_of_this_moment_binds_no_folder_before_it_settled",
        file="durastore/reconcile/binding.py",
        edit=("self._begun = recall_marker(objects, prefix, clock=clock)", "self._begun = None"),
    ),
    _guard(
        "adopt-marker-seen-and-written-anew",
        "a marker that was seen is never replaced",
        f"{_BINDING}::test_a_marker_that_was_seen_is_never_written_anew",
        file="durastore/reconcile/binding.py",
        edit=("        if seen is None:\n", "        if True:\n"),
    ),
    _guard(
        "adopt-bound-to-another-than-seen",
        "a plan is carried out only for the durastore that it was made for",
        f"{_BINDING}::test_a_marker_of_this_moment_binds_no_folder_before_it_settled",
        file="durastore/reconcile/binding.py",
        edit=("if self._seen is not None and store_id != self._seen:", "if False:"),
    ),
    _guard(
        "adopt-marker-before-the-refusals",
        "nothing is made where a folder is refused",
        _BINDING,
        file="durastore/reconcile/folder_look.py",
        edit=(
            "        refuse_spools(local.spools, folder=folder.path)\n",
            (
                "        if store_id is None and on_unbound is not None:\n            on_unbound(first.store_id)\n"
                "        refuse_spools(local.spools, folder=folder.path)\n"
            ),
        ),
    ),
)

"""`durastore export`: samples out of the bucket as the files of another tool.

Duty: choose the rows, fetch and check each (INV-7), arrange it, give its file its name only once it is whole and
durable. What is there already is looked into and never written over. A sample that cannot go over does not keep the
others. Must never count a file that is not what its sample makes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from durastore.adopt.foreign_formats.containers import parse_foreign
from durastore.adopt.foreign_formats.contents import Array, ForeignContents, Unparsed
from durastore.adopt.known import load_known
from durastore.adopt.ledger import HashedEntry, mark_of, save_ledger
from durastore.dataset.restore import part_of, rows_in_batches
from durastore.errors import DiskFailed, DurastoreError, InvalidInput, SpoolUnreadable
from durastore.extract.conversion import RunShape
from durastore.formats.spool_root import EXPORT_RECORD_NAME
from durastore.fsio.folder import Folder
from durastore.fsio.identity import FileIdentity
from durastore.fsio.publish import publish
from durastore.integrations.containers import render_file
from durastore.integrations.final_norm import FinalNorm
from durastore.integrations.forms import FORMS, Recipe, arrange, left_out, plan_recipe
from durastore.integrations.names import Naming, load_numbers
from durastore.integrations.states import shape_of_run, states_of
from durastore.manifest.presence import fetch_present_snapshot
from durastore.manifest.view import ResolvedView, fetch_view
from durastore.model import Digest, ManifestRow, Run, WriterId, render_json
from durastore.objectstore.port import ObjectStore
from durastore.read.landing import FOR_ALL, FailedSample, OpenedPlace, require_same
from durastore.read.pinned import PinnedObject
from durastore.read.sample import Wanted, read_checked

__all__ = ["ExportReport", "ExportRequest", "export_samples"]


_BATCH = 64
_THREADS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRequest:
    """What to export, and as what. `ids` None: every sample."""

    form: str
    out: Path
    ids: Sequence[str] | None = None
    layers: tuple[int, ...] | None = None
    """Of the stored ones, without the last; None: all."""
    model: str | None = None
    """Whose final norm may be applied where the form wants it."""
    data: Path | None = None
    is_number_from_id: bool = False
    is_mask_filled: bool = False
    """A sample without a loss mask gets one of ones, where the form has it."""
    is_dry_run: bool = False
    on_progress: Callable[[int, int], None] = lambda done, of: None

    def __post_init__(self) -> None:
        if self.form not in FORMS:
            raise InvalidInput(f"unknown format {self.form!r}", hint=f"one of {', '.join(FORMS)}")
        if self.data is not None and self.is_number_from_id:
            raise InvalidInput("row numbers come from --data or from ids, not from both")


@dataclass(slots=True, kw_only=True)
class ExportReport:
    """What became of the samples that were asked for."""

    form: str
    layers: str = ""
    is_dry_run: bool = False
    written: int = 0
    """In a dry run: what would be."""
    present: int = 0
    """Files of the same content were there before."""
    bytes_written: int = 0
    left_out: set[str] = field(default_factory=set)
    """What the form has no place for, or was not chosen."""
    failed: list[FailedSample] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """0, or 3 where some samples have no file."""
        return 3 if self.failed else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    row: ManifestRow
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Done:
    entry: HashedEntry
    is_new: bool
    size_bytes: int
    left_out: tuple[str, ...] = ()


def export_samples(store: ObjectStore, prefix: str, *, request: ExportRequest) -> ExportReport:
    """Write the samples that the manifest lists now. Safe to repeat: the same call goes on.

    `ConfigError` and `InvalidInput` for what no sample of the store could become, before anything is written; network,
    credential and disk errors end it. All else is in the report.
    """
    view = fetch_view(store, fetch_present_snapshot(store, prefix), part=part_of(request.ids))
    naming = Naming(
        form=FORMS[request.form],
        numbers=load_numbers(request.data) if request.data is not None else None,
        is_by_id=request.is_number_from_id,
    )
    recipes = _recipes(view, request)
    report = ExportReport(form=request.form, is_dry_run=request.is_dry_run)
    report.layers = "; ".join(dict.fromkeys(recipe.recipe.describe() for recipe in recipes.values()))
    total = len(view) if request.ids is None else len(set(request.ids))
    with _Target.open(request.out, is_dry_run=request.is_dry_run) as target:
        exporter = _Exporter(store, recipes=recipes, target=target)
        with ThreadPoolExecutor(max_workers=_THREADS, thread_name_prefix="durastore-export") as pool:
            for batch in rows_in_batches(view, request.ids, refuse=report.failed.append, size=_BATCH):
                jobs = list(_named(batch, naming, report=report))
                if request.is_dry_run:
                    report.written += len(jobs)
                    continue
                _run(jobs, exporter, pool=pool, report=report)
                request.on_progress(report.written + report.present + len(report.failed), total)
    return report


def _run(jobs: Sequence[_Job], exporter: _Exporter, *, pool: ThreadPoolExecutor, report: ExportReport) -> None:
    fresh = []
    try:
        for outcome in pool.map(exporter.export, jobs):
            if isinstance(outcome, FailedSample):
                report.failed.append(outcome)
                continue
            report.written += outcome.is_new
            report.present += not outcome.is_new
            report.bytes_written += outcome.size_bytes if outcome.is_new else 0
            report.left_out.update(outcome.left_out)
            fresh.append(outcome.entry)
    finally:  # whatever ended it: these files are durable under their names (INV-2)
        exporter.target.record(fresh)


def _named(batch: Iterable[ManifestRow], naming: Naming, *, report: ExportReport) -> Iterator[_Job]:
    for row in batch:
        try:
            yield _Job(row=row, path=naming.path_of(row.entry.sample_id))
        except InvalidInput as exc:
            report.failed.append(FailedSample(id=row.entry.sample_id.text, error=exc))


# --- what goes over ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _RunRecipe:
    """How samples of one run go over."""

    shape: RunShape
    recipe: Recipe
    norm: FinalNorm | None

    def digest(self, row: ManifestRow) -> Digest:
        """Of all that a file's bytes follow from."""
        recipe = self.recipe
        facts = [
            recipe.form.name,
            list(recipe.layers),
            recipe.takes_last,
            recipe.is_mask_filled,
            self.norm.digest if self.norm is not None else None,
            row.entry.header_digest.hex,
        ]
        return Digest.of(render_json(facts).encode())


def _recipes(view: ResolvedView, request: ExportRequest) -> dict[Digest, _RunRecipe]:
    """For each run that samples were made in. Raises for one that cannot go over."""
    form = FORMS[request.form]
    found = {}
    for digest, run in view.runs.items():
        if not _has_states(run):
            continue  # files that are kept as they were: told of by name
        shape = shape_of_run(run)
        norm = FinalNorm.load(request.model, run=run) if request.model is not None else None
        recipe = plan_recipe(
            form, shape, layers=request.layers, has_norm=norm is not None, is_mask_filled=request.is_mask_filled
        )
        found[digest] = _RunRecipe(shape=shape, recipe=recipe, norm=norm)
    return found


def _has_states(run: Run) -> bool:
    return run.text not in ("", "{}")


class _Exporter:
    """Makes one file at a time, from several threads."""

    def __init__(self, store: ObjectStore, *, recipes: Mapping[Digest, _RunRecipe], target: _Target) -> None:
        self._store = store
        self._recipes = recipes
        self.target = target

    def export(self, job: _Job) -> _Done | FailedSample:
        entry = job.row.entry
        try:
            recipe = self._recipes.get(entry.run)
            if recipe is None:
                raise InvalidInput(
                    "its run is not known, so its layers are not: a file kept as it was, or put without one"
                )
            digest = recipe.digest(job.row)
            known = self.target.find(job.path, digest)
            if known is not None:
                return _Done(entry=known, is_new=False, size_bytes=known.identity.size_bytes)
            return self._made(job, recipe, digest=digest)
        except FOR_ALL:
            raise
        except DurastoreError as exc:
            return FailedSample(id=entry.sample_id.text, error=exc)

    def _made(self, job: _Job, recipe: _RunRecipe, *, digest: Digest) -> _Done:
        source = PinnedObject(self._store, job.row)
        where = f"object {job.row.object.key}"
        sample = read_checked(source.fetch, job.row.entry, wanted=Wanted(), where=where)
        states = states_of(sample, recipe.shape)
        arrays = arrange(states, recipe.recipe, norm=recipe.norm)
        data = render_file(arrays, suffix=recipe.recipe.form.suffix)
        identity, is_new = self.target.land(job.path, data, arrays=arrays)
        entry = HashedEntry(path=job.path, identity=identity, digest=digest)
        return _Done(entry=entry, is_new=is_new, size_bytes=len(data), left_out=left_out(states, recipe.recipe))


# --- where it goes -------------------------------------------------------------------------------------------------


class _Target:
    """The folder and its record."""

    def __init__(self, out: Path, record: Folder | None) -> None:
        self._out = out
        self._record = record
        self._writer = WriterId.mint()
        self._known: dict[bytes, str] = load_known(record) if record is not None else {}

    @classmethod
    def open(cls, out: Path, *, is_dry_run: bool) -> closing[_Target]:
        if is_dry_run:
            return closing(cls(out, None))
        try:
            with Folder.create(out) as folder:
                return closing(cls(out, folder.ensure_child(EXPORT_RECORD_NAME)))
        except OSError as exc:
            raise DiskFailed(f"making {out}: {exc.strerror or exc}", errno=exc.errno) from exc

    def close(self) -> None:
        if self._record is not None:
            self._record.close()

    def find(self, path: str, digest: Digest) -> HashedEntry | None:
        """The file, if this very inode is on record as made of this: nothing is fetched for it then."""
        if not self._known:
            return None
        with self._opened(path) as (folder, name):
            try:
                identity = folder.identity(name)
            except (FileNotFoundError, SpoolUnreadable):
                return None
        if self._known.get(mark_of(path, identity)) != digest.hex:
            return None
        return HashedEntry(path=path, identity=identity, digest=digest)

    def land(self, path: str, data: bytes, *, arrays: Mapping[str, Array]) -> tuple[FileIdentity, bool]:
        """The file under its name, and whether it is new. `InvalidInput` where another file has the name."""
        with self._opened(path) as (folder, name):
            try:
                return publish(folder, name, chunks=[data], expect_size=len(data)), True
            except FileExistsError:
                pass
            require_same(folder, name, is_same=_holds(folder, name, arrays=arrays))
            return folder.identity(name), False

    def record(self, entries: Sequence[HashedEntry]) -> None:
        if self._record is not None:
            known = self._known
            new = [e for e in entries if known.get(mark_of(e.path, e.identity)) != e.digest.hex]
            save_ledger(self._record, new, writer=self._writer)

    def _opened(self, path: str) -> OpenedPlace:
        *folders, name = path.split("/")
        return OpenedPlace(self._out, folders, name=name)


def _holds(folder: Folder, name: str, *, arrays: Mapping[str, Array]) -> bool:
    """Whether the file has exactly these tensors, whoever wrote it."""
    try:
        data = folder.read_bytes(name, limit_bytes=2 * sum(array.nbytes for array in arrays.values()) + (1 << 20))
        found = parse_foreign(data, path=name)
    except (OSError, SpoolUnreadable, Unparsed):
        return False
    return found.is_same_as(ForeignContents(arrays=arrays))

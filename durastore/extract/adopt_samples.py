"""Old files of another tool become samples that count as done: `durastore adopt --as-samples`.

Duty: pair files with rows, read and convert them, and put what fits into the store like any sample. The files stay as
they are. Must never put a sample that `extract` over the same input would not accept as its own, and never call a file
done whose sample is not in the manifest.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from durastore.adopt.foreign_formats.containers import SUFFIXES, is_foreign
from durastore.adopt.foreign_formats.contents import Unparsed
from durastore.adopt.foreign_formats.layouts import ForeignSample, recognise
from durastore.adopt.loading import LoadedFile, Unloaded, load_foreign
from durastore.adopt.place import check_folder, hold_folder, refuse_spools
from durastore.errors import ConfigError, DurastoreError, InvalidInput, RootMismatch
from durastore.extract.adopt_dry_run import DryRun
from durastore.extract.adopt_match import Candidate, IdRule, Key, match_alone, match_input
from durastore.extract.adopt_report import SampleAdoptionReport
from durastore.extract.conversion import ConvertedSample, Mismatch, RunShape, convert
from durastore.extract.held import fetch_held, plain_options
from durastore.extract.inputs import survey_input
from durastore.extract.rows import TokenRow, input_digest
from durastore.extract.run_file import RunFile, load_run_file
from durastore.fsio.folder import Folder
from durastore.model import Run, SampleId
from durastore.reconcile.columns import names_of
from durastore.reconcile.local import LocalInventory, load_local
from durastore.store.opening import OptionOverrides, open_store

__all__ = ["SampleAdoptionRequest", "adopt_samples"]

_THREADS = 2
_AHEAD = 4
"""Files that may be in memory at once, besides those of the group that is put."""
_GROUP_SAMPLES = 64
_GROUP_BYTES = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleAdoptionRequest:
    """Everything an adoption is told."""

    folder: Path
    bucket: str
    local: Path
    """The spool root that the samples go through."""
    run_file: Path
    id_rule: IdRule
    data: Path | None = None
    """The input that the files were made from, as `extract` takes it."""
    options: OptionOverrides = field(default_factory=OptionOverrides)
    is_dry_run: bool = False
    on_progress: Callable[[int, int], None] = lambda done, of: None

    def __post_init__(self) -> None:
        if self.data is None and self.id_rule.kind == "row":
            raise ConfigError(
                "--id-from row counts the rows of an input, and none is given",
                hint="give --data train.jsonl, or --id-from field:NAME or regex:R",
            )
        real, root = Path(os.path.realpath(self.folder)), Path(os.path.realpath(self.local))
        if root.is_relative_to(real) or real.is_relative_to(root):
            raise ConfigError(
                f"{self.folder} and the spool root {self.local} lie in one another", hint="use two folders"
            )


class Target(Protocol):
    """Where samples go: a store, or in a dry run only what is known of it."""

    def contains(self, sample_id: str, *, input_digest: str | None = None) -> bool: ...

    def put_many(
        self,
        samples: Mapping[str, Mapping[str, Any]],
        *,
        meta: Mapping[str, Mapping[str, Any]] | None = None,
        input_digests: Mapping[str, str] | None = None,
        provenance: str = "computed",
    ) -> object: ...


def adopt_samples(request: SampleAdoptionRequest) -> SampleAdoptionReport:
    """Convert and put every file that is not held yet, and wait until all are in the manifest.

    `ConfigError`, `InvalidInput`, `RunMismatch`, `RootMismatch` and `StoreMissing` come before anything is written.
    After that it always reports. Safe to repeat: the same call goes on where this one ended, or was killed.
    """
    plain_options(request.options)
    run_file = load_run_file(request.run_file)
    shape = RunShape.of(run_file.run)
    with hold_folder(request.folder) as folder:
        work = _Work(request=request, folder=folder, run_file=run_file, shape=shape)
        found = load_local(folder)
        refuse_spools(found.spools, folder=folder.path)
        if found.is_empty:
            raise RootMismatch(f"{folder.path} is empty: a disk that is not mounted looks like this", hint="mount it")
        work.take_all(found)
        candidates = work.candidates()
        if request.is_dry_run:
            held = fetch_held(request.bucket, request.options, run=Run.of(run_file.run))
            error = work.put_all(candidates, DryRun(held))
            return work.report(error, local_only=())
        with open_store(request.bucket, local=request.local, run=run_file.run, **request.options) as store:
            error = work.put_all(candidates, store)
            try:
                store.flush()
            except DurastoreError as exc:
                error = error or exc
            local_only = tuple(store.status().only_local_ids) if error is not None else ()
            if error is not None:
                store.abandon()
            return work.report(error, local_only=local_only)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ready:
    """A file read, compared and converted."""

    candidate: Candidate
    file: LoadedFile
    sample: ConvertedSample


@dataclass(slots=True, kw_only=True)
class _Work:
    request: SampleAdoptionRequest
    folder: Folder
    run_file: RunFile
    shape: RunShape
    paths: list[str] = field(default_factory=list)
    files: int = 0
    refused: list[Unloaded] = field(default_factory=list)
    adopted: int = 0
    adopted_bytes: int = 0
    held: int = 0
    group: list[_Ready] = field(default_factory=list)
    taken: dict[str, str] = field(default_factory=dict)
    """Sample -> the file that it was made of, or that counts as it."""

    # --- what there is -------------------------------------------------------------------------------------------

    def take_all(self, found: LocalInventory) -> None:
        """Every entry of the folder is a file to read, or is named with the reason why not."""
        for entry in (*found.odd, *found.unreadable):
            path = entry.path.decode("utf-8", "backslashreplace")
            self._refuse(Unloaded(path=path, trouble="unreadable", reason=entry.what))
        for path in sorted(names_of(found.paths)):
            if is_foreign(path):
                self.paths.append(path)
            else:
                reason = f"no format that is read here ({', '.join(SUFFIXES)})"
                self._refuse(Unloaded(path=path, trouble="refused", reason=reason))
        self.files = len(self.paths) + len(self.refused)

    def candidates(self) -> Iterator[Candidate | Unloaded]:
        """Each file that can be read once, with its row or the reason why it has none. Checks the input first."""
        keys = self._keys()
        if self.request.data is None:
            return match_alone(keys)
        survey = survey_input(self.request.data)
        return match_input(dict(keys), survey, tokenizer=self.run_file.tokenizer, rule=self.run_file.rule)

    def _keys(self) -> Iterator[tuple[str, Key]]:
        rule = self.request.id_rule
        for path in self.paths:
            key = self._key_in_file(path) if rule.kind == "field" else rule.key_in_path(path)
            if isinstance(key, Unloaded):
                self._refuse(key)
            elif key is None:
                what = "ends in no number" if rule.kind == "row" else f"does not match {rule.text!r}"
                self._refuse(Unloaded(path=path, trouble="unmatched", reason=f"its name {what}"))
            else:
                yield path, key

    def _key_in_file(self, path: str) -> Key | Unloaded:
        """The id that stands in the file, for which it is read once more."""
        loaded = load_foreign(self.folder, path)
        if isinstance(loaded, Unloaded):
            return loaded
        name = self.request.id_rule.text
        values = {**(loaded.contents.values.get("__metadata__") or {}), **loaded.contents.values}
        array = loaded.contents.arrays.get(name)
        value = values.get(name) if array is None or array.size != 1 or array.dtype.kind not in "iu" else array.item()
        if isinstance(value, str | int) and not isinstance(value, bool):
            return str(value)
        return Unloaded(path=path, trouble="unmatched", reason=f"holds no id as {name!r}")

    # --- what becomes of it --------------------------------------------------------------------------------------

    def put_all(self, candidates: Iterable[Candidate | Unloaded], target: Target) -> DurastoreError | None:
        """Work them off; returns what ended it early. Nothing is counted that `put_many` did not return for."""
        try:
            with _reading() as pool:
                for ready in self._converted(candidates, target, pool=pool):
                    self._add(ready, target)
            self._put_group(target)
            check_folder(self.folder)  # a disk that went away looks like files that cannot be read
        except (ConfigError, RootMismatch):
            raise
        except DurastoreError as exc:
            return exc
        return None

    def _converted(
        self, candidates: Iterable[Candidate | Unloaded], target: Target, *, pool: ThreadPoolExecutor
    ) -> Iterator[_Ready]:
        ahead: deque[Future[_Ready | Unloaded]] = deque()
        for candidate in candidates:
            if isinstance(candidate, Unloaded):
                self._refuse(candidate)
            elif self._is_held(candidate, target):
                self._hold(candidate)
            else:
                ahead.append(pool.submit(self._convert, candidate))
            if len(ahead) >= _AHEAD:
                yield from self._taken(ahead.popleft())
        while ahead:
            yield from self._taken(ahead.popleft())

    def _is_held(self, candidate: Candidate, target: Target) -> bool:
        """INV-8. Without an input the file has to be read first."""
        row = candidate.row
        return row is not None and target.contains(str(row.sample_id), input_digest=row.input_digest.hex)

    def _taken(self, future: Future[_Ready | Unloaded]) -> Iterator[_Ready]:
        result = future.result()
        if isinstance(result, Unloaded):
            self._refuse(result)
        else:
            yield result

    def _convert(self, candidate: Candidate) -> _Ready | Unloaded:
        path = candidate.path
        loaded = load_foreign(self.folder, path)
        if isinstance(loaded, Unloaded):
            return loaded
        try:
            found = recognise(loaded.contents, path=path)
            row = candidate.row if candidate.row is not None else _own_row(found, candidate.sample_id)
            return _Ready(candidate=candidate, file=loaded, sample=convert(found, row, shape=self.shape))
        except Unparsed as exc:
            return Unloaded(path=path, trouble="refused", reason=str(exc))
        except Mismatch as exc:
            return Unloaded(path=path, trouble="mismatched", reason=str(exc))

    def _hold(self, candidate: Candidate) -> None:
        """The run has its sample: as good as the file is, if no other file was taken for that sample."""
        if not self._is_repeated(candidate):
            self.held += 1
            self._tell()

    def _is_repeated(self, candidate: Candidate) -> bool:
        """Whether another file of the folder was taken for its sample, and holds something else: then it is refused. A
        sample has one content, and the file that lost would be called done.
        """
        first = self.taken.setdefault(str(candidate.sample_id), candidate.path)
        if first == candidate.path:
            return False
        one, other = load_foreign(self.folder, first), load_foreign(self.folder, candidate.path)
        if isinstance(one, Unloaded) or (isinstance(other, LoadedFile) and one.contents.is_same_as(other.contents)):
            return False
        reason = f"is {candidate.sample_id} as {first} is, and holds something else"
        self._refuse(Unloaded(path=candidate.path, trouble="repeated", reason=reason))
        return True

    def _add(self, ready: _Ready, target: Target) -> None:
        row = ready.sample.row
        size_bytes = sum(each.file.size_bytes for each in self.group) + ready.file.size_bytes
        is_full = len(self.group) >= _GROUP_SAMPLES or size_bytes > _GROUP_BYTES
        if is_full or any(each.sample.row.sample_id == row.sample_id for each in self.group):
            self._put_group(target)
        if self._is_repeated(ready.candidate):
            return
        if target.contains(str(row.sample_id), input_digest=row.input_digest.hex):  # put since, or without an input
            self._hold(ready.candidate)
        else:
            self.group.append(ready)

    def _put_group(self, target: Target) -> None:
        group, self.group = self.group, []
        self._put(group, target)

    def _put(self, group: list[_Ready], target: Target) -> None:
        """One durable group; where the store refuses it, each sample by itself: one must not keep the others."""
        if not group:
            return
        try:
            target.put_many(
                {str(each.sample.row.sample_id): each.sample.tensors for each in group},
                meta={str(each.sample.row.sample_id): _meta(each) for each in group},
                input_digests={str(each.sample.row.sample_id): each.sample.row.input_digest.hex for each in group},
                provenance="asserted",
            )
        except InvalidInput as exc:
            if len(group) == 1:
                reason = f"{exc.code}: {exc.message}"
                del self.taken[str(group[0].candidate.sample_id)]  # another file of this sample may do
                self._refuse(Unloaded(path=group[0].candidate.path, trouble="refused", reason=reason))
                return
            for each in group:
                self._put([each], target)
            return
        self.adopted += len(group)
        self.adopted_bytes += sum(each.file.size_bytes for each in group)
        self._tell()

    def _refuse(self, file: Unloaded) -> None:
        self.refused.append(file)
        self._tell()

    def _tell(self) -> None:
        self.request.on_progress(self.adopted + self.held + len(self.refused), self.files)

    def report(self, error: DurastoreError | None, *, local_only: tuple[str, ...]) -> SampleAdoptionReport:
        return SampleAdoptionReport(
            run=Run.of(self.run_file.run).digest.hex,
            is_dry_run=self.request.is_dry_run,
            files=self.files,
            adopted=self.adopted,
            adopted_bytes=self.adopted_bytes,
            held=self.held,
            refused=tuple(sorted(self.refused, key=lambda file: file.path)),
            error=error,
            local_only=local_only,
        )


@contextmanager
def _reading() -> Iterator[ThreadPoolExecutor]:
    pool = ThreadPoolExecutor(max_workers=_THREADS, thread_name_prefix="durastore-adopt")
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _own_row(found: ForeignSample, sample_id: SampleId) -> TokenRow:
    """The row that the file itself tells of, for want of an input."""
    if found.tokens is None:
        raise Mismatch("stores no tokens, so without the input (--data) nobody can tell what it was made from")
    if not len(found.tokens):
        raise Mismatch("has no tokens")
    digest = input_digest(found.tokens, found.loss_mask)
    return TokenRow(line=0, sample_id=sample_id, input_ids=found.tokens, loss_mask=found.loss_mask, input_digest=digest)


def _meta(ready: _Ready) -> dict[str, Any]:
    """What `extract` records, and where the sample came from."""
    row, file = ready.sample.row, ready.file
    adopted = {
        "path": file.path,
        "layout": ready.sample.layout,
        "size_bytes": file.size_bytes,
        "xxh3_128": file.digest.hex,
        "values": dict(ready.sample.values),
    }
    place = {"line": row.line} if row.line else {}
    return {"n_tokens": len(row.input_ids), **place, "adopted": adopted}

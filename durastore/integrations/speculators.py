"""The backend `durastore` of speculators (package hs-connectors, 0.7 to 0.9): training reads states from a bucket.

Duty: register the backend when this module is imported, find the sample of a row of the prepared data, hand out its
states in the form that speculators expects. Every byte was checked (INV-7): damage ends the training, and is never
answered with "not there", which would have it made anew in silence. Must never write, and never follow the bucket past
the snapshot that the training began with.

What the serving side makes on the fly goes as it does with speculators' own `file` backend: it is only passed on.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

try:
    from hs_connectors import FileBackend, FileTransfer, HiddenStatesBackend
except ImportError as _exc:
    from durastore.errors import ConfigError as _ConfigError

    raise _ConfigError(
        "the backend for speculators needs the package hs-connectors", hint="pip install speculators"
    ) from _exc

from durastore.dataset.cache import NodeCache
from durastore.dataset.dataset import Dataset
from durastore.errors import ConfigError, InvalidInput
from durastore.extract.rows import input_digest
from durastore.integrations.containers import torch_tensor
from durastore.integrations.forms import FORMS, Recipe, arrange, plan_recipe
from durastore.integrations.states import shape_of_run, states_of
from durastore.texts import parse_size

if TYPE_CHECKING:
    from durastore.extract.conversion import RunShape
    from durastore.model import Digest, Sample

__all__ = ["DurastoreBackend", "DurastoreTransfer", "Source"]

_FORM = FORMS["speculators"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where the samples are and how a row finds its own. Plain values: it goes to spawned workers."""

    url: str
    snapshot: str | None = None
    """The text of a snapshot: every process reads the same one."""
    endpoint_url: str | None = None
    data_path: str | None = None
    """The folder of `speculators prepare-data`: a row's tokens (and mask) tell which sample was made from them."""
    id_template: str | None = None
    """Else the id itself, with `{row}` for the row's number."""
    layers: tuple[int, ...] | None = None
    cache: tuple[str, int] | None = None

    def open(self) -> Dataset:
        options: dict[str, Any] = {} if self.endpoint_url is None else {"endpoint_url": self.endpoint_url}
        cache = NodeCache(*self.cache) if self.cache is not None else None
        return Dataset(self.url, snapshot=self.snapshot, cache=cache, **options)


class DurastoreTransfer(FileTransfer):  # type: ignore[misc,unused-ignore]  # untyped where it is not installed
    """What one process of the training reads through. Opens its connections at the first sample; picklable.

    What the serving side made a moment ago is read and let go of by the `file` backend's own methods.
    """

    def __init__(self, source: Source) -> None:
        super().__init__(Path())
        self._source = source
        self._reader: _Reader | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_reader": None}

    def get_cached(self, file_idx: int) -> dict[str, Any] | None:
        """`hidden_states` [T, L, H] and `token_ids` [T] of a row; None where the bucket has no sample of it.

        `IntegrityError` where its bytes do not match, `InvalidInput` where it has no such form.
        """
        if self._reader is None:
            self._reader = _Reader(self._source)
        return self._reader.read(file_idx)

    def cache(self, handle: str, file_idx: int) -> None:
        """Up to 0.8: keep what was made. Nothing is kept: training writes to no bucket."""


@HiddenStatesBackend.register("durastore")
class DurastoreBackend(HiddenStatesBackend):  # type: ignore[misc,unused-ignore]  # as above
    """`--hidden-states-backend durastore`."""

    @staticmethod
    def add_train_args(parser: argparse.ArgumentParser) -> None:
        """Only options with a value: speculators makes them anew and keeps no more than name, type and help."""
        add = parser.add_argument
        add("--durastore-url", type=str, default=None, help="The bucket: s3://bucket/prefix, or a path.")
        add("--durastore-endpoint-url", type=str, default=None, help="S3 endpoint, if it is not AWS.")
        add("--durastore-snapshot", type=str, default=None, help="The id of an earlier snapshot.")
        add("--durastore-id", type=str, default=None, help="Sample of a row, e.g. 'doc-{row}'. Default: by its tokens.")
        add("--durastore-layers", type=str, default=None, help="Of the stored layers only these, e.g. 2,15,27.")
        add("--durastore-cache", type=str, default=None, help="A folder on a disk of this node to cache samples in.")
        add("--durastore-cache-size", type=str, default="50GiB", help="Its limit.")

    @staticmethod
    def add_launch_args(parser: argparse.ArgumentParser) -> None:
        """None: all backends share one parser, and the `file` backend adds `--hidden-states-path`."""
        del parser

    @staticmethod
    def from_train_args(args: argparse.Namespace, data_path: str) -> DurastoreTransfer:
        """Open the bucket once: what cannot work is told at the start, and all processes read its snapshot of now."""
        url = args.durastore_url
        if not url:
            raise ConfigError("--durastore-url is missing", hint="the bucket that the hidden states are in")
        template = args.durastore_id
        if template is not None and "{row}" not in template:
            raise ConfigError(f"--durastore-id {template!r} has no {{row}} in it", hint="such as doc-{row}")
        cache = args.durastore_cache
        source = Source(
            url=url,
            snapshot=args.durastore_snapshot,
            endpoint_url=args.durastore_endpoint_url,
            data_path=str(data_path) if template is None else None,
            id_template=template,
            layers=_layers(args.durastore_layers),
            cache=(cache, parse_size(args.durastore_cache_size)) if cache else None,
        )
        return DurastoreTransfer(_pinned(source))

    @staticmethod
    def build_kv_transfer_config(args: argparse.Namespace) -> dict[str, Any]:
        """What vLLM writes goes to a folder, as with the `file` backend."""
        config: dict[str, Any] = FileBackend.build_kv_transfer_config(args)
        return config


def _layers(text: str | None) -> tuple[int, ...] | None:
    if not text:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as exc:
        raise ConfigError(f"--durastore-layers {text!r} is no list of numbers such as 2,15,27") from exc


def _pinned(source: Source) -> Source:
    with source.open() as dataset:
        recipes = _recipes(dataset, source)
        if not recipes:
            raise InvalidInput(f"no sample at {source.url} names its layers", hint="give `run=` when you store them")
        return replace(source, snapshot=dataset.snapshot.render())


def _recipes(dataset: Dataset, source: Source) -> dict[Digest, tuple[RunShape, Recipe]]:
    found = {}
    for digest, run in dataset.runs.items():
        if run.text in ("", "{}"):
            continue
        shape = shape_of_run(run)
        recipe = plan_recipe(_FORM, shape, layers=source.layers, has_norm=False, is_mask_filled=False)
        found[digest] = (shape, recipe)
    return found


class _Reader:
    """An open dataset, and how rows find their samples."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._dataset = source.open()
        self._recipes = _recipes(self._dataset, source)
        self._rows: Any = _load_rows(source.data_path) if source.data_path is not None else None

    def read(self, row: int) -> dict[str, Any] | None:
        sample_id = self._id_of(row)
        if sample_id is None or sample_id not in self._dataset:
            return None
        known = self._recipes.get(self._dataset.row(sample_id).entry.run)
        if known is None:
            raise InvalidInput(f"sample {sample_id!r}: its run names no layers")
        shape, recipe = known
        sample: Sample = self._dataset[sample_id]
        arrays = arrange(states_of(sample, shape), recipe)
        return {name: torch_tensor(array) for name, array in arrays.items()}

    def _id_of(self, row: int) -> str | None:
        template = self._source.id_template
        if template is not None:
            return str(row).join(template.split("{row}"))
        if not 0 <= row < len(self._rows):
            return None
        return self._by_input(self._rows[row])

    def _by_input(self, columns: Mapping[str, Any]) -> str | None:
        """The sample that was made from these tokens, with this mask or without one."""
        tokens = np.asarray(columns["input_ids"], np.int64)
        mask = columns.get("loss_mask")
        digests = [] if mask is None else [input_digest(tokens, np.asarray(mask, np.uint8))]
        for digest in (*digests, input_digest(tokens, None)):
            found = self._dataset.made_from(digest.hex)
            if found:
                return found[0]  # equal inputs have equal states: any of them
        return None


def _load_rows(data_path: str) -> Any:
    try:
        from datasets import load_from_disk
    except ImportError as exc:
        raise ConfigError(
            "finding samples by their tokens needs the package datasets", hint="or --durastore-id"
        ) from exc
    try:
        return load_from_disk(data_path).with_format("numpy")
    except (OSError, ValueError) as exc:
        raise ConfigError(f"{data_path} is no folder of `speculators prepare-data`: {exc}") from exc

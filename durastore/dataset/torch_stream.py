"""The stream as torch knows it. Imported only where torch is installed: a `DataLoader` looks at the class."""

from __future__ import annotations

from torch.utils.data import IterableDataset

from durastore.dataset.stream import SampleStream
from durastore.model import Sample

__all__ = ["TorchStream"]


class TorchStream(SampleStream, IterableDataset[Sample]):
    """A `SampleStream` that a `DataLoader` takes for a stream."""

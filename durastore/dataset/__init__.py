"""Reading a dataset for training: map-style, pinned to a snapshot, every byte checked."""

from __future__ import annotations

from durastore.dataset.dataset import Dataset

__all__ = ["Dataset"]

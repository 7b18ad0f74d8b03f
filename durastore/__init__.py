"""durastore: the durable, object-storage-first data layer under ML extraction jobs.

Public names only. Everything is imported on first use, so that `import durastore` stays cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from durastore import errors
from durastore.errors import DurastoreError
from durastore.model import Evidence, EvidenceLevel, Sample

if TYPE_CHECKING:
    from durastore.artifacts.watching import Artifacts
    from durastore.dataset.cache import NodeCache
    from durastore.dataset.dataset import Dataset
    from durastore.dataset.stacked import stacked
    from durastore.store.opening import open_store as open  # noqa: A004 - `durastore.open` reads as it should
    from durastore.store.store import Store
    from durastore.store.tickets import Ticket

__all__ = [
    "Artifacts",
    "Dataset",
    "DurastoreError",
    "Evidence",
    "EvidenceLevel",
    "NodeCache",
    "Sample",
    "Store",
    "Ticket",
    "errors",
    "open",
    "stacked",
]

__version__ = "0.1.0"

_LAZY = {
    "Artifacts": ("durastore.artifacts.watching", "Artifacts"),
    "Dataset": ("durastore.dataset.dataset", "Dataset"),
    "NodeCache": ("durastore.dataset.cache", "NodeCache"),
    "Store": ("durastore.store.store", "Store"),
    "Ticket": ("durastore.store.tickets", "Ticket"),
    "open": ("durastore.store.opening", "open_store"),
    "stacked": ("durastore.dataset.stacked", "stacked"),
}


def __getattr__(name: str) -> Any:
    """Import the heavy public names when they are first asked for (PEP 562)."""
    if name not in _LAZY:
        raise AttributeError(f"module 'durastore' has no attribute {name!r}")
    module, attribute = _LAZY[name]
    value = getattr(import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})

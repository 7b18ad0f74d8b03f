"""The adapters that need no server pass the shipped conformance suite, bare and behind the wrappers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from durastore.objectstore.directory import DirectoryStore
from durastore.objectstore.memory import MemoryStore
from durastore.objectstore.port import ObjectStore
from durastore.objectstore.retrying import RetryingStore, RetryPolicy
from durastore.testing.conformance import ObjectStoreTests
from durastore.testing.faulty import FaultyStore


class TestMemoryStore(ObjectStoreTests):
    @pytest.fixture
    def store(self) -> ObjectStore:
        return MemoryStore()


class TestDirectoryStore(ObjectStoreTests):
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        return tmp_path

    @pytest.fixture
    def store(self, folder: Path) -> Iterator[ObjectStore]:
        store = DirectoryStore(folder)
        self.folder_path = folder
        yield store
        store.close()

    def fill(self, store: ObjectStore, keys: Iterable[str]) -> None:
        for key in keys:
            path = self.folder_path / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"x")


class TestRetryingAndFaultyWithoutFaults(ObjectStoreTests):
    """A wrapper that has nothing to do changes nothing."""

    listing_size = 2_001

    @pytest.fixture
    def store(self) -> ObjectStore:
        return RetryingStore(FaultyStore(MemoryStore()), RetryPolicy())

"""What durastore asks of S3, by the parts a policy may be for, and the IAM actions that this takes.

The server counts the requests; nothing here trusts what the code says it would ask.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import durastore
from durastore.clock import SYSTEM_CLOCK
from durastore.extract.failure_book import FailureBook
from durastore.extract.failure_teller import FailureTeller, hear_failures, opened_bucket
from durastore.extract.job import ExtractRequest
from durastore.extract.rows import RowFailure
from durastore.model import Digest, SampleId
from durastore.store.store import Store
from durastore.testing.strict_s3 import Lie, Rule, SeenRequest, StrictS3
from durastore_cli.main import run
from tests.faults.trial import wait_until

__all__ = ["ACTIONS", "PREFIX", "Lab", "actions_of"]

PREFIX = "team/states"
ACTIONS = {
    "put": "s3:PutObject",
    "create_upload": "s3:PutObject",
    "upload_part": "s3:PutObject",
    "complete_upload": "s3:PutObject",
    "get": "s3:GetObject",
    "head": "s3:GetObject",
    "abort_upload": "s3:AbortMultipartUpload",
    "list_parts": "s3:ListMultipartUploadParts",
    "list": "s3:ListBucket",
    "list_uploads": "s3:ListBucketMultipartUploads",
    "get_versioning": "s3:GetBucketVersioning",
    "get_lifecycle": "s3:GetLifecycleConfiguration",
}
"""Operation of the server -> the action that AWS asks for (Actions, resources, and condition keys for Amazon S3)."""
OF_THE_BUCKET = frozenset({"list", "list_uploads", "get_versioning", "get_lifecycle"})
"""Their resource is the bucket, that of the others the object."""


def actions_of(seen: Sequence[SeenRequest]) -> set[tuple[str, bool]]:
    """(action, is it about the bucket) of these requests; `KeyError` for one that no policy here provides for."""
    found = set()
    for request in seen:
        action = ACTIONS[request.op]
        if request.has_version:
            action = {"s3:GetObject": "s3:GetObjectVersion"}[action]
        found.add((action, request.op in OF_THE_BUCKET))
    return found


class Lab:
    """A bucket of the server's, worked on as users do."""

    def __init__(self, server: StrictS3, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.server, self.folder = server, folder
        self.bucket = server.make_bucket(is_versioned=True)
        self.url = f"s3://{self.bucket}/{PREFIX}"
        surroundings = {
            **server.environment(),
            "DURASTORE_ENDPOINT_URL": server.endpoint_url,
            "DURASTORE_IS_ANY_FILESYSTEM_ALLOWED": "1",
            "DURASTORE_RESERVE_BYTES": "1",
            "DURASTORE_SEAL_AGE_S": "0.1",
        }
        for name, value in surroundings.items():
            monkeypatch.setenv(name, value)

    @contextmanager
    def recorded(self) -> Iterator[list[SeenRequest]]:
        """The requests of the block, once it has ended."""
        before, seen = len(self.server.requests()), list[SeenRequest]()
        yield seen
        seen += [each for each in self.server.requests()[before:] if each.bucket == self.bucket]

    def open(self, **options: Any) -> Store:
        return durastore.open(self.url, local=self.folder / "spool", settle_s=0.0, **options)

    def command(self, *words: str) -> int:
        return run([*words, "--bucket", self.url])

    # --- what a writer does ------------------------------------------------------------------------------------------

    def write(self) -> None:
        """Put, flush, and free; a large sample goes up in parts. The endpoint is probed by the way."""
        with self.open() as store:
            self._tell_a_failure(store.run.digest)
            store.put("a", {"x": np.arange(9)})
            store.put("large", {"x": np.random.default_rng(0).integers(0, 255, 17 << 20, np.uint8)})
            store.flush()
            store.drain()

    def _tell_a_failure(self, run: Digest) -> None:
        """As an extraction does, and one that retries what failed."""
        request = ExtractRequest(input=self.folder, model="m", layers="1", bucket=self.url, local=self.folder / "spool")
        bucket = partial(opened_bucket, request)
        book = FailureBook(request.local, run=run.hex, worker="lab", clock=SYSTEM_CLOCK)
        book.add(RowFailure(line=1, sample_id=SampleId("failed"), stage="states", reason="has a NaN"))
        assert FailureTeller(book, bucket, run=run).tell() == 1
        hear_failures(book, bucket, run=run)
        assert book.knows("failed", 1)
        book.close()

    def write_after_a_kill(self) -> None:
        """What an earlier process forgot is aborted, and an upload that broke off is gone on with."""
        key = next(key for key in self.server.keys(self.bucket) if "/packs/" in key)
        self.server.script(Rule(lie=Lie.CLOCK_SKEW, op="create_upload", amount=-600))
        self.server.client().create_multipart_upload(Bucket=self.bucket, Key=key)
        self.server.script(Rule(lie=Lie.ERROR, op="upload_part", first=2, count=None))
        before = self.server.counts()
        store = self.open(orphan_age_s=300.0)
        wait_until(lambda: self.server.counts()["abort_upload"] > before["abort_upload"])
        store.put("later", {"x": np.random.default_rng(1).integers(0, 255, 17 << 20, np.uint8)})
        wait_until(lambda: self.server.counts()["upload_part"] >= before["upload_part"] + 2)
        store.abandon()
        self.server.script()
        with self.open() as store:
            store.flush()

    # --- what an operator does ---------------------------------------------------------------------------------------

    def operate(self) -> None:
        """Probe, compare, repair, adopt somebody's files and free them, keep a folder, put the manifest in order."""
        local = ["--local", str(self.folder / "spool")]
        for name in ("files", "more", "run"):
            (self.folder / name).mkdir()
            np.save(self.folder / name / "array.npy", np.arange(9))
        for words in (
            ["probe"],
            ["reconcile", *local, "--apply"],
            ["reconcile", "--local", str(self.folder / "more"), "--apply"],
            ["adopt", str(self.folder / "files"), "--reclaim", "--settle", "0"],
            ["artifacts", "push", str(self.folder / "run")],
            ["drain", *local],
            ["doctor", *local],
            ["manifest", "compact"],
            ["manifest", "rebuild"],
        ):
            assert self.command(*words) == 0, words

    # --- what a reader does ------------------------------------------------------------------------------------------

    def read(self) -> None:
        """Everything that hands out samples, or tells of them."""
        with durastore.Dataset(self.url) as dataset:
            assert {"a", "large", "later"} <= set(dataset.ids)
            for sample_id in ("a", "large", "later"):
                assert dataset[sample_id].id == sample_id
        for words in (
            ["ls"],
            ["get", "a", "--out", str(self.folder / "out")],
            ["verify", "--deep"],
            ["manifest", "show"],
            ["artifacts", "ls"],
            ["artifacts", "pull", "--name", "run", "--out", str(self.folder / "back")],
        ):
            assert self.command(*words) == 0, words
        assert self.command("status", "--failed") == 3

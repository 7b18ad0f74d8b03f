"""What durastore asks of S3, by the parts a policy may be for, and the IAM actions that this takes.

The server counts the requests; nothing here trusts what the code says it would ask.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import durastore
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
            store.put("a", {"x": np.arange(9)})
            store.put("large", {"x": np.random.default_rng(0).integers(0, 255, 20 << 20, np.uint8)})
            store.flush()
            store.drain()

    def write_after_a_kill(self) -> None:
        """An upload that broke off is gone on with, and what a process forgot is aborted."""
        self.server.script(Rule(lie=Lie.ERROR, op="upload_part", first=2, count=None))
        store = self.open()
        store.put("later", {"x": np.random.default_rng(1).integers(0, 255, 40 << 20, np.uint8)})
        wait_until(lambda: self.server.counts()["upload_part"] >= 3)
        store.abandon()
        key = next(key for key in self.server.keys(self.bucket) if "/packs/" in key)
        self.server.script(Rule(lie=Lie.CLOCK_SKEW, op="create_upload", amount=-600))
        client = self.server.client()
        client.create_multipart_upload(Bucket=self.bucket, Key=key)
        self.server.script()
        aborted = self.server.counts()["abort_upload"]
        with closing(self.open(orphan_age_s=300.0)) as store:
            store.flush()
            wait_until(lambda: self.server.counts()["abort_upload"] > aborted)

    def adopt_and_keep(self) -> None:
        """Somebody's files as they are, and a folder as a snapshot."""
        for name in ("files", "run"):
            (self.folder / name).mkdir()
            np.save(self.folder / name / "array.npy", np.arange(9))
        assert self.command("adopt", str(self.folder / "files"), "--reclaim") in (0, 3)
        assert self.command("artifacts", "push", str(self.folder / "run")) == 0

"""Pushing again and again: by the clock, or when a training loop says that it saved something.

Duty: `watch` for a process of its own, `Artifacts` for the process that trains. What fails once is tried again and
told; what would fail always ends it. Must never hold a training loop up, nor hide that its checkpoints do not arrive.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from durastore.artifacts.folder_state import FolderState
from durastore.artifacts.lists import fetch_newest
from durastore.artifacts.pulling import PullReport, PullRequest, pull
from durastore.artifacts.pushing import look, push
from durastore.artifacts.request import PushReport, PushRequest
from durastore.clock import SYSTEM_CLOCK, Clock
from durastore.config import resolve_options
from durastore.errors import DurastoreError, EndpointUnreachable, NotVerified, SpoolLocked
from durastore.extras import ensure_extra
from durastore.formats.artifact_list import ArtifactList, area_of
from durastore.objectstore.location import BucketUrl, S3Options, open_object_store
from durastore.objectstore.port import ObjectStore
from durastore.objectstore.retrying import RetryingStore, RetryPolicy
from durastore.observe.events import LOGGER
from durastore.texts import expanded

__all__ = ["Artifacts", "watch"]

_SOON_S = 60.0
_SLICE_S = 0.5
_PASSING = (EndpointUnreachable, NotVerified, SpoolLocked)


def watch(
    request: PushRequest,
    *,
    take: Callable[[PushRequest], PushReport] = push,
    every_s: float,
    should_stop: Callable[[], bool],
    clock: Clock = SYSTEM_CLOCK,
) -> int:
    """Push every `every_s` seconds until told to stop; returns the exit code of the last push. `take` pushes, and may
    show the report.

    A folder that is being written to, or an endpoint that does not answer, is tried again within a minute. Errors that
    time does not heal pass.
    """
    code = 0
    while not should_stop():
        wait_s = every_s
        try:
            report = take(request)
        except _PASSING as exc:
            LOGGER.warning("no snapshot now: %s", exc.message)
            code, wait_s = exc.exit_code, min(every_s, _SOON_S)
        else:
            code = report.exit_code
            if report.snapshot is None:
                wait_s = min(every_s, _SOON_S)
        until = clock.monotonic() + wait_s
        while clock.monotonic() < until and not should_stop():
            clock.sleep(_SLICE_S)
    return code


class Artifacts:
    """A folder of a training process, whose snapshots go to the bucket beside the training.

    `with durastore.Artifacts("out", bucket="s3://bucket/run", keep_last=2) as artifacts:` and, after each checkpoint is
    written, `artifacts.saved()`. Options are `name`, and those of the bucket and the disk, as for `durastore.open`.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        bucket: str | os.PathLike[str],
        keep_last: int | None = None,
        exclude: tuple[str, ...] = (),
        **options: Any,
    ) -> None:
        """`keep_last`: numbered sub-folders of each kind that stay here (None: all). `exclude`: patterns of files that
        are left out. Nothing is sent before the first `saved` or `push`. Raises `ConfigError`.
        """
        name, settle_s = options.pop("name", None), options.get("settle_s")
        self._request = PushRequest(
            folder=expanded(folder),
            bucket=BucketUrl.parse(bucket),
            name=name,
            keep_last=keep_last,
            exclude=exclude,
            settle_s=settle_s,
            options=resolve_options(options),
        )
        self._changed = threading.Condition()
        self._wanted: FolderState | None = None
        self._is_closing = False
        self._error: Exception | None = None
        self._last: PushReport | None = None
        self._thread: threading.Thread | None = None

    @property
    def last(self) -> PushReport | None:
        """The report of the last push that ended."""
        with self._changed:
            return self._last

    def push(self) -> PushReport:
        """Take a snapshot now, in this thread. Raises as `push`; `NotVerified` where none could be taken."""
        return self._pushed(None)

    def _pushed(self, state: FolderState | None) -> PushReport:
        report = push(self._request, state=state)
        if report.snapshot is None:
            path, why = next(iter(report.troubles.items()))
            raise NotVerified(f"no snapshot of {self._request.folder}: {path} {why}")
        return report

    def newest(self) -> ArtifactList | None:
        """The newest snapshot in the bucket; None where there is none. Raises like `pull`."""
        with self._remote() as store:
            found = fetch_newest(store, area_of(self._request.bucket.prefix), name=self._request.artifact)
        return found[1] if found is not None else None

    def pull(self, *patterns: str) -> PullReport:
        """Bring files of the newest snapshot back into the folder: all, or those of a path, a folder or a pattern.

        Nothing is written over. Raises as `pull` does, and what kept the first file that failed from coming.
        """
        request = PullRequest(out=self._request.folder, name=self._request.artifact.text, patterns=patterns)
        with self._remote() as store:
            report = pull(store, self._request.bucket.prefix, request=request)
        if report.failed:
            raise report.failed[0].error
        return report

    @contextmanager
    def _remote(self) -> Iterator[ObjectStore]:
        objects = open_object_store(self._request.bucket, s3=S3Options.of(self._request.options))
        try:
            yield RetryingStore(objects, RetryPolicy(), clock=SYSTEM_CLOCK)
        finally:
            objects.close()

    def saved(self) -> None:
        """All that is in the folder is whole: take a snapshot of it as it is now, in the background. Returns at once.

        The loop may go on writing new files; it must not change or remove those that are there until they were sent. Of
        several calls during one push the last one counts. Raises what the push before it failed with, so that no loop
        runs on for days whose checkpoints do not arrive.
        """
        state = look(self._request)  # now: what is written later may be half of something when its turn comes
        with self._changed:
            self._raise_error()
            self._wanted = state
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="durastore-artifacts", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def close(self) -> None:
        """Wait until what was saved is in the bucket; raises what kept it from there. Safe to repeat."""
        with self._changed:
            thread = self._thread
            self._is_closing = thread is not None
            self._changed.notify_all()
        if thread is not None:
            thread.join()
        with self._changed:
            self._raise_error()

    def __enter__(self) -> Artifacts:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.close()
        except Exception:  # whatever it is: beside an error of the block it must not hide that one
            if kind is None:
                raise
            LOGGER.exception("the last snapshot of %s did not arrive", self._request.folder)

    def trainer_callback(self) -> Any:
        """A callback for transformers' `Trainer`: `saved` after each of its checkpoints, `close` at its end."""
        ensure_extra("extract", "transformers", what="a callback for its Trainer")
        from transformers import TrainerCallback

        artifacts = self

        class _Callback(TrainerCallback):  # type: ignore[misc]  # transformers is not followed
            def on_save(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
                del args
                if state.is_world_process_zero:
                    artifacts.saved()

            def on_train_end(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
                del args
                if state.is_world_process_zero:
                    artifacts.close()

        return _Callback()

    def _raise_error(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _work(self) -> None:
        while True:
            with self._changed:
                while self._wanted is None and not self._is_closing:
                    self._changed.wait()
                if self._wanted is None:
                    self._is_closing, self._thread = False, None  # under the lock: a later `saved` starts another
                    return
                state, self._wanted = self._wanted, None
            try:
                report = self._pushed(state)
            except Exception as exc:  # noqa: BLE001 - whatever it is, the loop is told at its next call
                with self._changed:
                    self._error = exc
            except BaseException as exc:  # noqa: BLE001 - a library's panic is no `Exception`
                with self._changed:
                    self._error = DurastoreError(f"{type(exc).__name__}: {exc}")
            else:
                with self._changed:
                    self._last = report

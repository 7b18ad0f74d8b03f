"""Progress of a run, on stderr only.

Duty: say every 30 s in one plain line how far the run is, whatever the model and the writer are doing (a thread of its
own), or keep a bar up to date on a terminal. Must never write to stdout, and must never stop the run.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from durastore.clock import Clock
from durastore.extract.tally import Counts

__all__ = ["progress_line", "shown_progress"]

LINE_EVERY_S = 30.0
BAR_EVERY_S = 0.5


def progress_line(counts: Counts, *, elapsed_s: float, local_bytes: int | None) -> str:
    """One line without control characters, for logs."""
    done = counts.inputs - counts.left
    share = f"{100 * done / counts.inputs:.1f}%" if counts.inputs else "100.0%"
    rate = counts.ok / elapsed_s if elapsed_s > 0 else 0.0
    parts = [
        f"{done}/{counts.inputs} ({share})",
        f"ok {counts.ok}",
        f"failed {counts.failed}",
        f"skipped {counts.skipped}",
        f"{rate:.2f} samples/s",
        f"{counts.tokens / elapsed_s if elapsed_s > 0 else 0.0:.0f} tokens/s",
    ]
    if rate > 0:
        parts.append(f"eta {_duration(counts.left / rate)}")
    if local_bytes is not None:
        parts.append(f"local {local_bytes / (1 << 30):.2f} GiB")
    return "durastore extract: " + ", ".join(parts)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m{rest:02d}s"


@contextmanager
def shown_progress(
    counts: Callable[[], Counts], *, local_bytes: Callable[[], int | None], clock: Clock, stream: TextIO | None = None
) -> Iterator[None]:
    """Show progress while the block runs: a bar if the stream is a terminal, else lines; one last line either way."""
    out = stream if stream is not None else sys.stderr
    start = clock.monotonic()

    def say() -> None:
        line = progress_line(counts(), elapsed_s=clock.monotonic() - start, local_bytes=local_bytes())
        print(line, file=out, flush=True)

    if out.isatty():
        with _bar(counts, out):
            yield
    else:
        with _repeated(say, every_s=LINE_EVERY_S):
            yield
    say()


@contextmanager
def _repeated(action: Callable[[], None], *, every_s: float) -> Iterator[None]:
    is_over = threading.Event()

    def loop() -> None:
        while not is_over.wait(every_s):
            action()

    thread = threading.Thread(target=loop, name="durastore-extract-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


@contextmanager
def _bar(counts: Callable[[], Counts], out: TextIO) -> Iterator[None]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("ok {task.fields[ok]} failed {task.fields[failed]} skipped {task.fields[skipped]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(file=out)) as progress:
        now = counts()
        task = progress.add_task("extract", total=now.inputs, ok=0, failed=0, skipped=0)

        def update() -> None:
            now = counts()
            done = now.inputs - now.left
            progress.update(task, completed=done, ok=now.ok, failed=now.failed, skipped=now.skipped)

        with _repeated(update, every_s=BAR_EVERY_S):
            yield
        update()

"""A spool root that exists, opened without claiming it: by whoever looks at it or puts something beside its spools.

Duty: tell a root from what is none, none yet, or none any more. Must never make one, nor lock or change a spool in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from durastore.errors import RootMismatch, SpoolUnreadable, StoreMissing
from durastore.formats.spool_root import INCOMING_NAME, PRIVATE_ROOT_NAME, ROOT_MARKER_NAME
from durastore.fsio.folder import Folder
from durastore.objectstore.probe.result import ProbeResult
from durastore.objectstore.probe.saved import save_probe

__all__ = ["opened_own_root", "opened_root", "refuse_unfinished", "save_probe_in_root"]

_INCOMING_LIMIT_BYTES = 65_536


@contextmanager
def opened_root(path: Path) -> Iterator[Folder]:
    """The spool root at `path`, which is not claimed. `StoreMissing` where `path` is no spool root, `RootMismatch`
    where a `migrate` that did not end is filling it, `SpoolUnreadable` where it may not be opened.
    """
    try:
        folder = Folder.open(path)
    except FileNotFoundError as exc:
        raise StoreMissing(f"{path} does not exist", hint="check the path; is its disk mounted?") from exc
    except NotADirectoryError as exc:
        raise StoreMissing(f"{path} is not a directory", hint="a spool root is a folder; check the path") from exc
    except OSError as exc:
        raise SpoolUnreadable(f"spool root {path}: {exc.strerror or exc}", errno=exc.errno) from exc
    with folder:
        refuse_unfinished(folder)
        if not folder.has(ROOT_MARKER_NAME):
            hint = "give the directory that a store uses as local="
            if (path / PRIVATE_ROOT_NAME / ROOT_MARKER_NAME).exists():
                hint = f"it was reconciled or adopted: what was set aside is in {path / PRIVATE_ROOT_NAME}"
            raise StoreMissing(f"{path} is not a spool root", hint=hint)
        yield folder


def refuse_unfinished(folder: Folder) -> None:
    """`RootMismatch` where `durastore migrate` has not brought all of a root here yet: it is a root all the same."""
    if folder.has(INCOMING_NAME):
        raise RootMismatch(
            f"spool root {folder.path} is being filled by `durastore migrate`{_told_source(folder)}",
            hint="run the same `durastore migrate` again; it goes on, and ends it",
        )


def _told_source(folder: Folder) -> str:
    try:
        lines = folder.read_bytes(INCOMING_NAME, limit_bytes=_INCOMING_LIMIT_BYTES).split(b"\n")
    except (OSError, SpoolUnreadable):
        return ""  # a courtesy: that it is there says enough
    source = lines[1].decode("utf-8", "backslashreplace") if len(lines) > 1 else ""
    return f" from {source}" if source else ""


@contextmanager
def opened_own_root(path: Path) -> Iterator[Folder]:
    """As `opened_root`, or the private root in a folder that was reconciled: stops of reclaiming lie there too."""
    private = path / PRIVATE_ROOT_NAME
    is_private = not (path / ROOT_MARKER_NAME).exists() and (private / ROOT_MARKER_NAME).exists()
    with opened_root(private if is_private else path) as folder:
        yield folder


def save_probe_in_root(path: Path, result: ProbeResult) -> None:
    """Keep `result` in the spool root at `path`, whose stores use it from their next open on, or in the private root of
    a folder that was reconciled.

    `StoreMissing` where `path` is neither; it is not made.
    """
    with opened_own_root(path) as folder:
        save_probe(folder, result)

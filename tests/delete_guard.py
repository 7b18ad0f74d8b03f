"""Notices, while a test runs, any loss of a name or of bytes below a spool root that does not go through a door.

An audit hook sees `unlink`, `rename`, `rmdir`, `truncate` and truncating opens of this process. Below a directory that
holds a spool root marker, library code may do these only in the four modules that exist for it; the test itself, and
pytest tidying its temporary folders, may do as they like. A breach is refused (the bytes stay) and fails the test.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from durastore.formats.spool_root import ROOT_MARKER_NAME
from durastore.fsio.sys import SystemCalls

REPO = Path(__file__).resolve().parents[1]
DOORS = frozenset(
    {
        "durastore/fsio/ballast.py",
        "durastore/fsio/publish.py",
        "durastore/fsio/relocate.py",
        "durastore/reclaim/_unlink.py",
    }
)
_LIBRARY = (f"{REPO}/durastore/", f"{REPO}/cli/")
_TESTS = f"{REPO}/tests/"
_WRAPPERS = f"{REPO}/durastore/testing/"  # counts or judges a system call, then makes it for its caller
_PYTEST = ("/_pytest/", "/pluggy/")
_WATCHED = frozenset({"os.remove", "os.rename", "os.rmdir", "os.truncate", "shutil.rmtree", "shutil.move", "open"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Breach:
    """One refused call: what, on which path, from where."""

    event: str
    path: str
    caller: str

    def __str__(self) -> str:
        return f"{self.event} of {self.path} from {self.caller}"


class DeleteGuard:
    """Collects breaches while armed. There is one per process, because an audit hook can never be taken out again."""

    def __init__(self) -> None:
        self.breaches: list[Breach] = []
        self._is_armed = False

    @contextmanager
    def armed(self) -> Iterator[DeleteGuard]:
        """Watch until the block ends; the breaches of earlier blocks are forgotten first."""
        self.breaches = []
        self._is_armed = True
        try:
            yield self
        finally:
            self._is_armed = False

    def take_breaches(self) -> list[Breach]:
        """Hand over what was seen so far, for a test that provokes a breach on purpose."""
        taken, self.breaches = self.breaches, []
        return taken

    def hook(self, event: str, args: tuple[Any, ...]) -> None:
        """The audit hook. It runs for every event of the interpreter, so the usual case leaves at once."""
        if event not in _WATCHED or not self._is_armed:
            return
        for path in _victims(event, args):
            if not _is_in_spool_root(path):
                continue
            caller = _deciding_frame(sys._getframe(1))
            if _is_allowed(caller):
                continue
            name = f"{caller.f_code.co_filename}:{caller.f_lineno}" if caller else "no known code"
            self.breaches.append(Breach(event=event, path=path, caller=name))
            raise PermissionError(errno.EPERM, f"delete guard: {event} from {name}", path)


def _victims(event: str, args: tuple[Any, ...]) -> list[str]:
    """The absolute paths whose name or bytes the call would take away."""
    if event == "open":
        path, _, flags = args
        pairs = [(path, -1)] if isinstance(flags, int) and flags & os.O_TRUNC else []
    elif event == "os.rename":
        source, target, source_fd, target_fd = args
        pairs = [(source, source_fd), (target, target_fd)]
    elif event in {"shutil.move", "os.truncate"}:
        pairs = [(args[0], -1)]
    else:
        path, *rest = args
        pairs = [(path, rest[0] if rest else -1)]
    found = [_absolute(path, dir_fd) for path, dir_fd in pairs]
    return [path for path in found if path is not None]


def _absolute(path: Any, dir_fd: Any) -> str | None:
    if isinstance(path, int):
        return os.readlink(f"/proc/self/fd/{path}")
    try:
        text = os.fsdecode(path)
    except TypeError:
        return None
    base = os.readlink(f"/proc/self/fd/{dir_fd}") if isinstance(dir_fd, int) and dir_fd >= 0 else os.getcwd()
    joined = os.path.join(base, text)
    return os.path.join(os.path.realpath(os.path.dirname(joined)), os.path.basename(joined))


def _is_in_spool_root(path: str) -> bool:
    folder = os.path.dirname(path)
    while True:
        if os.path.lexists(os.path.join(folder, ROOT_MARKER_NAME)):
            return True
        parent = os.path.dirname(folder)
        if parent == folder:
            return False
        folder = parent


def _deciding_frame(frame: FrameType | None) -> FrameType | None:
    """The nearest frame of the library, the tests or pytest.

    Packages and the standard library act for whoever called them; so does the thin layer over the system calls, also
    where a test put its own in place.
    """
    while frame is not None:
        name = frame.f_code.co_filename
        is_known = name.startswith((*_LIBRARY, _TESTS)) or any(part in name for part in _PYTEST)
        is_layer = isinstance(frame.f_locals.get("self"), SystemCalls) or name.startswith((_WRAPPERS, __file__))
        if is_known and not is_layer:
            return frame
        frame = frame.f_back
    return None


def _is_allowed(caller: FrameType | None) -> bool:
    if caller is None:
        return False
    name = caller.f_code.co_filename
    if name.startswith(_LIBRARY):
        return os.path.relpath(name, REPO) in DOORS
    return True


GUARD = DeleteGuard()
sys.addaudithook(GUARD.hook)

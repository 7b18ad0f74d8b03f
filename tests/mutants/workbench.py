"""A private copy of the repository, in which tests are run against changed sources.

Duty: copy, change one file, run tests in a child process, put the file back. The child is forked from this process,
which holds the heavy packages but none of the library's modules, so that a run costs what its tests cost. Must never
change a file of the repository itself.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

__all__ = ["REPO", "Outcome", "Workbench"]

REPO = Path(__file__).resolve().parents[2]
_PARTS = ("durastore", "cli", "tests", "docs", "pyproject.toml", "Makefile", "README.md", "CHANGELOG.md")
_HEAVY = ("awscrt.checksums", "botocore.session", "ml_dtypes", "numpy", "pyarrow.parquet", "xxhash")
_OURS = ("durastore", "durastore_cli", "tests")
_TEST_LIMIT_S = 40
_NOT_THE_COPY = 77
_FAILED = (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What the tests said."""

    is_killed: bool
    by: str
    """The first test that failed, or why the run ended otherwise."""
    seconds: float


class Workbench:
    """The copy. One run at a time."""

    def __init__(self, folder: Path) -> None:
        """Copy the repository into the empty `folder`."""
        os.environ["OPENBLAS_NUM_THREADS"] = "1"  # a process that is forked must have one thread
        for name in _HEAVY:
            importlib.import_module(name)
        self._folder = folder
        self._copy = folder / "copy"
        self._copy.mkdir()
        for name in _PARTS:
            source = REPO / name
            if source.is_dir():
                shutil.copytree(source, self._copy / name, ignore=shutil.ignore_patterns("__pycache__"))
            elif source.exists():
                shutil.copy2(source, self._copy / name)

    @contextlib.contextmanager
    def changed(self, file: str, text: str) -> Iterator[None]:
        """Inside the block the copy's `file` has this text."""
        path = self._copy / file
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            compiled.unlink()  # it is told by size and second of change, which a mutant may share with the plain text
        plain = path.read_text(encoding="utf-8")
        path.write_text(text, encoding="utf-8")
        try:
            yield
        finally:
            path.write_text(plain, encoding="utf-8")

    def text(self, file: str) -> str:
        return (self._copy / file).read_text(encoding="utf-8")

    def run(self, tests: Sequence[str], *, limit_s: float, is_plain: bool = False) -> Outcome:
        """Run until the first failure; a run that does not end in time counts as failed. Only with nothing changed
        (`is_plain`) is bytecode kept for the runs that follow.

        RuntimeError where the tests cannot be judged: none was found, or the child did not use the copy.
        """
        started = time.monotonic()
        log = self._folder / "log"
        pid = os.fork()
        if pid == 0:
            sys.dont_write_bytecode = not is_plain
            os._exit(self._child(tests, log))
        status = _wait(pid, limit_s)
        seconds = time.monotonic() - started
        if status is None:
            return Outcome(is_killed=True, by="does not end", seconds=seconds)
        said = log.read_text(encoding="utf-8", errors="replace")
        if status == pytest.ExitCode.OK:
            return Outcome(is_killed=False, by="", seconds=seconds)
        if status not in _FAILED and status >= 0:
            raise RuntimeError(f"pytest ended with {status} for {' '.join(tests)}:\n{said[-4000:]}")
        return Outcome(is_killed=True, by=_first_failure(said), seconds=seconds)

    def _child(self, tests: Sequence[str], log: Path) -> int:
        try:
            os.setpgid(0, 0)
            fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.dup2(fd, 1)
            os.dup2(fd, 2)
            os.chdir(self._copy)
            for name in [name for name in sys.modules if name.partition(".")[0] in _OURS]:
                del sys.modules[name]
            sys.path[:] = [str(self._copy), str(self._copy / "cli"), *_foreign(sys.path)]
            found = importlib.util.find_spec("durastore")
            if found is None or not str(found.origin).startswith(str(self._copy)):
                return _NOT_THE_COPY
            options = ["-q", "-x", "-ra", "-p", "no:cacheprovider", "-o", f"timeout={_TEST_LIMIT_S}"]
            return int(pytest.main([*options, f"--basetemp={self._folder / 'tmp'}", *tests]))
        except BaseException:  # noqa: BLE001 - the child must not come back into the loop of the parent
            traceback.print_exc()
            return int(pytest.ExitCode.INTERNAL_ERROR)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()


def _foreign(paths: Sequence[str]) -> list[str]:
    ours = (REPO, REPO / "cli")
    return [path for path in paths if path and Path(path).resolve() not in ours]


def _wait(pid: int, limit_s: float) -> int | None:
    """The exit status; None if it had to be ended (with all of its group)."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def _first_failure(said: str) -> str:
    for line in said.splitlines():
        if line.startswith(("FAILED tests/", "ERROR tests/")):
            return line.split(" ", 1)[1].partition(" - ")[0].removeprefix("tests/")
    return f"ended by itself: {said[-300:]}"

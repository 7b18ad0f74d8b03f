"""Processes of this machine as the kernel tells of them: names, services, ports, families.

Duty: read /proc. What cannot be read is not known, and said so. Must never signal a process.
"""

from __future__ import annotations

import os
import pwd
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

__all__ = ["ProcessLook", "family_of", "listeners_at", "look_at_process", "started_s"]

_PROC = Path("/proc")
_LISTEN = "0A"
_UNIT = re.compile(r"([^/]+\.(?:service|scope))(?:/|$)")
_CONTAINER = re.compile(r"/([0-9a-f]{12})[0-9a-f]{52}$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessLook:
    """Who a process is, for people."""

    pid: int
    name: str
    user: str
    service: str | None
    """The systemd unit or container that it is part of, where its control group names one."""

    def __str__(self) -> str:
        of = f", {self.service}" if self.service else ""
        return f"pid {self.pid} {self.name} (user {self.user}{of})"


def look_at_process(pid: int) -> ProcessLook:
    """What /proc says of it; a process of another namespace, or one that is gone, is "not visible"."""
    folder = _PROC / str(pid)
    try:
        name = (folder / "comm").read_text(encoding="utf-8", errors="backslashreplace").strip()
        user = _user(folder.stat().st_uid)
    except OSError:
        return ProcessLook(pid=pid, name="(not visible from here)", user="?", service=None)
    return ProcessLook(pid=pid, name=name, user=user, service=_service(folder))


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _service(folder: Path) -> str | None:
    try:
        text = (folder / "cgroup").read_text(encoding="utf-8", errors="backslashreplace")
    except OSError:
        return None
    units = _UNIT.findall(text)
    if units:
        return str(units[-1])
    container = _CONTAINER.search(text)
    return f"container {container[1]}" if container is not None else None


def family_of(pids: set[int]) -> set[int]:
    """These processes, all that they started, and all that started those (but for process 1)."""
    parents = {pid: parent for pid in _all_pids() if (parent := _parent(pid)) is not None}
    found = set(pids)
    for pid in pids:
        while (pid := parents.get(pid, 0)) > 1:
            found.add(pid)
    is_growing = True
    below = set(pids)
    while is_growing:
        more = {pid for pid, parent in parents.items() if parent in below and pid not in below}
        below |= more
        is_growing = bool(more)
    return found | below


def _all_pids() -> list[int]:
    return [int(name) for name in os.listdir(_PROC) if name.isdigit()]


def _parent(pid: int) -> int | None:
    fields = _stat(pid)
    return int(fields[1]) if fields is not None else None


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/<pid>/stat from the state on: the name before it may hold anything."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()


def started_s(pid: int, *, now_s: float, boottime_s: float) -> float | None:
    """When a process began, Unix seconds; None where it is gone. From boot time: a wall clock may have been set."""
    fields = _stat(pid)
    if fields is None or len(fields) < 20:
        return None
    return now_s - boottime_s + int(fields[19]) / os.sysconf("SC_CLK_TCK")


def listeners_at(url: str) -> set[int]:
    """Processes of this network namespace that listen on the TCP port of an `http(s)` URL, as far as their open files
    can be seen.
    """
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    inodes = {inode for name in ("tcp", "tcp6") for inode in _listening(name, port)}
    return {pid for pid in _all_pids() if inodes and _has_socket(pid, inodes)}


def _listening(table: str, port: int) -> set[str]:
    try:
        lines = (_PROC / "net" / table).read_text(encoding="ascii").splitlines()[1:]
    except OSError:
        return set()
    rows = [line.split() for line in lines]
    return {row[9] for row in rows if row[3] == _LISTEN and int(row[1].rpartition(":")[2], 16) == port}


def _has_socket(pid: int, inodes: set[str]) -> bool:
    folder = _PROC / str(pid) / "fd"
    try:
        names = os.listdir(folder)
    except OSError:
        return False
    for name in names:
        try:
            target = os.readlink(folder / name)
        except OSError:
            continue
        if target.startswith("socket:[") and target[8:-1] in inodes:
            return True
    return False

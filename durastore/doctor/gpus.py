"""Who holds the GPUs.

Duty: ask NVML, where there is a driver, and name every process that is not of this extraction, with its service. Must
never end one: whose they are is for a person to know.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from durastore.doctor.processes import ProcessLook, family_of, listeners_at, look_at_process
from durastore.doctor.request import Examination
from durastore.doctor.stages import Verdict
from durastore.fsio.lock import holders
from durastore.spool.nearby import locks_in

__all__ = ["GpuLook", "GpuUse", "find_foreign", "look_at_gpus"]

_DRIVER = Path("/proc/driver/nvidia/version")
_NO_DRIVER = "no NVIDIA driver on this machine"
_HIDDEN_BYTES = 1 << 30
"""A driver and its idle context take a few hundred MiB; more than this is somebody's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUse:
    """A process on a GPU."""

    pid: int
    used_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLook:
    """One GPU."""

    index: int
    name: str
    used_bytes: int
    total_bytes: int
    uses: tuple[GpuUse, ...]


def look_at_gpus(seen: Examination) -> Verdict:
    """A note for each foreign process. Skipped where there is no driver."""
    try:
        import pynvml
    except ImportError:
        is_there = _DRIVER.exists()
        return Verdict.skipped("the GPUs cannot be asked: pip install nvidia-ml-py" if is_there else _NO_DRIVER)
    try:
        gpus = _ask(pynvml)
    except pynvml.NVMLError as exc:
        if getattr(exc, "value", None) in (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED):
            return Verdict.skipped(_NO_DRIVER)
        return Verdict.of_faults((), (f"NVML does not answer: {exc}",), summary="the GPUs cannot be asked")
    ours = family_of(_own_pids(seen))
    notes = list(find_foreign(gpus, ours=ours))
    facts = {"gpus": [_facts(gpu, ours=ours) for gpu in gpus]}
    count = sum(use.pid not in ours for gpu in gpus for use in gpu.uses)
    summary = f"{len(gpus)} GPUs, {count} foreign processes on them" if notes else f"{len(gpus)} GPUs, nobody else's"
    return Verdict.of_faults((), notes, summary=summary, facts=facts)


def _ask(nvml: Any) -> list[GpuLook]:
    nvml.nvmlInit()
    try:
        return [_look(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
    finally:
        nvml.nvmlShutdown()


def _look(nvml: Any, index: int) -> GpuLook:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    name = nvml.nvmlDeviceGetName(handle)
    found = {
        process.pid: GpuUse(pid=process.pid, used_bytes=process.usedGpuMemory)
        for ask in (nvml.nvmlDeviceGetComputeRunningProcesses, nvml.nvmlDeviceGetGraphicsRunningProcesses)
        for process in ask(handle)
    }
    return GpuLook(
        index=index,
        name=name.decode() if isinstance(name, bytes) else str(name),
        used_bytes=int(memory.used),
        total_bytes=int(memory.total),
        uses=tuple(found[pid] for pid in sorted(found)),
    )


def _own_pids(seen: Examination) -> set[int]:
    """Whoever works on the root, and the server that was named."""
    pids: set[int] = set()
    with suppress(OSError):  # whose locks cannot be read counts as somebody else
        for lock in locks_in(seen.request.local):
            pids |= set(holders(lock))
    if seen.request.server is not None:
        pids |= listeners_at(seen.request.server)
    return pids


def find_foreign(gpus: list[GpuLook], *, ours: set[int]) -> Iterator[str]:
    """One line for each process that is not of this extraction, and for memory that nobody visible holds."""
    for gpu in gpus:
        for use in gpu.uses:
            if use.pid not in ours:
                held = f"{use.used_bytes} bytes" if use.used_bytes is not None else "memory (how much is not told)"
                yield f"GPU {gpu.index} ({gpu.name}): {look_at_process(use.pid)} holds {held}"
        if not gpu.uses and gpu.used_bytes > _HIDDEN_BYTES:
            yield f"GPU {gpu.index} ({gpu.name}): {gpu.used_bytes} bytes are held by processes not visible from here"


def _facts(gpu: GpuLook, *, ours: set[int]) -> dict[str, Any]:
    looks = [(use, look_at_process(use.pid)) for use in gpu.uses]
    return {
        "index": gpu.index,
        "name": gpu.name,
        "used_bytes": gpu.used_bytes,
        "total_bytes": gpu.total_bytes,
        "processes": [_process_facts(use, look, is_ours=use.pid in ours) for use, look in looks],
    }


def _process_facts(use: GpuUse, look: ProcessLook, *, is_ours: bool) -> dict[str, Any]:
    return {
        "pid": use.pid,
        "name": look.name,
        "user": look.user,
        "service": look.service,
        "used_bytes": use.used_bytes,
        "is_ours": is_ours,
    }

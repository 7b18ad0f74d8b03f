"""A short life of a store in a process of its own: `case_life.py URL LOCAL COUNT (kill | close)`."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import numpy as np

import durastore


def tensors_of(name: str) -> dict[str, Any]:
    """Content that the name decides."""
    return {"h": np.frombuffer(name.encode().ljust(16, b".") * 500, dtype=np.uint8).copy()}


def main() -> None:
    url, local, count, ending = sys.argv[1:]
    store = durastore.open(url, local=local, reclaim="never", addressing_style="path")
    for number in range(int(count)):
        store.put(f"s/{number}", tensors_of(f"s/{number}"))
    if ending == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    store.close()


if __name__ == "__main__":
    main()

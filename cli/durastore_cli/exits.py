"""Exit codes as every `--help` shows them. Append-only; errors carry their own code."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["EPILOG", "EXIT_CODES"]

EXIT_CODES: Mapping[int, str] = MappingProxyType(
    {
        0: "ok",
        1: "other error",
        2: "usage, input or configuration",
        3: "partly done",
        10: "no store there",
        11: "locked by another process",
        12: "findings",
        13: "not verified",
        14: "spool full",
        20: "endpoint unreachable",
        21: "credentials or permission",
        130: "interrupted (SIGINT)",
        143: "interrupted (SIGTERM)",
    }
)

EPILOG = "\b\nExit codes:\n" + "\n".join(f"  {code:<4} {meaning}" for code, meaning in EXIT_CODES.items())

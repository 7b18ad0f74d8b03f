"""Mutants of the sweep that no test can or should notice, each with the reason."""

from __future__ import annotations

__all__ = ["EXPLAINED"]

EXPLAINED: dict[str, str] = {}

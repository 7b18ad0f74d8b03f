"""All fuzz targets by name."""

from __future__ import annotations

from tests.fuzz.codec_targets import CODEC_TARGETS
from tests.fuzz.foreign_targets import FOREIGN_TARGETS
from tests.fuzz.row_targets import ROW_TARGETS
from tests.fuzz.target import FuzzTarget
from tests.fuzz.text_targets import TEXT_TARGETS

__all__ = ["TARGETS"]

TARGETS: dict[str, FuzzTarget] = {
    target.name: target for target in (*CODEC_TARGETS, *TEXT_TARGETS, *ROW_TARGETS, *FOREIGN_TARGETS)
}

"""Numbers as people read them: bytes, rates, durations, counts. Pure, the same on the page and in the terminal."""

from __future__ import annotations

from datetime import UTC, datetime

__all__ = ["age", "clock_time", "count", "duration", "rate", "share", "size"]

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def size(size_bytes: float | None) -> str:
    """In powers of 1000, three digits: `1.18 MB`."""
    if size_bytes is None:
        return "-"
    value = float(size_bytes)
    for unit in _UNITS[:-1]:
        if abs(value) < 999.5:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.4g} {_UNITS[-1]}"


def rate(per_s: float | None, *, of_bytes: bool = False) -> str:
    """`12.3/s`, or of bytes `8.4 MB/s`."""
    if per_s is None:
        return "-"
    if of_bytes:
        return f"{size(per_s)}/s"
    return f"{per_s:,.0f}/s" if per_s >= 100 else f"{per_s:.3g}/s"


def duration(seconds: float | None) -> str:
    """Two units at most: `45 s`, `3 min 20 s`, `5 h 12 min`, `2 d 4 h`."""
    if seconds is None:
        return "-"
    whole = max(0, round(seconds))
    for unit, name, smaller, small_name in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= unit:
            rest = whole % unit // smaller
            return f"{whole // unit} {name}" + (f" {rest} {small_name}" if rest else "")
    return f"{whole} s"


def age(since_ns: int | None, now_ns: int) -> str:
    """How long ago: a duration."""
    return "-" if since_ns is None else duration((now_ns - since_ns) / 1e9)


def clock_time(at_ns: int | None) -> str:
    """Time of the day in UTC: `12:01:07`."""
    return "-" if at_ns is None else datetime.fromtimestamp(at_ns / 1e9, tz=UTC).strftime("%H:%M:%S")


def count(number: int | None) -> str:
    """With separators: `1,000,000`."""
    return "-" if number is None else f"{number:,}"


def share(part: float) -> str:
    """`99.9 %`: never 100 % before all is done, never 0 % once something is."""
    if part >= 1:
        return "100 %"
    shown = min(max(part * 100, 0.0), 99.9)
    return f"{shown:.1f} %" if shown == 0 or shown >= 0.1 else "0.1 %"

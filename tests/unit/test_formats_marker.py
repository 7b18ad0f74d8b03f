"""The bucket marker: exact round trip, strict parsing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from durastore.errors import FormatUnsupported, IntegrityError, InvalidInput
from durastore.formats.marker import MAX_MARKER_BYTES, Marker
from durastore.model import Run

STORE = "00112233445566778899aabbccddeeff"
RUN = Run.of({"model": "é", "layers": [1, 2]})


def facts(**changes: Any) -> bytes:
    return json.dumps({"store_id": STORE, "format": 1, "run": RUN.text, "created_ns": 5, **changes}).encode()


@pytest.mark.parametrize("run", [RUN, None])
def test_round_trip(run: Run | None) -> None:
    marker = Marker(store_id=STORE, format=1, run=run, created_ns=1_700_000_000_000_000_000)
    assert Marker.parse(marker.render()) == marker
    assert marker.render() == marker.render()
    assert marker.render().endswith(b"\n")


def test_unknown_fields_are_ignored() -> None:
    assert Marker.parse(facts(later={"x": [1]})) == Marker(store_id=STORE, format=1, run=RUN, created_ns=5)


def test_run_keeps_its_digest_byte_for_byte() -> None:
    text = '{"b": 1, "a": 1.0}'
    parsed = Marker.parse(facts(run=text))
    assert parsed.run is not None
    assert parsed.run.text == text
    assert Marker.parse(parsed.render()).run == parsed.run


@pytest.mark.parametrize("version", [2, 99])
def test_newer_format_is_refused(version: int) -> None:
    with pytest.raises(FormatUnsupported):
        Marker.parse(facts(format=version, store_id=None))


ODD: list[bytes] = [
    b"",
    b"[]",
    b"null",
    b"\xff",
    b"[" * 100_000,
    facts()[:-1],
    facts(format="1"),
    facts(format=True),
    facts(format=0),
    facts(format=-1),
    facts(format=1.0),
    facts(store_id=STORE[:-1]),
    facts(store_id=STORE.upper()),
    facts(store_id=STORE + "\n"),
    facts(store_id=None),
    facts(run="[]"),
    facts(run="{"),
    facts(run={}),
    facts(run="\ud800"),
    facts(created_ns=None),
    facts(created_ns=-1),
    facts(created_ns=1 << 63),
    facts(created_ns=1.5),
    facts()[:-1] + b', "format": 1}',
    facts(pad="x" * MAX_MARKER_BYTES),
]


@pytest.mark.parametrize("data", ODD, ids=range(len(ODD)))
def test_odd_markers_are_refused(data: bytes) -> None:
    with pytest.raises(IntegrityError):
        Marker.parse(data)


@pytest.mark.parametrize("changes", [{"store_id": "x"}, {"format": 2}, {"created_ns": -1}])
def test_marker_checks_itself(changes: dict[str, Any]) -> None:
    known: dict[str, Any] = {"store_id": STORE, "format": 1, "run": None, "created_ns": 0, **changes}
    with pytest.raises(InvalidInput):
        Marker(**known)

"""The stop switch from the mismatch to the person who lifts it, over the wire: a store, its own probe, the command."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import durastore
from durastore.errors import PackFailed
from durastore.objectstore.probe.result import ProbeResult
from durastore.store.store import Store
from durastore.testing.strict_s3 import Lie, Rule, StrictS3
from durastore_cli.main import run
from tests.faults.trial import SpeedClock, wait_until


def test_only_a_persons_probe_after_the_mismatch_lifts_the_stop(
    strict_s3: StrictS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in strict_s3.environment().items():
        monkeypatch.setenv(name, value)
    bucket, local = strict_s3.make_bucket(), tmp_path / "spool"
    clock = SpeedClock(speed=8.0)

    def opened(**changes: Any) -> Store:
        options: dict[str, Any] = {"reclaim": "eager", "settle_s": 0.0, "reserve_bytes": 1, "clock": clock} | changes
        return durastore.open(f"s3://{bucket}/p", local=local, endpoint_url=strict_s3.endpoint_url, **options)

    def probes() -> list[ProbeResult]:
        return [ProbeResult.parse(path.read_bytes()) for path in local.glob("probe-*")]

    strict_s3.script(Rule(lie=Lie.FLIP_BYTE, op="put", key_part="/packs/", count=1))
    with closing(opened()) as store:
        store.put("a", {"h": np.arange(3000, dtype=np.int32)})
        with pytest.raises(PackFailed, match="stopped"):
            store.drain(600)
        wait_until(lambda: bool(probes()))  # its own probe, which ended after the mismatch
    with closing(opened()) as store, pytest.raises(PackFailed, match="stopped"):
        store.drain(600)
    assert not any(probe.is_by_person for probe in probes())
    place = ["--bucket", f"s3://{bucket}/p", "--endpoint-url", strict_s3.endpoint_url]
    assert run(["probe", *place, "--local", str(local)]) == 0
    with closing(opened()) as store:
        store.drain(600)
        assert store.status().local_bytes == 0
    with closing(opened(probe="never")) as store:
        store.put("b", {"h": np.arange(10, dtype=np.int32)})
        store.drain(600)

"""`durastore probe` without a server: stores in memory and on disk, exit codes, where a result is kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from durastore.formats.spool_root import ROOT_MARKER_NAME
from durastore.formats.stop import StopRecord
from durastore.fsio.folder import Folder
from durastore.objectstore.probe.port import Answer, ExpiryRule
from durastore.objectstore.probe.result import ProbeResult
from durastore.objectstore.probe.store_port import StorePort
from durastore.spool.stops import stops_in_force, throw_stop
from durastore_cli.main import run


def test_json_names_the_level_each_path_and_every_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["probe", "--bucket", str(tmp_path), "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    found = json.loads(out)
    assert found["level"] == "ATTESTED"
    assert found["levels"] == {"single": "ATTESTED", "multipart": "ATTESTED"}
    assert found["checksums"] == {"single": "crc64nvme", "multipart": "crc64nvme"}
    assert found["requests"] < 60
    assert {"name", "outcome", "detail", "meaning"} == set(found["checks"][0])
    names = {check["name"] for check in found["checks"]}
    assert {"put.crc64nvme", "part.sha256", "complete.size", "put.truncated", "lifecycle", "absent"} <= names


def test_the_table_says_what_each_line_means(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["probe", "--bucket", "memory://probe-table/p"]) == 0
    out = capsys.readouterr().out
    assert "damage on the way to the endpoint is noticed by it" in out
    assert out.splitlines()[-1] == "level: ATTESTED"


def test_a_result_is_kept_in_a_spool_root(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    local = tmp_path / "spool"
    local.mkdir()
    arguments = ["probe", "--bucket", "memory://probe-kept", "--local", str(local), "--json"]
    assert run(arguments) == 10
    (local / ROOT_MARKER_NAME).write_bytes(b"{}")
    capsys.readouterr()
    assert run(arguments) == 0
    found = json.loads(capsys.readouterr().out)
    with Folder.open(local) as folder:
        data = folder.read_bytes(f"probe-{found['id']}.json", limit_bytes=1 << 20)
    assert ProbeResult.parse(data).id == found["id"]


def test_it_answers_the_stops_that_were_in_the_root_before_it_began(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ROOT_MARKER_NAME).write_bytes(b"{}")
    before, meanwhile = (StopRecord(id=digit * 16, thrown="", reason="", place=None) for digit in "12")
    plain = StorePort.fetch_lifecycle

    def fetch_lifecycle(port: StorePort) -> Answer:
        throw_stop(folder, meanwhile)
        return plain(port)

    monkeypatch.setattr(StorePort, "fetch_lifecycle", fetch_lifecycle)
    with Folder.open(tmp_path) as folder:
        throw_stop(folder, before)
        assert run(["probe", "--bucket", "memory://probe-answers", "--local", str(tmp_path), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["answers_stops"] == [before.id]
        result = ProbeResult.parse(folder.read_bytes(f"probe-{found['id']}.json", limit_bytes=1 << 20))
        assert (result.is_by_person, result.answers_stops) == (True, (before.id,))
        # a store lifts it, at its next open
        assert [stop.id for stop in stops_in_force(folder)] == [before.id, meanwhile.id]
        assert run(["probe", "--bucket", "memory://probe-answers", "--local", str(tmp_path)]) == 0
    assert f"lifts the stop of reclaiming {meanwhile.id}" in capsys.readouterr().out


def test_a_rule_that_expires_the_prefix_is_a_finding(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rule = ExpiryRule(name="tidy\x1b[2J", prefix="", is_expiring=True, is_tagged=False, what="Days 1")
    monkeypatch.setattr(StorePort, "fetch_lifecycle", lambda self: Answer(status=200, rules=(rule,)))
    assert run(["probe", "--bucket", "memory://probe-expiring"]) == 12
    out = capsys.readouterr().out
    assert "nothing will be reclaimed: lifecycle: rule tidy" in out
    assert "\x1b" not in out


def test_where_there_is_no_bucket(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["probe", "--bucket", str(tmp_path / "absent")]) == 10
    assert capsys.readouterr().out == ""

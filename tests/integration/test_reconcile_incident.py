"""Incident 1 once more: 25,864 files were removed that no bucket had. Here the operator asks for the same thing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from durastore.demo.seaweed import SeaweedServer
from durastore.formats.file_keys import parse_file_key
from durastore.model import ObjectKey
from durastore_cli.main import run
from tests.integration.reconcile_files import cut, fill_with_zeros, make_files

BEFORE, CUT, ZEROED = 120, 7, 3


class Operator:
    """Types commands, and reads their JSON."""

    def __init__(self, server: SeaweedServer, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self._where = ["--local", str(folder), "--bucket", f"s3://{server.make_bucket()}/run"]
        self._where += ["--endpoint-url", server.endpoint_url, "--json"]

    def reconcile(self, *options: str) -> tuple[int, Any]:
        self._capsys.readouterr()
        code = run(["reconcile", *self._where, *options])
        return code, json.loads(self._capsys.readouterr().out)


def _names(report: Any, kind: str, *, side: str = "local", when: str = "findings") -> set[str]:
    return {
        name
        for finding in report[when]
        if (finding["kind"], finding["side"]) == (kind, side)
        for name in finding["names"]
    }


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("aws_env")
@pytest.mark.parametrize("count", [240, pytest.param(2_000, marks=pytest.mark.exhaustive)])
def test_clearing_a_folder_frees_what_is_proven_and_nothing_else(
    seaweed: SeaweedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], count: int
) -> None:
    # case B03, case B88
    folder = tmp_path / "extracted"
    paths = make_files(folder, count)
    contents = {str(path.relative_to(folder)): path.read_bytes() for path in paths}
    operator = Operator(seaweed, folder, capsys)

    # an earlier run had sent 120 of them, when there were only these
    rest = paths[BEFORE:]
    aside = tmp_path / "aside"
    for path in rest:
        target = aside / path.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        path.rename(target)
    code, report = operator.reconcile("--apply")
    assert (code, report["applied"]["uploaded"]) == (0, BEFORE)
    for path in rest:
        (aside / path.relative_to(folder)).rename(path)

    damaged = set()
    for number, path in enumerate(rest[:: len(rest) // (CUT + ZEROED)][: CUT + ZEROED]):
        (cut if number < CUT else fill_with_zeros)(path)
        damaged.add(str(path.relative_to(folder)))
    assert len(damaged) == CUT + ZEROED
    foreign = {f"notes/{name}": f"{name} of mine".encode() for name in ("run.sh", "log.txt", "x.json", "y.tmp", "z")}
    for name, data in foreign.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)

    # looking changes nothing, and the exit code says that this folder must not be cleared by hand
    code, report = operator.reconcile()
    assert code == 12
    assert _names(report, "truncated") == damaged
    assert _names(report, "untracked") == set(foreign)
    assert len(_names(report, "only-local")) == count - BEFORE - len(damaged)
    assert report["counts"]["local files in the manifest"]["count"] == BEFORE
    assert {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file() and ".durastore" not in p.parts} == (
        contents.keys() | foreign.keys()
    )

    code, report = operator.reconcile("--apply", "--reclaim", "--settle", "1")
    assert code == 12  # ten files are only here, in quarantine, and five that durastore does not know
    assert report["applied"]["reclaimed"] == count - len(damaged)
    assert report["applied"]["quarantined"].keys() == damaged
    assert (report["applied"]["failed"], report["applied"]["unproven"]) == ({}, {})
    assert report["sums_agree"]
    left = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file() and ".durastore" not in p.parts}
    assert left == foreign.keys()
    assert {name: (folder / name).read_bytes() for name in foreign} == foreign
    quarantine = folder / ".durastore" / "w-00" / "quarantine"
    assert len(list(quarantine.glob("rows_*"))) == len(damaged)
    assert not list((folder / ".durastore" / "going").iterdir())

    # every byte that left the folder can be had from the bucket
    client = seaweed.client()
    bucket, prefix = operator._where[3].removeprefix("s3://").split("/")
    held = {}
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=f"{prefix}/files/"):
        for row in page["Contents"]:
            parts = parse_file_key(prefix, ObjectKey(row["Key"]))
            assert parts is not None
            held[parts.path.text] = row["Key"]
    assert held.keys() == contents.keys() - damaged
    for name in sorted(held)[::97]:
        assert client.get_object(Bucket=bucket, Key=held[name])["Body"].read() == contents[name]

    code, report = operator.reconcile("--apply", "--reclaim", "--settle", "1")
    assert code == 12
    assert report["applied"] | {"moved_back": []} == {
        "moved_back": [],
        "quarantined": {},
        "uploaded": 0,
        "uploaded_bytes": 0,
        "rows_rebuilt": 0,
        "rows_buried": 0,
        "reclaimed": 0,
        "reclaimed_bytes": 0,
        "failed": {},
        "refused": {},
        "unproven": {},
    }
    assert len(_names(report, "quarantined")) == len(damaged)

"""`durastore ls`: ids on stdout, one a line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import durastore
from durastore_cli.main import run


@pytest.fixture
def bucket(tmp_path: Path) -> str:
    (tmp_path / "bucket").mkdir()
    with durastore.open(tmp_path / "bucket", local=tmp_path / "spool", reclaim="never") as store:
        store.put_many({name: {"x": np.zeros((2, 3), np.float16)} for name in ("doc/2", "doc/1", "other\u00ad")})
        store.put("with-meta", {"x": np.zeros(1)}, meta={"lines": "a\nb"})
    return str(tmp_path / "bucket")


def test_ids_one_a_line(bucket: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ls", "--bucket", bucket]) == 0
    assert capsys.readouterr().out == "doc/1\ndoc/2\nother\\xad\nwith-meta\n"
    assert run(["ls", "--bucket", bucket, "doc/"]) == 0
    assert capsys.readouterr().out == "doc/1\ndoc/2\n"
    assert run(["ls", "--bucket", bucket, "none"]) == 0
    assert capsys.readouterr().out == ""


def test_json_lines(bucket: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ls", "--bucket", bucket, "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["id"] for line in lines] == ["doc/1", "doc/2", "other\u00ad", "with-meta"]
    assert lines[0]["tensors"] == [{"name": "x", "dtype": "F16", "shape": [2, 3], "codec": "raw"}]
    assert "meta" not in lines[0]
    assert run(["ls", "--bucket", bucket, "--json", "--meta", "with"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["meta"] == {"lines": "a\nb"}


def test_a_mistyped_prefix_is_10(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ls", "--bucket", str(tmp_path)]) == 10
    out, err = capsys.readouterr()
    assert out == ""
    assert "there is no durastore" in err

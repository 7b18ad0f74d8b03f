"""The first run of docs/quickstart.md goes as the page says, but for the names of the place."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from durastore.config import option_names
from durastore.demo.seaweed import SeaweedServer
from durastore_cli.main import run
from tests.architecture.source_tree import REPO

_TEXT = (REPO / "docs/quickstart.md").read_text(encoding="utf-8")


def _blocks(text: str) -> list[tuple[str, str]]:
    return re.findall(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.mark.usefixtures("aws_env")
def test_the_first_run_goes_as_the_page_says(
    seaweed: SeaweedServer,
    bucket: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("DURASTORE_ENDPOINT_URL", seaweed.endpoint_url)
    monkeypatch.setenv("DURASTORE_REGION", seaweed.region)
    part = _TEXT[_TEXT.index("\n## First run\n") : _TEXT.index("\n## AWS S3\n")]
    for shown, real in (
        ("s3://my-bucket/hidden-states", f"s3://{bucket}/states"),
        ("/nvme/spool", str(tmp_path / "spool")),
        ("/nvme/out", str(tmp_path / "out")),
    ):
        assert shown in part
        part = part.replace(shown, real)
    blocks = _blocks(part)
    assert [kind for kind, _ in blocks] == ["sh", "", "python", "sh"]
    (_, probe), (_, last_lines), (_, loop), (_, looks) = blocks
    assert run(probe.split()[1:]) == 0
    assert last_lines in capsys.readouterr().out
    for _ in range(2):  # "run the loop again"
        exec(compile(loop, "quickstart.md", "exec"), {})  # noqa: S102 - our own documentation
    for line in looks.splitlines():
        assert run(line.split()[1:]) == 0, line
    out = capsys.readouterr().out
    assert all(f"try/{n}\n" in out for n in range(10))
    assert (tmp_path / "out/try/3.safetensors").exists()


def test_every_setting_of_the_page_is_an_option() -> None:
    tables = [tomllib.loads(text) for kind, text in _blocks(_TEXT) if kind == "toml"]
    assert len(tables) == 6
    assert {name for table in tables for name in table} <= {*option_names(), "bucket", "local"}

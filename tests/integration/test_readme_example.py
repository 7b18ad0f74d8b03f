"""Every block of README.md runs as it stands, but for the names of the place; its numbers are the benchmarks'."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import durastore
from durastore.demo.seaweed import SeaweedServer
from durastore_cli.main import run
from tests.architecture.source_tree import REPO
from tests.integration.extract_lab import WORDS, model_folder  # noqa: F401 - a fixture
from tests.integration.serve_lab import free_port, in_shell, serving
from tests.pages.commands import CommandLine, fault_of

_TEXT = (REPO / "README.md").read_text(encoding="utf-8")
_BLOCKS: list[str] = re.findall(r"^```\w*\n(.*?)^```", _TEXT, re.MULTILINE | re.DOTALL)


def _block(begins: str) -> str:
    (found,) = [text for text in _BLOCKS if text.startswith(begins)]
    return found


def _replaced(text: str, *pairs: tuple[str, str]) -> str:
    for shown, real in pairs:
        assert shown in text
        text = text.replace(shown, real)
    return text


def test_there_are_no_other_blocks() -> None:
    assert [text.split()[0] for text in _BLOCKS] == ["make", ".", "import", "durastore"]


_OF_MAKE = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "MAKEOVERRIDES", "ARGS", "JOBS")
"""What `make test ARGS=...`, which these tests may be part of, says to its own commands."""


def test_the_two_commands_are_targets_that_do_what_is_said() -> None:
    typed = [shlex.split(line, comments=True) for line in _block("make demo").splitlines()]
    assert typed == [["make", "demo"], ["make", "test"]]
    env = {name: value for name, value in os.environ.items() if name not in _OF_MAKE}
    done = subprocess.run(
        ["make", "--dry-run", "demo", "test"], cwd=REPO, env=env, capture_output=True, text=True, check=True, timeout=60
    )
    demo, test = done.stdout.replace("\\\n", " ").splitlines()[-2:]
    line = CommandLine(page="Makefile", text=demo.strip().removeprefix(".venv/bin/"), is_typed=True)
    assert line.text.startswith("durastore demo --keep build/demo")
    assert fault_of(line) is None
    assert "pytest" in test
    assert "not exhaustive" in test


def test_the_server_to_try_it_on_is_as_said(tmp_path: Path) -> None:
    _, serve, source, look = _block(". .venv").splitlines()
    folder, port = tmp_path / "demo", free_port()
    assert shlex.split(serve, comments=True) == ["durastore", "demo", "--serve", "--keep", "build/demo"]
    environment = folder / Path(shlex.split(source, comments=True)[1].replace("8333", str(port))).name
    put = (
        "import durastore, numpy as np\n"
        f"with durastore.open('s3://durastore-demo/run', local='{tmp_path}/spool') as store:\n"
        "    store.put('a/0', {'x': np.arange(4)})\n"
    )
    with serving(folder, port):
        in_shell(environment, f"{shlex.quote(sys.executable)} -c {shlex.quote(put)}")
        run_look = "from durastore_cli.main import main; main()"
        words = shlex.join(shlex.split(look)[1:])
        assert in_shell(environment, f"{shlex.quote(sys.executable)} -c '{run_look}' {words}") == "a/0\n"


@pytest.mark.usefixtures("aws_env")
def test_the_example_stores_and_reads_back(seaweed: SeaweedServer, bucket: str, tmp_path: Path) -> None:
    code = _block("import torch")
    assert sum(bool(line) for line in code.splitlines()) <= 15
    code = _replaced(
        code,
        ("https://s3.example.com", seaweed.endpoint_url),
        ("s3://my-bucket/", f"s3://{bucket}/"),
        ("/nvme/spool", str(tmp_path / "spool")),
    )
    space: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), space)  # noqa: S102 - our own documentation
    sample = space["sample"]
    assert getattr(sample, "meta", None) == {"source": "example"}
    assert sample.tensors["hidden_states"].shape == (128, 576)  # type: ignore[attr-defined] # the example has no types


@pytest.mark.usefixtures("aws_env")
def test_the_extraction_runs(
    seaweed: SeaweedServer,
    bucket: str,
    tmp_path: Path,
    model_folder: Path,  # noqa: F811 - the fixture
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DURASTORE_ENDPOINT_URL", seaweed.endpoint_url)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(f'{{"id": "p/0", "text": "{WORDS[4]} {WORDS[5]}"}}\n', encoding="utf-8")
    line = _replaced(
        _block("durastore extract"),
        ("prompts.jsonl", str(prompts)),
        ("/models/smollm2", str(model_folder)),
        ("2,15,27", "1,2,3"),  # the small model has four layers
        ("s3://my-bucket/states", f"s3://{bucket}/states"),
        ("/nvme/spool", str(tmp_path / "spool")),
    )
    assert run(shlex.split(line)[1:]) == 0
    with durastore.Dataset(f"s3://{bucket}/states", endpoint_url=seaweed.endpoint_url) as dataset:
        assert dataset.ids == ["p/0"]


def test_the_numbers_are_those_of_the_benchmarks() -> None:
    page = (REPO / "docs/benchmarks.md").read_text(encoding="utf-8")
    table = _TEXT[_TEXT.index("\n## Beside other tools\n") : _TEXT.index("\n## Pages\n")]
    cells = re.findall(r"\| ([\d,]+ · [\d.]+) (?=\|)", table)
    assert len(cells) == 9
    assert [cell for cell in cells if cell not in page] == []
    named = re.findall(r"\| ((?:\w+ )*\w+ \d[\d.]+) (?=\|)", table)
    assert len(named) == 4
    assert [name for name in named if name not in page] == []

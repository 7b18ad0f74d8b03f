"""Every guard of this folder bites: a mistake planted in a copy of the sources is found, and look-alikes are not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.architecture.destructive_calls import find_destructive_calls, find_remote_deletes
from tests.architecture.layer_contracts import check_contracts, copy_sources
from tests.architecture.receipt_uses import find_mint_calls, find_receipt_misuses
from tests.architecture.shapes import find_busy_packages, find_oversized, find_unsaying_names
from tests.architecture.source_tree import REPO, Use

Finder = Callable[[Path], list[Use]]

# (file, code of a function body, what the finder says)
LOCAL = [
    ("durastore/store/store.py", "import os; os.unlink(path)", "os.unlink"),
    ("durastore/upload/engine.py", "from os import remove as forget; forget(path)", "os.remove"),
    ("durastore/upload/engine.py", "import os as system; system.rmdir(path)", "os.rmdir"),
    ("cli/durastore_cli/main.py", "import shutil; shutil.rmtree(path)", "shutil.rmtree"),
    ("cli/durastore_cli/main.py", "import subprocess; subprocess.run(['rm', '-rf', path])", "subprocess.run(rm)"),
    ("cli/durastore_cli/main.py", "import subprocess; subprocess.run(path, shell=True)", "subprocess.run(shell)"),
    ("cli/durastore_cli/main.py", "import os; os.system(path)", "os.system"),
    ("durastore/spool/recovery.py", "path.unlink(missing_ok=True)", "path.unlink"),
    ("durastore/spool/recovery.py", "(path / 'x').rename(path)", ".rename"),
    ("durastore/spool/recovery.py", "path.replace(path.parent)", "path.replace"),
    ("durastore/spool/recovery.py", "path.system.replace(path, path)", "path.system.replace"),
    ("durastore/spool/recovery.py", "path.system.remove(path)", "path.system.remove"),
    ("durastore/spool/recovery.py", "import os; os.truncate(path, 0)", "os.truncate"),
    ("durastore/spool/recovery.py", "with open(path, 'r+b') as f: f.truncate(1)", "f.truncate"),
    ("durastore/spool/recovery.py", "with open(path, 'r+b') as f: f.seek(1)", "open('r+b')"),
    ("durastore/spool/recovery.py", "path.write_bytes(b'')", "path.write_bytes"),
    ("durastore/spool/recovery.py", "path.open('w')", "path.open('w')"),
    ("durastore/spool/recovery.py", "path.open(mode='a')", "path.open('a')"),
    ("durastore/spool/recovery.py", "open(path, str(path))", "open(mode unknown)"),
    ("durastore/spool/recovery.py", "import os; os.open(path, os.O_WRONLY | os.O_TRUNC)", "os.O_TRUNC"),
    ("durastore/spool/recovery.py", "import os; os.fdopen(3, 'wb')", "os.fdopen('wb')"),
    ("durastore/spool/recovery.py", "import os; getattr(os, 'unlink')(path)", "getattr(os, 'unlink')"),
    ("durastore/spool/recovery.py", "import os; getattr(os, str(path))(path)", "getattr(os, name unknown)"),
    ("durastore/spool/recovery.py", "import os; doors = [os.rename]", "os.rename"),
    ("durastore/reclaim/engine.py", "path.libc.unlinkat(-100, path, 0)", "path.libc.unlinkat"),
    ("durastore/reclaim/_unlink.py", "import os; os.unlink(path)", "os.unlink"),
    ("durastore/demo/run.py", "import tempfile; tempfile.TemporaryDirectory()", "tempfile.TemporaryDirectory"),
]
HARMLESS = [
    "str(path).replace('%', '%25')",
    "import dataclasses; dataclasses.replace(path, name='x')",
    "from dataclasses import replace; replace(path, name='x')",
    "path.discard(1)",
    "path.hook.remove()",
    "open(path)",
    "path.open('rb')",
    "path.store.open('a-bucket-name')",
    "import os; os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)",
    "import os; getattr(os, 'O_TMPFILE', None)",
    "import subprocess; subprocess.run(['ls', path], shell=False)",
]
REMOTE = [
    ("durastore/objectstore/s3.py", "path.client.delete_object(Bucket='b', Key='k')", "path.client.delete_object"),
    ("durastore/objectstore/s3.py", "path.client.delete_objects(Bucket='b')", "path.client.delete_objects"),
    ("durastore/objectstore/s3_read.py", "import obstore; obstore.delete(path, 'k')", "obstore.delete"),
    ("durastore/objectstore/s3_read.py", "from obstore import delete as go; go(path)", "obstore.delete"),
    ("durastore/upload/aio.py", "path.delete('k')", "path.delete"),
    ("durastore/upload/aio.py", "path._make_api_call('DeleteObject', {})", "DeleteObject"),
    ("durastore/upload/aio.py", "path.request('DELETE', '/b/k')", "DELETE"),
    ("durastore/upload/aio.py", "getattr(path, 'delete')('k')", "getattr.delete"),
]
RECEIPTS = [
    ("durastore/reclaim/engine.py", "from durastore.verify.receipt import mint; mint(pack_id=1)", "mint"),
    ("durastore/reclaim/plan.py", "import durastore.verify.receipt as r; r.mint(pack_id=1)", "mint"),
    ("durastore/reclaim/staging.py", "import durastore.verify.receipt as r; r.mint_staging(ttl_s=1)", "mint_staging"),
    ("durastore/verify/guards.py", "from durastore.verify.receipt import Receipt; Receipt(path)", "Receipt(...)"),
    ("durastore/verify/guards.py", "from durastore.verify import receipt; receipt._SEAL", "_SEAL"),
    (
        "durastore/store/store.py",
        "from durastore.verify.receipt import Receipt",
        "import of durastore.verify.receipt",
    ),
    (
        "durastore/extract/runner.py",
        "from importlib import import_module; import_module('durastore.verify.receipt')",
        "import of durastore.verify.receipt",
    ),
]


def _plant(root: Path, file: str, *, name: str, code: str) -> None:
    path = root / file
    path.write_text(f"{path.read_text()}\n\ndef {name}(path):\n    {code}\n")


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = copy_sources(REPO, tmp_path_factory.mktemp("planted"))
    for kind, rows in (("local", LOCAL), ("remote", REMOTE), ("receipts", RECEIPTS)):
        for number, (file, code, _) in enumerate(rows):
            _plant(root, file, name=f"{kind}_{number}", code=code)
    for number, code in enumerate(HARMLESS):
        _plant(root, "durastore/model.py", name=f"harmless_{number}", code=code)
    return root


def _found(finder: Finder, root: Path) -> Counter[Use]:
    return Counter(finder(root)) - Counter(finder(REPO))


@pytest.mark.parametrize(
    "kind, rows, finder",
    [
        ("local", LOCAL, find_destructive_calls),
        ("remote", REMOTE, find_remote_deletes),
        ("receipts", RECEIPTS, find_receipt_misuses),
    ],
)
def test_each_planted_mistake_is_found(
    kind: str, rows: list[tuple[str, str, str]], finder: Finder, planted: Path
) -> None:
    found = _found(finder, planted)
    wanted = [Use(file=file, function=f"{kind}_{n}", what=what) for n, (file, _, what) in enumerate(rows)]
    assert [str(use) for use in wanted if use not in found] == []


def test_look_alikes_are_not_found(planted: Path) -> None:
    found = [*_found(find_destructive_calls, planted), *_found(find_remote_deletes, planted)]
    assert [str(use) for use in found if use.function.startswith("harmless")] == []


def test_star_imports_and_module_level_imports_are_found(tmp_path: Path) -> None:
    for folder in ("durastore", "cli"):
        (tmp_path / folder).mkdir()
    (tmp_path / "durastore" / "a.py").write_text("from os import *\n")
    (tmp_path / "cli" / "b.py").write_text("from shutil import copytree, rmtree\n")
    assert find_destructive_calls(tmp_path) == [
        Use(file="cli/b.py", function="<module>", what="from shutil import copytree"),
        Use(file="durastore/a.py", function="<module>", what="from os import *"),
    ]


def test_a_second_mint_is_counted(planted: Path) -> None:
    assert {use.file for use in _found(find_mint_calls, planted)} == {
        "durastore/reclaim/engine.py",
        "durastore/reclaim/plan.py",
    }


def test_a_source_that_does_not_parse_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "durastore").mkdir()
    (tmp_path / "durastore" / "broken.py").write_text("def (:\n")
    with pytest.raises(SyntaxError):
        find_destructive_calls(tmp_path)
    with pytest.raises(FileNotFoundError):
        find_destructive_calls(tmp_path / "empty")


def test_shapes_are_found(tmp_path: Path) -> None:
    package = tmp_path / "durastore" / "pack_utils"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        '"""A package."""\n\nfrom durastore.x import y\n\n__all__ = ["y"]\n\nz = y()\n'
    )
    body = "\n".join(f"    x{n} = {n}" for n in range(50))
    (package / "long.py").write_text(
        f"def long():\n{body}\n\n\ndef wide(a, b, *, c, d, e, **f): ...\n\n\n"
        "class Kept:\n    def flat(self, a, b, c): ...\n\n    def purge_all(self): ...\n" + "\n" * 342
    )
    assert {(use.function, use.what) for use in find_oversized(tmp_path)} == {
        ("<module>", "402 lines"),
        ("long", "51 lines"),
        ("wide", "6 parameters"),
        ("Kept.flat", "3 positional parameters"),
    }
    names = {(use.file.rpartition("/")[2], use.what) for use in find_unsaying_names(tmp_path)}
    assert names == {("__init__.py", "utils"), ("long.py", "utils"), ("long.py", "purge_all")}
    assert [use.what for use in find_busy_packages(tmp_path)] == ["z = y()"]


def test_each_broken_contract_is_found(tmp_path: Path) -> None:
    root = copy_sources(REPO, tmp_path)
    plants = [
        ("durastore/dataset/dataset.py", "import durastore.spool.spool"),
        ("durastore/errors.py", "import durastore.model"),
        ("durastore/codec/encode.py", "import durastore.fsio.folder"),
        ("durastore/store/store.py", "import durastore.verify.receipt"),
        ("durastore/observe/events.py", "import durastore_cli.main"),
        ("cli/durastore_cli/main.py", "import durastore.testing.faulty"),
    ]
    for number, (file, code) in enumerate(plants):
        _plant(root, file, name=f"planted_{number}", code=code)
    report = check_contracts(root)
    assert report.kept == frozenset()
    assert report.broken == check_contracts(REPO).kept
    for line in (
        "durastore.dataset.dataset -> durastore.spool.spool",
        "durastore.errors -> durastore.model",
        "durastore.codec.encode -> durastore.fsio.folder",
        "durastore.store.store -> durastore.verify.receipt",
        "durastore.observe.events -> durastore_cli.main",
        "durastore_cli.main -> durastore.testing.faulty",
    ):
        assert line in report.text, report.text


def test_a_module_without_a_layer_is_found(tmp_path: Path) -> None:
    root = copy_sources(REPO, tmp_path)
    (root / "durastore" / "placeless.py").write_text('"""Nobody gave this a place."""\n')
    report = check_contracts(root)
    assert report.broken == {"layers of the library"}
    assert "placeless" in report.text

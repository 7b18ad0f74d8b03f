"""What a user does by mistake with `durastore.open`: nothing is lost, and it is said."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from warnings import WarningMessage, catch_warnings, simplefilter

import numpy as np
import pytest

import durastore
from durastore.config import resolve_place
from durastore.errors import InvalidInput, RunMismatch, StoreClosed, StoreWarning

ROOT = Path(__file__).parents[2]
STATE = {"x": np.zeros(4, np.float32)}


@contextmanager
def heard() -> Iterator[list[WarningMessage]]:
    """What is told in it: the tests of this project pass such warnings by."""
    with catch_warnings(record=True) as told:
        simplefilter("always", StoreWarning)
        yield told


def test_a_new_prefix_without_a_run_is_told_once_and_what_it_means_later(tmp_path: Path) -> None:
    with pytest.warns(StoreWarning, match="is new and was opened without run="):
        opened = durastore.open("memory://slips-a/p", local=tmp_path / "spool", reclaim="never")
    with opened as store:
        store.put("a", STATE)
        with pytest.raises(RunMismatch, match="is one without a run") as caught:
            durastore.open("memory://slips-a/p", local=tmp_path / "other", run={"a": 1}, reclaim="never")
        assert "another prefix" in str(caught.value.hint)
    with (
        heard() as told,
        durastore.open("memory://slips-a/p", local=tmp_path / "b", reclaim="never"),
    ):
        pass
    assert [str(each.message) for each in told] == []


def test_an_opening_that_ends_with_a_warning_leaves_nothing_at_work(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    with catch_warnings():
        simplefilter("error")
        with pytest.raises(StoreWarning, match="without run="):
            durastore.open("memory://slips-f/p", local=tmp_path / "spool", reclaim="never")
    left = [thread.name for thread in threading.enumerate() if thread not in before]
    assert not [name for name in left if name.startswith("durastore-lane")], left
    with durastore.open("memory://slips-f/p", local=tmp_path / "spool", reclaim="never") as store:
        assert store.spool_path.name == "w-00"  # nobody holds it any more
        store.put("a", STATE)


def test_a_closed_store_is_let_go(tmp_path: Path) -> None:
    with durastore.open("memory://slips-g/p", local=tmp_path / "spool", run={}, reclaim="never") as store:
        store.put("a", STATE)
    gone = weakref.ref(store)
    del store
    gc.collect()
    assert gone() is None  # it holds the digests of all samples


def test_a_run_that_says_nothing_on_purpose_is_no_slip(tmp_path: Path) -> None:
    with (
        heard() as told,
        durastore.open("memory://slips-b/p", local=tmp_path / "spool", run={}, reclaim="never"),
    ):
        pass
    assert [str(each.message) for each in told] == []


def test_a_store_opened_again_in_one_process_is_told_and_loses_nothing(tmp_path: Path) -> None:
    options = {"local": tmp_path / "spool", "run": {"a": 1}, "reclaim": "never"}
    first = durastore.open("memory://slips-c/p", **options)  # type: ignore[arg-type]  # the same for both
    first.put("a", STATE)
    with pytest.warns(StoreWarning, match="which was not closed"):
        second = durastore.open("memory://slips-c/p", **options)  # type: ignore[arg-type]  # the same for both
    second.put("b", STATE)
    second.close()
    first.close()
    with heard() as told, durastore.open("memory://slips-c/p", **options) as third:  # type: ignore[arg-type]
        assert {"a", "b"} == {name for name in ("a", "b") if name in third}
    assert [str(each.message) for each in told] == []


_UNCLOSED = """
import sys
import numpy as np
import durastore
store = durastore.open(sys.argv[1], local=sys.argv[2], run={}, reclaim="never", seal_age_s=600)
store.put("a", {"x": np.zeros(4, np.float32)})
if sys.argv[3:] == ["close"]:
    store.close()
"""
_BOTH_UNCLOSED = """
import sys
import numpy as np
import durastore
for name in ("a", "b"):
    store = durastore.open(sys.argv[1] + name, local=sys.argv[2] + name, run={}, reclaim="never", seal_age_s=600)
    store.put("a", {"x": np.zeros(4, np.float32)})
"""


@pytest.mark.parametrize("last", [[], ["close"]])
def test_a_process_that_ends_without_closing_says_where_its_samples_are(tmp_path: Path, last: list[str]) -> None:
    (tmp_path / "bucket").mkdir()
    ended = subprocess.run(
        [sys.executable, "-c", _UNCLOSED, f"{tmp_path}/bucket", f"{tmp_path}/spool", *last],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    if last:
        assert ended.stderr == ""
    else:
        assert "was not closed: 1 sample is only below" in ended.stderr
        assert f"durastore drain --local {tmp_path}/spool" in ended.stderr


def test_where_warnings_are_errors_each_store_is_told_and_the_process_ends_as_it_would(tmp_path: Path) -> None:
    (tmp_path / "bucket-a").mkdir()
    (tmp_path / "bucket-b").mkdir()
    ended = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", _BOTH_UNCLOSED, f"{tmp_path}/bucket-", f"{tmp_path}/spool-"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert f"durastore drain --local {tmp_path}/spool-a" in ended.stderr
    assert f"durastore drain --local {tmp_path}/spool-b" in ended.stderr


def test_a_closed_store_says_that_it_is_closed_whatever_is_asked(tmp_path: Path) -> None:
    with durastore.open("memory://slips-d/p", local=tmp_path / "spool", run={}, reclaim="never") as store:
        ticket = store.put("a", STATE)
        assert "0x" not in repr(store) + repr(ticket)
        assert str(tmp_path / "spool") in repr(store)
    assert "closed" in repr(store)
    for ask in (store.status, store.flush, lambda: "a" in store, lambda: store.get("a"), lambda: store.put("b", STATE)):
        with pytest.raises(StoreClosed, match="the store is closed"):
            ask()


def test_a_meta_that_is_no_json_names_the_member(tmp_path: Path) -> None:
    with durastore.open("memory://slips-e/p", local=tmp_path / "spool", run={}, reclaim="never") as store:
        with pytest.raises(InvalidInput, match=r"a\.b\[1\] is a numpy\.int64") as caught:
            store.put("a", STATE, meta={"a": {"b": [1, np.int64(1)]}})
        assert ".item()" in str(caught.value.hint)
        assert "a" not in store


def test_a_home_folder_in_a_path_is_no_folder_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "home" / "bucket").mkdir(parents=True)
    with durastore.open("~/bucket", local="~/spool", run={}, reclaim="never") as store:
        store.put("a", STATE)
    assert (tmp_path / "home" / "spool").is_dir()
    assert (tmp_path / "home" / "bucket" / "durastore.json").exists()
    assert not (tmp_path / "~").exists()


def test_a_folder_that_is_called_as_a_home_is_is_found_by_its_dot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "~" / "bucket").mkdir(parents=True)
    with durastore.open("./~/bucket", local="./~/spool", run={}, reclaim="never") as store:
        store.put("a", STATE)
    assert (tmp_path / "~" / "spool").is_dir()
    assert (tmp_path / "~" / "bucket" / "durastore.json").exists()
    assert not (tmp_path / "home").exists()
    place = resolve_place("local", "./~/spool", environ={}, project_dir=tmp_path)  # as of a command's option
    assert place == str(tmp_path / "~" / "spool")


@pytest.mark.parametrize("limit", ["lots", 0, -5, 1.5, None, True])
def test_a_cache_without_a_usable_limit_is_refused_when_it_is_made(tmp_path: Path, limit: object) -> None:
    with pytest.raises(durastore.errors.ConfigError, match="the limit of a cache"):
        durastore.NodeCache(tmp_path, limit)  # type: ignore[arg-type]  # the slip


def test_a_cache_takes_a_size_as_it_is_written_elsewhere(tmp_path: Path) -> None:
    assert durastore.NodeCache(tmp_path, "50 GiB").limit_bytes == 50 << 30

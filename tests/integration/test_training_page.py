"""The code of docs/training.md runs as it stands, but for the names of the place."""

from __future__ import annotations

import multiprocessing
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import durastore
from durastore.demo.seaweed import SeaweedServer
from tests.architecture.source_tree import REPO


@pytest.mark.usefixtures("aws_env")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_the_code_of_the_page_runs(
    seaweed: SeaweedServer, bucket: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    pytest.importorskip("torch")
    # the page's code is in no file that a worker started anew could import: Python 3.14 starts them so
    request.addfinalizer(partial(multiprocessing.set_start_method, multiprocessing.get_start_method(), force=True))
    multiprocessing.set_start_method("fork", force=True)
    url = f"s3://{bucket}/hidden-states"
    place: dict[str, Any] = {"endpoint_url": seaweed.endpoint_url, "region": seaweed.region, "settle_s": 0}
    with durastore.open(url, local=tmp_path / "spool", run={"model": "m"}, **place) as store:
        for number in range(20):
            split = "test" if number % 4 == 3 else "train"
            tensors = {"hidden_states": np.full((40, 8), number, np.float32), "token_ids": np.arange(40)}
            store.put(f"a/{number}", tensors, meta={"split": split})
        store.flush()
    text = (REPO / "docs/training.md").read_text(encoding="utf-8")
    for shown, real in (
        ("https://s3.example.com", seaweed.endpoint_url),
        ("s3://my-bucket/hidden-states", url),
        ("/nvme/cache", str(tmp_path / "cache")),
    ):
        assert shown in text
        text = text.replace(shown, real)
    blocks: list[str] = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 9
    space: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "training.md", "exec"), space)  # noqa: S102 - our own documentation
    assert len(space["train"]) == 15  # type: ignore[arg-type]  # the page has no types
    assert len(space["two"]) == 2  # type: ignore[arg-type]  # the page has no types
    assert space["state"]["epoch"] == 1  # type: ignore[index]  # the page has no types
    assert len(list(space["stream"])) == 15  # type: ignore[call-overload]  # the page has no types
    assert len(list(space["cached"])) == 20  # type: ignore[call-overload]  # the page has no types

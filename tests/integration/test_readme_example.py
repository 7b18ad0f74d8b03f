"""The example in README.md runs as it stands, but for the names of the place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from durastore.demo.seaweed import SeaweedServer
from tests.architecture.source_tree import REPO


@pytest.mark.usefixtures("aws_env")
def test_the_example_stores_and_reads_back(seaweed: SeaweedServer, bucket: str, tmp_path: Path) -> None:
    blocks: list[str] = re.findall(r"^```python\n(.*?)^```", (REPO / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 1
    code = blocks[0]
    for shown, real in (
        ("https://s3.example.com", seaweed.endpoint_url),
        ("s3://my-bucket/", f"s3://{bucket}/"),
        ("/nvme/spool", str(tmp_path / "spool")),
    ):
        assert shown in code
        code = code.replace(shown, real)
    space: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), space)  # noqa: S102 - our own documentation
    sample = space["sample"]
    assert getattr(sample, "meta", None) == {"source": "example"}
    assert sample.tensors["hidden_states"].shape == (128, 576)  # type: ignore[attr-defined] # the example has no types

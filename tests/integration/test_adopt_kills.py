"""kill -9 in the middle of an adoption, several times, and the same command again: everything is there, once."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import durastore
from durastore.demo.seaweed import SeaweedServer
from durastore.formats.file_keys import parse_file_key
from durastore.model import ObjectKey
from tests.integration.reconcile_files import make_files

ROOT = Path(__file__).parents[2]
FILES, SAMPLES = 60, 40  # for each kill


def _path_in(key: str) -> str:
    parts = parse_file_key("set", ObjectKey(key))
    assert parts is not None, key
    return parts.path.text


class Adoption:
    """One command in processes of its own, and what the bucket has of it."""

    def __init__(self, server: SeaweedServer, environment: dict[str, str], *, folder: Path, more: list[str]) -> None:
        self.bucket = server.make_bucket()
        self.remote = ["--bucket", f"s3://{self.bucket}/set", "--endpoint-url", server.endpoint_url]
        self._client = server.client()
        self._command = [
            sys.executable,
            "-m",
            "durastore_cli.main",
            "adopt",
            str(folder),
            *self.remote,
            *more,
            "--json",
        ]
        self._environment = {**environment, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'cli'}"}
        self._environment |= {"DURASTORE_SEAL_AGE_S": "0.1", "DURASTORE_PACK_TARGET_BYTES": "16384"}

    def start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self._command, env=self._environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def objects(self, under: str) -> list[str]:
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=f"set/{under}/")
        return [entry["Key"] for page in pages for entry in page.get("Contents", [])]

    def read(self, key: str) -> bytes:
        body: bytes = self._client.get_object(Bucket=self.bucket, Key=key)["Body"].read()
        return body

    def kill_several_times(
        self, times: int, is_under_way: Callable[[int], bool], *, step: int, rng: random.Random
    ) -> int:
        """Kill it once it got on by about `step`; how often it really was at work when it was killed."""
        kills = 0
        for number in range(1, times + 1):
            process = self.start()
            deadline = time.monotonic() + 60
            while process.poll() is None and not is_under_way(number * step) and time.monotonic() < deadline:
                time.sleep(0.05)  # each look is a listing, which takes a core from the command
            time.sleep(rng.random() * 0.05)
            kills += process.poll() is None
            process.kill()
            process.communicate(timeout=30)
        return kills

    def finish(self) -> Any:
        process = self.start()
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        return json.loads(out)


SOME_KILLS = pytest.mark.parametrize("times", [2, pytest.param(6, marks=pytest.mark.exhaustive)])


@pytest.mark.slow
@pytest.mark.timeout(600)
@SOME_KILLS
def test_files_as_they_are_survive_kills(
    seaweed: SeaweedServer, aws_env: dict[str, str], tmp_path: Path, times: int
) -> None:
    # case B94
    seed = random.randrange(1 << 32)
    folder, files = tmp_path / "old", FILES * times
    contents = {str(path.relative_to(folder)): path.read_bytes() for path in make_files(folder, files)}
    adoption = Adoption(seaweed, aws_env, folder=folder, more=[])
    kills = adoption.kill_several_times(
        times, lambda wanted: len(adoption.objects("files")) >= wanted, step=15, rng=random.Random(seed)
    )
    print(f"{kills} of {times} kills met it at work, seed {seed}")  # noqa: T201
    assert kills >= 1, f"seed {seed}"
    report = adoption.finish()
    assert (report["findings"], report["sums_agree"]) == ([], True), f"seed {seed}"
    assert report["counts"]["local files in the manifest"]["count"] == files
    held = {_path_in(key): key for key in adoption.objects("files")}
    assert (
        len(adoption.objects("files")) == len(held) == files
    )  # equal bytes have one key, however often they were sent
    for name in sorted(held)[::37]:
        assert adoption.read(held[name]) == contents[name], f"seed {seed}"
    assert {str(p.relative_to(folder)) for p in folder.rglob("data_*")} == contents.keys()
    again = adoption.finish()
    assert again["applied"]["uploaded"] == 0


@pytest.mark.slow
@pytest.mark.timeout(600)
@SOME_KILLS
def test_samples_survive_kills(seaweed: SeaweedServer, aws_env: dict[str, str], tmp_path: Path, times: int) -> None:
    # case B94
    seed = random.randrange(1 << 32)
    folder, root, samples = tmp_path / "old", tmp_path / "spool", SAMPLES * times
    folder.mkdir()
    tokens = [[(n + at) % 50 for at in range(4 + n % 5)] for n in range(samples)]
    states = [torch.randn(len(ids), 2, 64) for ids in tokens]
    for n, ids in enumerate(tokens):
        torch.save({"hidden_states": states[n], "input_ids": torch.tensor(ids)}, folder / f"data_{n}.pt")
    data, run_file = tmp_path / "train.jsonl", tmp_path / "run.toml"
    data.write_text("".join(json.dumps({"id": f"s{n}", "input_ids": ids}) + "\n" for n, ids in enumerate(tokens)))
    run_file.write_text('[run]\nlayers = [1, 2]\ndtype = "float32"\n')
    more = ["--as-samples", "--local", str(root), "--data", str(data), "--run", str(run_file)]
    adoption = Adoption(seaweed, aws_env, folder=folder, more=more)

    def packs() -> int:
        return len(adoption.objects("packs")) + len(list(root.glob("w-*/packs/*")))

    kills = adoption.kill_several_times(times, lambda wanted: packs() >= wanted, step=2, rng=random.Random(seed))
    print(f"{kills} of {times} kills met it at work, seed {seed}")  # noqa: T201
    assert kills >= 1, f"seed {seed}"
    report = adoption.finish()
    assert report["adopted"] + report["held"] == samples, f"seed {seed}"
    assert (report["refused"], report["local_only"]) == ([], [])
    endpoint = adoption.remote[3]
    dataset = durastore.Dataset(adoption.remote[1], endpoint_url=endpoint, addressing_style="path")
    assert len(dataset) == samples, f"seed {seed}"
    for n in range(0, samples, 17):
        sample = dataset[f"s{n}"]
        assert torch.equal(sample.tensors["hidden_states"], states[n]), f"seed {seed}"
        assert sample.provenance == "asserted"
    again = adoption.finish()
    assert (again["adopted"], again["held"]) == (0, samples)

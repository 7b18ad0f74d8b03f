"""A copy that turns out wrong stops reclaiming in a folder, durably, and a person's probe lets it go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from durastore.demo.seaweed import SeaweedServer
from durastore.reconcile import folder_apply
from durastore_cli.main import run
from tests.integration.reconcile_files import make_files


@pytest.mark.usefixtures("aws_env")
def test_a_stop_in_a_folder_is_lifted_by_the_command_that_its_error_names(
    seaweed: SeaweedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, bucket, client = tmp_path / "data", seaweed.make_bucket(), seaweed.client()
    paths = make_files(folder, 6)
    contents = {path: path.read_bytes() for path in paths}
    where = ["--bucket", f"s3://{bucket}/run", "--endpoint-url", seaweed.endpoint_url, "--local", str(folder)]
    clear = ["reconcile", *where, "--apply", "--reclaim", "--settle", "0"]

    def overwrite(change: int) -> None:
        for row in client.list_objects_v2(Bucket=bucket, Prefix="run/files/")["Contents"]:
            data = bytearray(client.get_object(Bucket=bucket, Key=row["Key"])["Body"].read())
            data[0] ^= change
            client.put_object(Bucket=bucket, Key=row["Key"], Body=bytes(data))

    with monkeypatch.context() as patch:
        patch.setattr(folder_apply, "_wait_settled", lambda *_: overwrite(1))
        assert run(clear) == 13
    overwrite(1)  # as they were
    capsys.readouterr()
    for _ in range(2):  # the next runs start stopped, although all is well by now
        assert run(clear) == 13
    told = capsys.readouterr().err
    probe = f"durastore probe --bucket s3://{bucket}/run --endpoint-url {seaweed.endpoint_url} --local {folder}"
    assert f"run `{probe}`" in told
    assert {path: path.read_bytes() for path in paths} == contents

    assert _run(probe) == 0
    assert run(clear) == 0
    assert not any(path.exists() for path in paths)
    assert run(clear) == 0


def _run(command: str) -> Any:
    return run(command.split()[1:])


@pytest.mark.usefixtures("aws_env")
def test_a_probe_from_before_the_stop_lifts_nothing(
    seaweed: SeaweedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, bucket = tmp_path / "data", seaweed.make_bucket()
    paths = make_files(folder, 3)
    where = ["--bucket", f"s3://{bucket}/run", "--endpoint-url", seaweed.endpoint_url, "--local", str(folder)]
    assert run(["probe", *where]) == 10  # not reconciled yet: nothing that a result could be kept in
    assert run(["reconcile", *where, "--apply"]) == 0
    assert run(["probe", *where]) == 0
    client = seaweed.client()

    def spoil(*_: object) -> None:
        for row in client.list_objects_v2(Bucket=bucket, Prefix="run/files/")["Contents"]:
            client.put_object(Bucket=bucket, Key=row["Key"], Body=bytes(row["Size"]))

    with monkeypatch.context() as patch:
        patch.setattr(folder_apply, "_wait_settled", spoil)
        assert run(["reconcile", *where, "--apply", "--reclaim", "--settle", "0"]) == 13
    assert run(["reconcile", *where, "--apply", "--reclaim", "--settle", "0"]) == 13
    assert all(path.exists() for path in paths)

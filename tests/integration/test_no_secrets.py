"""Credentials reach no file, object, log line, message or report of durastore; what it writes is for its owner only."""

from __future__ import annotations

import json
import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import durastore
from durastore.demo.seaweed import SeaweedServer
from durastore.errors import CredentialsRefused, DurastoreError, EndpointUnreachable
from durastore.objectstore.location import BucketUrl, S3Options, open_object_store
from durastore_cli.main import run
from tests.integration.extract_lab import Job, model_folder
from tests.integration.monitor_lab import ask, monitor, until

__all__ = ["model_folder"]  # a fixture

FAKE_KEY, FAKE_SECRET = "fakeaccesskeyid0000", "fake-secret-that-must-not-appear-anywhere"
FAKE_TOKEN, FAKE_PASSWORD = "fake-session-token-that-must-not-appear", "fake-password-in-a-proxy-url"


@pytest.fixture
def secrets(seaweed: SeaweedServer, aws_env: dict[str, str]) -> list[bytes]:
    """What must appear nowhere: the working secret, and those of the attempts below that must fail."""
    del aws_env
    assert len(seaweed.secret_key) > 15
    return [text.encode() for text in (seaweed.secret_key, FAKE_SECRET, FAKE_TOKEN, FAKE_PASSWORD)]


def holders(folder: Path, secrets: list[bytes]) -> list[str]:
    """Files below `folder` that hold a secret in their bytes or their names."""
    found = []
    for path in sorted(folder.rglob("*")):
        data = os.fsencode(path) + (path.read_bytes() if path.is_file() and not path.is_symlink() else b"")
        found += [str(path) for secret in secrets if secret in data]
    return found


def texts(caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]) -> bytes:
    records = "\n".join(f"{record.getMessage()} {record.__dict__}" for record in caplog.records)
    captured = capsys.readouterr()
    return f"{records}\n{captured.out}\n{captured.err}".encode("utf-8", "backslashreplace")


def _told(exc: BaseException | None) -> bytes:
    """An error as a report could show it, with the errors of ours that caused it: message, hint, facts."""
    told = b""
    while isinstance(exc, DurastoreError):
        told += f"{exc} {exc!r} {vars(exc)}".encode()
        exc = exc.__cause__
    return told


def objects(client: Any, bucket: str) -> Iterator[bytes]:
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket):
        for item in page.get("Contents", []):
            answer = client.get_object(Bucket=bucket, Key=item["Key"])
            yield item["Key"].encode() + json.dumps(answer["Metadata"]).encode() + answer["Body"].read()


def test_store_and_extract_leave_no_secret_anywhere(
    seaweed: SeaweedServer,
    secrets: list[bytes],
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    model_folder: Path,
    s3_client: Any,
) -> None:
    caplog.set_level(logging.DEBUG, logger="durastore")
    job = Job(tmp_path, model_folder, seaweed)
    job.write({"id": "a", "text": "w1 w2"}, {"id": "b", "text": "w3"}, "{")
    report = json.dumps(job.run().render())
    place: dict[str, Any] = {
        "local": tmp_path / "other",
        "endpoint_url": seaweed.endpoint_url,
        "addressing_style": "path",
    }
    with durastore.open(f"{job.bucket}/store", **place, reclaim="eager", settle_s=0.0) as store:
        for number in range(3):
            store.put(f"s/{number}", {"x": np.arange(2_000)}, meta={"n": number})
        store.put("large", {"x": np.zeros((20 << 20), np.uint8)})  # a multipart upload, so a session in the journal
        store.flush()
        report += repr(store.status())
    report += "".join(d.id for d in (job.dataset()["a"],))
    assert run(["manifest", "show", "--bucket", job.bucket, "--endpoint-url", seaweed.endpoint_url]) == 0
    name = job.bucket.removeprefix("s3://").partition("/")[0]
    kept = list(objects(s3_client, name))
    assert len(kept) >= 5
    assert holders(tmp_path, secrets) == []
    haystacks = [report.encode(), texts(caplog, capsys), *kept]
    assert [secret for secret in secrets for text in haystacks if secret in text] == []


def test_no_page_metric_or_report_of_the_monitor_holds_a_secret(
    seaweed: SeaweedServer,
    secrets: list[bytes],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    model_folder: Path,
) -> None:
    """Watched at its worst: a run with failures, a store whose credentials are refused, one without an endpoint."""
    pytest.importorskip("nicegui", reason="the page's package is not installed")
    caplog.set_level(logging.DEBUG, logger="durastore")
    job = Job(tmp_path, model_folder, seaweed)
    job.write({"id": "a", "text": "w1 w2"}, "{")
    report = json.dumps(job.run().render())
    place: dict[str, Any] = {"addressing_style": "path", "probe": "never", "seal_age_s": 0.1}
    url = f"s3://{seaweed.make_bucket()}/p"
    other = tmp_path / "other"
    store = durastore.open(url, local=other, endpoint_url=seaweed.endpoint_url, **place)
    try:
        with monitor(job.root, other, host="0.0.0.0", log=tmp_path / "monitor-log") as served:
            store.put("a", {"x": np.arange(9)})
            store.flush()
            for name, value in (("ACCESS_KEY_ID", FAKE_KEY), ("SECRET_ACCESS_KEY", FAKE_SECRET)):
                monkeypatch.setenv(f"AWS_{name}", value)
            monkeypatch.setenv("AWS_SESSION_TOKEN", FAKE_TOKEN)
            refused = [_refused(f"{url}{n}", {**place, "endpoint_url": seaweed.endpoint_url}, other) for n in "12"]
            token = served.url.partition("?token=")[2]
            local = served.url.partition("?")[0].replace("0.0.0.0", "127.0.0.1")
            until(lambda: len(json.loads(_asked(local, token, "view.json"))["workers"]) >= 2, within_s=10)
            pages = [_asked(local, token, path) for path in ("", "metrics", "view.json", "healthz", "no-such-page")]
            pages += [ask(local)[1].encode(), ask(f"{local}?token=wrong")[1].encode()]
            assert run(["status", "--local", str(job.root), "--json"]) == 0
            assert run(["monitor", "--local", str(job.root), "--json"]) == 0
    finally:
        store.abandon()
    assert holders(tmp_path, secrets) == []
    assert holders(job.root, [token.encode()]) + holders(other, [token.encode()]) == []
    told = [report.encode(), texts(caplog, capsys), *refused, *pages]
    assert all(len(page) > 2 for page in pages)
    assert [secret for secret in [*secrets, token.encode()] for text in told if secret in text] == []


def _asked(local: str, token: str, path: str) -> bytes:
    return ask(local + path, Authorization=f"Bearer {token}")[1].encode()


def _refused(url: str, place: dict[str, Any], root: Path) -> bytes:
    with pytest.raises(CredentialsRefused) as refused:
        durastore.open(url, local=root, **place)
    return _told(refused.value)


@pytest.mark.parametrize("token", [None, FAKE_TOKEN], ids=["secret", "token"])
def test_refusals_quote_no_credential(
    token: str | None,
    seaweed: SeaweedServer,
    secrets: list[bytes],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    caplog.set_level(logging.DEBUG, logger="durastore")
    url = f"s3://{seaweed.make_bucket()}/p"
    place = {"local": tmp_path / "spool", "endpoint_url": seaweed.endpoint_url, "addressing_style": "path"}
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", FAKE_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", FAKE_SECRET)
    if token is not None:
        monkeypatch.setenv("AWS_SESSION_TOKEN", token)
    with pytest.raises(CredentialsRefused) as refused:
        _put_one(url, place)
    assert run(["manifest", "show", "--bucket", url, "--endpoint-url", seaweed.endpoint_url]) == 21
    text = _told(refused.value) + texts(caplog, capsys)
    assert [secret for secret in secrets if secret in text] == []
    assert holders(tmp_path, secrets) == []


def test_an_unreachable_proxy_is_told_without_its_password(
    secrets: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"http://user:{FAKE_PASSWORD}@127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    options = S3Options(endpoint_url="http://s3.example.invalid", connect_timeout_s=2)
    store = open_object_store(BucketUrl.parse("s3://bucket"), s3=options)
    with pytest.raises(EndpointUnreachable) as refused:
        store.check_bucket()
    store.close()
    assert [secret for secret in secrets if secret in _told(refused.value)] == []


def _put_one(url: str, place: dict[str, Any]) -> None:
    with durastore.open(url, **place) as store:
        store.put("a", {"x": np.arange(9)})
        store.flush()


def test_the_search_finds_a_planted_secret(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "journal").write_bytes(b"\0" + FAKE_SECRET.encode() + b"\0")
    (tmp_path / FAKE_TOKEN).mkdir()
    found = holders(tmp_path, [FAKE_SECRET.encode(), FAKE_TOKEN.encode()])
    assert found == sorted([str(tmp_path / "a" / "journal"), str(tmp_path / FAKE_TOKEN)])


def test_everything_written_is_for_its_owner_only(
    seaweed: SeaweedServer, secrets: list[bytes], tmp_path: Path, model_folder: Path
) -> None:
    """Whatever the umask: folders 0700, files 0600."""
    del secrets
    before = os.umask(0)
    try:
        job = Job(tmp_path, model_folder, seaweed)
        (tmp_path / "spools").mkdir()
        job.root = tmp_path / "spools" / "root"
        job.write({"id": "a", "text": "w1 w2"}, "{")
        job.run(options={**job.options, "reclaim": "never"})
        bucket = tmp_path / "bucket"
        bucket.mkdir()
        with durastore.open(str(bucket), local=tmp_path / "spools" / "plain", reclaim="never") as store:
            store.put("a", {"x": np.arange(9)})
            store.flush()
    finally:
        os.umask(before)
    paths = sorted((tmp_path / "spools").rglob("*"))
    assert len(paths) > 10
    loose = {str(p.relative_to(tmp_path)): oct(stat.S_IMODE(p.lstat().st_mode)) for p in paths if _is_loose(p)}
    assert loose == {}


def _is_loose(path: Path) -> bool:
    mode = stat.S_IMODE(path.lstat().st_mode)
    return mode != (0o700 if path.is_dir() else 0o600)

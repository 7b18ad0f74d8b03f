"""Whatever is given as an address: a secret in it is refused, and appears nowhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from durastore.clock import SYSTEM_CLOCK
from durastore.config import StoreOptions, resolve_options
from durastore.doctor.request import DoctorRequest
from durastore.errors import ConfigError
from durastore.extract.json_server import JsonServer
from durastore.extract.server_settings import ServerSettings
from durastore.objectstore.location import BucketUrl, S3Options
from durastore.objectstore.s3_client import Connector
from durastore_cli.main import run

SECRET = "hunter2"
WITH_SECRET = (
    f"http://user:{SECRET}@host:1",
    f"http://:{SECRET}@host:1",
    f"http://{SECRET}@host:1",
    f"user:{SECRET}@host:80",
    f"//user:{SECRET}@host",
    f"http//user:{SECRET}@host",
    f"http://user:12/{SECRET}@host",
    f"http://user:{SECRET}/x@host",
    f"http://user:{SECRET}@host:99999",
    f"http://user:{SECRET}@[::1",
    f" http://user:{SECRET}@host",
    f"http://user:{SECRET}@host\n",
    f"http://host:1?token={SECRET}",
    f"http://host:1/#{SECRET}",
    f"ftp://user:{SECRET}@host",
)
FACES: dict[str, Callable[[str], object]] = {
    "endpoint-url": lambda url: StoreOptions(endpoint_url=url),
    "endpoint-url-of-the-environment": lambda url: resolve_options({}, environ={"DURASTORE_ENDPOINT_URL": url}),
    "endpoint-url-in-a-list": lambda url: StoreOptions(endpoint_url=[url]),  # type: ignore[arg-type]  # wrong on purpose
    "s3-options": lambda url: S3Options(endpoint_url=url),
    "bucket": BucketUrl.parse,
    "model-server": lambda url: JsonServer(url, clock=SYSTEM_CLOCK),
    "extract": lambda url: ServerSettings(endpoints=("http://127.0.0.1:1", url)),
    "doctor": lambda url: DoctorRequest(local=Path("x"), bucket=BucketUrl.parse("/x"), server=url),
}


@pytest.mark.parametrize(
    "face, url",
    [(face, url) for face in FACES for url in WITH_SECRET if face != "bucket" or not url.startswith("/")],  # a path
)
def test_a_secret_in_an_address_is_refused_and_not_repeated(face: str, url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        FACES[face](url)
    error: BaseException | None = refused.value
    while error is not None:  # a traceback shows its causes too
        assert SECRET not in f"{error} {error!r} {getattr(error, 'hint', '')} {getattr(error, 'facts', '')}"
        error = error.__cause__


@pytest.mark.parametrize("url", WITH_SECRET)
def test_a_secret_in_an_address_leaves_no_trace_of_a_command(
    url: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "data.jsonl").write_text('{"id": "a", "input_ids": [1]}\n')
    place = ["--local", str(tmp_path / "root"), "--bucket", str(tmp_path / "bucket")]
    more = ["--model", "x", "--data", str(tmp_path / "data.jsonl"), "--layers", "0", "--staging", str(tmp_path / "st")]
    for command in (
        ["extract", *place, *more, "--engine", "vllm", "--endpoint", url],
        ["doctor", *place, "--server", url],
        ["status", "--local", str(tmp_path / "root"), "--endpoint-url", url],
    ):
        assert run(command) != 0
    said = "".join(capfd.readouterr()) + caplog.text
    assert "usable" in said or "URL" in said or "credentials" in said
    assert SECRET not in said
    kept = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not [data for data in kept if SECRET.encode() in data]


@pytest.mark.parametrize("place", ["environment", "profile"])
def test_a_secret_in_an_endpoint_that_only_botocore_knows_is_not_repeated(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"http://user:{SECRET}@127.0.0.1:9"
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    if place == "environment":
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    else:
        (tmp_path / "config").write_text(f"[default]\nregion = us-east-1\nendpoint_url = {url}\n")
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    with pytest.raises(ConfigError, match="carries credentials") as refused:
        Connector("bucket", S3Options(region="us-east-1")).connect()
    error: BaseException | None = refused.value
    while error is not None:
        assert SECRET not in f"{error!r} {error}"
        error = error.__cause__ or error.__context__


@pytest.mark.parametrize("url", ["http://127.0.0.1:8000", "https://host/v1/", "http://[::1]:80"])
def test_a_plain_address_is_taken(url: str) -> None:
    assert JsonServer(url, clock=SYSTEM_CLOCK).url == url.rstrip("/")
    assert StoreOptions(endpoint_url=url).endpoint_url == url

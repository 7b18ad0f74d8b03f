"""Bucket URLs and S3 options are checked where they come in, and never repeat a secret."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from durastore.errors import BucketMissing, ConfigError
from durastore.objectstore.directory import DirectoryStore
from durastore.objectstore.location import BucketUrl, S3Options, open_object_store
from durastore.objectstore.memory import MemoryStore
from durastore.objectstore.s3 import S3Store


@pytest.mark.parametrize(
    "text, kind, bucket, prefix",
    [
        ("s3://bucket", "s3", "bucket", ""),
        ("s3://bucket/", "s3", "bucket", ""),
        ("s3://bucket/a/b", "s3", "bucket", "a/b"),
        ("s3://my.bucket-1/a/b/", "s3", "my.bucket-1", "a/b"),
        ("bucket-name", "s3", "bucket-name", ""),
        ("file:///data/store", "file", "/data/store", ""),
        ("file:///data/with%20space", "file", "/data/with space", ""),
        ("/data/store", "file", "/data/store", ""),
        ("s3://bucket/ends so /", "s3", "bucket", "ends so "),
        ("s3://bucket/joined\u200d/", "s3", "bucket", "joined\u200d"),
        ("/data/ends so /", "file", "/data/ends so ", ""),
        ("memory://name", "memory", "name", ""),
        ("memory://name/some/prefix", "memory", "name", "some/prefix"),
    ],
)
def test_urls_parse_and_render_back(text: str, kind: str, bucket: str, prefix: str) -> None:
    url = BucketUrl.parse(text)
    assert (url.kind, url.bucket, url.prefix) == (kind, bucket, prefix)
    assert BucketUrl.parse(url.render()) == url
    assert pickle.loads(pickle.dumps(url)) == url


def test_a_path_is_a_directory_however_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert BucketUrl.parse(Path("bucket-name")) == BucketUrl(kind="file", bucket=str(tmp_path / "bucket-name"))
    assert BucketUrl.parse(Path("a/b")) == BucketUrl.parse("./a/b")


def test_a_relative_path_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert BucketUrl.parse("./store").bucket == os.path.join(tmp_path, "store")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "bucket/prefix",
        "s3://",
        "s3://x",
        "s3://bucket//a",
        "s3://bucket/a/../b",
        "s3://bucket/./a",
        "s3://AKIASECRET:hunter2@bucket/p",
        "https://user:hunter2@host/bucket",
        "gs://bucket",
        "file://host/path",
        "memory://",
        "memory://na me",
        "bu cket",
        "/data\0/x",
        "s3://bucket/run ",
        " s3://bucket/run",
        "s3://bucket/run\r",
        "s3://bucket/run\u00a0",
        "s3://bucket/run\u200b",
        "s3://bucket/a\tb",
        "/data/store\n",
        "./store ",
    ],
)
def test_other_texts_are_refused_without_repeating_a_secret(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        BucketUrl.parse(text)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"endpoint_url": "ftp://host"},
        {"endpoint_url": "http://user:hunter2@host"},
        {"endpoint_url": "http://host/?x=1"},
        {"endpoint_url": "http://host:0"},
        {"endpoint_url": "http://host:99999"},
        {"addressing_style": "sideways"},
        {"checksum": "sha1"},
        {"read_timeout_s": 0.0},
    ],
)
def test_wrong_s3_options_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError) as caught:
        S3Options(**options)  # type: ignore[arg-type]  # wrong on purpose
    assert "hunter2" not in str(caught.value)


def test_each_kind_opens_its_adapter(tmp_path: Path) -> None:
    memory = open_object_store(BucketUrl.parse("memory://shared"), s3=S3Options())
    assert isinstance(memory, MemoryStore)
    assert open_object_store(BucketUrl.parse("memory://shared"), s3=S3Options()) is memory
    directory = open_object_store(BucketUrl.parse(str(tmp_path)), s3=S3Options())
    assert isinstance(directory, DirectoryStore)
    assert directory.failure_domain == f"disk:{os.stat(tmp_path).st_dev}"
    directory.close()
    s3 = open_object_store(BucketUrl.parse("s3://bucket/p"), s3=S3Options(endpoint_url="http://127.0.0.1:1"))
    assert isinstance(s3, S3Store)
    assert (s3.url, s3.failure_domain) == ("s3://bucket", "host:http://127.0.0.1:1")


def test_a_directory_bucket_is_never_made(tmp_path: Path) -> None:
    with pytest.raises(BucketMissing):
        open_object_store(BucketUrl.parse(str(tmp_path / "unmounted")), s3=S3Options())
    assert not (tmp_path / "unmounted").exists()

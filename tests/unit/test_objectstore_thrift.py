"""Work that botocore need not do for each request: spared, and what is sent stays the same."""

from __future__ import annotations

import copy
import io
from typing import Any

import botocore.session
import pytest
from botocore.awsrequest import AWSPreparedRequest, AWSResponse

from durastore.objectstore import s3_thrift
from durastore.objectstore.location import S3Options
from durastore.objectstore.s3_client import Connector

PLACES = pytest.mark.parametrize(
    "bucket, options",
    [
        ("bucket", S3Options(region="eu-central-1")),
        ("dotted.bucket", S3Options(region="eu-central-1")),
        ("bucket", S3Options(region="us-east-1", endpoint_url="https://s3.example.org:9000/path")),
        ("bucket", S3Options(region="us-east-1", endpoint_url="http://127.0.0.1:9", addressing_style="virtual")),
    ],
)
_TOLD = ("X-Amz-Date", "Authorization", "amz-sdk-invocation-id")  # of the moment and of the attempt


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")


class Raw(io.BytesIO):
    """An answer without bytes, as urllib3 hands it over."""

    def stream(self, *_: object, **__: object) -> Any:
        yield self.read()


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _sent(client: Any, bucket: str, keys: list[str]) -> list[tuple[str, dict[str, str]]]:
    """URL and headers of the PUT and the HEAD of each key; nothing goes out."""
    seen: list[tuple[str, dict[str, str]]] = []

    def answer(request: AWSPreparedRequest, **_: object) -> AWSResponse:
        told = {name: _text(value) for name, value in request.headers.items() if name not in _TOLD}
        seen.append((f"{request.method} {request.url}", told))
        return AWSResponse(request.url, 200, {"ETag": '"e"', "Content-Length": "0"}, Raw())  # type: ignore[arg-type]

    client.meta.events.register("before-send.s3", answer)
    for key in keys:
        client.put_object(Bucket=bucket, Key=key, Body=b"bytes", Metadata={"a": "b"}, IfNoneMatch="*")
        client.head_object(Bucket=bucket, Key=key, ChecksumMode="ENABLED")
    return seen


def _evaluations(client: Any, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the endpoint's rules are asked from now on."""
    rules, asked = client._ruleset_resolver._provider.ruleset, list[dict[str, Any]]()
    evaluate = rules.evaluate

    def noted(given: dict[str, Any]) -> Any:
        asked.append(given)
        return evaluate(given)

    monkeypatch.setattr(rules, "evaluate", noted)
    return asked


@PLACES
def test_what_is_sent_is_the_same(bucket: str, options: S3Options, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = ["p/a", "p/b c%2F", "p/\N{LATIN SMALL LETTER E WITH ACUTE}"]
    spared = _sent(Connector(bucket, options).connect(), bucket, keys)
    monkeypatch.setattr("durastore.objectstore.s3_client.spare_repeated_work", lambda client, loader: None)
    plain = _sent(Connector(bucket, options).connect(), bucket, keys)
    for (url, headers), (plain_url, plain_headers) in zip(spared, plain, strict=True):
        agent, plain_agent = headers.pop("User-Agent"), plain_headers.pop("User-Agent")
        assert (url, headers) == (plain_url, plain_headers)
        assert agent.split()[0] == plain_agent.split()[0]
        assert agent.endswith(" durastore")


def test_the_rules_of_the_endpoint_are_asked_once_for_all_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Connector("bucket", S3Options(region="us-east-1", endpoint_url="http://127.0.0.1:9")).connect()
    asked = _evaluations(client, monkeypatch)
    assert len(_sent(client, "bucket", [f"p/{number}" for number in range(20)])) == 40
    assert len(asked) == 1


class Loader:
    """botocore's loader with another description of the endpoints."""

    def __init__(self, rules: Any) -> None:
        self.rules = rules

    def load_service_model(self, service: str, kind: str) -> Any:
        assert (service, kind) == ("s3", "endpoint-rule-set-1")
        return {"rules": self.rules}


@pytest.mark.parametrize(
    "rule",
    [
        {"fn": "isSet", "argv": [{"ref": "Key"}]},
        {"url": "https://{Bucket}.example.org/{Key}"},
        {"url": "https://example.org/{Key#part}"},
    ],
)
def test_a_parameter_that_a_rule_asks_for_stays(rule: dict[str, Any]) -> None:
    session = botocore.session.Session()
    client: Any = session.create_client("s3", region_name="us-east-1")
    s3_thrift.spare_repeated_work(client, Loader([{"conditions": [rule]}]))
    left = set(client._ruleset_resolver._param_definitions)
    assert "Key" in left
    assert not {"Prefix", "CopySource"} & left


def test_a_client_made_otherwise_is_left_alone() -> None:
    class Client:
        _ruleset_resolver: Any = None

    s3_thrift.spare_repeated_work(Client(), Loader([]))
    odd = Client()
    odd._ruleset_resolver = copy.copy(odd)
    odd._ruleset_resolver._param_definitions = ("Key",)
    s3_thrift.spare_repeated_work(odd, Loader([]))
    assert odd._ruleset_resolver._param_definitions == ("Key",)

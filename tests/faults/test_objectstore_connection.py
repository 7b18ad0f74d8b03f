"""Where the S3 adapter connects to, with whose credentials, and whom it trusts."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import random
import ssl
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from durastore import errors
from durastore.model import ObjectKey
from durastore.objectstore.crc import crc64nvme_b64
from durastore.objectstore.location import BucketUrl, S3Options, open_object_store
from durastore.objectstore.port import ObjectStore
from durastore.objectstore.s3_client import Connector
from durastore.objectstore.s3_ranged import RangedReads, _CredentialDoor
from durastore.upload.aio import aio_transport
from tests.faults.objectstore_scripted import Answer, ScriptedS3, SeenRequest, listing

KEY = ObjectKey("p/k")
HEADERS = {"ETag": '"e1"', "Last-Modified": "Sun, 06 Nov 1994 08:49:37 GMT"}


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")


def _serve(request: SeenRequest) -> Answer:
    if "list-type" in request.query:
        return Answer(body=listing(["p/k"]))
    if "range" in request.headers:
        return Answer(status=206, headers={**HEADERS, "Content-Range": "bytes 0-3/10"}, body=b"0123")
    return Answer(headers=HEADERS, body=b"0123456789")


@pytest.fixture
def server() -> Iterator[ScriptedS3]:
    with ScriptedS3() as server:
        server.script(_serve)
        yield server


def _open(options: S3Options) -> ObjectStore:
    return open_object_store(BucketUrl.parse("s3://bucket"), s3=options)


def _look(store: ObjectStore) -> None:
    """Use both clients."""
    assert store.head(KEY).size_bytes == 10
    assert store.fetch(KEY) == b"0123456789"
    assert store.fetch(KEY, offset=0, length=4) == b"0123"
    assert [row.key for page in store.list("p/") for row in page] == [KEY]
    store.close()


def _access_keys(server: ScriptedS3) -> set[str]:
    return {request.headers["authorization"].partition("Credential=")[2].partition("/")[0] for request in server.seen}


def test_the_endpoint_can_come_from_the_environment(server: ScriptedS3, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", server.endpoint_url)
    store = _open(S3Options(region="us-east-1"))
    assert store.failure_domain == f"host:{server.endpoint_url}"
    _look(store)
    assert {request.path for request in server.seen} == {
        "/bucket/p/k",
        "/bucket",
    }  # path style, as for any own endpoint


def test_variables_for_other_tools_change_nothing(server: ScriptedS3, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:1",
        "AWS_ENDPOINT": "http://127.0.0.1:1",
        "AWS_BUCKET": "another",
        "AWS_SKIP_SIGNATURE": "true",
        "AWS_S3_EXPRESS": "true",
        "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true",
        "AWS_REGION": "eu-north-1",
    }.items():
        monkeypatch.setenv(name, value)
    _look(_open(S3Options(endpoint_url=server.endpoint_url, region="us-west-2")))
    assert {request.path for request in server.seen} == {"/bucket/p/k", "/bucket"}
    assert all("/us-west-2/s3/aws4_request" in request.headers["authorization"] for request in server.seen)


def test_a_profile_brings_credentials_and_region(
    server: ScriptedS3, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = tmp_path / "config"
    answer = json.dumps({"Version": 1, "AccessKeyId": "AKIDPROFILE", "SecretAccessKey": "s", "SessionToken": "session"})
    script = tmp_path / "issue.py"
    script.write_text(f"print({answer!r})")
    config.write_text(
        f"[profile lab]\nregion = eu-west-3\ncredential_process = {sys.executable} {script}\n"
        "[profile other]\nregion = x\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    _look(_open(S3Options(endpoint_url=server.endpoint_url, profile="lab")))
    assert _access_keys(server) == {"AKIDPROFILE"}
    assert {request.headers["x-amz-security-token"] for request in server.seen} == {"session"}
    assert all("/eu-west-3/s3/" in request.headers["authorization"] for request in server.seen)
    with pytest.raises(errors.ConfigError):
        _open(S3Options(endpoint_url=server.endpoint_url, profile="absent")).check_bucket()


def test_rotated_credentials_reach_the_second_client_too() -> None:
    keys = iter(["one", "two"])

    def frozen() -> Any:
        return SimpleNamespace(access_key=next(keys), secret_key="s", token=None)

    door = _CredentialDoor(SimpleNamespace(get_frozen_credentials=frozen))
    first, second = door(), door()
    assert (first["access_key_id"], second["access_key_id"]) == ("one", "two")
    assert second["expires_at"] is not None
    left = second["expires_at"] - datetime.now(UTC)
    assert timedelta(0) < left <= timedelta(minutes=5)  # so that it is asked again before a key is long gone
    assert "two" not in repr(door)


@pytest.mark.parametrize(
    "options, bucket, endpoint, is_virtual",
    [
        ({"region": "eu-west-1"}, "bucket", "https://bucket.s3.eu-west-1.amazonaws.com", True),
        ({"region": "eu-west-1"}, "my.bucket", "https://s3.eu-west-1.amazonaws.com", False),
        ({"region": "eu-west-1", "addressing_style": "path"}, "bucket", "https://s3.eu-west-1.amazonaws.com", False),
        ({"endpoint_url": "https://minio.example:9000"}, "bucket", "https://minio.example:9000", False),
        (
            {"endpoint_url": "https://store.example", "addressing_style": "virtual"},
            "bucket",
            "https://bucket.store.example",
            True,
        ),
    ],
)
def test_both_clients_address_the_bucket_alike(
    options: dict[str, Any], bucket: str, endpoint: str, is_virtual: bool
) -> None:
    connector = Connector(bucket, S3Options(**{"region": "us-east-1", **options}))
    client = connector.connect()
    config = RangedReads(connector, client)._reader.config
    assert (config["endpoint"], config["virtual_hosted_style_request"] == "true") == (endpoint, is_virtual)
    urls: list[str] = []

    def stop(request: Any, **_: object) -> None:
        urls.append(request.url)
        raise InterruptedError

    client.meta.events.register("before-send.s3.HeadObject", stop)
    with pytest.raises(InterruptedError):
        client.head_object(Bucket=bucket, Key="k")
    assert urls == [f"{endpoint}/k" if is_virtual else f"{endpoint}/{bucket}/k"]
    client.close()


# --- TLS with a private authority -----------------------------------------------------------------------------------


def _certificate(
    name: str, key: ec.EllipticCurvePrivateKey, issuer: str, *, signer: ec.EllipticCurvePrivateKey
) -> x509.Certificate:
    def named(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    now = datetime.now(UTC)
    is_authority = name == issuer
    builder = (
        x509.CertificateBuilder()
        .subject_name(named(name))
        .issuer_name(named(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
    )
    if not is_authority:
        address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        builder = builder.add_extension(x509.SubjectAlternativeName([address]), critical=False)
    return builder.sign(signer, hashes.SHA256())


@pytest.fixture
def authority(tmp_path: Path) -> tuple[Path, ssl.SSLContext]:
    """A CA bundle, and a server context with a certificate that this CA signed."""
    root_key, leaf_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    root = _certificate("private CA", root_key, "private CA", signer=root_key)
    leaf = _certificate("server", leaf_key, "private CA", signer=root_key)
    bundle, chain = tmp_path / "ca.pem", tmp_path / "server.pem"
    bundle.write_bytes(root.public_bytes(serialization.Encoding.PEM))
    private = leaf_key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    chain.write_bytes(leaf.public_bytes(serialization.Encoding.PEM) + private)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain)
    return bundle, context


def test_a_private_authority_is_trusted_by_both_clients(
    authority: tuple[Path, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, context = authority
    with ScriptedS3(tls=context) as server:
        server.script(_serve)
        _look(_open(S3Options(endpoint_url=server.endpoint_url, region="us-east-1", ca_bundle=str(bundle))))
        monkeypatch.setenv("AWS_CA_BUNDLE", str(bundle))
        _look(_open(S3Options(endpoint_url=server.endpoint_url, region="us-east-1")))


@pytest.mark.parametrize("is_tls", [False, True])
def test_a_large_body_of_the_aio_transport_comes_whole(is_tls: bool, authority: tuple[Path, ssl.SSLContext]) -> None:
    """Its views are kept by whatever holds up the sending, a socket or a TLS layer, without a copy of ours."""
    data = random.Random(1).randbytes((5 << 20) + 3)

    async def send(options: S3Options) -> None:
        async with aio_transport("bucket", options=options, max_requests=4)() as transport:
            sent = memoryview(data)
            await transport.put(KEY, sent, crc64nvme=crc64nvme_b64(data), metadata={}, if_absent=False)
            await transport.upload_part(KEY, "u", number=1, body=sent[1:], crc64nvme=crc64nvme_b64(data[1:]))

    with ScriptedS3(tls=authority[1] if is_tls else None) as server:
        server.script(Answer(headers={"ETag": '"e"'}))
        bundle = str(authority[0]) if is_tls else None
        asyncio.run(send(S3Options(endpoint_url=server.endpoint_url, region="us-east-1", ca_bundle=bundle)))
        assert [seen.body for seen in server.seen] == [data, data[1:]]


def test_an_unknown_authority_is_not(authority: tuple[Path, ssl.SSLContext]) -> None:
    with ScriptedS3(tls=authority[1]) as server:
        server.script(_serve)
        store = _open(S3Options(endpoint_url=server.endpoint_url, region="us-east-1"))
        for read in (lambda: store.head(KEY), lambda: store.fetch(KEY, offset=0, length=4), lambda: store.fetch(KEY)):
            with pytest.raises(errors.EndpointUnreachable):
                read()
        assert server.seen == []
        store.close()
    missing = S3Options(endpoint_url="https://127.0.0.1:1", region="us-east-1", ca_bundle="/no/such/file.pem")
    with pytest.raises(errors.DurastoreError):
        _open(missing).fetch(KEY, offset=0, length=4)

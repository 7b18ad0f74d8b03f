"""What every test can ask for: a real S3 server, its credentials in the environment, the delete guard."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest

from durastore.demo.seaweed import SeaweedServer
from durastore.store.open_stores import forget_open_stores
from durastore.testing.strict_s3 import StrictS3
from tests.delete_guard import GUARD, DeleteGuard
from tests.unit.spool_lab import make_ballasts_small

hypothesis.settings.register_profile("durastore", deadline=None, print_blob=True)
hypothesis.settings.load_profile("durastore")


def pytest_configure() -> None:
    """No test may depend on, or reach, the credentials of whoever runs it."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "DURASTORE_"))]:
        del os.environ[name]
    os.environ["AWS_CONFIG_FILE"] = os.devnull
    os.environ["AWS_SHARED_CREDENTIALS_FILE"] = os.devnull
    os.environ["AWS_EC2_METADATA_DISABLED"] = "true"
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # tests run side by side: threads would spin for cores
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # begun in the background of a shell
        signal.signal(signal.SIGINT, signal.default_int_handler)
    make_ballasts_small()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is imported and collected stays: looking for garbage among a million such objects, in each process of the
    run and again in every child that it forks, costs more than many a test.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def runtime_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The tests share no requests with whatever else of durastore runs on this machine, nor with another test run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))
        yield
    forget_open_stores()  # of tests that left one as a killed process does


@pytest.fixture(autouse=True)
def delete_guard() -> Iterator[DeleteGuard]:
    """Fails the test if library code took a name or bytes away below a spool root, outside the doors made for it."""
    with GUARD.armed() as guard:
        yield guard
    breaches = guard.take_breaches()
    if breaches:
        pytest.fail("delete guard:\n" + "\n".join(map(str, breaches)), pytrace=False)


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedServer]:
    """One real S3 server for the whole run; take a fresh bucket from it with `make_bucket()`."""
    folder = tmp_path_factory.mktemp("seaweed")
    with SeaweedServer.start(folder / "server", log=folder / "log") as server:
        yield server


@pytest.fixture(scope="session")
def strict_server() -> Iterator[StrictS3]:
    """One strict S3 server for the whole run; `strict_s3` is how a test should take it."""
    with StrictS3() as server:
        yield server


@pytest.fixture
def strict_s3(strict_server: StrictS3) -> Iterator[StrictS3]:
    """The strict S3 server, honest until told otherwise; take a fresh bucket from it with `make_bucket()`."""
    strict_server.script()
    yield strict_server
    strict_server.script()


@pytest.fixture
def bucket(seaweed: SeaweedServer) -> str:
    """The name of a fresh, empty bucket."""
    return seaweed.make_bucket()


@pytest.fixture
def s3_client(seaweed: SeaweedServer) -> Any:
    """A boto3 client for looking at (and damaging) what the server holds, behind the library's back."""
    return seaweed.client()


@pytest.fixture
def aws_env(seaweed: SeaweedServer, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Put the server's credentials where the standard AWS chain looks; returns the whole environment for a child."""
    for name, value in seaweed.environment().items():
        monkeypatch.setenv(name, value)
    return dict(os.environ)

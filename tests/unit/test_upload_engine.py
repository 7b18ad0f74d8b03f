"""The engine's promises that need no endpoint: every future ends once, memory stays bounded, sessions are kept."""

from __future__ import annotations

import asyncio
import os
import random
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import CancelledError, Future, wait
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from durastore.errors import (
    ConfigError,
    CredentialsRefused,
    DiskFailed,
    DurastoreError,
    EndpointUnreachable,
    ForkedStore,
    IntegrityError,
    JournalFailed,
    StoreClosed,
)
from durastore.formats.upload_session import PartRecord, UploadSession
from durastore.objectstore.retrying import RetryPolicy
from durastore.upload.engine import Uploader
from durastore.upload.job import UploadJob, UploadLimits, UploadReply
from tests.unit.upload_fakes import FakeTransport, Pack

PART = 100
LIMITS = UploadLimits(part_bytes=PART, multipart_above=PART, budget_bytes=3 * PART, max_requests=8, max_jobs=4)
POLICY = RetryPolicy(budget_s=0.3, base_s=0.01, cap_s=0.05)


@pytest.fixture
def transport() -> FakeTransport:
    return FakeTransport()


@pytest.fixture
def uploader(transport: FakeTransport) -> Iterator[Uploader]:
    uploader = Uploader(transport.open, limits=LIMITS, policy=POLICY)
    yield uploader
    uploader.close(0)


def _pack(folder: Path, name: str, size_bytes: int) -> Pack:
    return Pack.make(folder, name, random.Random(name).randbytes(size_bytes))


@pytest.mark.parametrize("size_bytes", [0, 1, PART - 1, PART, PART + 1, 2 * PART, 7 * PART - 1, 7 * PART, 7 * PART + 1])
def test_what_arrives_is_the_file(
    tmp_path: Path, transport: FakeTransport, uploader: Uploader, size_bytes: int
) -> None:
    pack = _pack(tmp_path, "a", size_bytes)
    reply = uploader.submit(pack.job()).result(10)
    assert transport.objects[pack.key.text] == (pack.data, pack.job().metadata())
    assert (reply.write_id, reply.settled_by) == ("write-a", "answer")
    assert not transport.uploads
    if size_bytes > PART:
        assert pack.session is not None, "the record stays until the caller has recorded the upload"
        assert [part.size_bytes for part in pack.session.parts][:-1] == [PART] * (len(pack.session.parts) - 1)


def test_bytes_in_memory_stay_within_the_budget(tmp_path: Path, transport: FakeTransport, uploader: Uploader) -> None:
    packs = [_pack(tmp_path, f"p{n}", 10 * PART + n) for n in range(6)]
    for future in [uploader.submit(pack.job()) for pack in packs]:
        future.result(20)
    assert PART < transport.bytes_peak <= LIMITS.budget_bytes
    assert all(transport.objects[pack.key.text][0] == pack.data for pack in packs)


def test_a_part_larger_than_the_budget_still_goes(tmp_path: Path, transport: FakeTransport) -> None:
    limits = UploadLimits(part_bytes=PART, multipart_above=PART, budget_bytes=PART // 2)
    uploader = Uploader(transport.open, limits=limits, policy=POLICY)
    pack = _pack(tmp_path, "a", 5 * PART)
    uploader.submit(pack.job()).result(10)
    uploader.close(5)
    assert transport.bytes_peak == PART


def test_descriptors_are_closed(tmp_path: Path, uploader: Uploader) -> None:
    uploader.submit(_pack(tmp_path, "first", 10).job()).result(10)  # the loop has its own descriptors from here on
    before = len(os.listdir("/proc/self/fd"))
    for n in range(10):
        uploader.submit(_pack(tmp_path, f"{n}", 3 * PART).job()).result(10)
    uploader.close(5)
    assert len(os.listdir("/proc/self/fd")) <= before


def test_close_waits_for_what_is_under_way(tmp_path: Path, transport: FakeTransport, uploader: Uploader) -> None:
    packs = [_pack(tmp_path, f"p{n}", 3 * PART) for n in range(10)]
    futures = [uploader.submit(pack.job()) for pack in packs]
    uploader.close(20)
    assert all(isinstance(future.result(0), UploadReply) for future in futures)
    with pytest.raises(StoreClosed):
        uploader.submit(packs[0].job())
    uploader.close(0)


def test_close_in_a_hurry_keeps_the_session_and_a_new_engine_goes_on(tmp_path: Path, transport: FakeTransport) -> None:
    stuck = threading.Event()

    async def hold(op: str, nth: int) -> None:
        if op == "part" and nth == 4:
            stuck.set()
            await asyncio.Event().wait()

    transport.before = hold
    pack = _pack(tmp_path, "a", 6 * PART)
    uploader = Uploader(transport.open, limits=LIMITS, policy=POLICY)
    future = uploader.submit(pack.job())
    assert stuck.wait(10)
    uploader.close(0.05)
    with pytest.raises(StoreClosed, match="can be gone on with"):
        future.result(0)
    assert pack.session is not None
    assert pack.session.upload_id in transport.uploads, "closing aborts nothing"
    assert not transport.objects
    kept = len(pack.session.parts)
    assert kept >= 3

    transport.before = None
    sent = transport.calls["part"]
    again = Uploader(transport.open, limits=LIMITS, policy=POLICY)
    again.submit(pack.job()).result(10)
    again.close(5)
    assert transport.objects[pack.key.text][0] == pack.data
    assert transport.calls["part"] - sent <= 6 - kept
    assert transport.calls["create"] == 1


def test_every_future_ends_once_when_closed_at_any_moment(tmp_path: Path) -> None:
    for seed in range(6):
        chance = random.Random(seed)
        transport = FakeTransport()

        async def dawdle(op: str, nth: int, chance: random.Random = chance) -> None:
            await asyncio.sleep(chance.random() * 0.01)
            if chance.random() < 0.2:
                raise EndpointUnreachable("scripted")

        transport.before = dawdle
        uploader = Uploader(transport.open, limits=LIMITS, policy=POLICY)
        ended: list[Future[UploadReply]] = []
        packs = [_pack(tmp_path, f"{seed}-{n}", chance.randint(1, 5 * PART)) for n in range(25)]
        futures = [uploader.submit(pack.job()) for pack in packs]
        for future in futures:
            future.add_done_callback(ended.append)
        threading.Event().wait(chance.random() * 0.15)
        uploader.close(0)
        assert not wait(futures, timeout=0).not_done
        assert len(ended) == len(futures)
        for future, pack in zip(futures, packs, strict=True):
            error = future.exception()
            assert error is None or isinstance(error, DurastoreError)
            if error is None:
                assert transport.objects[pack.key.text][0] == pack.data
        for body, _ in transport.objects.values():
            assert body in [pack.data for pack in packs], "no half of a pack is ever an object"


def test_when_the_loop_dies_every_future_learns_of_it(tmp_path: Path, transport: FakeTransport) -> None:
    all_submitted = threading.Event()

    async def die(op: str, nth: int) -> None:
        if op == "complete":
            await asyncio.to_thread(all_submitted.wait, 10)
            asyncio.get_running_loop().stop()
            await asyncio.Event().wait()

    transport.before = die
    uploader = Uploader(transport.open, limits=LIMITS, policy=POLICY)
    futures = [uploader.submit(_pack(tmp_path, f"p{n}", 4 * PART).job()) for n in range(12)]
    all_submitted.set()
    done = wait(futures, timeout=10)
    assert not done.not_done
    for future in done.done:
        assert isinstance(future.exception(), DurastoreError)
    with pytest.raises(StoreClosed) as caught:
        uploader.submit(_pack(tmp_path, "late", 5).job())
    assert isinstance(caught.value.__cause__, RuntimeError)
    uploader.close(1)


def test_an_engine_that_cannot_connect_says_so_to_all(tmp_path: Path, transport: FakeTransport) -> None:
    def refuse() -> object:
        raise ConfigError("scripted: no client")

    uploader = Uploader(refuse, limits=LIMITS, policy=POLICY)  # type: ignore[arg-type]  # fails before it returns
    futures = []
    for n in range(3):
        try:
            futures.append(uploader.submit(_pack(tmp_path, f"p{n}", 5).job()))
        except ConfigError:
            break
    for future in futures:
        with pytest.raises(ConfigError):
            future.result(10)
    with pytest.raises(ConfigError):
        uploader.submit(_pack(tmp_path, "late", 5).job())
    uploader.close(1)


def test_submit_blocks_at_the_limit_and_close_frees_it(tmp_path: Path, transport: FakeTransport) -> None:
    async def hold(op: str, nth: int) -> None:
        await asyncio.Event().wait()

    transport.before = hold
    limits = UploadLimits(part_bytes=PART, multipart_above=PART, max_jobs=1, max_queued=2)
    uploader = Uploader(transport.open, limits=limits, policy=POLICY)
    for n in range(2):
        uploader.submit(_pack(tmp_path, f"p{n}", 5).job())
    outcome: list[BaseException] = []

    def third() -> None:
        try:
            uploader.submit(_pack(tmp_path, "third", 5).job())
        except StoreClosed as exc:
            outcome.append(exc)

    thread = threading.Thread(target=third)
    thread.start()
    thread.join(0.1)
    assert thread.is_alive()
    uploader.close(0)
    thread.join(5)
    assert len(outcome) == 1


def test_a_job_cancelled_before_it_began_is_never_sent(tmp_path: Path, transport: FakeTransport) -> None:
    go_on = threading.Event()

    async def hold(op: str, nth: int) -> None:
        await asyncio.to_thread(go_on.wait, 10)

    transport.before = hold
    limits = UploadLimits(part_bytes=PART, multipart_above=PART, max_jobs=1)
    uploader = Uploader(transport.open, limits=limits, policy=POLICY)
    first = uploader.submit(_pack(tmp_path, "first", 5).job())
    second_pack = _pack(tmp_path, "second", 5)
    second = uploader.submit(second_pack.job())
    assert second.cancel()
    go_on.set()
    first.result(10)
    uploader.close(5)
    with pytest.raises(CancelledError):
        second.result(0)
    assert second_pack.opened == 0
    assert second_pack.key.text not in transport.objects


def _job_with(pack: Pack, **changes: object) -> UploadJob:
    job = pack.job()
    fields = {name: getattr(job, name) for name in UploadJob.__slots__} | changes
    return UploadJob(**fields)


def test_an_engine_started_early_opens_its_transport_once_and_closes_without_a_job(transport: FakeTransport) -> None:
    opened: list[int] = []

    @asynccontextmanager
    async def open_transport() -> AsyncIterator[FakeTransport]:
        opened.append(1)
        async with transport.open() as inner:
            yield inner

    uploader = Uploader(open_transport, limits=LIMITS, policy=POLICY)
    for _ in range(2):
        uploader.start()
    uploader.close(5)
    uploader.start()
    assert opened == [1]


def test_a_transport_that_cannot_be_opened_early_is_told_at_the_first_job(tmp_path: Path) -> None:
    def refuse() -> object:
        raise CredentialsRefused("scripted")

    uploader = Uploader(refuse, limits=LIMITS, policy=POLICY)  # type: ignore[arg-type]  # fails before it returns
    uploader.start()
    with pytest.raises(CredentialsRefused, match="scripted"):
        uploader.submit(_pack(tmp_path, "a", 5).job()).result(10)
    uploader.close(5)


def test_bytes_in_memory_are_sent_and_the_file_is_not_opened(
    tmp_path: Path, transport: FakeTransport, uploader: Uploader
) -> None:
    pack, other = _pack(tmp_path, "small", PART), _pack(tmp_path, "other", PART)
    uploader.submit(_job_with(pack, body=pack.data)).result(10)
    assert transport.objects[pack.key.text][0] == pack.data
    with pytest.raises(IntegrityError, match="source changed"):
        uploader.submit(_job_with(other, body=pack.data)).result(10)
    assert other.key.text not in transport.objects
    assert (pack.opened, other.opened) == (0, 0)
    large = _pack(tmp_path, "large", 3 * PART)
    uploader.submit(_job_with(large, body=large.data)).result(10)  # in parts, as without
    assert (large.opened, transport.objects[large.key.text][0]) == (1, large.data)


def test_a_journal_that_fails_stops_its_job_and_leaves_no_unknown_upload(
    tmp_path: Path, transport: FakeTransport, uploader: Uploader
) -> None:
    def fail(session: UploadSession | None) -> None:
        raise JournalFailed("scripted")

    pack = _pack(tmp_path, "a", 3 * PART)
    with pytest.raises(JournalFailed):
        uploader.submit(_job_with(pack, on_session=fail)).result(10)
    assert not transport.uploads
    assert transport.calls["part"] == 0
    assert pack.path.read_bytes() == pack.data


def test_an_unexpected_error_of_a_callback_ends_its_own_job_only(
    tmp_path: Path, transport: FakeTransport, uploader: Uploader
) -> None:
    def fail(part: PartRecord) -> None:
        raise ZeroDivisionError("scripted")

    bad = uploader.submit(_job_with(_pack(tmp_path, "bad", 3 * PART), on_part=fail))
    good = uploader.submit(_pack(tmp_path, "good", 3 * PART).job())
    good.result(10)
    with pytest.raises(DurastoreError, match="ZeroDivisionError") as caught:
        bad.result(10)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_file_that_cannot_be_opened_is_a_disk_error(tmp_path: Path, uploader: Uploader) -> None:
    pack = _pack(tmp_path, "a", 5)
    pack.path.rename(tmp_path / "elsewhere")
    with pytest.raises(DiskFailed):
        uploader.submit(pack.job()).result(10)


@pytest.mark.parametrize("error", [CredentialsRefused("scripted"), IntegrityError("scripted")])
def test_what_cannot_pass_surfaces_at_once(
    tmp_path: Path, transport: FakeTransport, uploader: Uploader, error: DurastoreError
) -> None:
    async def refuse(op: str, nth: int) -> None:
        raise error

    transport.before = refuse
    with pytest.raises(type(error)):
        uploader.submit(_pack(tmp_path, "a", 5).job()).result(10)
    assert transport.calls["put"] == 1


def test_a_forked_child_is_told_and_its_close_touches_nothing(tmp_path: Path, uploader: Uploader) -> None:
    pack = _pack(tmp_path, "a", 5)
    uploader.submit(pack.job()).result(10)
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            uploader.close()
            uploader.submit(pack.job())
            os.write(write_end, b"submitted")
        except ForkedStore:
            os.write(write_end, b"refused")
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        assert pipe.read() == b"refused"
    os.waitpid(child, 0)
    assert uploader.submit(_pack(tmp_path, "b", 5).job()).result(10).settled_by == "answer"

"""Copies to host memory: what they hold, what they wait for, and that a GPU's computing stream is never waited for.

There is no GPU here: the tensors are the CPU's with a GPU's manners, whose copies happen only when the event behind
them is waited for, and each call of `torch.cuda` that matters is written down in order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from durastore.codec import encode
from durastore.codec.encode import SampleContext, encode_sample
from durastore.codec.host_memory import HostMemory, Lent
from durastore.codec.staging import Staged, Staging
from durastore.errors import DurastoreError, UnsupportedTensor
from durastore.model import Run, SampleId

FORBIDDEN = ("cpu", "item", "tolist", "numpy", "to", "cuda", "__bool__", "__float__", "__int__")


@dataclass
class FakeCuda:
    """`CudaCalls`: a compute stream, a side stream whose copies are late, and the order of it all."""

    log: list[str] = field(default_factory=list)
    late: list[Callable[[], None]] = field(default_factory=list)
    allocated: list[int] = field(default_factory=list)
    stream: str = "compute"
    fails: bool = False

    def allocate(self, size_bytes: int) -> torch.Tensor:
        self.allocated.append(size_bytes)
        return torch.full((size_bytes,), 0xAA, dtype=torch.uint8)

    def current_stream(self, device: torch.device) -> str:
        return self.stream

    def side_stream(self, device: torch.device) -> FakeSide:
        return FakeSide(self)

    def event(self) -> FakeEvent:
        return FakeEvent(self)

    @contextmanager
    def on(self, stream: object) -> Iterator[None]:
        before, self.stream = self.stream, str(stream)
        try:
            yield
        finally:
            self.stream = before


@dataclass
class FakeSide:
    cuda: FakeCuda

    def __str__(self) -> str:
        return "side"

    def wait_event(self, event: FakeEvent) -> None:
        self.cuda.log.append(f"side waits for {event.recorded_on}")


@dataclass
class FakeEvent:
    cuda: FakeCuda
    recorded_on: str = "nothing"
    due: int = 0

    def record(self, stream: object) -> None:
        self.recorded_on = str(stream)
        self.due = len(self.cuda.late)
        self.cuda.log.append(f"record on {stream}")

    def synchronize(self) -> None:
        self.cuda.log.append(f"wait for {self.recorded_on} in {threading.current_thread().name}")
        for at in range(self.due):
            self.cuda.late[at]()
            self.cuda.late[at] = lambda: None


class OnGpu(torch.Tensor):
    """A tensor that says it is in a GPU's memory. Copies from it are late; whatever would wait for them is an error."""

    fake: FakeCuda

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        source = next((arg for arg in args if isinstance(arg, OnGpu)), None)
        if name in FORBIDDEN:
            raise AssertionError(f"{name} on a GPU's tensor waits for its stream")
        if name == "copy_" and source is not None:
            target, fake = args[0], source.fake
            if fake.fails:
                raise RuntimeError("planned")
            assert (kwargs or {}).get("non_blocking") is True
            assert not isinstance(target, OnGpu)
            plain = source.as_subclass(torch.Tensor)
            fake.log.append(f"copy on {fake.stream}")
            fake.late.append(lambda: target.copy_(plain))
            return target
        result = super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]
        if isinstance(result, OnGpu) and source is not None:
            result.fake = source.fake
        return result

    def record_stream(self, stream: object) -> None:
        self.fake.log.append(f"keep for {stream}")


def on_gpu(value: torch.Tensor, fake: FakeCuda) -> OnGpu:
    tensor = value.clone().as_subclass(OnGpu)
    tensor.fake = fake
    return tensor


def begun(staging: Staging, tensors: dict[str, Any]) -> Staged:
    staged = staging.begin(tensors, may_wait=lambda: False)
    assert staged is not None
    return staged


# --- a GPU's tensors -----------------------------------------------------------------------------------------------


def test_a_gpu_copy_waits_for_what_was_computed_and_nothing_waits_for_the_copy() -> None:
    fake = FakeCuda()
    staging = Staging(cuda=fake, size_bytes=1 << 16)
    values = {"h": torch.arange(12.0).view(3, 4).bfloat16(), "ids": torch.arange(3)}
    staged = begun(staging, {name: on_gpu(value, fake) for name, value in values.items()})
    assert fake.log == [
        "record on compute",
        "side waits for compute",
        "copy on side",
        "keep for side",
        "copy on side",
        "keep for side",
        "record on side",
    ]
    found: dict[str, Any] = {}
    writer = threading.Thread(target=lambda: found.update(staged.wait()), name="writer")
    writer.start()
    writer.join()
    assert fake.log[7:] == ["wait for side in writer"]
    for name, value in values.items():
        assert torch.equal(found[name], value)
        assert found[name].dtype is value.dtype
    staged.release()


def test_strided_gpu_tensors_come_in_order() -> None:
    fake = FakeCuda()
    value = torch.arange(24, dtype=torch.int32).view(4, 6)
    staged = begun(Staging(cuda=fake, size_bytes=4096), {"t": on_gpu(value, fake).t()[::2]})
    assert torch.equal(staged.wait()["t"], value.t()[::2])


def test_memory_is_given_back_only_after_a_copy_that_nobody_waited_for() -> None:
    fake = FakeCuda()
    staging = Staging(cuda=fake, size_bytes=512)
    staged = begun(staging, {"h": on_gpu(torch.ones(4), fake)})
    staged.release()
    assert fake.log[-1].startswith("wait for side")
    staged.release()
    assert sum(line.startswith("wait") for line in fake.log) == 1


def test_a_copy_that_cannot_begin_costs_no_memory() -> None:
    fake = FakeCuda(fails=True)
    staging = Staging(cuda=fake, size_bytes=512)
    with pytest.raises(RuntimeError, match="planned"):
        staging.begin({"h": on_gpu(torch.ones(4), fake)})
    fake.fails = False
    assert torch.equal(begun(staging, {"h": on_gpu(torch.ones(4), fake)}).wait()["h"], torch.ones(4))
    assert fake.allocated == [512]


def test_memory_that_a_lost_device_may_still_write_to_is_lent_to_nobody() -> None:
    class Lost:
        def synchronize(self) -> None:
            raise RuntimeError("planned")

    staging = Staging(cuda=None, size_bytes=512)
    staged = begun(staging, {"h": np.ones(4)})
    staged.note(Lost())
    with pytest.raises(RuntimeError, match="planned"):
        staged.wait()
    staged.release()
    assert staging.begin({"h": np.ones(4)}, may_wait=lambda: False) is None


class LostCuda(FakeCuda):
    """A device that is lost once `lost` is set: whoever waits for an event hears of it, as do all later calls."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting, self.lost = threading.Event(), threading.Event()

    def event(self) -> FakeEvent:
        if self.lost.is_set():
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return LostEvent(self)


class LostEvent(FakeEvent):
    def synchronize(self) -> None:
        assert isinstance(self.cuda, LostCuda)
        self.cuda.waiting.set()
        assert self.cuda.lost.wait(20)
        raise RuntimeError("CUDA error: an illegal memory access was encountered")


@pytest.mark.parametrize("size", [40_000, 100_000])  # more than half of the staging memory; more than all of it
def test_a_put_that_waits_for_memory_ends_when_the_device_is_lost(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    fake = LostCuda()
    staging = Staging(cuda=fake, size_bytes=65_536)
    monkeypatch.setattr(encode, "GPU_STAGING", staging)
    errors: list[BaseException] = []

    def put(name: str) -> None:
        tensor = on_gpu(torch.zeros(size, dtype=torch.uint8), fake)
        try:
            encode_sample(
                SampleId(name), {"h": tensor}, context=SampleContext(run=Run.of({}), meta=None, input_digest=None)
            )
        except BaseException as exc:  # noqa: BLE001 - told below
            errors.append(exc)

    first = threading.Thread(target=put, args=("a",), daemon=True)
    second = threading.Thread(target=put, args=("b",), daemon=True)
    first.start()
    assert fake.waiting.wait(20)
    second.start()
    while not staging.waits:  # the second has no memory yet
        threading.Event().wait(0.01)
    fake.lost.set()
    first.join(20)
    second.join(20)
    assert not second.is_alive(), "waits for memory that nobody will give back"
    assert {type(error) for error in errors} == {RuntimeError, DurastoreError}


def test_put_takes_gpu_tensors_the_same_way(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeCuda()
    monkeypatch.setattr(encode, "GPU_STAGING", Staging(cuda=fake, size_bytes=1 << 16))
    values = {"h": torch.randn(5, 7).half(), "mask": torch.tensor([True, False]), "host": torch.arange(4)}
    given = {**{name: on_gpu(values[name], fake) for name in ("h", "mask")}, "host": values["host"]}
    context = SampleContext(run=Run.of({}), meta=None, input_digest=None)
    sample = encode_sample(SampleId("a"), given, context=context)
    assert b"".join(sample.chunks()) == b"".join(encode_sample(SampleId("a"), values, context=context).chunks())
    assert fake.log.count("copy on side") == 2
    assert [line for line in fake.log if line.startswith("wait")] == ["wait for side in MainThread"]  # once for all


# --- the CPU's tensors ---------------------------------------------------------------------------------------------


def _same(found: Any, value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return found.dtype is value.dtype and torch.equal(found, value.resolve_conj())
    return bool(found.dtype == value.dtype and found.shape == value.shape and found.tobytes() == value.tobytes())


@pytest.mark.parametrize(
    "value",
    [
        torch.arange(10.0),
        torch.randn(3, 4, 5).bfloat16(),
        torch.randn(6, 6).t(),
        torch.randn(6, 6)[::2, 1:5],
        torch.tensor(3.5, dtype=torch.float64),
        torch.zeros(0, 4),
        torch.tensor([True, False, True]),
        torch.tensor([1 + 2j, 3 - 1j]).conj(),
        torch.randn(4, requires_grad=True).detach().requires_grad_(),
        torch.arange(4, dtype=torch.bfloat16).reshape(1, 4)[:, 1],
        torch.zeros(4, dtype=torch.int16)[4::2],
        torch.zeros(5, 3, dtype=torch.bfloat16)[5:, 0],
        torch.zeros(1, dtype=torch.int16).expand(0),
        np.arange(12, dtype=np.int16).reshape(3, 4),
        np.arange(12, dtype=">f8").reshape(3, 4).T,
        np.array(7, dtype=np.int8),
        np.zeros((0, 3), np.float32),
    ],
    ids=lambda value: f"{type(value).__module__}-{value.dtype}-{'x'.join(map(str, value.shape))}",
)
@pytest.mark.parametrize("held_bytes", [0, 4 << 20])
def test_cpu_tensors_are_copied_at_once(value: Any, held_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("durastore.codec.staging._HELD_BYTES", held_bytes)
    before = value.clone().detach() if isinstance(value, torch.Tensor) else value.copy()
    staged = begun(Staging(cuda=None, size_bytes=1 << 16), {"first": np.ones(3, np.uint8), "t": value})
    if before.size if isinstance(before, np.ndarray) else before.numel():
        (value.detach() if isinstance(value, torch.Tensor) else value)[...] = 0  # the caller may go on with it
    copies = staged.wait()
    assert _same(copies["t"], before)
    assert _same(copies["first"], np.ones(3, np.uint8))


def test_a_tensor_that_torch_cannot_read_is_refused_by_name_and_costs_no_memory() -> None:
    staging = Staging(cuda=None, size_bytes=512)
    freed = torch.ones(4)
    freed.untyped_storage().resize_(0)
    with pytest.raises(UnsupportedTensor, match="tensor 'gone' cannot be read"):
        staging.begin({"gone": freed})
    begun(staging, {"t": np.ones(512, np.uint8)})


def test_cpu_tensors_go_through_page_locked_memory_as_well() -> None:
    staging = Staging(cuda=FakeCuda(), size_bytes=4096)
    values = {"t": torch.arange(5), "n": np.arange(6.0), "s": torch.randn(4, 4).t()}
    copies = begun(staging, values).wait()
    assert all(_same(copies[name], value) for name, value in values.items())


def test_what_is_no_plain_tensor_is_left_to_the_codec() -> None:
    odd = {"sparse": torch.eye(3).to_sparse(), "meta": torch.empty(3, device="meta"), "list": [1, 2]}
    copies = begun(Staging(cuda=None, size_bytes=512), {**odd, "t": torch.ones(2)}).wait()
    assert all(copies[name] is value for name, value in odd.items())


# --- memory --------------------------------------------------------------------------------------------------------


def _bytes(size: int) -> Any:
    return np.empty(size, np.uint8)


def take(memory: HostMemory, size: int) -> Lent | None:
    return memory.take(size, may_wait=lambda: False)


def test_memory_is_bounded_and_comes_back_whole() -> None:
    memory = HostMemory(_bytes, size_bytes=4096)
    lent = [take(memory, 1000) for _ in range(4)]
    assert all(each is not None for each in lent)
    assert take(memory, 1) is None
    assert memory.waits == 1
    for at in (1, 3, 0, 2):  # each with a neighbour before, behind, none and both
        each = lent[at]
        assert each is not None
        memory.give_back(each)
    assert take(memory, 4096) is not None


def test_lent_ranges_never_overlap() -> None:
    memory = HostMemory(_bytes, size_bytes=64 << 10)
    rng = np.random.default_rng(5)
    out: dict[int, Lent] = {}
    for mark in range(2000):
        if out and rng.random() < 0.5:
            key = int(rng.choice(list(out)))
            each = out.pop(key)
            assert (each.buffer == key % 251).all()
            memory.give_back(each)
        elif (lent := take(memory, int(rng.integers(1, 6000)))) is not None:
            lent.buffer[:] = mark % 251
            out[mark] = lent
    for each in out.values():
        memory.give_back(each)
    assert take(memory, 64 << 10) is not None


def test_a_sample_larger_than_all_memory_gets_its_own_one_at_a_time() -> None:
    memory = HostMemory(_bytes, size_bytes=512)
    large = take(memory, 5000)
    assert large is not None
    assert large.buffer.size >= 5000
    assert take(memory, 5000) is None
    assert take(memory, 512) is not None
    memory.give_back(large)
    assert take(memory, 5000) is not None


def test_the_model_waits_for_memory_until_a_sample_is_stored() -> None:
    staging = Staging(cuda=None, size_bytes=512)
    first = begun(staging, {"t": np.ones(512, np.uint8)})
    waiting = threading.Event()

    def may_wait() -> bool:
        waiting.set()
        return True

    found: list[Staged | None] = []
    model = threading.Thread(target=lambda: found.append(staging.begin({"t": np.zeros(9)}, may_wait=may_wait)))
    model.start()
    assert waiting.wait(10)
    assert not found
    first.release()
    model.join(10)
    assert found[0] is not None
    assert staging.waits == 1
    assert staging.begin({"t": np.ones(512, np.uint8)}, may_wait=lambda: False) is None

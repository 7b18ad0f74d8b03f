"""The codec beside others, one thread, on real hidden states: what it saves, and MB of elements per CPU second."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
import zstandard

from durastore.codec.planes import choose_planes, decode_chunk, encode_chunk
from tests.benchmarks.pairs import Line, cpu_s, in_turns

__all__ = ["codec_lines"]

CHUNK = 1 << 20


def codec_lines(samples: Sequence[torch.Tensor], *, turns: int) -> Iterator[Line]:
    raw = [memoryview(s.contiguous().view(torch.uint8).numpy().reshape(-1).data) for s in samples]
    ours = [_pack(data) for data in raw]
    size_mb = sum(map(len, raw)) / 1e6
    target = np.empty(CHUNK, np.uint8)
    for name, pack, unpack, goals in _peers():
        theirs = [pack(sample, data) for sample, data in zip(samples, raw, strict=True)]
        saved, peer_saved = _saved(ours, raw), _saved([[t] for t in theirs], raw)
        yield Line(name="saved", durastore=saved, peer=peer_saved, peer_name=name, unit="share", goal=goals[0])
        packing, peer_packing = in_turns(
            lambda: [_pack(data) for data in raw],
            lambda pack=pack: [pack(s, d) for s, d in zip(samples, raw, strict=True)],  # type: ignore[misc]  # bound now
            measure=cpu_s,
            n=turns,
        )
        yield Line(
            name="compress",
            durastore=size_mb / packing,
            peer=size_mb / peer_packing,
            peer_name=name,
            unit="MB per CPU-s",
            goal=goals[1],
        )
        unpacking, peer_unpacking = in_turns(
            lambda: [_unpack(stored, data, target=target) for stored, data in zip(ours, raw, strict=True)],
            lambda unpack=unpack, theirs=theirs: [unpack(t) for t in theirs],  # type: ignore[misc]  # bound now
            measure=cpu_s,
            n=turns,
        )
        yield Line(
            name="decompress",
            durastore=size_mb / unpacking,
            peer=size_mb / peer_unpacking,
            peer_name=name,
            unit="MB per CPU-s",
            goal=goals[2],
        )


def _pack(data: memoryview) -> list[bytes]:
    """As `encode_sample` does it: planes chosen once a tensor, then chunk by chunk."""
    packed = choose_planes(data, "BF16")
    return [b"".join(encode_chunk(data[i : i + CHUNK], "BF16", packed=packed)) for i in range(0, len(data), CHUNK)]


def _unpack(stored: Sequence[bytes], data: memoryview, *, target: np.ndarray[Any, np.dtype[np.uint8]]) -> int:
    for number, chunk in enumerate(stored):
        decode_chunk(memoryview(chunk), "BF16", out=target[: min(CHUNK, len(data) - number * CHUNK)])
    return len(stored)


def _saved(stored: Sequence[Sequence[Any]], raw: Sequence[memoryview]) -> float:
    return 1 - sum(len(piece) for pieces in stored for piece in pieces) / sum(map(len, raw))


Pack = Callable[[torch.Tensor, memoryview], Any]


def _peers() -> Iterator[tuple[str, Pack, Callable[[Any], object], tuple[str, str, str]]]:
    """Name, packing, unpacking, and the goals for saving, packing and unpacking."""
    import blosc2
    import zipnn

    nn = zipnn.ZipNN(bytearray_dtype="bfloat16", input_format="byte", threads=1)
    # it changes what it is given, so it gets a copy, which costs 1 % of the time
    yield "ZipNN", (lambda _, data: nn.compress(bytearray(data))), nn.decompress, (">= 1.0", ">= 1.2", ">= 0.8")
    blosc2.set_nthreads(1)
    yield (
        f"blosc2 {blosc2.__version__} shuffle+zstd-1",
        (
            lambda _, data: blosc2.compress2(
                bytes(data), typesize=2, codec=blosc2.Codec.ZSTD, clevel=1, filters=[blosc2.Filter.SHUFFLE]
            )
        ),
        blosc2.decompress2,
        (">= 1.0", ">= 1.0", ">= 0.5"),
    )
    zstd = zstandard.ZstdCompressor(level=3)
    yield (
        f"zstd-3 ({zstandard.__version__})",
        (lambda _, data: zstd.compress(data)),
        zstandard.ZstdDecompressor().decompress,
        (">= 1.0", ">= 1.0", ">= 0.8"),
    )

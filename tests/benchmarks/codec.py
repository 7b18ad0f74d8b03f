"""The codec beside others, one thread, on real hidden states: what it saves, and MB of elements per CPU second."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import zstandard

from durastore.codec.columns import columns_of
from durastore.codec.decode import decode_tensors
from durastore.codec.encode import CHUNK_BYTES, SampleContext, encode_sample
from durastore.codec.header import parse_header
from durastore.codec.planes import Piece, decode_chunk, encode_chunk
from durastore.codec.selection import plan_rows
from durastore.model import Run, SampleId
from tests.benchmarks.pairs import Line, cpu_s, in_turns

__all__ = ["codec_lines"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A way to pack a tensor, given also as bytes, into pieces, and to unpack these, joined, into that many bytes."""

    name: str
    pack: Callable[[torch.Tensor, memoryview], Sequence[Piece]]
    unpack: Callable[[bytes, int], object]


def codec_lines(samples: Sequence[torch.Tensor], *, turns: int) -> Iterator[Line]:
    """The default level, then the dense one, then small samples: by the codec alone, and as whole samples.

    The dense level is for saving 33 %: 1.12 times what ZipNN saves of these states. A whole sample is `encode_sample`
    and `decode_tensors`: copy, digests, header and its checks included, of which ZipNN does nothing.
    """
    # As in a process that runs a model: once it has freed a large block, malloc keeps memory instead of giving it back.
    # Without that most of the time, theirs and ours, goes into page faults.
    large = np.empty(31 << 20, np.uint8)
    del large
    codec, zipnn = _codec(is_dense=False), _zipnn()
    yield from _compare(codec, zipnn, samples, turns=turns, goals=(">= 1.0", ">= 1.2", ">= 0.8"))
    yield from _compare(_codec(is_dense=True), zipnn, samples, turns=turns, goals=(">= 1.12", ">= 0.3", ">= 0.2"))
    yield from _compare(codec, _blosc(), samples, turns=turns, goals=(">= 1.0", ">= 1.0", ">= 0.5"))
    yield from _compare(codec, _zstd(), samples, turns=turns, goals=(">= 1.0", ">= 1.0", ">= 0.8"))
    yield from _compare(_whole(", whole sample"), zipnn, samples, turns=turns, goals=(None, ">= 0.5", ">= 0.4"))
    for tokens, size in ((56, "64 KB"), (15, "17 KB")):
        small = _of_one_layer(samples, tokens=tokens)
        named = replace(codec, name=f", {size}")
        yield from _compare(named, zipnn, small, turns=turns, goals=(">= 1.0", ">= 0.8", ">= 0.8"))
        whole = _whole(f", whole sample of {size}")
        yield from _compare(whole, zipnn, small, turns=turns, goals=(None, ">= 0.25", ">= 0.25"))
    yield _decoding_memory(samples)


def _decoding_memory(samples: Sequence[torch.Tensor]) -> Line:
    """Peak memory of decoding a tensor of 66 MB, beside the tensor itself: its chunks are decoded where they belong."""
    way = _whole("")
    tensor = torch.cat([*samples] * 7)
    packed = b"".join(way.pack(tensor, memoryview(b"")))
    tracemalloc.start()
    way.unpack(packed, tensor.nbytes)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return Line(
        name="peak memory of decoding",
        durastore=peak / 1e6,
        peer=tensor.nbytes / 1e6,
        peer_name="the tensor",
        unit="MB",
        goal="<= 1.1",
    )


def _of_one_layer(samples: Sequence[torch.Tensor], *, tokens: int) -> list[torch.Tensor]:
    """The same states as many small tensors [tokens, 576]."""
    return [
        sample[at : at + tokens, layer].contiguous()
        for sample in samples
        for at in range(0, len(sample) - tokens + 1, tokens)
        for layer in range(sample.shape[1])
    ]


def _compare(
    ours: Way, theirs: Way, samples: Sequence[torch.Tensor], *, turns: int, goals: tuple[str | None, str, str]
) -> Iterator[Line]:
    """What is saved (where there is a goal for it), packing and unpacking."""
    raw = [memoryview(s.view(torch.uint8).numpy().reshape(-1).data) for s in samples]
    size_mb = sum(map(len, raw)) / 1e6
    packed, other = ([b"".join(pieces) for pieces in _packed(way, samples, raw)] for way in (ours, theirs))
    saved, other_saved = (1 - sum(map(len, found)) / sum(map(len, raw)) for found in (packed, other))
    if goals[0] is not None:
        yield Line(
            name=f"saved{ours.name}",
            durastore=saved,
            peer=other_saved,
            peer_name=theirs.name,
            unit="share",
            goal=goals[0],
        )
    packing = in_turns(
        lambda: _packed(ours, samples, raw), lambda: _packed(theirs, samples, raw), measure=cpu_s, n=turns
    )
    unpacking = in_turns(
        lambda: _unpacked(ours, packed, raw), lambda: _unpacked(theirs, other, raw), measure=cpu_s, n=turns
    )
    for name, (took, other_took), goal in (("compress", packing, goals[1]), ("decompress", unpacking, goals[2])):
        yield Line(
            name=name + ours.name,
            durastore=size_mb / took,
            peer=size_mb / other_took,
            peer_name=theirs.name,
            unit="MB per CPU-s",
            goal=goal,
        )


def _packed(way: Way, samples: Sequence[torch.Tensor], raw: Sequence[memoryview]) -> list[Sequence[Piece]]:
    return [way.pack(sample, data) for sample, data in zip(samples, raw, strict=True)]


def _unpacked(way: Way, packed: Sequence[bytes], raw: Sequence[memoryview]) -> int:
    for found, data in zip(packed, raw, strict=True):
        way.unpack(found, len(data))
    return len(packed)


def _codec(*, is_dense: bool) -> Way:
    """As `encode_sample` and `decode_tensors` do it, for samples of one chunk."""

    def pack(sample: torch.Tensor, data: memoryview) -> Sequence[Piece]:
        assert len(data) <= CHUNK_BYTES
        words = len(data) // 2
        # a pack is written from these pieces: nothing joins them
        return encode_chunk(data, "BF16", columns=columns_of(sample.shape, "BF16", words=words), is_dense=is_dense)

    def unpack(packed: bytes, size: int) -> object:
        out = np.empty(size, np.uint8)
        decode_chunk(memoryview(packed), "BF16", out=out)
        return out

    return Way(name=", dense level" if is_dense else "", pack=pack, unpack=unpack)


def _whole(name: str) -> Way:
    context = SampleContext(run=Run.of({}), meta=None, input_digest=None, compress="auto")

    def pack(sample: torch.Tensor, _: memoryview) -> Sequence[Piece]:
        encoded = encode_sample(SampleId("s/1"), {"hidden_states": sample}, context=context)
        return [encoded.header, *encoded.payload]

    def unpack(packed: bytes, _: int) -> object:
        header, view = parse_header(packed, total_length=len(packed)), memoryview(packed)
        selection = plan_rows(header, None, rows=None)
        return decode_tensors(header, selection, buffers=[view[r.offset : r.offset + r.length] for r in selection])

    return Way(name=name, pack=pack, unpack=unpack)


def _zipnn() -> Way:
    import zipnn

    nn = zipnn.ZipNN(bytearray_dtype="bfloat16", input_format="byte", threads=1)

    def pack(_: torch.Tensor, data: memoryview) -> Sequence[Piece]:
        return [nn.compress(bytearray(data))]  # it changes what it is given, so it gets a copy, for 1 % of the time

    return Way(name="ZipNN", pack=pack, unpack=lambda packed, _: nn.decompress(packed))


def _blosc() -> Way:
    import blosc2

    blosc2.set_nthreads(1)

    def pack(_: torch.Tensor, data: memoryview) -> Sequence[Piece]:
        how = {"typesize": 2, "codec": blosc2.Codec.ZSTD, "clevel": 1, "filters": [blosc2.Filter.SHUFFLE]}
        return [blosc2.compress2(bytes(data), **how)]

    return Way(
        name=f"blosc2 {blosc2.__version__} shuffle+zstd-1",
        pack=pack,
        unpack=lambda packed, _: blosc2.decompress2(packed),
    )


def _zstd() -> Way:
    packer, unpacker = zstandard.ZstdCompressor(level=3), zstandard.ZstdDecompressor()
    return Way(
        name=f"zstd-3 ({zstandard.__version__})",
        pack=lambda _, data: [packer.compress(data)],
        unpack=lambda packed, _: unpacker.decompress(packed),
    )

"""One piece of a compressed chunk as one zstd frame.

Duty: zstd with the settings that suit byte planes. Must never unpack a frame that does not say, before anything is
allocated for it, that it holds exactly what is expected.
"""

from __future__ import annotations

import threading

import zstandard

__all__ = ["FrameFault", "compress", "decompress"]

_LEVEL = 1
_local = threading.local()


class FrameFault(ValueError):
    """This is not one frame of the size that is expected."""


def compress(data: memoryview) -> bytes:
    """One frame that tells its content size."""
    found: zstandard.ZstdCompressor | None = getattr(_local, "compressor", None)
    if found is None:
        # One for each thread, as the library asks. Hidden states repeat no byte strings: what is found costs more than
        # it saves, so a table of 64 places hardly looks for them.
        parameters = zstandard.ZstdCompressionParameters.from_level(
            _LEVEL, strategy=zstandard.STRATEGY_FAST, min_match=7, hash_log=6, window_log=17, write_content_size=True
        )
        found = _local.compressor = zstandard.ZstdCompressor(compression_params=parameters)
    stream = found.compressobj(size=data.nbytes)  # `compress` would first make room for what does not shrink at all
    return stream.compress(data) + stream.flush()


def decompress(frame: memoryview, *, size: int) -> bytes:
    """The `size` bytes of `frame`. Raises `FrameFault` for anything else, in time."""
    found: zstandard.ZstdDecompressor | None = getattr(_local, "decompressor", None)
    if found is None:
        found = _local.decompressor = zstandard.ZstdDecompressor()
    try:
        if zstandard.get_frame_parameters(frame).content_size != size:
            raise FrameFault(f"a frame is of another size than {size}")
        data = found.decompress(frame, max_output_size=size, allow_extra_data=False)
    except zstandard.ZstdError as exc:
        raise FrameFault(f"a frame cannot be decompressed: {exc}") from exc
    if len(data) != size:
        raise FrameFault(f"a frame holds {len(data)} bytes in place of {size}")
    return data

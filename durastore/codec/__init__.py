"""Tensors to sample bytes and back: one valid, self-describing safetensors file a sample."""

from __future__ import annotations

from durastore.codec.decode import decode_tensors, scan_sample
from durastore.codec.encode import EncodedSample, SampleContext, encode_sample
from durastore.codec.header import BytesLike, SampleHeader, header_size, parse_header
from durastore.codec.selection import ChunkRead, Selection, plan_rows

__all__ = [
    "BytesLike",
    "ChunkRead",
    "EncodedSample",
    "SampleContext",
    "SampleHeader",
    "Selection",
    "decode_tensors",
    "encode_sample",
    "header_size",
    "parse_header",
    "plan_rows",
    "scan_sample",
]

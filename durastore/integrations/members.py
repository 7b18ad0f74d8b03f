"""A member of a pack, as any tar reader hands it out, made into a sample again.

Duty: decode the bytes of one `<id>.safetensors` member, checked against the digests in its own header. What the
manifest would tell (that this member is still the sample of its id) a tar alone cannot: `Dataset` looks there.
"""

from __future__ import annotations

from durastore.codec.header import BytesLike, parse_header
from durastore.codec.selection import plan_rows
from durastore.model import Sample
from durastore.read.sample import decoded_sample

__all__ = ["decode_member"]


def decode_member(data: BytesLike) -> Sample:
    """The sample in these bytes. `IntegrityError` where they are not whole, or a chunk does not match its digest."""
    view = memoryview(data).cast("B")
    header = parse_header(view, total_length=len(view))
    selection = plan_rows(header, None, rows=None)
    buffers = [view[read.offset : read.offset + read.length] for read in selection]
    return decoded_sample(header, selection, buffers=buffers)

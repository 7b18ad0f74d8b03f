"""Whether a sample that is stored already holds the same content in other bytes.

Duty: compare what was put with what is stored, whatever codec either has. Must never take doubt for equality.
"""

from __future__ import annotations

from collections.abc import Callable

from durastore.codec.encode import EncodedSample, SampleContext, encode_sample
from durastore.errors import IntegrityError, SampleAbsent
from durastore.model import Digest, Run, Sample

__all__ = ["find_equal"]


def find_equal(sample: EncodedSample, read: Callable[[str], Sample], *, run: Run) -> Digest | None:
    """Header digest of the stored sample of this id if it differs in nothing but its codec: another `compress`, or
    another version of zstd, gives other bytes for the same content. Network errors pass.
    """
    try:
        stored = read(sample.sample_id.text)
    except (SampleAbsent, IntegrityError):
        return None
    context = SampleContext(run=run, meta=stored.meta, input_digest=stored.input_digest, provenance=stored.provenance)
    content = encode_sample(sample.sample_id, stored.tensors, context=context).content_digest
    return stored.digest if content == sample.content_digest else None

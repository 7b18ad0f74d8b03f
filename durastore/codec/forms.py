"""What the samples of one form share: tensors of the same names, dtypes and shapes, stored as they are.

Duty: where each chunk of such a sample lies, and its header with gaps for what differs (id, meta, input, digests):
among small samples rendering and parsing JSON anew would be most of the cost. Must never hand out a header that the
reader's own parser would not take (case B67): each form was made from one that it took and makes that one again, what
fills the gaps cannot end a text early, and every `_LOOK_EVERY`-th header is parsed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from json.encoder import encode_basestring
from typing import Any, NamedTuple

from xxhash import xxh3_128_hexdigest

from durastore.codec.header import CHECK_AT, CHECK_END, NO_CHECK, parse_header
from durastore.codec.render import render_header
from durastore.errors import IntegrityError
from durastore.model import SampleId, TensorSpec, render_json

__all__ = ["Form", "check_readable", "make_form", "with_digests"]

_LOOK_EVERY = 256
_FEW_TENSORS = 64
_MAX_META = 64 << 10  # so that no header nears its limits, and few samples of so large a meta are small
# Marks for the gaps, of Unicode's private use area: tensors whose names have one of them get no form.
_DIGESTS, _ID, _INPUT, _META = 0xE000, 0xE100, 0xE101, 0xE102


class Cut(NamedTuple):
    """A tensor's bytes in the sample's payload, and its chunks."""

    whole: slice
    chunks: tuple[slice, ...]


class Form:
    """Thread-safe: everything in it stays as it was made, but a count that may be off."""

    __slots__ = ("_digest_gaps", "_pieces", "_uses", "cuts", "schema", "size_bytes", "specs")

    def __init__(self, specs: Sequence[TensorSpec], *, pieces: Sequence[str], schema: str) -> None:
        """`pieces`: the header's text after its length, with gaps at the odd places, in the order of `_gaps`."""
        self.specs = tuple(replace(spec, chunk_digests=()) for spec in specs)
        self.schema = schema
        self.cuts = _cuts_of(specs)
        self.size_bytes = sum(sum(spec.chunk_sizes) for spec in specs)
        self._pieces = list(pieces)
        self._digest_gaps = [7 + 2 * place for place in _places_by_name(specs)]
        self._uses = 0

    def takes(self, meta: str) -> bool:
        """Whether a sample with this meta may be of this form."""
        return len(meta) <= _MAX_META

    def header(self, sample_id: SampleId, *, meta: str, input_hex: str | None, digests: Sequence[str]) -> bytes:
        """The header's bytes: just those that `render_header` makes. `IntegrityError` if the parser refuses them."""
        pieces = self._pieces.copy()
        pieces[1] = _in_json(sample_id.text, times=2)
        pieces[3] = "null" if input_hex is None else f'\\"{input_hex}\\"'
        pieces[5] = _in_json(meta, times=1)
        for gap, found in zip(self._digest_gaps, digests, strict=True):
            pieces[gap] = found
        header = _sealed("".join(pieces))
        self._uses += 1
        if self._uses % _LOOK_EVERY == 0:
            length = len(header) + self.size_bytes
            check_readable(header, sample_id, specs=with_digests(self.specs, digests), total_length=length)
        return header


def with_digests(specs: Sequence[TensorSpec], digests: Sequence[str]) -> tuple[TensorSpec, ...]:
    """The tensors of a form with the chunk digests of one sample: for each tensor all of them, joined."""
    found = [tuple(text[at : at + 32] for at in range(0, len(text), 32)) for text in digests]
    return tuple(replace(spec, chunk_digests=each) for spec, each in zip(specs, found, strict=True))


def check_readable(header: bytes, sample_id: SampleId, *, specs: Sequence[TensorSpec], total_length: int) -> None:
    """What is about to be acknowledged can be decoded: the reader's own parser finds what was put in (case B67)."""
    found = parse_header(header, total_length=total_length)
    if found.sample_id != sample_id or found.tensors != tuple(specs):
        raise IntegrityError(f"sample {sample_id}: its header tells of another sample than was put; nothing was stored")


def make_form(header: bytes, facts: Mapping[str, Any], *, specs: Sequence[TensorSpec], schema: str) -> Form | None:
    """The form of a sample whose `header` the reader's parser took (`facts` are as `render_header` wants them); None
    where there is no use for one, or where it does not make this very header again.
    """
    if len(specs) > _FEW_TENSORS or any(spec.codec != "raw" for spec in specs):
        return None
    marked = [replace(spec, chunk_digests=(chr(_DIGESTS + place),)) for place, spec in enumerate(specs)]
    blank = {**facts, "id": chr(_ID), "input": chr(_INPUT), "meta": chr(_META)}
    text = render_header(blank, marked, run_text=None)[8:].decode().rstrip(" ")
    text = text[: CHECK_AT - 8] + NO_CHECK + text[CHECK_END - 8 :]
    quoted = r'\\"{}\\"'
    gaps = [chr(_ID), quoted.format(chr(_INPUT)), quoted.format(chr(_META))]
    gaps += [chr(_DIGESTS + place) for place in _order_by_name(specs)]
    pieces = re.split("(" + "|".join(gaps) + ")", text)
    if [piece.strip('\\"') for piece in pieces[1::2]] != [gap.strip('\\"') for gap in gaps]:
        return None  # a name that has a mark in it
    form = Form(specs, pieces=pieces, schema=schema)
    again = form.header(
        SampleId(facts["id"]),
        meta=render_json(facts["meta"]),
        input_hex=facts["input"],
        digests=["".join(spec.chunk_digests) for spec in specs],
    )
    return form if again == header else None


def _order_by_name(specs: Sequence[TensorSpec]) -> list[int]:
    """Numbers of the tensors in the order in which their facts stand in the header."""
    return sorted(range(len(specs)), key=lambda place: specs[place].name)


def _places_by_name(specs: Sequence[TensorSpec]) -> list[int]:
    order = _order_by_name(specs)
    return [order.index(place) for place in range(len(specs))]


def _cuts_of(specs: Sequence[TensorSpec]) -> tuple[Cut, ...]:
    cuts: list[Cut] = []
    at = 0
    for spec in specs:
        ends = list(accumulate(spec.chunk_sizes, initial=at))
        cuts.append(Cut(slice(at, ends[-1]), tuple(slice(start, stop) for start, stop in pairwise(ends))))
        at = ends[-1]
    return tuple(cuts)


def _in_json(text: str, *, times: int) -> str:
    """`text` as it stands inside of a JSON text, or (twice) of JSON within a JSON text."""
    if '"' in text or "\\" in text or not text.isprintable():
        for _ in range(times):
            text = encode_basestring(text)[1:-1]
    return text


def _sealed(text: str) -> bytes:
    """As `seal_header`, of a text whose limits were looked at."""
    raw = text.encode()
    raw += b" " * (-len(raw) % 8)
    header = len(raw).to_bytes(8, "little") + raw
    check = xxh3_128_hexdigest(header).encode()  # its own digits are zeros, as they have to be for this
    return header[:CHECK_AT] + check + header[CHECK_END:]

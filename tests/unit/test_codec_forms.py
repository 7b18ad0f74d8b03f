"""Forms: what is filled into a known header is byte for byte what would have been rendered anew."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from durastore.codec import EncodedSample, SampleContext, encode, encode_sample, forms, parse_header, scan_sample
from durastore.errors import IntegrityError, InvalidSampleId
from durastore.model import Digest, Run, SampleId

RUN = Run.of({"model": "m"})
TEXTS = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=12)
IDS = st.one_of(
    TEXTS, st.sampled_from(['say "so"', "back\\slash", "tab\u00a0and\ue000mark", "a/b.c/ü", "\ue100\ue102"])
)
METAS = st.dictionaries(
    TEXTS, st.one_of(st.integers(), TEXTS, st.none(), st.floats(allow_nan=False, allow_infinity=False)), max_size=3
)
TENSORS = st.dictionaries(
    st.one_of(st.sampled_from(["h", "token_ids", 'x"y', "\ue000", "\ue101", "\ue102q"]), TEXTS),
    st.sampled_from(
        [np.zeros((3, 4), np.float32), np.arange(5), np.empty((0, 3)), np.float16(1), np.ones(7, np.uint8)]
    ),
    min_size=1,
    max_size=4,
)


@pytest.fixture(autouse=True)
def no_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encode, "_FORMS", {})


def context(**given: Any) -> SampleContext:
    return SampleContext(**{"run": RUN, "meta": None, "input_digest": None, **given})


def whole(sample: EncodedSample) -> bytes:
    return b"".join(sample.chunks())


@given(ids=st.lists(IDS, min_size=2, max_size=4), tensors=TENSORS, meta=METAS, has_input=st.booleans())
@settings(max_examples=150, deadline=None)
def test_a_sample_of_a_known_form_has_the_bytes_of_one_encoded_anew(
    ids: list[str], tensors: dict[str, Any], meta: dict[str, Any], has_input: bool
) -> None:
    encode._FORMS.clear()
    encode_sample(SampleId("first"), {name: value * 0 for name, value in tensors.items()}, context=context())
    assert encode._FORMS or any("\ue000" <= letter <= "\ue102" for letter in "".join(tensors))
    for number, text in enumerate(ids):
        try:
            sample_id = SampleId(text)
        except InvalidSampleId:
            continue
        digest = Digest.of(bytes([number])) if has_input else None
        known = encode_sample(sample_id, tensors, context=context(meta=meta, input_digest=digest))
        kept = dict(encode._FORMS)
        encode._FORMS.clear()
        anew = encode_sample(sample_id, tensors, context=context(meta=meta, input_digest=digest))
        assert whole(known) == whole(anew)
        assert known._replace(payload=(), described=(), digests=None) == anew._replace(payload=(), described=())
        assert known.specs == anew.specs == parse_header(known.header, total_length=known.length).tensors
        assert known.content_digest == anew.content_digest
        encode._FORMS.update(kept)


def test_only_what_is_the_same_shares_a_form() -> None:
    tensor = torch.ones(4, 4)
    encode_sample(SampleId("a"), {"h": tensor}, context=context())
    assert len(encode._FORMS) == 1
    encode_sample(SampleId("b"), {"h": tensor * 2}, context=context(meta={"n": 1}, input_digest=Digest.of(b"")))
    assert len(encode._FORMS) == 1
    others: list[tuple[dict[str, Any], SampleContext]] = [
        ({"h": tensor[:3]}, context()),
        ({"g": tensor}, context()),
        ({"h": tensor.half()}, context()),
        ({"h": tensor}, context(provenance="asserted")),
        ({"h": tensor}, context(run=Run.of({"model": "other"}))),
    ]
    for number, (tensors, other) in enumerate(others, 2):
        sample = encode_sample(SampleId("c"), tensors, context=other)
        assert len(encode._FORMS) == number
        header = scan_sample(whole(sample))
        assert (header.run, header.provenance, header.tensors) == (other.run.digest, other.provenance, sample.specs)


def test_what_may_be_compressed_has_no_form_and_what_carries_its_run_is_not_filled() -> None:
    large = {"h": np.zeros(64 << 10, np.uint8)}
    encode_sample(SampleId("a"), large, context=context(compress="auto"))
    encode_sample(SampleId("a"), {"h": np.zeros(8, np.uint8)}, context=context(compress="planes-zstd"))
    assert not encode._FORMS
    assert (
        parse_header(encode_sample(SampleId("a"), large, context=context()).header, total_length=None).run_text is None
    )
    assert len(encode._FORMS) == 1
    alone = encode_sample(SampleId("b"), large, context=context(embed_run_above_bytes=64 << 10))
    assert parse_header(alone.header, total_length=alone.length).run_text == RUN.text


def test_a_meta_so_long_that_limits_come_near_is_encoded_anew() -> None:
    encode_sample(SampleId("a"), {"h": np.zeros(3)}, context=context())
    long = context(meta={"text": "x" * (65 << 10)})
    sample = encode_sample(SampleId("b"), {"h": np.zeros(3)}, context=long)
    (form,) = encode._FORMS.values()
    assert not form.takes(sample.meta)
    assert scan_sample(whole(sample)).meta == sample.meta


def test_headers_of_a_known_form_are_looked_at_by_the_parser_from_time_to_time(monkeypatch: pytest.MonkeyPatch) -> None:
    # case B67: the first header of a form is parsed before it is used at all, and of the later ones each 256th
    encode_sample(SampleId("first"), {"x": np.zeros(3)}, context=context())

    def wrong(text: str, *, times: int) -> str:
        return "other" if times == 2 else text

    monkeypatch.setattr(forms, "_in_json", wrong)
    (form,) = encode._FORMS.values()
    form._uses = 255
    with pytest.raises(IntegrityError, match="tells of another sample"):
        encode_sample(SampleId("later"), {"x": np.zeros(3)}, context=context())


def test_a_form_that_does_not_make_its_own_header_again_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    # case B67
    monkeypatch.setattr(forms, "_in_json", lambda _, *, times: "other")
    encode_sample(SampleId("first"), {"x": np.zeros(3)}, context=context())
    assert not encode._FORMS

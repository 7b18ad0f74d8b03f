"""What another tool stored against what the input and the run say: equal, or refused with the reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from durastore.adopt.foreign_formats.contents import ForeignContents
from durastore.adopt.foreign_formats.layouts import recognise
from durastore.errors import ConfigError
from durastore.extract.conversion import ConvertedSample, Mismatch, RunShape, convert
from durastore.extract.rows import TokenRow, input_digest
from durastore.extract.state_faults import find_array_fault, find_state_fault
from durastore.model import SampleId

T, H = 6, 4
RUN: dict[str, Any] = {
    "layers": [1, 3, 4],
    "num_layers": 4,
    "last_is_normed": None,
    "dtype": "bfloat16",
    "model": {"hidden_size": H},
}
STATES = np.random.default_rng(7).standard_normal((T, 3, H)).astype(ml_dtypes.bfloat16)
IDS = np.arange(10, 10 + T)
MASK = np.array([0, 0, 1, 1, 1, 1], dtype=np.uint8)


def row(ids: Any = IDS, mask: Any = None) -> TokenRow:
    ids = np.array(ids, dtype=np.int64)
    digest = input_digest(ids, mask)
    return TokenRow(line=8, sample_id=SampleId("s"), input_ids=ids, loss_mask=mask, input_digest=digest)


def converted(arrays: Mapping[str, Any], *, path: str = "data_7.pt", of: Any = None, **run: Any) -> ConvertedSample:
    values = {name: value for name, value in arrays.items() if not isinstance(value, np.ndarray)}
    contents = ForeignContents(arrays={k: v for k, v in arrays.items() if k not in values}, values=values)
    shape = RunShape.of({**RUN, **run})
    return convert(recognise(contents, path=path), of if of is not None else row(), shape=shape)


def reason(arrays: Mapping[str, Any], **options: Any) -> str:
    with pytest.raises(Mismatch) as caught:
        converted(arrays, **options)
    return str(caught.value)


def aux(states: Any = STATES) -> Any:
    return states[:, :2].reshape(1, T, -1)


SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "[T, L, H]": ("x.pt", {"hidden_states": STATES}),
    "[1, T, L, H]": ("x.pt", {"hidden_states": STATES[None]}),
    "[T, L*H]": ("x.pt", {"hidden_states": STATES.reshape(T, -1)}),
    "[1, T, L*H]": ("x.pt", {"hidden_states": STATES.reshape(1, T, -1), "input_ids": IDS[None]}),
    "eagle3": ("x.ckpt", {"aux_hidden_state": aux(), "hidden_state": STATES[None, :, 2], "input_ids": IDS}),
    "dspark": ("x.ckpt", {"hidden_states": aux(), "target_last_hidden_states": STATES[None, :, 2]}),
    "modelopt": ("x.pt", {"aux_hidden_states": aux()[0], "hidden_states": STATES[:, 2]}),
    "angelslim": ("x.ckpt", {"hidden_states": aux(), "target_hiddens": STATES[None, :, 2]}),
    "speculators": ("hs_7.safetensors", {"hidden_states": STATES, "token_ids": IDS}),
}


@pytest.mark.parametrize("name", SHAPES)
def test_every_layout_gives_the_sample_that_extract_would_have_stored(name: str) -> None:
    path, arrays = SHAPES[name]
    sample = converted(arrays, path=path)
    assert sample.tensors.keys() == {"hidden_states", "input_ids"}
    assert sample.tensors["hidden_states"].dtype == STATES.dtype
    assert sample.tensors["hidden_states"].tobytes() == STATES.tobytes()
    assert sample.tensors["input_ids"].tolist() == IDS.tolist()


def counted(*shape: int) -> Any:
    """States of which no layer is one number."""
    return np.arange(1, 1 + int(np.prod(shape))).reshape(shape).astype(ml_dtypes.bfloat16)


def test_one_token_and_one_layer_are_told_apart_from_a_dimension_of_one() -> None:
    one = counted(1, 1, H)
    assert converted({"hidden_states": one}, of=row([5]), layers=[2]).tensors["hidden_states"].shape == (1, 1, H)
    three = counted(1, 3, H)
    assert converted({"hidden_states": three}, of=row([5])).tensors["hidden_states"].shape == (1, 3, H)
    assert converted({"hidden_states": three}, of=row([5, 6, 7]), layers=[2]).tensors["hidden_states"].shape == (
        3,
        1,
        H,
    )
    flat = counted(1, 1, 3 * H)
    assert converted({"hidden_states": flat}, of=row([5])).tensors["hidden_states"].shape == (1, 3, H)


def test_the_mask_comes_from_the_input_or_else_from_the_file() -> None:
    arrays = {"hidden_states": STATES, "input_ids": IDS, "loss_mask": MASK.astype(np.int64)}
    assert "loss_mask" not in converted({"hidden_states": STATES}).tensors
    assert converted({"hidden_states": STATES}, of=row(mask=MASK)).tensors["loss_mask"].tolist() == MASK.tolist()
    for of in (row(), row(mask=MASK)):
        mask = converted(arrays, of=of).tensors["loss_mask"]
        assert (mask.dtype, mask.tolist()) == (np.uint8, MASK.tolist())


def test_a_last_state_that_the_run_does_not_want_is_kept_beside() -> None:
    arrays = {"aux_hidden_state": STATES.reshape(1, T, -1), "hidden_state": STATES[None, :, 0], "extra": IDS}
    sample = converted({**arrays, "id": "c"}, path="x.ckpt", layers=[1, 2, 3])
    assert sample.tensors["hidden_states"].tobytes() == STATES.tobytes()
    assert sample.tensors["last_hidden_states"].tobytes() == STATES[:, 0].tobytes()
    assert sample.tensors["extra"] is IDS
    assert sample.values == {"id": "c"}


def test_padding_is_cut_where_the_layout_has_it_and_the_file_shows_it() -> None:
    def padded(ids: list[int], mask: list[int]) -> dict[str, Any]:
        states = np.concatenate([STATES, np.ones((2, 3, H), STATES.dtype)])
        return {"hidden_states": states.reshape(1, T + 2, -1), "input_ids": np.array(ids), "loss_mask": np.array(mask)}

    tail = padded([*IDS.tolist(), 0, 0], [*MASK.tolist(), 0, 0])
    sample = converted(tail, path="data_7.ckpt")
    assert sample.tensors["hidden_states"].tobytes() == STATES.tobytes()
    assert sample.tensors["loss_mask"].tolist() == MASK.tolist()
    longer = "it has 8 tokens, and line 8 of the input has 6"
    assert longer in reason(tail, path="data_7.pt")  # no tool that pads
    assert longer in reason(padded([*IDS.tolist(), 0, 9], [*MASK.tolist(), 0, 0]), path="data_7.ckpt")
    assert longer in reason(padded([*IDS.tolist(), 0, 0], [*MASK.tolist(), 0, 1]), path="data_7.ckpt")


LAST = np.ones((1, T, H), dtype=STATES.dtype)
WRONG: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("its token 2 is 99, and in line 8 of the input it is 12", {"input_ids": np.where(IDS == 12, 99, IDS)}, {}),
    ("it has 5 tokens, and line 8 of the input has 6", {"input_ids": IDS[:5], "hidden_states": STATES[:5]}, {}),
    ("loss_mask differs", {"loss_mask": 1 - MASK}, {"of": row(mask=MASK)}),
    ("loss_mask has 5 entries", {"loss_mask": MASK[:5]}, {}),
    ("which is not 3 states for each of 6 tokens", {"hidden_states": STATES[:5]}, {}),
    ("which is not 4 states", {}, {"layers": [1, 2, 3, 4]}),
    ("8 numbers a state", {"hidden_states": np.concatenate([STATES, STATES], axis=2)}, {}),
    ("float32, and the run's are bfloat16", {"hidden_states": STATES.astype(np.float32)}, {}),
    ("state 3 is zero everywhere", {"hidden_states": STATES * np.array([[[1], [0], [1]]], STATES.dtype)}, {}),
    ("state 1 has a NaN", {"hidden_states": np.where(np.arange(H) == 2, np.nan, STATES).astype(STATES.dtype)}, {}),
    ("before the final norm", {"token_ids": IDS}, {"path": "hs_7.safetensors", "last_is_normed": True}),
    ("after the final norm", {"target_last_hidden_states": LAST, "hidden_states": aux()},
     {"path": "x.ckpt", "last_is_normed": False}),
    ("2 layers and the last one", {"target_hiddens": LAST, "hidden_states": aux()}, {"layers": [1, 2, 3]}),
    ("is bfloat16 and", {"target_hiddens": LAST.astype(np.float32), "hidden_states": aux()}, {}),
]  # fmt: skip


@pytest.mark.parametrize("expected, change, options", WRONG)
def test_what_differs_is_refused_with_the_reason(
    expected: str, change: dict[str, Any], options: dict[str, Any]
) -> None:
    assert expected in reason({"hidden_states": STATES, **change}, **options)


def test_a_run_has_to_say_what_its_states_are() -> None:
    with pytest.raises(ConfigError, match="names no layers"):
        RunShape.of({"model": "x"})
    with pytest.raises(ConfigError, match="int8"):
        RunShape.of({"layers": [1], "dtype": "int8"})
    shape = RunShape.of({"layers": [1, 3], "model": "llama"})
    assert (shape.dtype, shape.hidden_size, shape.num_layers, shape.has_last) == (None, None, None, None)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int8])
def test_arrays_are_judged_as_tensors_are(dtype: torch.dtype) -> None:
    for spoil in (None, 0.0, float("inf"), float("nan")):
        tensor = torch.randn(5, 2, 3).to(dtype)
        if spoil is not None and not (dtype is torch.int8 and spoil != 0):
            tensor[2 if spoil else slice(None), 1] = spoil
        bits = {torch.bfloat16: torch.int16}.get(dtype)
        array = tensor.numpy() if bits is None else tensor.view(bits).numpy().view(ml_dtypes.bfloat16)
        told = find_state_fault(tensor, [4, 9])
        assert (find_array_fault(array, [4, 9]) is None) == (told is None)
        assert "cannot be checked" in str(told) or told == find_array_fault(array, [4, 9])

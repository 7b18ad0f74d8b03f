"""Files of other tools: what is read, what is damage, what is refused, and whose layout it is."""

from __future__ import annotations

import gzip
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from durastore.adopt.foreign_formats.containers import is_foreign, parse_foreign, stem_of
from durastore.adopt.foreign_formats.contents import Unparsed
from durastore.adopt.foreign_formats.layouts import recognise
from durastore.errors import ConfigError

T, H = 5, 4
TENSORS: dict[str, torch.Tensor] = {
    "hidden_states": torch.randn(T, 3, H).to(torch.bfloat16),
    "input_ids": torch.arange(T),
    "flags": torch.tensor([True, False]),
    "half": torch.randn(2, 2).to(torch.float16),
    "scalar": torch.tensor(3.5),
    "turned": torch.randn(4, 3).t(),
    "fp8": torch.randn(6).to(torch.float8_e4m3fn),
}


def saved(value: object, *, is_zip: bool = True) -> bytes:
    target = BytesIO()
    torch.save(value, target, _use_new_zipfile_serialization=is_zip)
    return target.getvalue()


def plain(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.contiguous() for name, tensor in tensors.items()}


def typed(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Torch cannot read types of a byte back from the format it had before zip."""
    return {name: tensor for name, tensor in tensors.items() if name != "fp8"}


CONTAINERS: dict[str, Callable[[dict[str, torch.Tensor]], bytes]] = {
    "a/data_1.pt": saved,
    "a/data_1.pth": lambda tensors: saved(typed(tensors), is_zip=False),
    "a/data_1.ckpt": saved,
    "a/data_1.ckpt.gz": lambda tensors: gzip.compress(saved(tensors), 1),
    "a/hs_1.safetensors": lambda tensors: safetensors.torch.save(plain(tensors), metadata={"who": "me"}),
}


def refused(data: bytes, path: str) -> Unparsed:
    with pytest.raises(Unparsed) as caught:
        parse_foreign(data, path=path)
    return caught.value


@pytest.mark.parametrize("path", CONTAINERS)
def test_every_element_of_every_type_is_read_as_it_is(path: str) -> None:
    found = parse_foreign(CONTAINERS[path](TENSORS), path=path)
    tensors = typed(TENSORS) if path.endswith(".pth") else TENSORS
    assert found.arrays.keys() == tensors.keys()
    for name, tensor in tensors.items():
        array = found.arrays[name]
        assert array.dtype.name == str(tensor.dtype).removeprefix("torch.").replace("bool_", "bool")
        assert array.shape == tuple(tensor.shape)
        assert array.tobytes() == tensor.contiguous().view(-1 if tensor.ndim else 1).view(torch.uint8).numpy().tobytes()
    assert found.values == ({"__metadata__": {"who": "me"}} if path.endswith(".safetensors") else {})


@pytest.mark.parametrize("path", CONTAINERS)
def test_a_file_cut_anywhere_is_damaged(path: str) -> None:
    # case B88
    data = CONTAINERS[path](TENSORS)
    for size in {0, 1, 9, len(data) // 3, len(data) // 2, len(data) - 200, len(data) - 1}:
        fault = refused(data[:size], path)
        # an old pickle may end in the middle of the name of what it wants
        assert fault.is_damage or (path.endswith(".pth") and "wants torch." in str(fault)), size


@pytest.mark.parametrize("path", ["a/data_1.pt", "a/data_1.ckpt.gz"])
def test_a_flipped_bit_that_torch_would_take_is_damage(path: str) -> None:
    # case B73
    tensors = {"hidden_states": torch.ones(4000)}
    data = bytearray(CONTAINERS[path](tensors))
    data[len(data) // 2] ^= 4
    if path.endswith(".pt"):
        assert torch.load(BytesIO(bytes(data)), weights_only=True)["hidden_states"].shape == (4000,)
    assert refused(bytes(data), path).is_damage


def test_an_archive_that_points_out_of_all_bounds_is_damage() -> None:
    """Python's zipfile raised OverflowError over it."""
    target = BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        archive.writestr("x/data.pkl", b"content")
    data = bytearray(target.getvalue())
    entry, end = bytes(data).index(b"PK\x01\x02"), bytes(data).index(b"PK\x05\x06")
    place = b"\x01\x00\x08\x00" + b"\xfe" + b"\xff" * 7  # the member lies at byte 2^64 - 2
    data[end + 12 : end + 16] = (end - entry + len(place)).to_bytes(4, "little")
    data[entry + 30 : entry + 32] = len(place).to_bytes(2, "little")
    data[entry + 42 : entry + 46] = b"\xff" * 4
    data[end:end] = place
    assert refused(bytes(data), "x.pt").is_damage


def test_few_elements_that_are_told_to_be_many_are_refused() -> None:
    data = saved({"hidden_states": torch.ones(1).expand(1 << 40)})
    assert len(data) < 4096
    assert "repeats few elements" in str(refused(data, "x.pt"))
    small = parse_foreign(saved({"hidden_states": torch.ones(1).expand(4, 5)}), path="x.pt")
    assert small.arrays["hidden_states"].shape == (4, 5)


def test_a_file_without_checksums_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    setting: Any = torch.serialization
    before = setting.get_crc32_options()
    setting.set_crc32_options(False)
    try:
        data = saved({"hidden_states": torch.ones(3)})
    finally:
        setting.set_crc32_options(before)
    assert parse_foreign(data, path="x.pt").arrays["hidden_states"].tolist() == [1, 1, 1]


class Runs:
    """A pickle of it calls `print` when it is loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("this must never be seen",)


class Plain:
    """A class of somebody's script."""


def test_a_pickle_that_wants_more_is_refused_by_the_name_of_what_it_wants(capsys: pytest.CaptureFixture[str]) -> None:
    for value, wanted in ((Runs(), "print"), (Plain(), f"{__name__}.Plain"), (np.float32(1), "multiarray.scalar")):
        for is_zip in (True, False):
            fault = refused(saved({"hidden_states": torch.ones(3), "more": value}, is_zip=is_zip), "x.pt")
            assert not fault.is_damage
            assert f"{wanted}, which is more than tensors" in str(fault)
    assert capsys.readouterr().out == ""


def test_torch_that_is_missing_or_too_old_is_said_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    data = saved({"hidden_states": torch.ones(3)})
    with monkeypatch.context() as without:
        without.setattr("durastore.extras.find_spec", lambda _: None)
        with pytest.raises(ConfigError) as caught:
            parse_foreign(data, path="x.pt")
        found = parse_foreign(CONTAINERS["a/hs_1.safetensors"](TENSORS), path="x.safetensors")
        assert found.arrays["hidden_states"].dtype.name == "bfloat16"
    assert "durastore[torch]" in str(caught.value.hint)
    monkeypatch.setattr(torch, "__version__", "2.5.1")
    with pytest.raises(ConfigError, match=r"2\.5\.1"):
        parse_foreign(data, path="x.pt")


def test_nested_keys_come_out_flat_and_what_is_no_tensor_as_plain_values() -> None:
    value = {
        "hidden_states_dict": {"layer_2": torch.ones(2), "layer_4": torch.zeros(2)},
        "pair": [torch.ones(1), "text"],
        "index": 7,
        "when": float("inf"),
        "shape": torch.ones(2, 3).shape,
        "dtype": torch.bfloat16,
        "deep": {"a": [1, {"b": None}]},
    }
    found = parse_foreign(saved(value), path="x.pt")
    assert sorted(found.arrays) == ["hidden_states_dict.layer_2", "hidden_states_dict.layer_4", "pair.0"]
    assert found.values == {
        "pair.1": "text",
        "index": 7,
        "when": "inf",
        "shape": [2, 3],
        "dtype": "torch.bfloat16",
        "deep": {"a": [1, {"b": None}]},
    }
    assert "list" in str(refused(saved([torch.ones(1)]), "x.pt"))
    assert "twice" in str(refused(saved({"a.b": torch.ones(1), "a": {"b": torch.ones(1)}}), "x.pt"))
    assert "a int" in str(refused(saved({1: torch.ones(1)}), "x.pt"))
    assert "sparse" in str(refused(saved({"s": torch.eye(3).to_sparse()}), "x.pt"))
    assert list(parse_foreign(saved(torch.ones(2, 2)), path="x.pt").arrays) == ["hidden_states"]


def test_a_stem_is_the_name_without_the_suffix_of_a_format() -> None:
    assert [stem_of(name) for name in ("a/data_1.ckpt.gz", "data_1.pt", "x.gz", ".pt", "a/.ckpt.gz", "b.npy")] == [
        "data_1",
        "data_1",
        None,
        None,
        None,
        None,
    ]
    assert is_foreign("x.safetensors")


LAYOUTS: list[tuple[str, str, list[str], tuple[str, str | None, bool | None]]] = [
    ("specforge-eagle3", "d_1.ckpt", ["input_ids", "loss_mask", "hidden_state", "aux_hidden_state"],
     ("aux_hidden_state", "hidden_state", True)),
    ("specforge-dspark", "d_1.ckpt", ["input_ids", "loss_mask", "hidden_states", "target_last_hidden_states"],
     ("hidden_states", "target_last_hidden_states", True)),
    ("specforge-dflash", "d_1.ckpt.gz", ["input_ids", "loss_mask", "hidden_states"], ("hidden_states", None, None)),
    ("angelslim", "d_1.ckpt", ["input_ids", "loss_mask", "hidden_states", "target_hiddens"],
     ("hidden_states", "target_hiddens", None)),
    ("modelopt", "u.pt", ["input_ids", "loss_mask", "hidden_states", "aux_hidden_states"],
     ("aux_hidden_states", "hidden_states", None)),
    ("speculators", "hs_1.safetensors", ["token_ids", "hidden_states"], ("hidden_states", None, False)),
    ("rows-pt", "d_1.pt", ["input_ids", "hidden_states"], ("hidden_states", None, None)),
    ("rows-pt", "d_1.pt", ["hidden_states"], ("hidden_states", None, None)),
    ("rows-pt", "d_1.pt", ["hidden_state"], ("hidden_state", None, None)),
]  # fmt: skip


@pytest.mark.parametrize("name, path, keys, expected", LAYOUTS)
def test_layouts_are_told_by_their_keys(
    name: str, path: str, keys: list[str], expected: tuple[str, str | None, bool | None]
) -> None:
    value: dict[str, Any] = {key: torch.full((1, T, H), 1.0) for key in keys if "hidden" in key}
    value |= {key: torch.arange(T).reshape(1, T) for key in keys if key.endswith("_ids")}
    value |= {key: torch.ones(T, dtype=torch.int64) for key in keys if key == "loss_mask"}
    value |= {"extra": torch.ones(2), "conversation_id": "c-1"}
    contents = parse_foreign(saved(value), path="x.pt")
    sample = recognise(contents, path=path)
    assert (sample.layout.name, sample.layout.states, sample.layout.last, sample.is_last_normed) == (name, *expected)
    assert (sample.tokens is not None) == any(key.endswith("_ids") for key in keys)
    assert sample.tokens is None or sample.tokens.tolist() == list(range(T))
    assert (sample.loss_mask is not None) == ("loss_mask" in keys)
    assert (list(sample.arrays), sample.values) == (["extra"], {"conversation_id": "c-1"})  # no key is lost


def test_modelopt_says_whether_its_last_state_is_normed() -> None:
    for prenorm in (True, False):
        value = {"hidden_states": torch.ones(T, H), "aux_hidden_states": torch.ones(T, H)}
        contents = parse_foreign(saved({**value, "hidden_states_prenorm": prenorm}), path="x.pt")
        assert recognise(contents, path="x.pt").is_last_normed is not prenorm


@pytest.mark.parametrize(
    "value, reason",
    [
        ({"weights": np.float64}, "no known layout"),
        ({"hidden_states": torch.ones(2, 2), "input_ids": torch.ones(2)}, "whole numbers"),
        ({"hidden_states": torch.ones(2, 2), "input_ids": torch.tensor([-1, 2])}, "no token id"),
        ({"hidden_states": torch.ones(2, 2), "input_ids": torch.ones(2, 2, dtype=torch.int64)}, "one row"),
        ({"hidden_states": torch.ones(2, 2), "loss_mask": torch.tensor([0, 2])}, "more than 0 and 1"),
    ],
)
def test_what_cannot_be_a_sample_is_refused(value: dict[str, Any], reason: str) -> None:
    value = {key: each for key, each in value.items() if isinstance(each, torch.Tensor)} or {"w": torch.ones(2)}
    with pytest.raises(Unparsed, match=reason):
        recognise(parse_foreign(saved(value), path="x.pt"), path="x.pt")


def test_a_file_on_disk_that_is_written_to_is_left_alone(tmp_path: Path) -> None:
    from durastore.adopt.loading import LoadedFile, Unloaded, load_foreign
    from durastore.fsio.folder import Folder

    path = tmp_path / "x.pt"
    path.write_bytes(saved({"hidden_states": torch.ones(3)}))
    with Folder.open(tmp_path) as folder:
        with path.open("r+b"):
            found = load_foreign(folder, "x.pt")
        assert isinstance(found, Unloaded)
        assert found.trouble == "in-flight"
        loaded = load_foreign(folder, "x.pt")
        assert isinstance(loaded, LoadedFile)
        assert loaded.size_bytes == path.stat().st_size
        (tmp_path / "link.pt").symlink_to(path)
        for name in ("link.pt", "absent.pt"):
            missing = load_foreign(folder, name)
            assert isinstance(missing, Unloaded)
            assert missing.trouble == "unreadable"

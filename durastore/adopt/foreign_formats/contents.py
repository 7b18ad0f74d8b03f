"""What a file of another tool holds, whichever container it came in.

Duty: named arrays and plain values, flattened from nested mappings and lists. Must never convert an element, and never
drop a key: what is neither an array nor plain JSON is kept as its text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["Array", "ForeignContents", "TensorReader", "Unparsed", "contents_of"]

Array: TypeAlias = NDArray[Any]
_MAX_DEPTH = 16


class Unparsed(Exception):
    """The bytes give no contents. `is_damage`: they are not whole; else they are something that is not read."""

    def __init__(self, reason: str, *, is_damage: bool) -> None:
        super().__init__(reason)
        self.is_damage = is_damage


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignContents:
    """Arrays (bfloat16 and fp8 as ml_dtypes) and values by name; names of nested ones are joined by a dot."""

    arrays: Mapping[str, Array]
    values: Mapping[str, Any] = field(default_factory=dict)
    """What has no place as a tensor: texts, numbers, lists, as plain JSON values."""

    def is_same_as(self, other: ForeignContents) -> bool:
        """Whether both hold the same names with the same elements, to the bit."""
        if self.arrays.keys() != other.arrays.keys() or self.values != other.values:
            return False
        return all(_is_same(array, other.arrays[name]) for name, array in self.arrays.items())


def _is_same(one: Array, other: Array) -> bool:
    return (one.dtype, one.shape) == (other.dtype, other.shape) and one.tobytes() == other.tobytes()


class TensorReader(Protocol):
    """How a container's own tensors are told and read."""

    def is_tensor(self, value: object) -> bool: ...

    def read(self, name: str, value: object) -> Array:
        """The elements. `Unparsed`, naming the tensor, where they have no form as an array."""
        ...


def contents_of(value: object, *, reader: TensorReader) -> ForeignContents:
    """The contents of what a file holds at its top: a mapping with text keys, or one bare tensor, which is taken for
    `hidden_states`. `Unparsed` where it is neither.
    """
    if reader.is_tensor(value):
        return ForeignContents(arrays={"hidden_states": reader.read("hidden_states", value)})
    if not isinstance(value, Mapping):
        raise Unparsed(f"holds a {type(value).__name__}, not a mapping of names to tensors", is_damage=False)
    taken = _Taken(reader=reader)
    taken.take_all(value)
    return ForeignContents(arrays=taken.arrays, values=taken.values)


@dataclass(slots=True, kw_only=True)
class _Taken:
    """What was found so far."""

    reader: TensorReader
    arrays: dict[str, Array] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)

    def take_all(self, items: Mapping[Any, object], *, prefix: str = "") -> None:
        for key, value in items.items():
            if not isinstance(key, str):
                raise Unparsed(f"has a key that is a {type(key).__name__}, not a text", is_damage=False)
            name = prefix + key
            if name in self.arrays or name in self.values:
                raise Unparsed(f"has the name {name!r} twice", is_damage=False)
            if self.reader.is_tensor(value):
                self.arrays[name] = self.reader.read(name, value)
            elif _has_tensor(value, self.reader):
                self.take_all(_parts(value), prefix=f"{name}.")
            else:
                self.values[name] = _plain(value)


def _parts(value: object) -> Mapping[Any, object]:
    if isinstance(value, Mapping):
        return value
    return {str(at): item for at, item in enumerate(value)} if isinstance(value, list | tuple) else {}


def _has_tensor(value: object, reader: TensorReader, *, depth: int = 0) -> bool:
    """Whether it holds a tensor somewhere; what holds none is a value as it is."""
    if depth > _MAX_DEPTH:
        raise Unparsed(f"is nested deeper than {_MAX_DEPTH} levels", is_damage=False)
    return any(reader.is_tensor(item) or _has_tensor(item, reader, depth=depth + 1) for item in _parts(value).values())


def _plain(value: object) -> Any:
    if value is None or isinstance(value, bool | str | int):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, np.generic):
        return _plain(value.item())
    return repr(value)

"""Bytes of `.pt`, `.ckpt`, `.ckpt.gz` and `.safetensors` files -> contents.

Duty: read every byte of the container, with all the checks that it has (zip CRC-32, gzip CRC-32, lengths). Must never
run what a pickle says: `weights_only`, and a pickle that wants more is refused by the name of what it wants.
"""

from __future__ import annotations

import gzip
import re
import struct
import zipfile
import zlib
from io import BytesIO
from typing import Any

import numpy as np
import safetensors

from durastore.adopt.foreign_formats.contents import Array, ForeignContents, Unparsed, contents_of
from durastore.codec.copying import flat_bytes, inspect_tensor
from durastore.codec.dtypes import DTYPES, numpy_dtype
from durastore.errors import ConfigError, IntegrityError, UnsupportedTensor
from durastore.extras import ensure_extra
from durastore.model import parse_json

__all__ = ["SUFFIXES", "is_foreign", "parse_foreign", "stem_of"]

SUFFIXES = (".pt", ".pth", ".ckpt", ".ckpt.gz", ".safetensors")
_MAX_INFLATED_BYTES = 64 << 30
_BLOCK_BYTES = 16 << 20
_MAX_SPREAD_BYTES = 64 << 20
_SAFE_TORCH = (2, 6)
"""Before it, `weights_only` could be made to run code all the same (CVE-2025-32434)."""
_ZIP = b"PK"
_ZIP_FAULTS = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    NotImplementedError,  # a compression that zipfile does not know
    OSError,
    OverflowError,
    RuntimeError,
    ValueError,
)
"""What zipfile raises for bytes that are no archive."""
_WANTED = re.compile(r"GLOBAL (\S+) (?:was not|whose)")


def is_foreign(path: str) -> bool:
    """Whether the name has one of the suffixes, and something before it."""
    return stem_of(path) is not None


def stem_of(path: str) -> str | None:
    """The file's name without its suffix; None where it has none that is read here, or is nothing but one."""
    name = path.rpartition("/")[2]
    found = max((suffix for suffix in SUFFIXES if name.endswith(suffix)), key=len, default="")
    return name.removesuffix(found) or None if found else None


def parse_foreign(data: bytes, *, path: str) -> ForeignContents:
    """The contents of a whole file; `path` tells its format. `Unparsed` where they cannot be had; `ConfigError` where
    torch is needed and missing or too old.
    """
    if path.endswith(".safetensors"):
        return _parse_safetensors(data)
    return _parse_torch(_inflated(data) if path.endswith(".gz") else data)


def _inflated(data: bytes) -> bytes:
    blocks: list[bytes] = []
    size = 0
    try:
        with gzip.GzipFile(fileobj=BytesIO(data)) as stream:
            while block := stream.read(_BLOCK_BYTES):
                blocks.append(block)
                size += len(block)
                if size > _MAX_INFLATED_BYTES:
                    raise Unparsed(f"inflates to more than {_MAX_INFLATED_BYTES >> 30} GiB", is_damage=False)
    except (OSError, EOFError, zlib.error) as exc:
        raise Unparsed(f"is no whole gzip file: {str(exc)[:120]}", is_damage=True) from exc
    return b"".join(blocks)


# --- safetensors -------------------------------------------------------------------------------------------------


def _parse_safetensors(data: bytes) -> ForeignContents:
    try:
        found: Any = safetensors.deserialize(data)  # type: ignore[no-untyped-call]  # not annotated
        header = parse_json(data[8 : 8 + int.from_bytes(data[:8], "little")], what="safetensors header")
    except (safetensors.SafetensorError, IntegrityError) as exc:
        raise Unparsed(f"is no whole safetensors file: {str(exc)[:120]}", is_damage=True) from exc
    arrays: dict[str, Array] = {}
    for name, fields in found:
        if fields["dtype"] not in DTYPES:
            raise Unparsed(f"tensor {name!r} has dtype {fields['dtype']}, which is not known here", is_damage=False)
        dtype = numpy_dtype(fields["dtype"])
        arrays[name] = np.frombuffer(fields["data"], np.uint8).view(dtype).reshape(fields["shape"])
    metadata = header.get("__metadata__")
    return ForeignContents(arrays=arrays, values={"__metadata__": metadata} if metadata else {})


# --- torch.save --------------------------------------------------------------------------------------------------


def _parse_torch(data: bytes) -> ForeignContents:
    torch = _torch()
    _check_members(data)
    try:
        value = torch.load(BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as exc:  # torch raises anything for what it cannot read: pickle's errors, RuntimeError, KeyError
        wanted = _WANTED.findall(str(exc))
        if wanted:
            raise Unparsed(
                f"its pickle wants {', '.join(dict.fromkeys(wanted))}, which is more than tensors and plain values: "
                "refused, as it could run code",
                is_damage=False,
            ) from exc
        said = " ".join(f"{type(exc).__name__}: {exc}".split())
        is_whole = data.startswith(_ZIP)  # its members have been looked at: what torch does not take is no damage
        raise Unparsed(f"torch cannot read it: {said[:160]}", is_damage=not is_whole) from exc
    return contents_of(value, reader=_TorchTensors())


def _torch() -> Any:
    ensure_extra("torch", "torch", what="reading .pt and .ckpt files")
    import torch

    release = tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2])
    if release < _SAFE_TORCH:
        raise ConfigError(
            f"torch {torch.__version__} may run code that a .pt file carries", hint="install torch 2.6 or newer"
        )
    return torch


def _check_members(data: bytes) -> None:
    """torch takes a zip archive's members as they are; their CRC-32 says whether they are what was written."""
    if not data.startswith(_ZIP):
        return  # what torch wrote before its zip format
    try:
        with zipfile.ZipFile(BytesIO(data)) as archive:
            for member in archive.infolist():
                if member.CRC:  # torch can be told to reckon none, and writes 0 then, which tells nothing
                    _read_through(archive, member)
    except _ZIP_FAULTS as exc:
        raise Unparsed(f"is no whole zip archive: {str(exc)[:120]}", is_damage=True) from exc


def _read_through(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
    """`BadZipFile` at the end, where its bytes do not have its CRC-32."""
    with archive.open(member) as content:
        while content.read(_BLOCK_BYTES):
            pass


def _check_extent(name: str, value: Any) -> None:
    """A few bytes can be told to be any number of elements: with a stride of 0 they are all the same one."""
    size = value.numel() * value.element_size()
    if size > max(_MAX_SPREAD_BYTES, value.untyped_storage().nbytes()):
        raise Unparsed(f"tensor {name!r} repeats few elements as {size} bytes", is_damage=False)


class _TorchTensors:
    """Torch tensors as arrays of the same elements."""

    def is_tensor(self, value: object) -> bool:
        import torch

        return isinstance(value, torch.Tensor)

    def read(self, name: str, value: object) -> Array:
        try:
            source = inspect_tensor(name, value)
            _check_extent(name, source.value)
            data = flat_bytes(source.value)
            if data is None:
                data = flat_bytes(source.value.contiguous().resolve_conj().resolve_neg())
        except (UnsupportedTensor, RuntimeError) as exc:
            raise Unparsed(str(exc), is_damage=False) from exc
        if data is None:
            raise Unparsed(f"tensor {name!r} is not in host memory", is_damage=False)
        return data.view(numpy_dtype(source.dtype)).reshape(source.shape)

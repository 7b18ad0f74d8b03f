"""What all Parquet files of ours have in common, whoever wrote these bytes.

Duty: open one within limits that hostile bytes cannot leave, tell a newer format from garbage, and hold its columns to
their types. Never does I/O.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from durastore.errors import FormatUnsupported, IntegrityError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

__all__ = ["NOT_PARQUET", "check_format", "check_types", "open_parquet"]

NOT_PARQUET = (OSError, ValueError, TypeError, KeyError, MemoryError, OverflowError)
"""What pyarrow raises for bytes that are none, besides its own `ArrowException`."""


def open_parquet(data: bytes, *, repeated: Iterable[str] = ()) -> pq.ParquetFile:
    """The file in `data`. Columns `repeated` come as dictionaries: else a text that every row names would
    be unpacked for each of them. To be given only once the columns are known to be there: pyarrow's error for one that
    a newer format lacks tells nothing. Raises `ArrowException` and `NOT_PARQUET`.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    limits: Any = {"thrift_string_size_limit": len(data) + 1, "thrift_container_size_limit": 1_000_000}
    return pq.ParquetFile(pa.BufferReader(data), read_dictionary=list(repeated), **limits)


def check_format(found: bytes | None, *, known: str, what: str) -> None:
    """The format number in the file is ours. `FormatUnsupported` for a newer one, `IntegrityError` for what is none."""
    if found == known.encode():
        return
    if found and re.fullmatch(rb"[1-9][0-9]{0,8}(\.[0-9]{1,9})*", found):
        raise FormatUnsupported(f"{what} has the newer format {found.decode()}", hint="upgrade durastore")
    raise IntegrityError(f"{what} is none of durastore's: its format number is missing or odd")


def check_types(table: pa.Table, schema: pa.Schema, *, what: str) -> None:
    """Each column of `table` has the type that `schema` names; as a dictionary is as well. `IntegrityError` if not."""
    import pyarrow as pa

    for found in table.schema:
        kind = found.type.value_type if pa.types.is_dictionary(found.type) else found.type
        if not kind.equals(schema.field(found.name).type):
            raise IntegrityError(f"column {found.name} of {what} has type {found.type}")

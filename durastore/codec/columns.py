"""What is typical of each column of a plane: hidden states keep their scale by channel, whatever the token.

Duty: one middle value a column, exact or nearly so. Must never look at what the bytes mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from durastore.codec.dtypes import DTYPES
from durastore.codec.words import has_sign, plane_count

if TYPE_CHECKING:
    import numpy as np

    Bytes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]

__all__ = ["LEAST_ROWS", "columns_of", "majority", "middle", "near_middle"]

LEAST_ROWS = 16
"""Of fewer rows a middle value tells little, and the row of middle values costs more than it saves."""


def columns_of(shape: Sequence[int], dtype: str, *, words: int) -> int:
    """Words after which a chunk of `words` comes back to the same channel; 0 where there is no such structure.

    The last dimensions together, as many as leave `LEAST_ROWS` of them in a chunk: of [256 tokens, 4 layers, 576] all
    but the first, of [1, 256 tokens, 2304] the last. Only of floats, whose highest plane tells their scale.
    """
    if not has_sign(dtype):
        return 0
    one = DTYPES[dtype].item_bytes // plane_count(dtype)
    found, columns = 0, one
    for extent in reversed(shape[1:]):
        columns *= extent
        if columns > one and words >= LEAST_ROWS * columns:
            found = columns
    return found


def near_middle(rows: Bytes) -> Bytes:
    """A value near the median of each column: medians of three rows, again and again.

    Each step is four passes of whole rows that the processor does many bytes at a time: all of it costs a hundredth of
    sorting, and what it is off by costs 0.1 % of size.
    """
    import numpy as np

    while len(rows) >= 3:
        n = len(rows) // 3
        first, second, third = rows[:n], rows[n : 2 * n], rows[2 * n : 3 * n]
        least, most = np.minimum(first, second), np.maximum(first, second)
        np.minimum(most, third, out=most)
        rows = np.maximum(least, most, out=most)
    found: Bytes = rows[0]
    return found


def middle(rows: Bytes) -> Bytes:
    """The median of each column, where it is within one of `near_middle`; else one step towards it."""
    import numpy as np

    near, half = near_middle(rows), (len(rows) + 1) // 2
    is_below = np.add.reduce(np.less(rows, near), axis=0, dtype=np.uint32) >= half
    is_above = np.add.reduce(np.less_equal(rows, near), axis=0, dtype=np.uint32) < half
    found: Bytes = near - is_below.view(np.uint8) + is_above.view(np.uint8)
    return found


def majority(rows: Bytes) -> Bytes:
    """For each column of zeros and ones the one that is in more than half of the rows."""
    import numpy as np

    found: Bytes = (np.add.reduce(rows, axis=0, dtype=np.uint32) * 2 > len(rows)).view(np.uint8)
    return found

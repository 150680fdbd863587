"""One number for each of many, or one for all.

Where each request has one query tile, as in decode, records and runs have most numbers in common.
One int then does for an array: a call of NumPy on a small array costs more than its arithmetic.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Int64Array: TypeAlias = npt.NDArray[np.int64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]
Each: TypeAlias = Int64Array | int
"""(count,) int64, or the number that all `count` have."""


def pick(values: Each, index: Int64Array | slice) -> Each:
    """The values at `index`."""
    return values if isinstance(values, int) else values[index]


def spread(values: Each, count: int) -> Int64Array:
    """(count,) the values as an array."""
    return np.full(count, values) if isinstance(values, int) else values


def most(values: Each) -> int:
    """The largest value; 0 if there is none."""
    if isinstance(values, int):
        return values
    return int(np.maximum.reduce(values)) if values.size else 0


def total(values: Each, count: int) -> int:
    """The sum of `count` values."""
    return values * count if isinstance(values, int) else int(np.add.reduce(values))


def at_least(values: Each, least: int) -> Each:
    """The larger of each value and `least`."""
    return max(values, least) if isinstance(values, int) else np.maximum(values, least)


def at_most(values: Each, limit: int) -> Each:
    """The smaller of each value and `limit`."""
    return min(values, limit) if isinstance(values, int) else np.minimum(values, limit)


def running_sum(values: Each, count: int) -> Int64Array:
    """(count + 1,) sums of the first 0, 1, ... count values."""
    if isinstance(values, int):
        return np.arange(count + 1) * values
    sums = np.empty(count + 1, np.int64)
    sums[0] = 0
    np.add.accumulate(values, out=sums[1:])
    return sums

"""One number for each of many, or one for all.

Where each request has one query tile, as in decode, records and runs have most numbers in common.
One int then does for an array: a call of NumPy on a small array costs more than its arithmetic.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Int64Array: TypeAlias = npt.NDArray[np.int64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]
Each: TypeAlias = Int64Array | int
"""(count,) int64, or the number that all `count` have."""


def pick(values: Each, index: Int64Array | slice) -> Each:
    """The values at `index`."""
    return values[index] if isinstance(values, np.ndarray) else values


def spread(values: Each, count: int) -> Int64Array:
    """(count,) the values as an array."""
    return values if isinstance(values, np.ndarray) else np.full(count, values)


def most(values: npt.NDArray[Any] | int) -> int:
    """The largest value; 0 if there is none."""
    if isinstance(values, np.ndarray):
        # Half the time of a reduction, where the array is small.
        return int(values[values.argmax()]) if values.size else 0
    return int(values)


def largest_product(values: Int64Array, factors: Each) -> int:
    """The largest product of a value, of which there is one, and its factor; none is negative."""
    if isinstance(factors, np.ndarray):
        return most(values * factors)
    return most(values) * int(factors)


def least(values: npt.NDArray[Any]) -> int:
    """The smallest value; 0 if there is none."""
    return int(values[values.argmin()]) if values.size else 0


def total(values: Each, count: int) -> int:
    """The sum of `count` values."""
    return int(np.add.reduce(values) if isinstance(values, np.ndarray) else values * count)


def at_least(values: Each, least: int) -> Each:
    """The larger of each value and `least`."""
    return np.maximum(values, least) if isinstance(values, np.ndarray) else max(values, least)


def at_most(values: Each, limit: int) -> Each:
    """The smaller of each value and `limit`."""
    return np.minimum(values, limit) if isinstance(values, np.ndarray) else min(values, limit)


_NUMBERS = np.arange(1 << 12)
_NUMBERS.flags.writeable = False


def numbers(count: int) -> Int64Array:
    """0, 1, ... below `count`; not to be written to."""
    return _NUMBERS[:count] if count <= _NUMBERS.size else np.arange(count)


def running_sum(values: Each, count: int) -> Int64Array:
    """(count + 1,) sums of the first 0, 1, ... count values."""
    if not isinstance(values, np.ndarray):
        return np.arange(0, count * values + 1, values) if values else np.zeros(count + 1, np.int64)
    sums = np.zeros(count + 1, np.int64)
    np.add.accumulate(values, out=sums[1:])
    return sums

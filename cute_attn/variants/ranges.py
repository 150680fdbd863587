"""Ranges: the least and the most element of a tensor over a run of its indices.

What a mask says about a block of scores may depend on a tensor at all positions of the block. A
table made before the attention kernel holds, for windows of 1, 2, 4 ... entries of `POSITIONS`
positions, the least and the most element; two windows cover any run of indices (the sparse table of
Bender and Farach-Colton, "The LCA Problem Revisited", 2000). Tables are made anew before each run,
from what the tensor then holds; their sizes depend on its shape alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cute_attn.variants.interval import INT_MAX, INT_MIN

POSITIONS = 32
"""Positions of an entry."""
LEVELS = 8
"""Windows have 1, 2, ... 2^(LEVELS - 1) entries."""
EXPECTED_REACH = 512
"""Positions that plans expect to share a number with the one behind them."""
MOST_ROWS = 16
"""Rows of a table that are looked at for one block; where there are more, nothing is known."""
PAIR_BYTES = 8


@dataclass(frozen=True)
class RangeTable:
    """A table of ranges.

    Attributes:
        name: of it, in kernels.
        tensor: whose elements.
        kind: of them, "i32" or "bool".
        pools: of each dimension, how many indices an entry covers: POSITIONS where the index
            depends on a query's or key's position, else 1.
        varies: of each dimension, whether its index varies over a block.
    """

    name: str
    tensor: str
    kind: str
    pools: tuple[int, ...]
    varies: tuple[bool, ...]

    @property
    def main(self) -> int:
        """The dimension with windows; the others make rows."""
        pooled = [d for d, pool in enumerate(self.pools) if pool > 1]
        return pooled[-1] if pooled else max(d for d, varies in enumerate(self.varies) if varies)

    def entries(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Entries in each dimension, for a tensor of this shape."""
        return tuple(-(-size // pool) for size, pool in zip(shape, self.pools, strict=True))

    def rows(self, shape: Sequence[int]) -> int:
        """Rows of the table."""
        return math.prod(self.entries(shape)) // self.entries(shape)[self.main]

    def num_bytes(self, shape: Sequence[int]) -> int:
        """Size of the table: (rows, LEVELS, entries of the main dimension) pairs of int32."""
        return math.prod(self.entries(shape)) * LEVELS * PAIR_BYTES

    def over(self, array: Any) -> Callable[..., tuple[Any, Any]]:
        """The function of indices that kernels have, over an array, with NumPy.

        Returns:
            a function of the index of each dimension, two where it varies (first, last), as arrays
            that broadcast; it gives (least, most), INT_MIN and INT_MAX where nothing is known.
        """
        array = np.asarray(array)
        windows = self._windows(array, np.minimum), self._windows(array, np.maximum)
        return lambda *indices: self._find(array.shape, windows, indices)

    def expected(self, *indices: Any) -> tuple[Any, Any]:
        """What plans take the function of `over` to give, which cannot look at the tensor: numbers
        that rise with the position, as those of documents."""
        if self.kind == "bool":
            return 0, 1
        if not any(pool > 1 for pool in self.pools):
            return int(INT_MIN), int(INT_MAX)
        at = self.main + sum(self.varies[: self.main])
        return indices[at] - EXPECTED_REACH, indices[at + 1]

    def _windows(self, array: Any, of: np.ufunc) -> Any:
        """(LEVELS, entries of the other dimensions, entries of the main one)."""
        entries = array.astype(np.int64)
        for d, pool in enumerate(self.pools):
            if pool > 1:
                entries = of.reduceat(entries, np.arange(0, array.shape[d], pool), axis=d)
        levels = [np.moveaxis(entries, self.main, -1)]
        at = np.arange(levels[0].shape[-1])
        for level in range(LEVELS - 1):
            behind = np.minimum(at + (1 << level), at.size - 1)
            levels.append(of(levels[-1], levels[-1][..., behind]))
        return np.stack(levels)

    def _find(
        self, shape: Sequence[int], windows: tuple[Any, Any], indices: Sequence[Any]
    ) -> tuple[Any, Any]:
        given = list(np.broadcast_arrays(*(np.asarray(i, np.int64) for i in indices)))
        known: Any = np.True_
        begins, counts = [], []  # entries of each dimension
        for d, (size, pool) in enumerate(zip(shape, self.pools, strict=True)):
            first = given.pop(0)
            if not self.varies[d]:
                begins.append(np.where((first < 0) | (first >= size), size - 1, first))
                counts.append(np.ones_like(first))
                continue
            last = given.pop(0)
            begins.append(first // pool)
            counts.append(last // pool - first // pool + 1)
            most = 1 << LEVELS if d == self.main else MOST_ROWS
            known = known & (first >= 0) & (first <= last) & (last < size) & (counts[d] <= most)
        begins = [np.where(known, begin, 0) for begin in begins]
        counts = [np.where(known, count, 1) for count in counts]
        begin, count = begins.pop(self.main), counts.pop(self.main)
        level = np.minimum(np.frexp(count)[1] - 1, LEVELS - 1)
        end = begin + count - (1 << level)
        low, high = np.where(known, INT_MAX, INT_MIN), np.where(known, INT_MIN, INT_MAX)
        for offset in np.ndindex(*(int(c.max(initial=0)) for c in counts)):
            # Rows behind the last one of a block repeat it.
            rows = [
                b + np.minimum(o, c - 1) for b, o, c in zip(begins, offset, counts, strict=True)
            ]
            for at in (begin, end):
                low = np.where(known, np.minimum(low, windows[0][(level, *rows, at)]), low)
                high = np.where(known, np.maximum(high, windows[1][(level, *rows, at)]), high)
        return low.astype(np.int64)[()], high.astype(np.int64)[()]

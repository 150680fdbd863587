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
_PAIR_BYTES = 8


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
        return math.prod(self.entries(shape)) * LEVELS * _PAIR_BYTES

    def over(self, array: Any) -> Callable[..., tuple[Any, Any]]:
        """The function of indices that kernels have, over an array, with NumPy.

        Returns:
            a function of the index of each dimension, two where it varies (first, last), as arrays
            that broadcast; it gives (least, most), INT_MIN and INT_MAX where nothing is known.
        """
        return lambda *indices: self._over(np.asarray(array), indices)

    def expected(self, *indices: Any) -> tuple[Any, Any]:
        """What plans take the function of `over` to give, which cannot look at the tensor: numbers
        that rise with the position, as those of documents."""
        if self.kind == "bool":
            return 0, 1
        if not any(pool > 1 for pool in self.pools):
            return int(INT_MIN), int(INT_MAX)
        at = self.main + sum(self.varies[: self.main])
        return indices[at] - EXPECTED_REACH, indices[at + 1]

    def _over(self, array: Any, indices: Sequence[Any]) -> tuple[Any, Any]:
        rest = [np.asarray(i) for i in indices]
        shape = np.broadcast_shapes(*(i.shape for i in rest))
        low, high = np.empty(shape, np.int64), np.empty(shape, np.int64)
        for at in np.ndindex(shape):
            given = [int(np.broadcast_to(i, shape)[at]) for i in rest]
            low[at], high[at] = self._of_block(array, given)
        return low[()], high[()]

    def _of_block(self, array: Any, given: list[int]) -> tuple[int, int]:
        slices = []
        for d, (size, pool) in enumerate(zip(array.shape, self.pools, strict=True)):
            if not self.varies[d]:
                index = given.pop(0)
                slices.append(slice(index, index + 1) if 0 <= index < size else slice(-1, None))
                continue
            first, last = given.pop(0), given.pop(0)
            begin, end = first // pool, last // pool + 1
            most = 1 << LEVELS if d == self.main else MOST_ROWS
            if not 0 <= first <= last < size or end - begin > most:
                return int(INT_MIN), int(INT_MAX)
            slices.append(slice(begin * pool, end * pool))
        block = array[tuple(slices)]
        return int(block.min()), int(block.max())

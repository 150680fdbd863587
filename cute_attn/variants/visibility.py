"""Which rectangles of scores a mask lets through: from its trace, from its band, for plans."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from cute_attn.abi import UNBOUNDED
from cute_attn.variants import analysis
from cute_attn.variants.band import Band
from cute_attn.variants.blocks import BlockTest
from cute_attn.variants.evaluate import evaluate
from cute_attn.variants.hook import Hook
from cute_attn.variants.interval import Interval

Corners = tuple[Any, Any]
"""First and last positions of rectangles: integer arrays that broadcast."""


def classify(
    mask: Hook | None,
    band: Band,
    band_is_mask: bool,
    corners: Mapping[str, Corners | None],
    values: Mapping[str, float | int],
) -> Any:
    """See `Variant.classify`.

    Args:
        mask, band, band_is_mask: of the variant.
        corners: of q_idx and kv_idx, of b and h where they are limited.
        values: of all scalars.
    """
    leaves: dict[str, Interval] = {
        name: _floats(limits) for name, limits in corners.items() if limits is not None
    }
    if mask is not None and mask.program is not None:
        leaves.update({name: (float(v), float(v)) for name, v in values.items()})
        return analysis.classify(mask.program.result, leaves)
    left, right = (np.inf if x == UNBOUNDED else float(x) for x in band.resolve(values))
    (q_first, q_last), (kv_first, kv_last) = leaves["q_idx"], leaves["kv_idx"]
    outside = (kv_last < q_first - left) | (kv_first > q_last + right)
    inside = (kv_first >= q_last - left) & (kv_last <= q_first + right)
    full = inside & (mask is None or band_is_mask)
    kind = np.where(full, analysis.FULL, analysis.PARTIAL)
    return np.where(outside, analysis.EMPTY, kind).astype(np.int8)


def may_be_visible(
    test: BlockTest, values: Mapping[str, float | int], arrays: Mapping[str, Any]
) -> Callable[[Corners, Corners, Any], Any]:
    """See `Variant.visible`; arrays: what is known of the tensors."""
    given: dict[str, Any] = {f"params.{name}": value for name, value in values.items()}
    for table in test.tables:
        array = arrays.get(table.tensor)
        given[table.name] = table.expected if array is None else table.over(array)

    def visible(q_idx: Corners, kv_idx: Corners, b: Any) -> Any:
        corners = {"q_first": q_idx[0], "q_last": q_idx[1], "kv_first": kv_idx[0]}
        corners |= {"kv_last": kv_idx[1], "b": b, "h_first": 0, "h_last": 1 << 30}
        return evaluate(test.visible.some, {**corners, **given, **arrays})

    return visible


def _floats(limits: Corners) -> Interval:
    first, last = (np.asarray(x, np.float64) for x in limits)
    return first, last

"""Which levels a batch gets whose page tables begin alike."""

from __future__ import annotations

import numpy as np

from cute_attn.abi import UNBOUNDED
from cute_attn.api.shape import BatchShape
from cute_attn.formats import KVFormat, LevelsKV
from cute_attn.formats.radix import find_prefixes, levels_of
from cute_attn.formats.stack import stack
from cute_attn.scheduler import Constants, CostModel, worth_sharing
from cute_attn.scheduler.each import Int64Array

SHARE = ("auto", "always", "never")


def shared_levels(
    share: str,
    shape: BatchShape,
    constants: Constants,
    qo_indptr: Int64Array,
    kv: KVFormat,
    band: tuple[int, int],
) -> LevelsKV | None:
    """The levels of a batch; None: nothing is shared.

    Args:
        share: one of `SHARE`.
        shape: sizes and options.
        constants: of the device.
        qo_indptr: (num_requests + 1,) query rows.
        kv: the keys.
        band: (window_left, window_right).
    """
    if share == "never" or not (kv.paged and kv.table_on_host and kv.has_positions):
        return None
    q_len = np.diff(qo_indptr)
    # By a request's first query; the others see as far.
    seen = np.minimum(kv.kv_len - q_len + 1 + band[1], kv.kv_len)
    pages = np.where(q_len > 0, np.maximum(seen, 0) // kv.page_size, 0)
    if not pages.any() or (prefixes := find_prefixes(kv, pages)) is None:
        return None
    kept = np.ones(prefixes.begin.size, np.bool_)
    if share == "auto":
        rows = np.concatenate(([0], np.cumsum(q_len[prefixes.order])))
        kept = worth_sharing(
            (prefixes.end - prefixes.begin) * kv.page_size,
            prefixes.last - prefixes.first,
            rows[prefixes.last] - rows[prefixes.first],
            prefixes.parent,
            num_qo_heads=shape.num_qo_heads,
            num_kv_heads=shape.num_kv_heads,
            head_dim_vo=shape.head_dim_vo,
            cost=CostModel.for_kernel(
                shape.head_dim_qk, shape.head_dim_vo, schedule="hopper_tile", constants=constants
            ),
            gpu=constants.gpu,
        )
        if not kept.any():
            return None
    levels = levels_of(kv, prefixes, kept)
    if share == "auto" and band[0] < UNBOUNDED and not stack(levels, qo_indptr, band).follows:
        return None  # windows begin within what is shared: kernels would look up positions
    return levels

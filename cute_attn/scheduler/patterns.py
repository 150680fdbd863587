"""Sparse patterns: which keys are at hand when, and whether planning KV heads apart pays."""

from __future__ import annotations

from cute_attn.scheduler.batch import RequestBatch
from cute_attn.scheduler.constants import Gpu
from cute_attn.scheduler.cost import CostModel

_L2_BYTES = 24 << 20  # of K and V that stay there while other rows read them; an H200 has 60 MB
_LEAST_READS = 4  # of a key, in the mean
_LEAST_SHARE = 0.5  # of the products' time, that reading everything from HBM takes


def pays_by_head(
    requests: RequestBatch, *, num_kv_heads: int, group: int, cost: CostModel, gpu: Gpu
) -> bool:
    """Whether the rows of a pattern are better planned KV head by KV head.

    Rows read the same keys of a KV head, again and again. In the order of requests all heads of a
    row come before the next row, and when that reads a key again the L2 cache has had those of all
    heads since. Tiles of one head at a time find them there. It costs a record of the plan for
    every (row, head), and the heads of a row no longer lie side by side.

    Args:
        requests: rows of one pattern, which choose from `common_keys`.
        num_kv_heads: KV heads.
        group: query heads per KV head.
        cost: of the kernel.
        gpu: ceilings of the device.
    """
    keys = int(requests.kv_len.sum())
    if requests.common_keys * num_kv_heads * cost.key_bytes <= _L2_BYTES:
        return False
    if keys < _LEAST_READS * requests.common_keys:
        return False
    scores = int(requests.q_len @ requests.kv_len) * group
    products_us = scores * num_kv_heads * cost.row_key_ps / 1e6 / gpu.sms
    read_us = keys * num_kv_heads * cost.key_bytes / gpu.read_gbps / 1e3
    return read_us > _LEAST_SHARE * products_us

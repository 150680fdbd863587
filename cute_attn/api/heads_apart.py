"""Sparse patterns whose KV heads are planned apart, so that rows find the keys of others in the L2
cache: see `scheduler.patterns`."""

from __future__ import annotations

from dataclasses import replace

from cute_attn.api.shape import BatchShape
from cute_attn.api.step import Step
from cute_attn.formats import BlockSparseKV, PerHeadKV
from cute_attn.scheduler import Constants, CostModel, RequestBatch, pays_by_head


def heads_apart(
    step: Step, shape: BatchShape, constants: Constants, max_requests: int | None = None
) -> Step | None:
    """The step with a request for each block row and KV head; None: it stays as it is.

    Args:
        step: of any format.
        shape: sizes and options.
        constants: of the device.
        max_requests: most that a plan holds, or None.
    """
    kv, heads = step.kv_format, shape.num_kv_heads
    if not isinstance(kv, BlockSparseKV) or heads == 1:
        return None
    if max_requests is not None and kv.num_requests * heads > max_requests:
        return None
    cost = CostModel.for_kernel(
        shape.head_dim_qk,
        shape.head_dim_vo,
        schedule="hopper_tile",
        element_bytes=shape.dtype.itemsize,
        constants=constants,
    )
    gpu, group = constants.gpu, shape.group
    if not pays_by_head(step.requests, num_kv_heads=heads, group=group, cost=cost, gpu=gpu):
        return None
    apart = PerHeadKV.of_pattern(kv, heads)
    rows = apart.query_rows(None)
    requests = RequestBatch(
        rows.start, rows.length, apart.kv_start, apart.kv_len, common_keys=apart.num_rows
    )
    return replace(step, kv_format=apart, requests=requests)

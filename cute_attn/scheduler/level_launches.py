"""How a step in levels is launched: shared ranges, which have many query rows, and those that
requests have for themselves.

    one launch      every range is items of the prefill kernel
    in turn         decode follows on all SMs
    side by side    prefill has some SMs for itself, decode has the others

Prefill of few long ranges is cut in even pieces, as many of each tile as there are SMs for: its SMs
are best a multiple of its tiles. Decode of short ranges is bound by the latencies of its items, on
few SMs; it takes long there, and prefill of its SMs' share as well. The constants are read off 17
steps on an H200, each with eleven numbers of SMs (perf/NOTES.md).
"""

from __future__ import annotations

import numpy as np

from cute_attn.scheduler.batch import Geometry, RequestBatch
from cute_attn.scheduler.constants import H200, Gpu
from cute_attn.scheduler.cost import CostModel
from cute_attn.scheduler.each import Int64Array

_START_US = 12.0  # of prefill: until its first keys have come, and merging its pieces
_DECODE_START_US = 3.0
_FOLLOWS_US = 4.5  # of decode behind prefill, beside what it reads
_ITEM_US = 1.2  # of decode, beside its keys
_BLOCK_GBPS = 25.0  # of one thread block that decodes short ranges, others far from the ceiling
_CROWDED = 0.0073  # what each further SM that decodes adds to the time of a read
_JOINED = 1.5  # items of a few keys overlap: their cost in one launch over what they take
_CLEARLY = 0.95  # two launches over one


def level_sms(
    large: RequestBatch,
    small: RequestBatch,
    geometry: Geometry,
    cost: CostModel,
    *,
    num_sms: int,
    decode_blocks_per_sm: int,
    gpu: Gpu = H200,
) -> int | None:
    """SMs for the shared ranges: `num_sms` if decode follows on all of them, fewer if it runs
    beside on the others; None if one launch is as good.

    Args:
        large, small: requests of many query rows, and of few; of both at least one.
        geometry, cost: of the kernel of the large ones.
        num_sms: of the device.
        decode_blocks_per_sm: resident thread blocks of the decode kernel.
        gpu: ceilings of a device with `gpu.sms` SMs.
    """
    sms = np.arange(1, num_sms + 1)
    heads = geometry.num_kv_heads
    item, block = cost.item(geometry) / 1e3, cost.compute_block(geometry) / 1e3
    computing = _prefill_us(large, geometry, sms, item, block)
    reading = _decode_us(
        small, heads * small.num_requests, cost, (num_sms - sms[:-1]), decode_blocks_per_sm, gpu
    )
    beside = np.maximum(computing[:-1], reading)
    alone = float(computing[-1])
    read_bytes = int(small.kv_len.sum()) * heads * cost.key_bytes
    in_turn = alone + _FOLLOWS_US + read_bytes / gpu.read_gbps / 1e3
    blocks = int((-(-small.kv_len // geometry.tile_kv)).sum())
    joined = (small.num_requests * item + blocks * block) * heads / num_sms
    best = int(beside.argmin()) if beside.size else 0
    least = min(in_turn, float(beside[best])) if beside.size else in_turn
    if least > _CLEARLY * (alone + joined / _JOINED):
        return None
    return num_sms if least == in_turn else int(sms[best])


def _prefill_us(
    large: RequestBatch, geometry: Geometry, sms: Int64Array, item: float, block: float
) -> np.ndarray:
    """(sms,) microseconds; `item`, `block`: of an item and of a KV block."""
    tiles = -(-large.q_len * geometry.group // geometry.tile_q) * geometry.num_kv_heads
    blocks = -(-large.kv_len // geometry.tile_kv)
    count, longest = int(tiles.sum()), int(blocks.max())
    total = float(tiles @ (blocks * block + item))
    pieces = np.maximum(sms // count, 1)
    even = -(-longest // pieces) * block
    time: np.ndarray = _START_US + item + np.where(2 * count <= sms, even, total / sms)
    return time


def _decode_us(
    small: RequestBatch,
    items: int,
    cost: CostModel,
    sms: Int64Array,
    blocks_per_sm: int,
    gpu: Gpu,
) -> np.ndarray:
    """(sms,) microseconds of `items` items on so many SMs."""
    rate = _BLOCK_GBPS * (gpu.sm_read_gbps / H200.sm_read_gbps)
    item_bytes = float(small.kv_len.mean()) * cost.key_bytes
    read = item_bytes / rate / 1e3 * (1 + _CROWDED * sms * (H200.sms / gpu.sms))
    rounds = items / (sms * blocks_per_sm)
    whole = np.ceil(rounds)
    time: np.ndarray = _DECODE_START_US + np.where(
        rounds >= 1, whole * (_ITEM_US + read), _ITEM_US + rounds * read
    )
    return time

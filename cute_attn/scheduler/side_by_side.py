"""How many SMs compute and how many read, where a step has both prefill and decode.

Prefill is bound by tensor cores and decode by memory, so neither needs what the other waits for. In
two launches side by side prefill has some SMs for itself and decode the others: an SM that only
decodes reads more than its share of the bandwidth, and fewer of them do.

    prefill on n SMs         work / n
    decode on the others     bytes / rate(sms - n) + items in turn

The constants are a fit to fifteen made-up steps on an H200, each with up to seventeen numbers of
SMs (perf/NOTES.md): what loses least where a step takes the number that they say, 1.4 % in the
mean. By themselves they say little: prefill is slowed by less than _SLOWDOWN, for one.
"""

from __future__ import annotations

import numpy as np

from cute_attn.abi import UNBOUNDED
from cute_attn.scheduler.batch import Geometry, RequestBatch
from cute_attn.scheduler.constants import H200, Gpu
from cute_attn.scheduler.cost import CostModel
from cute_attn.scheduler.each import Int64Array

LEAST_DECODE_US = 20.0
"""Reading time at full rate from which a launch of its own is worth its launch and its ramp."""
LEAST_SHARE = 0.25
"""Of decode's reading time at full rate in the time of prefill: below it prefill on fewer SMs loses
more than decode beside it wins (-4 % at 0.13, 0 at 0.2, +1 % at 0.3)."""
_SM_GBPS = 60.0  # of an SM that decodes, on an H200
_READ_SHARE = 1.0  # of `Gpu.read_gbps`, while other SMs compute
_SHARPNESS = 9  # how suddenly the one limit gives way to the other
_ITEM_US = 12.0  # an item's latencies
_SLOWDOWN = 1.8  # of prefill, whose clock and L2 others share
_BALANCE = 3.5  # of the two times: how much the shorter one counts
_START_US = 12.0  # of prefill: until its first blocks have come


def prefill_sms(
    prefill: RequestBatch,
    decode: RequestBatch,
    geometry: Geometry,
    cost: CostModel,
    *,
    num_sms: int,
    decode_blocks_per_sm: int,
    gpu: Gpu = H200,
) -> int | None:
    """SMs for prefill; the others decode. None if one launch for both is as good.

    Args:
        prefill, decode: the requests of the two launches.
        geometry, cost: of the prefill kernel.
        num_sms: of the device.
        decode_blocks_per_sm: resident blocks of the decode kernel.
        gpu: ceilings of a device with `gpu.sms` SMs.
    """
    heads = geometry.num_kv_heads
    read_bytes = int(_visible_keys(decode, geometry).sum()) * heads * cost.key_bytes
    read_us, prefill_us = read_bytes / gpu.read_gbps / 1e3, _prefill_us(prefill, geometry, cost)
    least = max(LEAST_DECODE_US, LEAST_SHARE * prefill_us / num_sms)
    if prefill.num_requests == 0 or read_us < least:
        return None
    sms = np.arange(1, num_sms)
    computing = _SLOWDOWN * prefill_us / sms + _START_US
    others = num_sms - sms
    items = decode.num_requests * heads / (others * decode_blocks_per_sm)
    sm_gbps = _SM_GBPS * (gpu.sm_read_gbps / H200.sm_read_gbps)
    rate = _combined(sm_gbps * others, _READ_SHARE * gpu.read_gbps)
    reading = read_bytes / rate / 1e3 + _ITEM_US * items
    return int(sms[(computing**_BALANCE + reading**_BALANCE).argmin()])


def _combined(*limits: float | np.ndarray) -> np.ndarray:
    """A smooth minimum."""
    return sum(np.asarray(x, np.float64) ** -_SHARPNESS for x in limits) ** (-1 / _SHARPNESS)


def _visible_keys(requests: RequestBatch, geometry: Geometry) -> Int64Array:
    """Keys that a request's query tokens see, in the mean."""
    keys: Int64Array = requests.kv_len
    if geometry.window_right != UNBOUNDED:
        keys = np.maximum(keys - requests.q_len // 2, 0)
    if geometry.window_left != UNBOUNDED:
        keys = np.minimum(keys, geometry.window_left + 1)
    return keys


def _prefill_us(requests: RequestBatch, geometry: Geometry, cost: CostModel) -> float:
    """Microseconds of one SM."""
    tiles = -(-requests.q_len * geometry.group // geometry.tile_q)
    keys = _visible_keys(requests, geometry) + geometry.tile_kv // 2  # whole blocks
    per_head = tiles * (keys * geometry.tile_q * cost.row_key_ps // 1000 + cost.item(geometry))
    return float(per_head.sum()) * geometry.num_kv_heads / 1000

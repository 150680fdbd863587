"""The cost model: what a piece of a tile costs a thread block, in integer nanoseconds.

    cost(item) = tile + blocks * block       and `partial` more for a piece of a split tile

A KV block costs the longer of two resources: tensor-core time for tile_q x tile_kv scores
("compute"), and the time to read tile_kv keys and values from HBM ("bytes"). Query tiles of one
request share what they read through the L2 cache, so the bytes of a block are divided by the
request's number of query tiles: decode ends up in the bytes regime, prefill in the compute regime.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cute_attn.scheduler.batch import Geometry, Int64Array


@dataclass(frozen=True)
class Gpu:
    """Measured ceilings of a device.

    Attributes:
        name: for reports.
        sms: streaming multiprocessors.
        tflops: dense bf16 matrix product, TFLOP/s.
        read_gbps: streaming read from HBM by the whole device, GB/s.
        sm_read_gbps: the most that one SM reads when few do, GB/s.
    """

    name: str
    sms: int
    tflops: float
    read_gbps: float
    sm_read_gbps: float


H200 = Gpu("H200", sms=132, tflops=796.0, read_gbps=4633.0, sm_read_gbps=129.0)


@dataclass(frozen=True)
class CostModel:
    """Costs of a thread block's work. The defaults: head_dim 128, bf16, one block per H200 SM.

    Attributes:
        tile_ns: fixed cost of an item: Q load, pipeline fill and drain, output.
        row_key_ps: tensor-core picoseconds per (packed query row, key).
        key_ps: picoseconds to read one key and its value from HBM at the block's fair share.
        partial_row_ps: picoseconds to write one packed row of a partial result.
        merge_ns: what the merge adds to the step if any tile is split (reading partials included).
        key_bytes: bytes of one key and its value in one KV head.
    """

    tile_ns: int = 1200
    row_key_ps: int = 113
    key_ps: int = 14590
    partial_row_ps: int = 14700
    merge_ns: int = 2500
    key_bytes: int = 512

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not isinstance(value, int) or not 0 <= value < 1 << 31:
                raise ValueError(f"{name} is {value!r}; costs are integers from 0 to 2^31 - 1")
        if self.tile_ns == 0:
            raise ValueError("tile_ns is 0; a tile costs at least 1")

    @classmethod
    def for_kernel(
        cls,
        head_dim_qk: int = 128,
        head_dim_vo: int = 128,
        *,
        element_bytes: int = 2,
        blocks_per_sm: int = 1,
        gpu: Gpu = H200,
        efficiency: float = 0.75,
    ) -> CostModel:
        """Costs from a device's ceilings.

        Args:
            head_dim_qk, head_dim_vo: elements.
            element_bytes: of K and V.
            blocks_per_sm: resident blocks that share one SM's tensor cores and bandwidth.
            gpu: ceilings.
            efficiency: share of `gpu.tflops` that the main loop reaches.
        """
        sm_flops_per_ps = gpu.tflops * efficiency / gpu.sms / blocks_per_sm
        sm_bytes_per_ps = gpu.read_gbps / gpu.sms / blocks_per_sm / 1000
        key_bytes = (head_dim_qk + head_dim_vo) * element_bytes
        return cls(
            row_key_ps=max(1, round(2 * (head_dim_qk + head_dim_vo) / sm_flops_per_ps)),
            key_ps=max(1, round(key_bytes / sm_bytes_per_ps)),
            partial_row_ps=round(4 * (head_dim_vo + 1) / sm_bytes_per_ps),
            key_bytes=key_bytes,
        )

    def compute_block(self, geometry: Geometry) -> int:
        """Tensor-core nanoseconds of one KV block."""
        return geometry.tile_q * geometry.tile_kv * self.row_key_ps // 1000

    def read_block(self, geometry: Geometry) -> int:
        """Nanoseconds to read one KV block from HBM."""
        return geometry.tile_kv * self.key_ps // 1000

    def block(self, geometry: Geometry, q_tiles: Int64Array) -> Int64Array:
        """Cost of one KV block for requests of `q_tiles` query tiles per head; at least 1."""
        read = self.read_block(geometry) // np.maximum(q_tiles, 1)
        cost: Int64Array = np.maximum(read, max(self.compute_block(geometry), 1))
        return cost


DEFAULT_COST = CostModel()

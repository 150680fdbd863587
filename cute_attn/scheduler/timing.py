"""`Timing`: how long the work of a kernel's thread blocks takes on a GPU, for predictions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from cute_attn.abi import UNBOUNDED
from cute_attn.scheduler.batch import Geometry
from cute_attn.scheduler.constants import BUILT_IN, H200, Constants, Gpu
from cute_attn.scheduler.cost import CostModel
from cute_attn.scheduler.fluid import FloatArray

_Number = TypeVar("_Number", float, FloatArray)


@dataclass(frozen=True)
class Timing:
    """How long a thread block's work takes, if nobody else reads. Floats: no plan depends on them.

    Attributes:
        gpu: its ceilings.
        blocks_per_sm: resident blocks that share an SM.
        start_us: from the begin of the launch to the first keys of its blocks; nobody reads.
        first_us: of the first item of a block, beside its keys.
        item_us: between two items of a block.
        masked_us: more for each end of the visible band.
        row_key_ps: tensor-core picoseconds per (packed query row, key).
        block_gbps: the most that a block reads, GB/s.
        read_share: share of `Gpu.read_gbps` that all blocks together reach.
        partial_row_ps: picoseconds to write one packed row of a partial result.
        merge_us: a merge, beside reading the partial results.
        merge_row_ps: picoseconds to read one packed row of a partial result.
        key_bytes: bytes of one key and its value in one KV head.
    """

    gpu: Gpu
    blocks_per_sm: int
    start_us: float
    first_us: float
    item_us: float
    masked_us: float
    row_key_ps: float
    block_gbps: float
    read_share: float
    partial_row_ps: float
    merge_us: float
    merge_row_ps: float
    key_bytes: int

    @classmethod
    def for_kernel(
        cls,
        head_dim_qk: int = 128,
        head_dim_vo: int = 128,
        *,
        schedule: str = "ampere_decode",
        loader: str = "ragged",
        element_bytes: int = 2,
        latent: bool = False,
        rate: float = 1.0,
        blocks_per_sm: int = 1,
        constants: Constants = BUILT_IN,
    ) -> Timing:
        """Times from the constants of a GPU.

        Args:
            head_dim_qk, head_dim_vo: elements.
            schedule, loader: of the kernel, as in its spec.
            element_bytes: of K and V.
            latent: values are columns of the keys, and are not read again.
            rate: of the loop over KV blocks, against that of 16-bit elements.
            blocks_per_sm: resident blocks that share one SM's tensor cores and bandwidth.
            constants: of the GPU.

        Raises:
            ValueError: unknown schedule.
        """
        gpu = constants.gpu
        times = constants.kernel_times(schedule, max(head_dim_qk, head_dim_vo))
        # The other blocks of an SM fill the gap where a block waits for memory; where it computes,
        # they compute as well.
        reads = schedule == "ampere_decode"
        fixed = 1 / blocks_per_sm if reads else blocks_per_sm
        tflops = gpu.tflops * times.efficiency_with(loader) * rate
        sm_flops_per_ps = tflops / gpu.sms / blocks_per_sm
        row_bytes = 4 * (head_dim_vo + 1)
        return cls(
            gpu=gpu,
            blocks_per_sm=blocks_per_sm,
            start_us=times.start_us,
            first_us=0.0,
            item_us=times.item_us * fixed,
            masked_us=times.masked_us * fixed,
            row_key_ps=2 * (head_dim_qk + head_dim_vo) / sm_flops_per_ps,
            block_gbps=gpu.sm_read_gbps * times.sm_share / blocks_per_sm,
            read_share=times.read_share,
            partial_row_ps=row_bytes * gpu.sms * blocks_per_sm / gpu.read_gbps * 1000,
            merge_us=times.merge_us,
            merge_row_ps=row_bytes / gpu.sm_read_gbps * 1000,
            key_bytes=(head_dim_qk + (0 if latent else head_dim_vo)) * element_bytes,
        )

    @classmethod
    def of(cls, cost: CostModel, gpu: Gpu = H200, blocks_per_sm: int = 1) -> Timing:
        """Times that are a plan's costs: of a kernel of which nothing else is known."""
        return cls(
            gpu=gpu,
            blocks_per_sm=blocks_per_sm,
            start_us=0.0,
            first_us=cost.tile_ns / 1000,
            item_us=cost.tile_ns / 1000,
            masked_us=cost.masked_ns / 1000,
            row_key_ps=cost.row_key_ps,
            block_gbps=gpu.sm_read_gbps / blocks_per_sm,
            read_share=1.0,
            partial_row_ps=cost.partial_row_ps,
            merge_us=cost.merge_ns / 1000,
            merge_row_ps=cost.merge_row_ps,
            key_bytes=cost.key_bytes,
        )

    @property
    def rate(self) -> float:
        """Bytes per us that all blocks together read at most."""
        return self.gpu.read_gbps * self.read_share * 1000

    def masked(self, geometry: Geometry) -> float:
        """Microseconds more of an item for the masked ends of its band."""
        right = geometry.window_right != UNBOUNDED
        left = geometry.window_left != UNBOUNDED
        return (right + left) * self.masked_us

    def merge(self, partial_rows: _Number) -> _Number:
        """Microseconds to merge a tile from partial results of so many packed rows in all."""
        return self.merge_us + partial_rows * self.merge_row_ps / 1e6

    def compute_block(self, geometry: Geometry) -> float:
        """Tensor-core microseconds of one KV block."""
        return geometry.tile_q * geometry.tile_kv * self.row_key_ps / 1e6

"""The cost model: what a piece of a tile costs a thread block, in integer nanoseconds.

    cost(item) = fixed + blocks * block      and `partial` more for a piece of a split tile

A KV block costs the longer of two resources: tensor-core time for tile_q x tile_kv scores
("compute"), and the time to read tile_kv keys and values from HBM ("bytes"). Query tiles of one
request share what they read through the L2 cache, so the bytes of a block are divided by the
request's number of query tiles: decode ends up in the bytes regime, prefill in the compute regime.
In a mixed step the blocks that compute leave their share of the bandwidth to those that read.

It judges plans and says who computes what; `simulator` predicts times. Constants: `constants`.
"""

from __future__ import annotations

from dataclasses import dataclass

from cute_attn.abi import UNBOUNDED
from cute_attn.scheduler.batch import Geometry
from cute_attn.scheduler.constants import BUILT_IN, Constants
from cute_attn.scheduler.each import Each, at_least

_MIN_PIECE_KEYS = 64  # 1 x 1k keys, 32/8 heads: 5.7 us, 6.1 with 128


@dataclass(frozen=True)
class CostModel:
    """Costs of a thread block's work. The defaults: head_dim 128, bf16, one block per H200 SM.

    Attributes:
        tile_ns: fixed cost of an item: Q load, pipeline fill and drain, output.
        masked_ns: fixed cost more for each end of the visible band (causal: 1, window: 2).
        row_key_ps: tensor-core picoseconds per (packed query row, key).
        key_ps: picoseconds to read one key and its value from HBM at the block's fair share.
        partial_row_ps: picoseconds to write one packed row of a partial result.
        merge_ns: what a merge adds to the step: the last arriver's counter and latencies.
        merge_row_ps: picoseconds for the last arriver to read one packed row of a partial result.
        key_bytes: bytes of one key and its value in one KV head.
    """

    tile_ns: int = 1200
    row_key_ps: int = 113
    key_ps: int = 14590
    partial_row_ps: int = 14700
    merge_ns: int = 1500
    key_bytes: int = 512
    masked_ns: int = 0
    merge_row_ps: int = 4000

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
        schedule: str = "ampere_decode",
        element_bytes: int = 2,
        latent: bool = False,
        rate: float = 1.0,
        blocks_per_sm: int = 1,
        constants: Constants = BUILT_IN,
    ) -> CostModel:
        """Costs from the constants of a GPU.

        Args:
            head_dim_qk, head_dim_vo: elements.
            schedule: kernel family, as in the kernel's spec.
            element_bytes: of K and V.
            latent: values are columns of the keys, and are not read again.
            rate: of the loop over KV blocks, against that of 16-bit elements.
            blocks_per_sm: resident blocks that share one SM's tensor cores and bandwidth.
            constants: of the GPU.

        Raises:
            ValueError: unknown schedule.
        """
        gpu = constants.gpu
        family = constants.plan_costs(schedule, max(head_dim_qk, head_dim_vo))
        reads = schedule == "ampere_decode"
        fixed = 1 / blocks_per_sm if reads else blocks_per_sm
        sm_flops_per_ps = gpu.tflops * family.efficiency * rate / gpu.sms / blocks_per_sm
        sm_bytes_per_ps = gpu.read_gbps / gpu.sms / blocks_per_sm / 1000
        partial_bytes = 4 * (head_dim_vo + 1)
        # Latent tiles, of 64 rows x 512 columns, are merged by up to 15 blocks each: 1 x 1k keys,
        # 128 heads 17.2 to 12.9 us, 1 x 8k 24.4 to 21.8.
        key_bytes = (head_dim_qk + (0 if latent else head_dim_vo)) * element_bytes
        return cls(
            tile_ns=round(family.tile_ns * fixed),
            masked_ns=round(family.masked_ns * fixed),
            row_key_ps=max(1, round(2 * (head_dim_qk + head_dim_vo) / sm_flops_per_ps)),
            key_ps=max(1, round(key_bytes / sm_bytes_per_ps)),
            partial_row_ps=round(partial_bytes / sm_bytes_per_ps / (2 if latent else 1)),
            key_bytes=key_bytes,
            merge_row_ps=round(partial_bytes / gpu.sm_read_gbps * 1000 / (6 if latent else 1)),
        )

    def item(self, geometry: Geometry) -> int:
        """Nanoseconds of an item beside its KV blocks."""
        right = geometry.window_right != UNBOUNDED
        left = geometry.window_left != UNBOUNDED
        return self.tile_ns + (right + left) * self.masked_ns

    def compute_block(self, geometry: Geometry) -> int:
        """Tensor-core nanoseconds of one KV block."""
        return geometry.tile_q * geometry.tile_kv * self.row_key_ps // 1000

    def read_block(self, geometry: Geometry) -> int:
        """Nanoseconds to read one KV block from HBM."""
        return geometry.tile_kv * self.key_ps // 1000

    def read_block_in_step(self, geometry: Geometry, loaded: int, computed: int) -> int:
        """Nanoseconds to read one KV block from HBM, on average over a step bound by HBM.

        Args:
            geometry: of the step.
            loaded: KV blocks that the step reads from HBM.
            computed: KV blocks of tiles that only compute; they leave their bandwidth to others.
        """
        read = self.read_block(geometry)
        total = loaded * read
        left = total - computed * self.compute_block(geometry)
        return read * max(left, 0) // total if total else read

    def block(self, geometry: Geometry, q_tiles: Each, read_block: int | None = None) -> Each:
        """Cost of one KV block for requests of `q_tiles` query tiles per head; at least 1.

        `read_block`: nanoseconds to read one; default: at the fair share of the bandwidth.
        """
        read = self.read_block(geometry) if read_block is None else read_block
        return at_least(read // at_least(q_tiles, 1), max(self.compute_block(geometry), 1))


DEFAULT_COST = CostModel()


def shortest_piece(geometry: Geometry, partial_cost: Each, block_cost: Each) -> Each:
    """KV blocks that a piece of a split tile should have: `_MIN_PIECE_KEYS` keys, or as many as
    writing its partial result costs."""
    least = (_MIN_PIECE_KEYS - 1) // geometry.tile_kv + 1
    return at_least((partial_cost + block_cost - 1) // block_cost, least)

"""Emitter of the "ampere_tile" schedule: FlashAttention with cp.async copies and mma.sync products.

The schedule is explained in docs/schedules/ampere_tile.md.
"""

from __future__ import annotations

from cute_attn.ampere.common import constants, includes, kernel
from cute_attn.ampere.tiles import row_tiles, unroll_qk
from cute_attn.codegen.source import GeneratedKernel
from cute_attn.codegen.spec import KernelSpec


def _slot(spec: KernelSpec) -> str:
    """Index of a KV block in the ring."""
    if spec.tile.stages == 1:
        return ""
    return "[n % kStages]" if spec.variant.block_test is None else "[slot]"


def emit_tile(spec: KernelSpec) -> GeneratedKernel:
    """The kernel of a spec that `supports` has no reason against."""
    tile, rows = spec.tile, row_tiles(spec.tile)
    stages = [("kStages", tile.stages, "KV blocks in shared memory")] if tile.stages > 1 else []
    pipeline = "one buffer each for K and V" if tile.stages == 1 else f"ring of {tile.stages}"
    return kernel(
        spec,
        "tile.cu.jinja",
        description=[
            f"pipeline       {pipeline}; {tile.threads // 32} warps of {16 * rows} query rows"
        ],
        values={
            "includes": includes(spec),
            "constants": constants(
                [
                    ("kHeadDim", spec.head_dim_qk, "columns of Q, K and V"),
                    ("kTileQ", tile.q, "packed query rows per tile"),
                    ("kTileKV", tile.kv, "keys per KV block"),
                    ("kGroup", spec.group, "query heads per KV head"),
                    *stages,
                    ("kUnrollQK", unroll_qk(tile, spec.head_dim_qk), "columns of Q K^T in a row"),
                    ("kThreads", tile.threads, "threads per block"),
                    ("kRowTiles", rows, "MMA tiles of 16 query rows per warp"),
                    ("kWarpRows", 16 * rows, "query rows per warp"),
                ]
            ),
            "decode": False,
            "unit": "KV blocks",
            "keys": "kTileKV",
            "attend": "attend_block",
            "begin": "item.block_begin",
            "step": "--n",
            "copy_keys": "kTileKV",
            "pages": "CompactBlockPages",
            "rows_in_work": 0,  # in hooks: beside the output there are few registers
            "copy_threads": "kThreads",
            "copy_thread": "opaque(threadIdx.x)",
            "softmax": "OnlineSoftmax" if spec.variant.softmax else "ScoreWeights",
            "slot": _slot(spec),
            "softmax_init": ", ".join(["start"] * rows),
        },
    )

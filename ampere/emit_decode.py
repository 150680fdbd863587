"""Emitter of the "ampere_decode" schedule: few query rows, keys split over the warps.

The schedule is explained in docs/schedules/ampere_decode.md.
"""

from __future__ import annotations

from cute_attn.ampere.common import constants, includes, kernel
from cute_attn.ampere.tiles import WARP_KEYS
from cute_attn.codegen.source import GeneratedKernel
from cute_attn.codegen.spec import KernelSpec
from cute_attn.codegen.vector_hooks import is_heavy


def emit_decode(spec: KernelSpec) -> GeneratedKernel:
    """The kernel of a spec that `supports` has no reason against."""
    tile = spec.tile
    warps = tile.threads // 32
    compact = tile.q * spec.head_dim_qk >= 4096
    heavy = is_heavy(spec.variant, spec.head_dim_qk, spec.head_dim_vo, tile.q)
    return kernel(
        spec,
        "decode.cu.jinja",
        description=[
            f"pipeline       {warps} warps of {WARP_KEYS} keys, each with a ring of {tile.stages}"
        ],
        values={
            "includes": includes(spec),
            "constants": constants(
                [
                    ("kHeadDim", spec.head_dim_qk, "columns of Q, K and V"),
                    ("kTileQ", tile.q, "packed query rows per tile"),
                    ("kTiles", tile.q // 8, "MMA tiles of eight query rows"),
                    ("kTileKV", tile.kv, "keys per KV block of the plan"),
                    ("kGroup", spec.group, "query heads per KV head"),
                    ("kStages", tile.stages, "steps of keys in the ring of a warp"),
                    ("kThreads", tile.threads, "threads per block"),
                    ("kWarps", warps, "warps per block"),
                    ("kWarpKeys", WARP_KEYS, "keys that a warp takes at a time"),
                ]
            ),
            "decode": True,
            "softmax": "KeySoftmax" if spec.variant.softmax else "KeyWeights",
            "unit": "Sixteens of keys",
            "keys": "kWarpKeys",
            "attend": "attend_keys",
            "begin": "begin_of(item)",
            "step": "n -= kWarps",
            "copy_keys": "kWarpKeys",
            # Output and queries of 16 rows of 256 columns leave few registers.
            "pages": "CompactBlockPages" if compact else "BlockPages",
            # Rows of a thread in a hook at once: +2 % with few requests.
            "rows_in_work": 1 if heavy else 2,
            "copy_threads": "32",
            "copy_thread": "opaque(threadIdx.x) % 32",
        },
    )

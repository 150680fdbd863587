"""A template of one's own (that of examples/) as a schedule of the GPU tests."""

from __future__ import annotations

from pathlib import Path

from cute_attn import KernelSpec, Problem, Tile, choose, register_template
from cute_attn.codegen.registered import REGISTERED
from tests.gpu.variant_case import (
    DIM,
    HEADS,
    KV_HEADS,
)
from tests.gpu.variant_cases import (
    CASES,
    PAGE_SIZES,
)

NAME = "one_row_per_thread"
NAMES = ("causal", "window", "soft_cap", "sinks", "tempered", "all_hooks")
"""Cases that it serves."""


def registered() -> str:
    """Its name, registered now if it is not."""
    if NAME not in REGISTERED:
        register_template(
            NAME,
            Path(__file__).parents[2] / "examples" / "row_per_thread.cu.jinja",
            tiles={DIM: Tile(q=64, kv=32, stages=1, threads=64, blocks_per_sm=4)},
            archs=["sm_80", "sm_86", "sm_89", "sm_90"],
            loaders=["ragged", "paged"],
            hooks=["mask", "logits", "row_state", "output"],
        )
    return NAME


def kernels(arch: str) -> list[KernelSpec]:
    """Those of the tests."""
    return [
        choose(
            Problem(arch, "bf16", DIM, DIM, HEADS // KV_HEADS, CASES[name].variant, page_size),
            rows=None,
            schedule=registered(),
        )
        for name in NAMES
        for page_size in PAGE_SIZES[:2]
    ]

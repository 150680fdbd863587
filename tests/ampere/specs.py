"""Specs for the tests of the Ampere schedules."""

from __future__ import annotations

from typing import Any

import numpy as np

from cute_attn import ampere
from cute_attn.codegen.spec import KernelSpec, Tile
from cute_attn.variants import Hook, Variant, causal

SCHEDULES = ("ampere_tile", "ampere_decode")
ARCHS = ("sm_80", "sm_86", "sm_89", "sm_90")
HEAD_DIMS = (64, 128, 256)


def make_spec(
    schedule: str = "ampere_tile",
    *,
    arch: str = "sm_80",
    dtype: str = "bf16",
    head_dim: int = 128,
    head_dim_vo: int | None = None,
    loader: str = "ragged",
    group: int = 1,
    variant: Variant | None = None,
    tile: Tile | None = None,
    fixed_pieces: bool = False,
) -> KernelSpec:
    """A spec of common values, each of which can be replaced."""
    return KernelSpec(
        arch=arch,
        schedule=schedule,
        dtype=dtype,
        head_dim_qk=head_dim,
        head_dim_vo=head_dim if head_dim_vo is None else head_dim_vo,
        loader=loader,
        group=group,
        variant=causal() if variant is None else variant,
        tile=tile or ampere.tiles(arch, schedule, head_dim),
        fixed_pieces=fixed_pieces,
    )


def even_keys() -> Variant:
    """A mask that is no band: it decides in every KV block."""
    hook = Hook("even", "kv_idx % 2 == 0", lambda b, h, q, kv, **_: np.asarray(kv) % 2 == 0)
    return Variant("even", mask=hook, band_is_mask=False)


def sinks() -> Variant:
    """A mask that is no band, whose blocks are classified."""

    def mask(b: Any, h: Any, q_idx: Any, kv_idx: Any, *, first: int = 4, window: int = 64) -> Any:
        return (kv_idx <= q_idx) & ((kv_idx < first) | (kv_idx > q_idx - window))

    return Variant("sinks", mask=mask)

"""`KernelSpec` -> source of the latent kernel (schedule "hopper_mla"): multi-head latent attention.

The schedule is explained in docs/schedules/hopper_mla.md.
"""

from __future__ import annotations

from pathlib import Path

from cute_attn.abi import ParameterBlock
from cute_attn.codegen.attention_params import attention_params
from cute_attn.codegen.hooks import cpp_band, number_lines
from cute_attn.codegen.params import cpp_struct
from cute_attn.codegen.render import render
from cute_attn.codegen.source import GeneratedKernel
from cute_attn.codegen.spec import LATENT_DIMS, KernelSpec, Tile, UnsupportedSpecError
from cute_attn.hopper.delays import expand, with_delays
from cute_attn.hopper.emit import include_dirs
from cute_attn.hopper.equations import SMEM_PER_BLOCK
from cute_attn.variants import Variant

SCHEDULE = "hopper_mla"
_HERE = Path(__file__).parent
# 24 registers are too few for a producer that walks boxes of pages.
TILE = Tile(q=64, kv=64, stages=2, threads=384, producer_registers=40, consumer_registers=232)
"""The only tile: shared memory holds Q, two blocks of keys and the probabilities of one of them;
nothing else fits."""
_OTHER_BYTES = 3072  # barriers, references, sums, items


def default_tile(head_dim_qk: int, head_dim_vo: int) -> Tile | None:
    """The tile, or None for other head dims."""
    return TILE if (head_dim_qk, head_dim_vo) == LATENT_DIMS else None


def bytes_in_flight(tile: Tile) -> int:
    """Bytes of keys that a block's copies have on their way while it computes."""
    return (tile.stages - 1) * tile.kv * LATENT_DIMS[0] * 2


def smem_bytes(tile: Tile) -> int:
    """Dynamic shared memory of a block, in bytes."""
    return sum(_tile_bytes(tile)) + _OTHER_BYTES


def _tile_bytes(tile: Tile) -> tuple[int, int, int]:
    """Of Q, which ends with probabilities of one warpgroup, of the keys, and of the probabilities
    of the other."""
    row = LATENT_DIMS[0] * 2
    return tile.q * row, tile.stages * tile.kv * row, tile.q * tile.kv * 2


def supports(spec: KernelSpec) -> list[str]:
    """Reasons why no kernel can be generated for `spec`; empty = it can."""
    reasons = spec.basic_reasons()
    if spec.schedule != SCHEDULE:
        reasons.append(f"schedule is {spec.schedule!r}; this emitter has {SCHEDULE!r}")
    if spec.arch != "sm_90a":
        reasons.append(f"arch is {spec.arch!r}; TMA and wgmma kernels are built for 'sm_90a'")
    dims = (spec.head_dim_qk, spec.head_dim_vo)
    if dims != LATENT_DIMS:
        reasons.append(f"(head_dim_qk, head_dim_vo) is {dims}; known: {LATENT_DIMS}")
        return reasons
    if spec.tile != TILE:
        reasons.append(f"tile is {spec.tile}; there is one: {TILE}")
    return reasons + variant_reasons(spec.variant)


def variant_reasons(variant: Variant) -> list[str]:
    """What of a variant the kernel has no place for."""
    reasons = []
    if not variant.softmax:
        reasons.append(f"variant {variant.name!r} has no softmax")
    if variant.logits is not None:
        reasons.append(f"variant {variant.name!r} transforms scores")
    if not variant.band_is_mask:
        reasons.append(f"the mask of variant {variant.name!r} is no band of keys")
    if variant.vector_hooks:
        reasons.append(f"variant {variant.name!r} transforms vectors")
    if variant.finish is not None:
        reasons.append(f"variant {variant.name!r} acts on finished rows")
    return reasons


def q_by_tma(spec: KernelSpec) -> bool:
    """Whether a tile of queries is boxes: whole tokens, or a whole part of one; of eight rows, in
    which the swizzle repeats, or a multiple."""
    rows = min(spec.group, spec.tile.q)
    return rows % 8 == 0 and (spec.tile.q % rows == 0 and spec.group % rows == 0)


def params_of(spec: KernelSpec) -> ParameterBlock:
    """Layout of the struct that the spec's kernel takes. `k` are its rotary columns, `v` the latent
    ones."""
    return attention_params(
        tma=spec.loader != "gather",
        q_tma=q_by_tma(spec),
        paged=spec.loader != "ragged",
        variant=spec.variant,
        fused_merge=spec.fuses_merge,
    )


def emit(spec: KernelSpec) -> GeneratedKernel:
    """Generates the kernel.

    Raises:
        UnsupportedSpecError: `supports(spec)` gives reasons against it.
    """
    if reasons := supports(spec):
        raise UnsupportedSpecError(spec.name, reasons)
    tile, variant = spec.tile, spec.variant
    band_left, band_right = cpp_band(variant.band, variant.scalars)
    params = params_of(spec)
    used = smem_bytes(tile)
    assert used <= SMEM_PER_BLOCK
    q_bytes, k_bytes, p_bytes = _tile_bytes(tile)
    text = render(
        _HERE / "templates" / "mla.cu.jinja",
        spec=spec,
        mma_type={"bf16": "BF16", "fp16": "F16"}[spec.dtype],
        smem_bytes=used,
        q_bytes=q_bytes,
        k_bytes=k_bytes,
        p_bytes=p_bytes,
        params_struct=cpp_struct(params),
        gather=spec.loader == "gather",
        paged=spec.loader != "ragged",
        q_tma=q_by_tma(spec),
        box_heads=min(tile.q, spec.group),
        band_left=band_left,
        band_right=band_right,
    )
    return GeneratedKernel.of_spec(
        spec,
        number_lines(with_delays(expand(text)) if spec.delays else text),
        used,
        params,
        include_dirs(),
        dependent_launch=True,
    )

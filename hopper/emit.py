"""`KernelSpec` -> source of the Hopper tile kernel (schedule "hopper_tile").

The schedule is explained in docs/schedules/hopper_tile.md.
"""

from __future__ import annotations

from pathlib import Path

from cute_attn.abi import ParameterBlock
from cute_attn.codegen.attention_params import attention_params
from cute_attn.codegen.flat_hooks import flat_hooks
from cute_attn.codegen.hooks import (
    cpp_band,
    cpp_hooks,
    cpp_row_hooks,
    hidden_score,
    hook_headers,
    number_lines,
)
from cute_attn.codegen.params import cpp_struct
from cute_attn.codegen.render import render
from cute_attn.codegen.smem_tile import padded_columns
from cute_attn.codegen.source import INCLUDE_DIR, GeneratedKernel
from cute_attn.codegen.spec import E4M3, KernelSpec, UnsupportedSpecError
from cute_attn.codegen.vector_hooks import vector_hooks, vector_reasons
from cute_attn.hopper import equations, fp8_tiles, tiles
from cute_attn.hopper.delays import expand, with_delays
from cute_attn.variants import Variant

SCHEDULE = "hopper_tile"
_HERE = Path(__file__).parent
_COMMON_WIDTHS = {8, 16, 32, 64, 96, 128, 192, 256}  # wgmma N in CuTe's main header
_MAX_BOX = 256  # elements of a TMA box per dimension
_ELEMENTS = {"bf16": ("bf16", "BF16"), "fp16": ("fp16", "F16"), E4M3: ("bf16", "E4M3")}
"""Of the output, which is what 16-bit words of q, k and v are called as well; of the products."""


def supports(spec: KernelSpec) -> list[str]:
    """Reasons why no kernel can be generated for `spec`; empty = it can."""
    reasons = spec.basic_reasons()
    if spec.schedule != SCHEDULE:
        reasons.append(f"schedule is {spec.schedule!r}; Hopper has {SCHEDULE!r}")
    if spec.arch != "sm_90a":
        reasons.append(f"arch is {spec.arch!r}; TMA and wgmma kernels are built for 'sm_90a'")
    dims = (spec.head_dim_qk, spec.head_dim_vo)
    if dims not in tiles.head_dims(spec.dtype):
        known = ", ".join(str(d) for d in tiles.head_dims(spec.dtype))
        reasons.append(f"(head_dim_qk, head_dim_vo) is {dims}; known: {known}")
        return reasons
    if of_vectors := vector_reasons(spec.variant, *dims):
        return reasons + of_vectors
    if spec.dtype == E4M3:
        reasons += fp8_tiles.variant_reasons(spec.variant)
        by_producer = fp8_tiles.transposers(spec.tile) == 1
        if by_producer and spec.loader == "gather" and not q_by_tma(spec):
            reasons.append(
                f"group is {spec.group} and pages are no multiple of 16 tokens: no warp is left"
                " that transposes V"
            )
    return reasons + equations.tile_reasons(spec.tile, *dims, spec.variant, dtype=spec.dtype)


def _extended_widths(tile_kv: int, head_dim_vo: int) -> str:
    """The wgmma widths of a kernel that CuTe's main header lacks, in words; empty if none."""
    widths = {"tile_kv": tile_kv, "head_dim_vo": head_dim_vo}
    return ", ".join(f"{name} {n}" for name, n in widths.items() if n not in _COMMON_WIDTHS)


def include_dirs() -> tuple[Path, ...]:
    """Directories of our own headers that the kernels include."""
    return (INCLUDE_DIR, _HERE / "include")


def q_by_tma(spec: KernelSpec) -> bool:
    """Whether Q comes through a tensor map: a tile must hold whole tokens, so that it is a box."""
    tokens, rest = divmod(spec.tile.q, spec.group)
    return rest == 0 and tokens <= _MAX_BOX


def params_of(spec: KernelSpec) -> ParameterBlock:
    """Layout of the struct that the spec's kernel takes."""
    return attention_params(
        tma=spec.loader != "gather",
        q_tma=q_by_tma(spec),
        # A box of a padded last panel would read past the end of its rows.
        by_groups=spec.loader == "paged" and not _is_padded(spec),
        paged=spec.loader != "ragged",
        variant=spec.variant,
        fused_merge=spec.fuses_merge,
        trace=spec.trace,
        v_scale=spec.dtype == E4M3,
    )


def _is_padded(spec: KernelSpec) -> bool:
    """Whether shared memory holds more columns than a head has."""
    if spec.dtype == E4M3:
        return False
    return any(padded_columns(dim) != dim for dim in (spec.head_dim_qk, spec.head_dim_vo))


def _one_loop(spec: KernelSpec) -> bool:
    """Whether masked and interior blocks share a copy of the step, with a branch around the mask.

    Two copies of a long step, or of any step where items are short, do not stay in the instruction
    cache: head_dim 256 causal +1 to 3 %, 128 at 512 keys and windows of 128 +2 to 3 %. Where they
    do, the branch costs 1 to 5 % ((192, 128), Q in registers, three consumers). Three loops, for a
    window, want too many registers beside Q.
    """
    tile, band = spec.tile, spec.variant.band
    if not spec.variant.mask or tile.q != 128:
        return False
    if tile.q_in_registers:
        return band.left is not None
    return (spec.head_dim_qk, spec.head_dim_vo) != (192, 128)


_ROLE_OF = {"k": "key", "v": "value"}
_WORDS = {"query": "queries", "key": "keys", "value": "values"}


def _in_words(roles: tuple[str, ...]) -> str:
    """As "queries and keys"."""
    words = [_WORDS[role] for role in roles]
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def _output_hooks(variant: Variant) -> str:
    """The last arguments of the `ItemOutput` of a kernel that acts on finished rows."""
    if variant.finish is None:
        return ""
    hooks = "RowHooks" if cpp_row_hooks(variant) else "NoRowHooks"
    return f", {hooks}, {str(variant.softmax).lower()}"


def _gives_weights(variant: Variant) -> bool:
    """Whether nothing is left to multiply with what the logits hook returns."""
    if variant.softmax or variant.logits is None or variant.logits.program is None:
        return False
    return variant.logits.program.stages.exponent is None


def emit(spec: KernelSpec) -> GeneratedKernel:
    """Generates the kernel.

    Raises:
        UnsupportedSpecError: `supports(spec)` gives reasons against it.
    """
    if reasons := supports(spec):
        raise UnsupportedSpecError(spec.name, reasons)
    tile, variant = spec.tile, spec.variant
    band_left, band_right = (
        cpp_band(variant.band, variant.scalars) if variant.band_is_mask else (None, None)
    )
    element, mma_type = _ELEMENTS[spec.dtype]
    fp8 = spec.dtype == E4M3
    params = params_of(spec)
    vectors = vector_hooks(variant, spec.head_dim_qk, spec.head_dim_vo)
    copied = [("q_copied", "kStagesQ")] if vectors else []
    dims = (spec.head_dim_qk, spec.head_dim_vo)
    stages_k = equations.key_stages(tile, *dims, variant)
    longer_k = stages_k > tile.stages
    stages = {x: f"kStages{x.upper()}" if longer_k else "kStages" for x in _ROLE_OF}
    copied += [(f"{x}_copied", stages[x]) for x, role in _ROLE_OF.items() if role in vectors.roles]
    if fp8:
        copied.append(("v_copied", stages["v"]))
    names = [name for name, _ in copied]
    landed = {x: f"{x}_copied" if f"{x}_copied" in names else f"{x}_full" for x in "qkv"}
    gather, q_tma = spec.loader == "gather", q_by_tma(spec)
    smem_bytes = equations.smem_bytes(tile, *dims, variant, dtype=spec.dtype)
    q_bytes, k_bytes, v_bytes = equations.tile_bytes(tile, *dims, variant, dtype=spec.dtype)
    skips = variant.block_test is not None
    flat = flat_hooks(variant, mask=not variant.band_is_mask)
    flat_left, flat_right = cpp_band(flat.band, variant.scalars)
    text = render(
        _HERE / "templates" / "tile.cu.jinja",
        spec=spec,
        element=element,
        mma_type=mma_type,
        consumers=equations.consumers(tile, variant, dtype=spec.dtype),
        fp8=fp8,
        transposers=fp8_tiles.transposers(tile) if fp8 else 0,
        v_free="v_taken" if fp8 else "v_empty",
        columns_qk="kWordsQK" if fp8 else "kHeadDimQK",
        columns_vo="kWordsVO" if fp8 else "kHeadDimVO",
        extended_widths=_extended_widths(tile.kv, spec.head_dim_vo),
        smem_bytes=smem_bytes,
        smem_budget=f"Q {q_bytes}, K {k_bytes}, V {v_bytes}, barriers",
        params_struct=cpp_struct(params),
        hooks=cpp_hooks(variant, mask=not variant.band_is_mask, flat=bool(flat)),
        flat=flat,
        # Without softmax what the logits hook gives is the weight.
        weight_scale="1.f" if _gives_weights(variant) else "params.scale_log2",
        flat_left=flat_left,
        flat_right=flat_right,
        row_hooks=cpp_row_hooks(variant),
        output_hooks=_output_hooks(variant),
        hidden=hidden_score(variant),
        vectors=vectors,
        vector_words=_in_words(vectors.roles),
        turns_of=lambda role: f"smem.{vectors.turns[role]}" if vectors.turns[role] else "NoTurns()",
        copied=copied,
        stages_k=stages_k,
        longer_k=longer_k,
        in_k=stages["k"],
        in_v=stages["v"],
        in_ring_v=".v" if longer_k else "",
        at={"k": "ring", "v": "ring.v" if longer_k else "ring"},
        landed=landed,
        transformer_registers=equations.transformer_registers(tile) if vectors or fp8 else 0,
        # Arrivals when Q, and K or V, have landed.
        arrivals_q=1 if q_tma else "kCopyThreads + 1" if gather else "kThreadsQ",
        arrivals_kv="kCopyThreads" if gather else 1,
        hook_headers=hook_headers(variant, mask=not variant.band_is_mask),
        paged=spec.loader != "ragged",
        gather=gather,
        q_tma=q_tma,
        by_groups="k_page_groups" in params.offsets,
        padded=_is_padded(spec),
        full_barrier="CopiedBarrier" if gather else "FullBarrier",
        # The next item's queries are there when an item ends.
        early_start=tile.q_stages > 1 or tile.q_in_registers,
        # Products of 80 and 96 columns are short beside the exponentials of 128 keys: causal at 4k
        # +3 and +1 %. With three consumers nothing; other head dims lose by it or spill.
        more_early=spec.head_dim_vo in (80, 96) and tile.q == tile.kv == 128,
        # Else the next QK waits for them: wider outputs are better written meanwhile (head_dim 256
        # at 512 keys: -6 % under the QK; (192, 128) at 2k keys: +2 %).
        output_under_qk=spec.head_dim_vo == 128,
        # Lines of 128 bytes: causal head_dim 128 +1 to 3 %, head_dim 64 -1 to -5 %.
        by_lines=spec.head_dim_vo in (128, 192, 256),
        one_loop=_one_loop(spec),
        # Which code the variant needs: see `Variant.band_is_mask`.
        scores_hooked=bool(variant.logits) or not variant.band_is_mask,
        by_band=variant.band_is_mask,
        skips_blocks=skips,
        all_masked=not variant.band_is_mask and not skips,
        band_right=band_right,
        band_left=band_left,
    )
    return GeneratedKernel.of_spec(
        spec,
        number_lines(with_delays(expand(text)) if spec.delays else text),
        smem_bytes,
        params,
        include_dirs(),
        dependent_launch=True,
    )

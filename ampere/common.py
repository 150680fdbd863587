"""What the emitters of both Ampere schedules share: template values, names, header lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cute_attn.ampere.tiles import DECODE, register_budget, register_limit, smem_bytes
from cute_attn.codegen.attention_params import attention_params
from cute_attn.codegen.hooks import (
    cpp_hooks,
    cpp_row_hooks,
    hidden_score,
    hook_headers,
    number_lines,
)
from cute_attn.codegen.params import cpp_struct
from cute_attn.codegen.render import render
from cute_attn.codegen.source import INCLUDE_DIR, GeneratedKernel
from cute_attn.codegen.spec import KernelSpec, has_dependent_launch
from cute_attn.codegen.vector_hooks import turns_bytes, vector_hooks
from cute_attn.variants.program import ROW_ROLES

_HERE = Path(__file__).parent


def kernel(
    spec: KernelSpec, template: str, *, description: list[str], values: dict[str, Any]
) -> GeneratedKernel:
    """Renders `template` with the values that all Ampere kernels use, and `values`."""
    dependent_launch = has_dependent_launch(spec.arch)
    params = attention_params(
        tma=False,
        paged=spec.loader == "paged",
        variant=spec.variant,
        fused_merge=spec.fuses_merge,
        beside=spec.runs_beside,
        trace=spec.trace,
    )
    vectors = vector_hooks(spec.variant, spec.head_dim_qk, spec.head_dim_vo)
    smem = smem_bytes(spec.schedule, spec.tile, spec.head_dim_qk, turns=spec_turns(spec))
    band = spec.variant.band
    hooks, row_text = cpp_hooks(spec.variant), cpp_row_hooks(spec.variant)
    text = render(
        _HERE / "templates" / template,
        spec=spec,
        variant=spec.variant,
        stages=spec.tile.stages,
        element=spec.dtype,
        paged=spec.loader == "paged",
        params_struct=cpp_struct(params),
        hooks_ahead=_joined(row_text, vectors.text) if vectors else "",
        hooks=hooks if vectors else _joined(row_text, hooks),
        vectors=vectors,
        turns_of=lambda role: f"smem.{vectors.turns[role]}" if vectors.turns[role] else "NoTurns()",
        row_hooks=any(role in spec.variant.hooks for role in ROW_ROLES),
        hidden=hidden_score(spec.variant),
        smem_bytes=smem,
        dependent_launch=dependent_launch,
        band_left=band.left is not None,
        band_right=band.right is not None,
        name_is_long=len(spec.name) > 100 - len("    (const __grid_constant__ Params params) {"),
        split_loop=spec.variant.band_is_mask,
        skips_blocks=spec.variant.block_test is not None,
        # Blocks behind the one in work whose keys are on their way, or whose pages are looked up.
        known_ahead=max(spec.tile.stages - (spec.loader != "paged"), 1),
        description=[*_spec_lines(spec), *description, *_budget_lines(spec, smem)],
        **values,
    )
    return GeneratedKernel.of_spec(
        spec,
        number_lines(text),
        smem,
        params,
        include_dirs(),
        dependent_launch=dependent_launch,
    )


def include_dirs() -> tuple[Path, ...]:
    """Directories of our own headers that the kernels include."""
    return (_HERE / "include", INCLUDE_DIR)


def _joined(*texts: str) -> str:
    return "\n\n".join(filter(None, texts))


def spec_turns(spec: KernelSpec) -> int:
    """Shared memory, in bytes, for the turns of a spec's vector hooks."""
    return turns_bytes(spec.variant, spec.head_dim_qk, spec.head_dim_vo)


def includes(spec: KernelSpec) -> list[str]:
    """Headers that a kernel uses."""
    rows = "paged_rows" if spec.loader == "paged" else "ragged_rows"
    dependent = ["cute_attn/dependent_launch.hpp"] if has_dependent_launch(spec.arch) else []
    fused = ["cute_attn/piece_merge.hpp"] if spec.fuses_merge else []
    fixed = ["cute_attn/fixed_pieces.hpp"] if spec.fixed_pieces else []
    heads = ["cute_attn/head_walker.hpp"] if spec.per_head else []
    products = ["key_gemm", "key_softmax"] if spec.schedule == DECODE else ["warp_gemm"]
    headers = [
        f"cute_attn/ampere/{rows}.hpp",
        *(f"cute_attn/ampere/{name}.hpp" for name in products),
        "cute_attn/ampere/work_queue.hpp",
        "cute_attn/softmax.hpp",
        *dependent,
        *fused,
        *fixed,
        *heads,
        *(["cute_attn/trace.hpp"] if spec.trace else []),
        *hook_headers(spec.variant),
        *(["cute_attn/vector_hooks.hpp"] if spec.variant.vector_hooks else []),
    ]
    return sorted(headers)


def constants(entries: list[tuple[str, int, str]]) -> list[str]:
    """Declarations of (name, value, meaning), the comments in one column."""
    declarations = [f"constexpr int {name} = {value};" for name, value, _ in entries]
    width = max(map(len, declarations))
    return [
        f"{declaration:<{width}}  // {meaning}"
        for declaration, (_, _, meaning) in zip(declarations, entries, strict=True)
    ]


def _spec_lines(spec: KernelSpec) -> list[str]:
    group = spec.group
    row = (
        "row r is token r under its only query head"
        if group == 1
        else f"row r is token r / {group} under query head {group} kv_head + r % {group}"
    )
    pieces = ", split at places that depend on the request alone" if spec.fixed_pieces else ""
    where = "pages of any size" if spec.loader == "paged" else "contiguous rows"
    where += ", others for each KV head" if spec.per_head else ""
    return [
        f"architecture   {spec.arch}",
        f"elements       {spec.dtype}, accumulated in float32; head_dim {spec.head_dim_qk}",
        f"variant        {spec.variant.name}",
        f"query tile     {spec.tile.q} packed rows: {row}",
        f"KV blocks      {spec.tile.kv} keys, from {where}{pieces}",
    ]


def _budget_lines(spec: KernelSpec, smem: int) -> list[str]:
    tile = spec.tile
    budget = register_budget(spec.schedule, tile, spec.head_dim_qk)
    blocks = "1 block" if tile.blocks_per_sm == 1 else f"{tile.blocks_per_sm} blocks"
    return [
        f"shared memory  {smem} bytes, {blocks} per SM",
        f"registers      {register_limit(tile)} at most: output {budget.output}, scores "
        f"{budget.scores}, operands {budget.operands}, the rest about {budget.other}",
    ]

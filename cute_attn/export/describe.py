"""From specs and compiled kernels to the entries of a manifest."""

from __future__ import annotations

from dataclasses import asdict

from cute_attn.abi import UNBOUNDED
from cute_attn.abi.params import ParameterBlock
from cute_attn.abi.plan import (
    CUT_FIELDS,
    HEADER_FIELDS,
    MAX_LISTED_ROUNDS,
    REQUEST_FIELDS,
    SPLIT_FIELDS,
    START_FIELDS,
)
from cute_attn.api.kernel import merge_of
from cute_attn.api.launches import cost_of
from cute_attn.codegen.kernels import merge_grid
from cute_attn.codegen.source import GeneratedKernel
from cute_attn.codegen.spec import KernelSpec
from cute_attn.export.manifest import (
    Attention,
    Compiler,
    Costs,
    Kernel,
    Parameter,
    ParameterStruct,
    PlanFormat,
    Workspace,
)
from cute_attn.export.recipes import recipes_of
from cute_attn.runtime import CompiledKernel
from cute_attn.runtime.device import capability_of
from cute_attn.scheduler import Constants
from cute_attn.scheduler.workspace import ALIGNMENT, ARRIVALS_BYTES

PLAN_FORMAT = PlanFormat(
    header=HEADER_FIELDS,
    starts=START_FIELDS,
    splits=SPLIT_FIELDS,
    cuts=CUT_FIELDS,
    requests=REQUEST_FIELDS,
    listed_rounds=MAX_LISTED_ROUNDS,
    unbounded=UNBOUNDED,
)
WORKSPACE = Workspace(arrivals_bytes=ARRIVALS_BYTES, alignment=ALIGNMENT)


def attention_entry(
    spec: KernelSpec, generated: GeneratedKernel, compiled: CompiledKernel, constants: Constants
) -> Kernel:
    """The entry of an attention kernel; `constants`: of the GPU that plans are made for."""
    paged, by_tma = spec.loader != "ragged", "k_map" in generated.params.offsets
    attention = Attention(
        schedule=spec.schedule,
        dtype=spec.dtype,
        head_dim_qk=spec.head_dim_qk,
        head_dim_vo=spec.head_dim_vo,
        group=spec.group,
        loader=spec.loader,
        page_size_multiple=(16 if by_tma else 1) if paged else None,
        variant=spec.variant.name,
        tile_q=spec.tile.q,
        tile_kv=spec.tile.kv,
        merge=None if spec.fuses_merge else merge_of(spec).name,
        tensor_maps=recipes_of(generated.params, spec),
        costs=Costs(**asdict(cost_of(spec, constants))),
    )
    return _entry("attention", generated, compiled, attention=attention)


def merge_entry(spec: KernelSpec, generated: GeneratedKernel, compiled: CompiledKernel) -> Kernel:
    """The entry of the merge that follows the kernel of `spec`."""
    _, grid_y, _ = merge_grid(spec.head_dim_vo, spec.tile.q, 1)
    return _entry("merge", generated, compiled, grid_y=grid_y)


def parameter_struct(block: ParameterBlock) -> ParameterStruct:
    """The layout of a kernel's parameters."""
    sizes = {name: getattr(block.structure, name).size for name in block.offsets}
    fields = tuple(
        Parameter(f.name, f.kind, block.offsets[f.name], sizes[f.name], f.comment)
        for f in block.fields
    )
    return ParameterStruct(block.size, block.alignment, fields)


def _entry(
    role: str,
    generated: GeneratedKernel,
    compiled: CompiledKernel,
    *,
    grid_y: int = 1,
    attention: Attention | None = None,
) -> Kernel:
    major, minor, exact = capability_of(generated.arch)
    used, toolchain = compiled.resources, compiled.toolchain
    return Kernel(
        name=generated.name,
        role=role,
        arch=generated.arch,
        capability=(major, minor),
        exact=exact,
        cubin=f"kernels/{generated.name}.cubin",
        source=f"kernels/{generated.name}.cu",
        compiler=Compiler(toolchain.nvrtc, toolchain.ptxas, toolchain.headers),
        registers=used.registers,
        stack_bytes=used.stack_bytes,
        spill_store_bytes=used.spill_store_bytes,
        spill_load_bytes=used.spill_load_bytes,
        block=generated.threads,
        grid_y=grid_y,
        smem_bytes=generated.smem_bytes,
        blocks_per_sm=generated.blocks_per_sm,
        dependent_launch=generated.dependent_launch,
        parameters=parameter_struct(generated.params),
        attention=attention,
    )

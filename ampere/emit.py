"""`emit` and `supports`: from a `KernelSpec` of an Ampere schedule to its kernel."""

from __future__ import annotations

from cute_attn.ampere.common import spec_turns
from cute_attn.ampere.emit_decode import emit_decode
from cute_attn.ampere.emit_tile import emit_tile
from cute_attn.ampere.tiles import ARCHS, DECODE, HEAD_DIMS, TILE, tile_reasons
from cute_attn.codegen.source import GeneratedKernel
from cute_attn.codegen.spec import KernelSpec, UnsupportedSpecError
from cute_attn.codegen.vector_hooks import vector_reasons

_LOADERS = ("ragged", "paged")


def supports(spec: KernelSpec) -> list[str]:
    """Reasons why `emit` refuses the spec, one line each; empty if it does not."""
    reasons = spec.basic_reasons()
    if spec.schedule not in (TILE, DECODE):
        reasons.append(f"schedule is {spec.schedule!r}; here are {TILE} and {DECODE}")
    if spec.arch not in ARCHS:
        reasons.append(f"arch is {spec.arch!r}; the Ampere schedules take {', '.join(ARCHS)}")
    if spec.loader not in _LOADERS:
        reasons.append(f"loader is {spec.loader!r}; the Ampere schedules take ragged and paged")
    if spec.head_dim_qk != spec.head_dim_vo:
        reasons.append(
            f"head_dim_qk {spec.head_dim_qk} and head_dim_vo {spec.head_dim_vo} must be equal"
        )
    if spec.head_dim_qk not in HEAD_DIMS:
        reasons.append(
            f"head_dim is {spec.head_dim_qk}; there are kernels for "
            f"{', '.join(map(str, HEAD_DIMS))}"
        )
    if reasons:
        return list(dict.fromkeys(reasons))
    if reasons := vector_reasons(spec.variant, spec.head_dim_qk, spec.head_dim_vo):
        return reasons
    return tile_reasons(
        spec.arch, spec.schedule, spec.tile, spec.head_dim_qk, turns=spec_turns(spec)
    )


def emit(spec: KernelSpec) -> GeneratedKernel:
    """Generates the kernel of a spec; the same spec gives the same text.

    Raises:
        UnsupportedSpecError: `supports` has reasons.
    """
    if reasons := supports(spec):
        raise UnsupportedSpecError(spec.name, reasons)
    return emit_decode(spec) if spec.schedule == DECODE else emit_tile(spec)

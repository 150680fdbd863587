"""What hooks cost, counted in the machine code that the compiler makes of them."""

from __future__ import annotations

from collections import Counter

from cute_attn.api.kernel import build_generated
from cute_attn.codegen.hooks import users_lines
from cute_attn.codegen.kernels import SAMPLED, emit_hook_sample
from cute_attn.runtime.errors import CompileError
from cute_attn.runtime.instruction_kinds import UNITS, unit_of
from cute_attn.runtime.sass import parse
from cute_attn.variants import Variant

_FEW, _MANY = 16, 48


def hook_instructions(variant: Variant, arch: str = "sm_90a") -> dict[str, dict[str, float]]:
    """Instructions of a variant's hooks in SASS: what one number more costs. What the compiler does
    once for a row is not in it, nor moves, nor what it does once for a warp.

    Args:
        variant: hooks of rows (query, key, value) are left out.
        arch: "sm_80" ... "sm_90a"; no such GPU is needed.

    Returns:
        by hook, for each of "FP32", "MUFU" (conversions among them), "INT" and "LOAD": instructions
        per score (mask, which also hides it, and logits), element (output) or row (row_state).

    Raises:
        UnsupportedSpecError: unknown arch.
        CompileError, ToolchainError, CacheMissError: see `build`.
        ToolchainError: there is no disassembler (extra `sass`).
    """
    return {role: _cost(variant, role, arch) for role in SAMPLED if role in variant.hooks}


def _cost(variant: Variant, role: str, arch: str) -> dict[str, float]:
    few, many = (_counted(variant, role, arch, count) for count in (_FEW, _MANY))
    many.subtract(few)
    many["LOAD"] -= _MANY - _FEW  # of the numbers themselves
    # Not what begins and ends the kernel, and differs by chance.
    return {name: max(0.0, round(many[name] / (_MANY - _FEW), 1)) for name in UNITS}


def _counted(variant: Variant, role: str, arch: str, count: int) -> Counter[str]:
    try:
        sass = build_generated(emit_hook_sample(arch, variant, role, count)).sass
    except CompileError as error:
        raise error.rewritten(lambda text: users_lines(text, variant)) from None
    return Counter(map(unit_of, parse(sass)[0]))

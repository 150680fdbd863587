"""What hooks cost, counted in the machine code that the compiler makes of them."""

from __future__ import annotations

from collections import Counter

from cute_attn.api.kernel import build_generated
from cute_attn.codegen.hooks import users_lines
from cute_attn.codegen.kernels import SAMPLED, emit_hook_sample
from cute_attn.runtime import count_opcodes
from cute_attn.runtime.errors import CompileError
from cute_attn.variants import Variant

_FEW, _MANY = 16, 48

_CLASSES = {
    "FP32": ("FADD", "FMUL", "FFMA", "FMNMX", "FSEL", "FSET", "FSETP", "FCHK"),
    "MUFU": ("MUFU", "I2F", "F2I", "FRND"),  # the units are the same
    "INT": (
        "IADD", "IADD3", "IMAD", "IMUL", "IABS", "IMNMX", "ISETP", "LEA", "LOP3", "PLOP3", "PRMT",
        "SEL", "SHF", "SHL", "SHR", "SGXT", "FLO", "POPC", "BREV", "I2FP", "VIADD", "VIMNMX",
        "VIADDMNMX",
    ),
    "LOAD": ("LDG", "LDL", "LDS"),
}  # fmt: skip
_CLASS_OF = {opcode: name for name, opcodes in _CLASSES.items() for opcode in opcodes}


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
    return {name: max(0.0, round(many[name] / (_MANY - _FEW), 1)) for name in _CLASSES}


def _counted(variant: Variant, role: str, arch: str, count: int) -> Counter[str]:
    try:
        sass = build_generated(emit_hook_sample(arch, variant, role, count)).sass
    except CompileError as error:
        raise error.rewritten(lambda text: users_lines(text, variant)) from None
    counts: Counter[str] = Counter()
    for opcode, number in count_opcodes(sass.replace("IMAD.MOV", "MOV")).items():
        counts[_CLASS_OF.get(opcode, "other")] += number
    return counts

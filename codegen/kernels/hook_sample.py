"""A hook by itself: a kernel whose instructions say what the hook costs."""

from __future__ import annotations

from cute_attn.codegen.attention_params import attention_params
from cute_attn.codegen.hooks import cpp_hooks, cpp_row_hooks, hook_headers, number_lines
from cute_attn.codegen.kernels.common import ELEMENTS, TEMPLATES, symbol
from cute_attn.codegen.params import cpp_struct
from cute_attn.codegen.render import render
from cute_attn.codegen.source import INCLUDE_DIR, GeneratedKernel
from cute_attn.codegen.spec import ARCHS, UnsupportedSpecError
from cute_attn.variants import Variant

SAMPLED = ("mask", "logits", "row_state", "output")
"""Roles of hooks of one number at a time."""


def emit_hook_sample(arch: str, variant: Variant, role: str | None, count: int) -> GeneratedKernel:
    """Generates a kernel that passes `count` numbers of a thread through a hook of a variant: of
    one query row, under keys or columns that follow each other; of `row_state`, of as many rows.

    Args:
        arch: "sm_80" ... "sm_90a".
        variant: has the hook.
        role: of `SAMPLED`; None: no hook.
        count: numbers.

    Raises:
        UnsupportedSpecError: unknown arch.
    """
    if arch not in ARCHS:
        reason = f"arch is {arch!r}; known: {', '.join(ARCHS)}"
        raise UnsupportedSpecError("hook sample", [reason])
    params = attention_params(tma=False, paged=False, variant=variant)
    name = symbol(f"sample_{role or 'nothing'}_{variant.name}_{arch}", arch, variant, role, count)
    headers = [h for h in hook_headers(variant) if h != "cute_attn/finished_row.hpp"]
    if "cute_attn/lag.hpp" not in headers:
        headers.append("cute_attn/lag.hpp")
    text = render(
        TEMPLATES / "hook_sample.cu.jinja",
        name=name,
        role=role,
        count=count,
        element=ELEMENTS["bf16"],
        params=cpp_struct(params),
        headers=headers,
        hooks="\n\n".join(filter(None, [cpp_row_hooks(variant), cpp_hooks(variant)])),
    )
    return GeneratedKernel(
        name=name,
        text=number_lines(text),
        arch=arch,
        threads=1024,
        smem_bytes=0,
        blocks_per_sm=1,
        params=params,
        include_dirs=(INCLUDE_DIR,),
    )

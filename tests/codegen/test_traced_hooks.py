"""Traced hooks compiled by NVRTC: every operation of the table, helpers only where used."""

from __future__ import annotations

import re
from typing import Any

import pytest

from cute_attn import Problem, build, choose
from cute_attn.codegen.attention_params import attention_params
from cute_attn.codegen.hooks import (
    cpp_hooks,
    hook_headers,
    number_lines,
)
from cute_attn.codegen.params import cpp_struct
from cute_attn.codegen.source import INCLUDE_DIR
from cute_attn.runtime import CompileRequest, compile_source
from cute_attn.variants import Scalar, Tensor, Variant, functions
from cute_attn.variants.operations import OPERATIONS
from cute_attn.variants.program import Program


def kernel(variant: Variant) -> str:
    """A kernel that passes scores through both hooks."""
    params = attention_params(tma=False, paged=False, variant=variant)
    at = "b, h, q, k, Lag(q - k)"
    mask = f"variant_mask(params, row_values(params, b, h, q), {at})" if variant.mask else "true"
    logits = "s"
    if variant.logits:
        logits = f"variant_logits(params, row_values(params, b, h, q), s, {at})"
    return number_lines(f"""#include <cute/config.hpp>
#include <cute_attn/softmax.hpp>
{chr(10).join(f"#include <{header}>" for header in hook_headers(variant))}
using namespace cute_attn;
using Element = unsigned short;
{cpp_struct(params)}
{cpp_hooks(variant)}
extern "C" __global__ void k(const __grid_constant__ Params params) {{
  int const b = blockIdx.x, h = blockIdx.y, q = threadIdx.x - 64, k = threadIdx.y;
  float const s = params.lse[threadIdx.x];
  params.lse[threadIdx.x] = {mask} ? {logits} : neg_infinity();
}}
""")


def all_operations(
    score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any, *, slope: float, span: int
) -> Any:
    total = score * slope - score / (1.0 + abs(score)) + score / slope + -score
    for name in functions.__all__:
        if name not in ("where", "minimum", "maximum", "clamp", "turn"):
            total = total + getattr(functions, name)(score + 0.5)
    total = total + functions.clamp(total, -8, 8) + (abs(score) + 1) ** 0.3
    distance = q_idx - kv_idx
    whole = distance // span + distance % span + (distance << 2) + (distance >> 1)
    whole = whole + (distance & 3) + (distance | 5) + (distance ^ h) + ~distance + -distance
    whole = whole + functions.minimum(abs(distance), functions.maximum(b, 3)) + total.int()
    near = (distance < 3) & (distance >= -3) | (kv_idx == 0) ^ (kv_idx != h) & ~(h > b)
    return functions.where(near & (whole <= 4), total, total + whole)


SPAN = (Scalar("span", "i32", 7, "", lower=1), Scalar("slope", "f32", 0.5, ""))


@pytest.mark.parametrize("arch", ["sm_90", "sm_80"])
def test_every_operation_compiles(arch: str) -> None:
    variant = Variant("every", logits=all_operations, params=SPAN)
    assert variant.logits is not None and isinstance(variant.logits.program, Program)
    used = {node.op for node in variant.logits.program.result.walk()}
    assert set(OPERATIONS) <= used
    compiled = compile_source(CompileRequest(kernel(variant), "k", arch, (INCLUDE_DIR,)))
    assert compiled.lint() == []  # no stack frame: no slow path of a library function
    assert not re.search(r"\bCALL\b", compiled.log)


def test_tensors_compile() -> None:
    tensors = (
        Tensor("slopes", "f32", 1, "(query heads)"),
        Tensor("document", "i32", 2, "(requests, positions)"),
        Tensor("allowed", "bool", 3),
        Tensor("unused", "f32", 1),
    )

    def mask(b: Any, h: Any, q_idx: Any, kv_idx: Any, *, document: Any, allowed: Any) -> Any:
        own = document[b]
        return (own[q_idx] == own[kv_idx]) & allowed[h, q_idx, kv_idx]

    def logits(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any, *, slopes: Any) -> Any:
        return score - slopes[h] * (q_idx - kv_idx)

    variant = Variant("v", mask=mask, logits=logits, params=tensors)
    source = kernel(variant)
    assert compile_source(CompileRequest(source, "k", "sm_90", (INCLUDE_DIR,))).lint() == []
    assert (
        """
// Tensor document: (requests, positions).
CUTE_DEVICE int document(Params const& params, int i0, int i1) {
  int64_t const at0 = within(i0, params.document_size_0) * params.document_stride_0;
  return __ldg(row_address(params.document + at0) + within(i1, params.document_size_1));
}
"""
        in source
    )
    assert "bool allowed(Params const& params, int i0, int i1, int i2)" in source
    assert "unused(" not in source
    names = [f.name for f in attention_params(tma=False, paged=False, variant=variant).fields]
    assert names[-1] == "allowed_ranges" and "allowed_stride_1" in names


def test_helper_functions_only_where_used() -> None:
    functions_of_hooks, lag = "cute_attn/hook_functions.hpp", "cute_attn/lag.hpp"
    capped = Variant("capped", logits=lambda s, b, h, q, k: 30 * functions.tanh(s / 30))
    assert hook_headers(capped) == [lag]
    exponential = Variant("x", logits=lambda s, b, h, q, k: functions.exp(s))
    assert hook_headers(exponential) == [functions_of_hooks, lag]

    # Masked by its band: the limit is all that is left of the mask.
    def chunks(b: Any, h: Any, q: Any, k: Any, *, span: int) -> Any:
        return 3 * (q - k) <= span

    by_band = Variant("x", mask=chunks, params=SPAN)
    assert by_band.band_is_mask
    assert hook_headers(by_band, mask=False) == [functions_of_hooks]
    assert cpp_hooks(by_band, mask=False) == ""
    assert hook_headers(Variant("x", mask=lambda b, h, q, k: q >= k), mask=False) == []


def in_exp(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any, *, bias: Any) -> Any:
    return functions.sigmoid(score) + bias[h, functions.clamp(q_idx - kv_idx, 0, 16)]


def in_chunks(b: Any, h: Any, q_idx: Any, kv_idx: Any, *, span: int) -> Any:
    return (kv_idx >= q_idx - q_idx % span) & (kv_idx <= q_idx)


@pytest.mark.parametrize(("arch", "rows"), [("sm_90a", None), ("sm_90a", 4), ("sm_80", None)])
def test_whole_kernels_compile(arch: str, rows: int | None) -> None:
    """With helper functions, a tensor, a mask that is no band and a limit that is an expression."""
    variant = Variant(
        "traced", mask=in_chunks, logits=in_exp, params=[*SPAN[:1], Tensor("bias", "f32", 2)]
    )
    spec = choose(Problem(arch, "bf16", 64, 64, 4, variant, page_size=16), rows=rows)
    # So much code may cost spills, but no serialised wgmma and no ignored setmaxnreg.
    assert all(reason.startswith(("spills", "stack frame")) for reason in build(spec).lint())


def test_a_band_of_an_expression_compiles() -> None:
    def near(b: Any, h: Any, q_idx: Any, kv_idx: Any, *, span: int) -> Any:
        return (3 * (q_idx - kv_idx) <= span) & (kv_idx <= q_idx)

    variant = Variant("near", mask=near, params=SPAN[:1])
    kernel = build(choose(Problem("sm_90a", "bf16", 64, 64, 4, variant, None), rows=None))
    assert "own - min(floor_div(params.span, 3), 1 << 30)" in kernel.source
    assert "variant_mask" not in kernel.source and kernel.lint() == []

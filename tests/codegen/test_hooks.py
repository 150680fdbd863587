"""Hooks as C++ functions: what is printed, and that it computes what the NumPy hook does."""

from __future__ import annotations

import re

import pytest

from cute_attn.codegen.attention_params import attention_params
from cute_attn.codegen.hooks import cpp_hooks, number_lines
from cute_attn.codegen.params import cpp_struct
from cute_attn.codegen.source import INCLUDE_DIR
from cute_attn.runtime import CompileRequest, compile_source
from cute_attn.variants import Hook, Scalar, Variant, causal, full, sliding_window, soft_cap


def test_no_hooks_no_code() -> None:
    assert cpp_hooks(full()) == ""


def test_each_hook_reads_only_its_scalars() -> None:
    text = cpp_hooks(soft_cap() & causal() & sliding_window())
    values, mask, logits = text.split("\n\n")
    assert "struct RowValues {};" in values
    assert "bool variant_mask(" in mask and "float variant_logits(" in logits
    assert "(kv_idx <= q_idx) && (kv_idx >= q_idx - window_left)" in mask
    assert "int32_t const window_left = params.window_left;" in mask
    assert "logits_soft_cap" not in mask and "window_left" not in logits
    assert "logits_soft_cap" not in logits  # the host multiplies sm_scale and scale_log2
    text = cpp_hooks(Variant("twice", logits=lambda s, b, h, i, j, *, by=2.0: s * by + by))
    assert "float const by = params.by;" in text


def test_a_user_hook_compiles_and_is_inlined() -> None:
    slope = Scalar("slope", "f32", 0.5, "per position")
    variant = Variant(
        "alibi",
        logits=Hook("ALiBi", "score + slope * (kv_idx - q_idx)", lambda *_, **__: None),
        params=[slope],
    )
    params = attention_params(tma=False, paged=False, variant=variant)
    source = f"""
#include <cute/config.hpp>
#include <cute_attn/lag.hpp>
#include <cute_attn/softmax.hpp>
using namespace cute_attn;
using Element = unsigned short;
{cpp_struct(params)}
{number_lines(cpp_hooks(variant))}
extern "C" __global__ void k(const __grid_constant__ Params params) {{
  int const k = threadIdx.x;
  params.lse[k] = variant_logits(params, {{}}, params.lse[k], 0, 1, 2, k, Lag(2 - k));
}}
"""
    compiled = compile_source(CompileRequest(source, "k", "sm_80", (INCLUDE_DIR,)))
    assert compiled.lint() == []
    assert not re.search(r"\bCALL\b", compiled.log)


@pytest.mark.parametrize("name", ["sm_scale", "page_size", "k_map"])
def test_parameters_have_names_of_their_own(name: str) -> None:
    """Whatever kernel it is: the same variant must not work on some steps only."""
    variant = Variant(
        "v", logits=lambda s, b, h, i, j, **own: s + own[name], params=[Scalar(name, "f32", 1.0)]
    )
    with pytest.raises(ValueError, match=f"variant 'v' has a parameter '{name}', as kernels have"):
        attention_params(tma=False, paged=False, variant=variant)

"""Hooks on finished rows in kernels: what is printed, parameters of the merge, clean compiles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cute_attn import Problem, build, choose, warmup
from cute_attn.codegen.attention_params import merge_params
from cute_attn.codegen.hooks import cpp_hooks, cpp_row_hooks, hook_headers
from cute_attn.codegen.kernels import emit_merge
from cute_attn.codegen.source import GeneratedKernel
from cute_attn.codegen.spec import UnsupportedSpecError
from cute_attn.runtime import CompileRequest, compile_source
from cute_attn.runtime.errors import CompileError
from cute_attn.variants import (
    Hook,
    Scalar,
    Tensor,
    Variant,
    alibi,
    attention_sinks,
    causal,
    functions,
    sigmoid_attention,
    sliding_window,
    soft_cap,
)
from tests.ampere.specs import make_spec


def gated(out: Any, b: Any, h: Any, q_idx: Any, d: Any, *, gate: Any, shift: float = 1.0) -> Any:
    return out * functions.sigmoid(gate[h, d]) + shift


def gate() -> Variant:
    return Variant("gate", output=gated, params=[Tensor("gate", "f32", 2)])


ALL = causal() & sliding_window() & soft_cap() & attention_sinks() & gate()


def compile_clean(kernel: GeneratedKernel) -> None:
    request = CompileRequest(kernel.text, kernel.name, kernel.arch, kernel.include_dirs)
    assert compile_source(request).lint() == []


def test_only_hooks_that_there_are() -> None:
    assert cpp_row_hooks(causal() & soft_cap()) == ""
    of_scores = ["cute_attn/hook_functions.hpp", "cute_attn/lag.hpp"]
    assert hook_headers(sigmoid_attention(4)) == of_scores
    text = cpp_row_hooks(causal() & attention_sinks())
    assert "kState = true" in text and "kOutput = false" in text
    assert "variant_output" not in text and "variant_mask" not in text
    assert hook_headers(ALL) == ["cute_attn/finished_row.hpp", *of_scores]


def test_an_accessor_is_printed_once() -> None:
    def biased(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any, *, sink: Any) -> Any:
        return score + sink[h]

    sink = attention_sinks().tensors
    variant = Variant("biased", logits=biased, params=sink) & attention_sinks()
    rows, scores = cpp_row_hooks(variant), cpp_hooks(variant)
    assert rows.count("CUTE_DEVICE float sink(") == 1 and "float sink(" not in scores
    for schedule in ("ampere_tile", "ampere_decode"):
        source = build(make_spec(schedule, head_dim=64, variant=variant)).source
        assert source.count("CUTE_DEVICE float sink(") == 1


def test_the_merge_takes_what_it_reads() -> None:
    plain = emit_merge("sm_90", "bf16", 128, 128, 4)
    for variant in (None, causal(), causal() & alibi(8)):
        assert emit_merge("sm_90", "bf16", 128, 128, 4, variant) == plain
    names = [field.name for field in merge_params(ALL.finish).fields]
    assert names[: len(merge_params().fields)] == [field.name for field in merge_params().fields]
    assert names[len(merge_params().fields) :] == [
        "shift", "sink", "sink_size_0", "gate", "gate_stride_0", "gate_size_0", "gate_size_1",
    ]  # fmt: skip
    merge = emit_merge("sm_90", "bf16", 128, 128, 4, ALL)
    assert merge == emit_merge("sm_90", "bf16", 128, 128, 4, attention_sinks() & gate())
    assert merge.name != plain.name and "float logits_soft_cap" not in merge.text


def test_merges_without_softmax_add() -> None:
    merge = emit_merge("sm_90", "bf16", 128, 128, 4, causal() & sigmoid_attention(8))
    assert "MergeSum<kVectors>" in merge.text
    assert "params.partial_lse" not in merge.text and "params.lse" not in merge.text
    assert merge == emit_merge("sm_90", "bf16", 128, 128, 4, sigmoid_attention(64))


@pytest.mark.parametrize("variant", [attention_sinks(), gate(), sigmoid_attention(4), ALL])
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_merges_compile(variant: Variant, arch: str) -> None:
    kernel = emit_merge(arch, "fp16", 128, 64, 4, variant)
    compile_clean(kernel)
    assert (kernel.text.count("variant_output(") > 0) == (variant.output is not None)


WEIGHTS = causal() & sigmoid_attention(4096) & gate()


@pytest.mark.parametrize("variant", [ALL, WEIGHTS], ids=["state", "weights"])
@pytest.mark.parametrize(
    ("arch", "schedule", "page_size"),
    [
        ("sm_90a", "hopper_tile", 16),
        ("sm_90a", "hopper_tile", 1),
        ("sm_80", "ampere_tile", None),
        ("sm_90a", "ampere_decode", 16),
        ("sm_86", "ampere_decode", None),
    ],
)
def test_whole_kernels_compile(
    variant: Variant, arch: str, schedule: str, page_size: int | None
) -> None:
    """At head_dim 64, where nothing spills; at 128 see the tests of each architecture."""
    problem = Problem(arch, "bf16", 64, 64, 4, variant, page_size)
    assert build(choose(problem, rows=16, schedule=schedule)).lint() == []


TEXT = Hook(
    "rounded",
    """
    float const scaled = out * levels;  // of the output
    return rintf(scaled) / levls;
    """,
    lambda out, b, h, q_idx, d, levels: np.rint(out * levels) / levels,
)


def test_hooks_in_text() -> None:
    variant = Variant("v", output=TEXT, params=[Scalar("levels", "f32", 8.0)])
    with pytest.raises(CompileError, match=r'identifier "levls" is undefined') as caught:
        build(make_spec("ampere_decode", head_dim=64, variant=variant))
    assert caught.value.errors[0].startswith(f"{__file__}(")
    # The merge that follows ampere_tile reads the text as well.
    with pytest.raises(CompileError, match=r'identifier "levls" is undefined'):
        warmup([make_spec("ampere_tile", head_dim=64, variant=variant)], jobs=1)
    right = Hook("rounded", TEXT.cpp.replace("levls", "levels"), TEXT.evaluate)
    variant = Variant("v", output=right, params=[Scalar("levels", "f32", 8.0)])
    kernel = emit_merge("sm_80", "bf16", 64, 16, 1, variant)
    assert '#line 1 "hook rounded"' in kernel.text and '"kernel.cu"' in kernel.text
    compile_clean(kernel)


def test_fp16_weights_must_be_bounded() -> None:
    def reasons(logits: Any, dtype: str = "fp16") -> str:
        variant = Variant("w", logits=logits, softmax=False)
        try:
            choose(Problem("sm_90a", dtype, 64, 64, 4, variant, None), rows=None)
        except UnsupportedSpecError as error:
            return "\n".join(error.reasons)
        return ""

    wrong = reasons(None)
    assert "dtype is 'fp16', which ends at 65504, but weights of variant 'w' are between" in wrong
    assert "clamp what the logits hook returns, or take bf16" in wrong
    assert reasons(lambda s, b, h, q, k: s * s) != ""
    assert reasons(lambda s, b, h, q, k: functions.clamp(s * s, 0, 6e4)) == ""
    assert reasons(lambda s, b, h, q, k: functions.sigmoid(s + h)) == ""
    assert reasons(Hook("t", "score * score")) == ""  # in the hands of its author
    assert reasons(None, "bf16") == ""

"""Instructions of hooks, counted in machine code."""

from __future__ import annotations

from typing import Any

import pytest

from cute_attn import (
    UnsupportedSpecError,
    Variant,
    alibi,
    attention_sinks,
    causal,
    document_mask,
    hook_instructions,
    rope,
    sigmoid_attention,
    soft_cap,
)
from cute_attn.runtime import CompileError
from cute_attn.variants import Hook, Tensor


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_of_built_in_hooks(arch: str) -> None:
    """The cap's factors are those of the host; the distance of a bias is one sum on a diagonal."""
    capped = hook_instructions(causal() & soft_cap(), arch)
    assert list(capped) == ["mask", "logits"]
    assert capped["logits"] == {"FP32": 0, "MUFU": 1, "INT": 0, "LOAD": 0}
    assert capped["mask"]["MUFU"] == 0 and capped["mask"]["FP32"] == 1 <= capped["mask"]["INT"] <= 2
    slopes = hook_instructions(alibi(8), arch)["logits"]
    assert slopes == {"FP32": 2, "MUFU": 0, "INT": 0, "LOAD": 0}
    sigmoid = hook_instructions(sigmoid_attention(100), arch)["logits"]
    assert sigmoid["MUFU"] == 1 and 6 <= sigmoid["FP32"] <= 8


def test_loads_and_rows() -> None:
    assert hook_instructions(document_mask())["mask"]["LOAD"] == 1

    def gated(out: Any, b: Any, h: Any, q_idx: Any, d: Any, *, gate: Any) -> Any:
        return out * gate[h, d]

    gate = Variant("gated", output=gated, params=[Tensor("gate", "f32", 2)])
    found = hook_instructions(attention_sinks() & gate & rope())
    assert list(found) == ["row_state", "output"]
    assert found["row_state"]["MUFU"] == 3  # two exponentials, a logarithm; the load is one for all
    assert found["output"]["LOAD"] == 1 and found["output"]["FP32"] == 1
    assert hook_instructions(rope()) == {}


def test_live_factors_are_counted() -> None:
    assert hook_instructions(soft_cap().live())["logits"] == {
        "FP32": 2, "MUFU": 1, "INT": 0, "LOAD": 0,
    }  # fmt: skip


def test_errors() -> None:
    with pytest.raises(UnsupportedSpecError, match="arch is 'sm_70'"):
        hook_instructions(causal(), "sm_70")
    wrong = Hook("wrong", "kv_idx <= nothing_of_the_kind")
    with pytest.raises(CompileError, match=r"test_hook_cost\.py\(\d+\): error"):
        hook_instructions(Variant("wrong", mask=wrong))

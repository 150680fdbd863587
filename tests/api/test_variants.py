"""Variants end to end on the CPU, against dense formulas in float64 that know no `Variant`."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

from cute_attn import BatchAttention, RaggedKV, Variant, attention
from cute_attn.variants import Hook, builtin, positions
from tests.gpu import fp8
from tests.gpu.score_cases import (
    BIAS,
    SLOPES,
)
from tests.gpu.variant_case import (
    DIM,
    HEADS,
    KV_HEADS,
    LENGTHS,
    LONGEST,
    dense,
    random,
)
from tests.gpu.variant_cases import (
    CASES,
    EVERYWHERE,
    outputs,
)

CPU = torch.device("cpu")


def check(name: str, phase: str, **options: Any) -> None:
    out, lse, expected, expected_lse = outputs(name, phase, CPU, torch.float32, **options)
    largest = max(1.0, float(expected.abs().max()))  # sums that nothing normalises are large
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=5e-6 * largest)
    assert (lse is None) == (not CASES[name].softmax)
    if lse is not None:
        torch.testing.assert_close(lse.double(), expected_lse, rtol=1e-5, atol=5e-6)


@pytest.mark.parametrize("phase", LENGTHS)
@pytest.mark.parametrize("name", CASES)
def test_against_a_dense_formula(name: str, phase: str) -> None:
    check(name, phase)


@pytest.mark.parametrize(("name", "phase", "page_size"), EVERYWHERE)
def test_every_format(name: str, phase: str, page_size: int | None) -> None:
    check(name, phase, page_size=page_size)


def test_every_built_in_is_among_them() -> None:
    """Each public one, by the name that its variants have; or among the cases of e4m3, for which
    `head_scales` is."""
    needs = {"alibi": (HEADS,), "relative_bias": (16,), "sigmoid_attention": (LONGEST,)}
    run = {CASES[name].variant.name for name, _, _ in EVERYWHERE}
    run |= {fp8.VARIANTS[case.variant].name for case in fp8.CASES}
    for module in (builtin, positions):
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if function.__module__ == module.__name__ and not name.startswith("_"):
                own = function(*needs.get(name, ())).name
                assert any(f"_{own}_" in f"_{other}_" for other in run), name


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.variant.tensors])
def test_tensors_given_to_run(name: str) -> None:
    planned, given = (outputs(name, "decode", CPU, torch.float32, with_plan=p) for p in (1, 0))
    assert torch.equal(planned[0], given[0])


def batch_of(name: str) -> BatchAttention:
    variant = CASES[name].variant
    return BatchAttention(HEADS, KV_HEADS, DIM, dtype=torch.float32, variant=variant, device="cpu")


def test_scalars_given_to_run_and_their_limits() -> None:
    batch = batch_of("chunks")
    q, k = random(0, 20, HEADS, DIM), random(1, 20, KV_HEADS, DIM)
    batch.plan([0, 20], RaggedKV([0, 20]), scalars={"chunk_size": 10})
    with pytest.raises(ValueError, match="chunk_size"):
        batch.run(q, k, k, scalars={"chunk_size": 5})  # the plan's band depends on it
    with pytest.raises(ValueError, match="chunk_size is 0; it takes 1 or more"):
        batch.plan([0, 20], RaggedKV([0, 20]), scalars={"chunk_size": 0})


def test_a_hook_without_numpy_is_for_gpus() -> None:
    text = Variant("text", mask=Hook("near", "kv_idx > q_idx - 3"))
    q = random(0, 1, 4, 2, 16)
    with pytest.raises(ValueError, match=r"'near' is C\+\+ text without evaluate="):
        attention(q, q, q, variant=text)


def test_one_shot_calls_take_tensors() -> None:
    case = CASES["slopes"]
    q, k, v = (random(i, 2, 9, h, DIM) for i, h in enumerate((HEADS, KV_HEADS, KV_HEADS)))
    out = attention(q, k, v, variant=case.variant, tensors=case.tensors)
    twice = attention(q, k, v, variant=case.variant, tensors={"slopes": 2 * SLOPES})
    for b in range(2):
        expected, _ = dense(q[b], k[b], v[b], b, case)
        torch.testing.assert_close(out[b].double(), expected, rtol=1e-5, atol=2e-6)
    assert not torch.allclose(out, twice)


def test_what_is_expected_changes_plans_and_no_result() -> None:
    """Work is spread by it, whatever the tensors hold."""
    batch = batch_of("documents")
    q = random(0, 600, HEADS, DIM)
    k, v = (random(s, 600, KV_HEADS, DIM) for s in (1, 2))
    document = torch.zeros(1, 600, dtype=torch.int32)
    own = torch.arange(600, dtype=torch.int32).clamp(max=300)[None]
    plans, outs = [], []
    for expected in (None, document, own):
        given = None if expected is None else {"document": expected}
        batch.plan([0, 600], RaggedKV([0, 600]), tensors={"document": document}, expected=given)
        plans.append(batch.last_plan.block_costs.tolist())
        outs.append(batch.run(q, k, v))
    assert plans[1] != plans[2] and sum(plans[2]) < sum(plans[1])
    for out in outs[1:]:
        torch.testing.assert_close(out, outs[0], rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match=r"expected has 'numbers'; variant 'causal_document' has"):
        batch.plan([0, 600], RaggedKV([0, 600]), expected={"numbers": document})


def test_wrong_tensors() -> None:
    batch, plan = batch_of("slopes"), ([0, 3], RaggedKV([0, 9]))
    q, k = random(0, 3, HEADS, DIM), random(1, 9, KV_HEADS, DIM)

    def refused(error: type[Exception], message: str, **tensors: Any) -> str:
        with pytest.raises(error, match=message) as caught:
            batch.plan(*plan, tensors=tensors)
        return str(caught.value)

    text = refused(IndexError, r"slopes\[h\] reads outside.* 0 and 7", slopes=SLOPES[:4])
    assert "return s - slopes[h] * (q_idx - kv_idx)" in text
    refused(ValueError, "has no tensor", slopes=SLOPES, bias=SLOPES)
    refused(TypeError, r"slopes has dtype torch\.float64; it takes float32", slopes=SLOPES.double())
    refused(ValueError, r"strides \(2,\); the last one must be 1", slopes=SLOPES.repeat(2)[::2])
    refused(TypeError, r"slopes is a list; it takes a tensor of 1 dims", slopes=SLOPES.tolist())
    refused(TypeError, "slopes is on device meta; it takes cpu", slopes=SLOPES.to("meta"))
    with pytest.raises(ValueError, match=r"bias has shape \(2147483648, 33\); .* less than 2\^31"):
        batch_of("relative").plan(*plan, tensors={"bias": BIAS[:1].expand(1 << 31, 33)})
    with pytest.raises(ValueError, match="has no tensor"):
        batch_of("causal").plan(*plan, tensors={"slopes": SLOPES})
    batch.plan(*plan)
    with pytest.raises(ValueError, match="the variant reads tensor 'slopes': give it in tensors="):
        batch.run(q, k, k)
    # Positions that no request has are not looked at.
    batch.plan([0, 0], RaggedKV([0, 9]), tensors={"slopes": SLOPES[:1]})

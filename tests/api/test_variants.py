"""Variants end to end on the CPU, against dense formulas in float64 that know no `Variant`."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from cute_attn import BatchAttention, RaggedKV, Variant, attention, causal, sliding_window
from cute_attn.variants import (
    Hook,
    Scalar,
    Tensor,
    alibi,
    chunked_local,
    prefix_lm,
    soft_cap,
)

HEADS, KV_HEADS, DIM = 6, 2, 32
Dense = Callable[..., Any]


def dense(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    b: int,
    keep: Dense | None,
    bend: Dense | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """out and lse of one request, (length, heads, dim), the last query at the last key."""
    q, k, v = (x.double().transpose(0, 1) for x in (q, k, v))
    k, v = (x.repeat_interleave(HEADS // KV_HEADS, 0) for x in (k, v))
    i = torch.arange(q.shape[1])[:, None] + k.shape[1] - q.shape[1]
    j, h = torch.arange(k.shape[1])[None, :], torch.arange(HEADS)[:, None, None]
    scores = q @ k.mT * DIM**-0.5
    if bend is not None:
        scores = bend(scores, h, i, j)
    if keep is not None:
        scores = scores.masked_fill(~(keep(b, h, i, j) | torch.zeros(scores.shape, dtype=bool)),
                                    -torch.inf)  # fmt: skip
    lse = scores.logsumexp(-1)
    p = (scores - lse.nan_to_num(neginf=0.0)[..., None]).exp()
    return (p @ v).transpose(0, 1), lse.transpose(0, 1)


def _slopes(heads: int) -> torch.Tensor:
    """As in the ALiBi paper's own code: a list for powers of two, extended for others."""

    def power(n: int) -> list[float]:
        start = 2.0 ** (-8.0 / n)
        return [start ** (i + 1) for i in range(n)]

    closest = 2 ** (heads.bit_length() - 1)
    slopes = power(closest) + power(2 * closest)[0::2][: heads - closest]
    return torch.tensor(slopes, dtype=torch.float64)[:, None, None]


def global_heads(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return (kv_idx <= q_idx) & ((h < 2) | (kv_idx > q_idx - 5) | (b == 1))


def flex(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return torch.where(q_idx >= kv_idx, score - 0.1 * (q_idx - kv_idx), -torch.inf)


STEP = Scalar("step", "i32", 3, "distance of visible keys", lower=1)
EVEN = Hook("even", "kv_idx % 2 == 0", lambda b, h, q_idx, kv_idx: kv_idx % 2 == 0)


def every_third(b: Any, h: Any, q_idx: Any, kv_idx: Any, *, step: Any) -> Any:
    return (kv_idx <= q_idx) & ((q_idx - kv_idx) % step == 0)


CASES: dict[str, tuple[Variant, dict[str, Any], Dense | None, Dense | None]] = {
    # name: variant, scalars, mask and logits of the dense formula
    "causal": (causal(), {}, lambda b, h, i, j: j <= i, None),
    "window": (
        causal() & sliding_window(), {"window_left": 7},
        lambda b, h, i, j: (j <= i) & (i - j < 8), None,
    ),
    "both_sides": (
        sliding_window(right=True), {"window_left": 7, "window_right": 2},
        lambda b, h, i, j: (i - j < 8) & (j - i < 3), None,
    ),
    "chunks": (
        causal() & chunked_local(), {"chunk_size": 10},
        lambda b, h, i, j: (j <= i) & (i.div(10, rounding_mode="floor") == j // 10), None,
    ),
    "prefix": (
        prefix_lm(), {"prefix_length": 21}, lambda b, h, i, j: (j <= i) | (j < 21), None,
    ),
    "soft_cap": (
        causal() & soft_cap(), {"logits_soft_cap": 1.5},
        lambda b, h, i, j: j <= i, lambda s, h, i, j: 1.5 * (s / 1.5).tanh(),
    ),
    "alibi": (
        causal() & alibi(HEADS), {},
        lambda b, h, i, j: j <= i, lambda s, h, i, j: s + _slopes(HEADS) * (j - i),
    ),
    "dilated": (
        Variant("dilated", mask=every_third, params=[STEP]), {"step": 4},
        lambda b, h, i, j: (j <= i) & ((i - j) % 4 == 0), None,
    ),
    "by_head": (
        Variant("by_head", mask=global_heads), {},
        lambda b, h, i, j: (j <= i) & ((h < 2) | (i - j < 5) | (b == 1)), None,
    ),
    "flex": (
        Variant("flex", logits=flex),
        {}, lambda b, h, i, j: j <= i, lambda s, h, i, j: s - 0.1 * (i - j),
    ),
    "text": (
        causal() & Variant("even", mask=EVEN),
        {}, lambda b, h, i, j: (j <= i) & (j % 2 == 0), None,
    ),
}  # fmt: skip
LENGTHS = {"prefill": ([40, 17], [40, 17]), "append": ([9, 3, 12], [50, 33, 12]),
           "decode": ([1, 1, 1], [70, 1, 38])}  # fmt: skip


def random(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("phase", LENGTHS)
@pytest.mark.parametrize("name", CASES)
def test_against_a_dense_formula(name: str, phase: str) -> None:
    variant, scalars, keep, bend = CASES[name]
    q_len, kv_len = LENGTHS[phase]
    rows, keys = ([0, *itertools.accumulate(x)] for x in (q_len, kv_len))
    q = random(0, rows[-1], HEADS, DIM)
    k, v = random(1, keys[-1], KV_HEADS, DIM), random(2, keys[-1], KV_HEADS, DIM)
    batch = BatchAttention(HEADS, KV_HEADS, DIM, dtype=torch.float32, variant=variant, device="cpu")
    batch.plan(rows, RaggedKV(keys), scalars=scalars)
    out, lse = batch.run(q, k, v, return_lse=True)
    for b, (begin, end) in enumerate(itertools.pairwise(rows)):
        own = slice(keys[b], keys[b + 1])
        expected = dense(q[begin:end], k[own], v[own], b, keep, bend)
        torch.testing.assert_close(out[begin:end].double(), expected[0], rtol=1e-5, atol=2e-6)
        torch.testing.assert_close(lse[begin:end].double(), expected[1], rtol=1e-5, atol=2e-6)


def test_scalars_given_to_run_and_their_limits() -> None:
    batch = BatchAttention(
        HEADS, KV_HEADS, DIM, dtype=torch.float32, variant=CASES["chunks"][0], device="cpu"
    )
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


SLOPES = torch.linspace(0.1, 0.6, HEADS)
DOCUMENTS = torch.tensor([[0] * 13 + [1] * 20 + [2] * 37, [5] * 30 + [4] * 40, [7] * 70])
BIAS = torch.randn(HEADS, 16, generator=torch.Generator().manual_seed(5))
ALLOWED = torch.rand(70, 70, generator=torch.Generator().manual_seed(6)) < 0.5
PREFIX = torch.tensor([9, 0, 17], dtype=torch.int32)


def slopes_of_heads(s: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any, *, slopes: Any) -> Any:
    return s - slopes[h] * (q_idx - kv_idx)


def documents(b: Any, h: Any, q_idx: Any, kv_idx: Any, *, document: Any) -> Any:
    return (kv_idx <= q_idx) & (document[b, q_idx] == document[b, kv_idx])


def relative(s: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any, *, bias: Any) -> Any:
    return s + bias[h][torch.clamp(q_idx - kv_idx, 0, 15)]


def any_keys(b: Any, h: Any, q_idx: Any, kv_idx: Any, *, allowed: Any) -> Any:
    return allowed[q_idx, kv_idx]


def prefixes(b: Any, h: Any, q_idx: Any, kv_idx: Any, *, prefix: Any) -> Any:
    return (kv_idx <= q_idx) | (kv_idx < prefix[b])


WITH_TENSORS: dict[str, tuple[Variant, dict[str, torch.Tensor], Dense | None, Dense | None]] = {
    "slopes": (
        Variant("slopes", logits=slopes_of_heads, params=[Tensor("slopes", "f32", 1)]),
        {"slopes": SLOPES}, None, lambda s, h, i, j: s - SLOPES[h] * (i - j),
    ),
    "documents": (
        Variant("documents", mask=documents, params=[Tensor("document", "i32", 2)]),
        {"document": DOCUMENTS.int()},
        lambda b, h, i, j: (j <= i) & (DOCUMENTS[b][i] == DOCUMENTS[b][j]), None,
    ),
    "relative": (
        causal() & Variant("relative", logits=relative, params=[Tensor("bias", "f32", 2)]),
        # A slice of a wider table: rows are strided.
        {"bias": torch.nn.functional.pad(BIAS, (0, 3))[:, :16]},
        lambda b, h, i, j: j <= i, lambda s, h, i, j: s + BIAS[h, (i - j).clamp(0, 15)],
    ),
    "dense": (
        Variant("dense", mask=any_keys, params=[Tensor("allowed", "bool", 2)]),
        {"allowed": ALLOWED}, lambda b, h, i, j: ALLOWED[i, j], None,
    ),
    "prefixes": (
        Variant("prefixes", mask=prefixes, params=[Tensor("prefix", "i32", 1)]),
        {"prefix": PREFIX}, lambda b, h, i, j: (j <= i) | (j < PREFIX[b]), None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("phase", LENGTHS)
@pytest.mark.parametrize("name", WITH_TENSORS)
def test_tensors_against_a_dense_formula(name: str, phase: str) -> None:
    variant, tensors, keep, bend = WITH_TENSORS[name]
    q_len, kv_len = LENGTHS[phase]
    rows, keys = ([0, *itertools.accumulate(x)] for x in (q_len, kv_len))
    q = random(0, rows[-1], HEADS, DIM)
    k, v = random(1, keys[-1], KV_HEADS, DIM), random(2, keys[-1], KV_HEADS, DIM)
    batch = BatchAttention(HEADS, KV_HEADS, DIM, dtype=torch.float32, variant=variant, device="cpu")
    out, lse = batch.plan(rows, RaggedKV(keys), tensors=tensors).run(q, k, v, return_lse=True)
    for b, (begin, end) in enumerate(itertools.pairwise(rows)):
        own = slice(keys[b], keys[b + 1])
        expected = dense(q[begin:end], k[own], v[own], b, keep, bend)
        torch.testing.assert_close(out[begin:end].double(), expected[0], rtol=1e-5, atol=2e-6)
        torch.testing.assert_close(lse[begin:end].double(), expected[1], rtol=1e-5, atol=2e-6)
    # Given to run() they are the same.
    batch.plan(rows, RaggedKV(keys))
    with pytest.raises(ValueError, match=r"the variant reads tensor '\w+': give it in tensors="):
        batch.run(q, k, v)
    assert torch.equal(batch.run(q, k, v, tensors=tensors), out)


def test_one_shot_calls_take_tensors() -> None:
    variant, tensors, _, bend = WITH_TENSORS["slopes"]
    q, k, v = (random(i, 2, 9, h, DIM) for i, h in enumerate((HEADS, KV_HEADS, KV_HEADS)))
    out = attention(q, k, v, variant=variant, tensors=tensors)
    twice = attention(q, k, v, variant=variant, tensors={"slopes": 2 * SLOPES})
    for b in range(2):
        expected, _ = dense(q[b], k[b], v[b], b, None, bend)
        torch.testing.assert_close(out[b].double(), expected, rtol=1e-5, atol=2e-6)
    assert not torch.allclose(out, twice)


def test_wrong_tensors() -> None:
    variant = WITH_TENSORS["slopes"][0]
    batch = BatchAttention(HEADS, KV_HEADS, DIM, dtype=torch.float32, variant=variant, device="cpu")
    plan = ([0, 3], RaggedKV([0, 9]))
    with pytest.raises(
        IndexError, match=r"slopes\[h\] reads outside slopes.* between 0 and 5"
    ) as e:
        batch.plan(*plan, tensors={"slopes": SLOPES[:4]})
    assert "return s - slopes[h] * (q_idx - kv_idx)" in str(e.value)
    with pytest.raises(ValueError, match="has no tensor"):
        batch.plan(*plan, tensors={"slopes": SLOPES, "bias": BIAS})
    with pytest.raises(TypeError, match=r"slopes has dtype torch\.float64; it takes float32"):
        batch.plan(*plan, tensors={"slopes": SLOPES.double()})
    with pytest.raises(ValueError, match=r"slopes has strides \(2,\); the last one must be 1"):
        batch.plan(*plan, tensors={"slopes": SLOPES.repeat(2)[::2]})
    with pytest.raises(TypeError, match=r"slopes is a ndarray; it takes a torch\.Tensor"):
        batch.plan(*plan, tensors={"slopes": SLOPES.numpy()})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match=r"slopes is on device meta; it takes cpu"):
        batch.plan(*plan, tensors={"slopes": SLOPES.to("meta")})
    with pytest.raises(ValueError, match="has no tensor"):
        BatchAttention(HEADS, KV_HEADS, DIM, device="cpu").plan(*plan, tensors={"slopes": SLOPES})
    # Positions that no request has are not looked at.
    batch.plan([0, 0], RaggedKV([0, 9]), tensors={"slopes": SLOPES[:1]})

"""Softmax off and hooks on rows through the public calls: splits, extremes, parameters, errors."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from cute_attn import (
    BatchAttention,
    PagedKV,
    RaggedKV,
    Variant,
    attention,
    attention_sinks,
    causal,
    full,
    sigmoid_attention,
    single_decode,
    sliding_window,
)
from cute_attn.variants import Hook, Tensor

HEADS, KV_HEADS, DIM = 6, 2, 16


def random(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def gated(out: Any, b: Any, h: Any, q_idx: Any, d: Any, *, gate: Any) -> Any:
    return out * torch.sigmoid(gate[b, q_idx, h, d])


GATED = Variant("gated", output=gated, params=[Tensor("gate", "f32", 4)])


def scores_of(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """(heads, q_len, kv_len) of (len, heads, dim), float64, scaled."""
    q, k = (x.double().transpose(0, 1) for x in (q, k))
    return q @ k.repeat_interleave(len(q) // len(k), 0).mT * q.shape[-1] ** -0.5


def times(weights: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    v = v.double().transpose(0, 1)
    return (weights @ v.repeat_interleave(len(weights) // len(v), 0)).transpose(0, 1)


@pytest.mark.parametrize("batch_invariant", [False, True])
def test_split_keys(batch_invariant: bool) -> None:
    """Pieces add, or merge by their log-sum-exp; the hooks see the row once."""
    lengths = [1000, 2500, 0]
    keys = [0, 1000, 3500, 3500]
    q, gate = random(0, 3, HEADS, DIM), random(1, 3, 2501, HEADS, DIM)
    k, v = random(2, 3500, KV_HEADS, DIM), random(3, 3500, KV_HEADS, DIM)
    sink = torch.tensor([0.0, 9.0, -30.0, 2.0, 5.0, 8.0])
    for base, tensors in (
        (attention_sinks(), {"sink": sink}),
        (sigmoid_attention(1000), {}),
        (causal() & sigmoid_attention(1000), {}),
    ):
        batch = BatchAttention(
            HEADS, KV_HEADS, DIM, dtype=torch.float32, variant=base & GATED, device="cpu",
            batch_invariant=batch_invariant,
        )  # fmt: skip
        # Without keys the query stands at -1; an index there is outside.
        with pytest.raises(IndexError, match="index 1 is between -1 and 2499"):
            batch.plan(range(4), RaggedKV(keys), tensors={**tensors, "gate": gate})
        batch.plan(range(3), RaggedKV(keys[:3]), tensors={**tensors, "gate": gate})
        assert batch.last_plan is not None and batch.last_plan.num_split_tiles > 0
        out = batch.run(q[:2], k, v)
        for b, length in enumerate(lengths[:2]):
            own = slice(keys[b], keys[b + 1])
            s = scores_of(q[b : b + 1], k[own])
            if base.softmax:
                total = torch.logaddexp(s.logsumexp(-1), sink.double()[:, None])
                expected = times((s - total[..., None]).exp(), v[own])
            else:
                expected = times(1 / (1 + 1000 * (-s).exp()), v[own])
            expected = expected * gate[b, length - 1].double().sigmoid()
            torch.testing.assert_close(out[b : b + 1].double(), expected, rtol=2e-5, atol=2e-6)


def test_sinks_of_any_size() -> None:
    """Exact where the sink is all or nothing of the sum; never NaN, without keys either."""
    sink = torch.tensor([-torch.inf, torch.inf, -1e30, 1e30, 100.0, -100.0])
    q, k, v = random(0, 2, 7, HEADS, DIM), random(1, 2, 4, KV_HEADS, DIM), random(2, 2, 4, 2, DIM)
    variant = causal() & attention_sinks()
    out, lse = attention(q, k, v, variant=variant, tensors={"sink": sink}, return_lse=True)
    plain, plain_lse = attention(q, k, v, variant=causal(), return_lse=True)
    for h in (0, 2, 5):  # nothing
        torch.testing.assert_close(out[:, :, h], plain[:, :, h], rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(lse[:, 3:, h], plain_lse[:, 3:, h], rtol=1e-6, atol=1e-6)
    for h in (1, 3, 4):  # all
        assert (out[:, :, h].abs() < 1e-30).all() and (lse[:, :, h] == sink[h]).all()
    assert (out[:, :3] == 0).all() and (lse[:, :3] == sink).all()  # rows that see no key
    assert torch.isfinite(out).all() and not lse.isnan().any()


def test_no_log_sum_exp_without_softmax() -> None:
    variant = causal() & sigmoid_attention(8)
    q, k = random(0, 1, 5, HEADS, DIM), random(1, 1, 9, KV_HEADS, DIM)
    message = "variant 'causal_sigmoid' has no softmax, so its rows have no log-sum-exp"
    with pytest.raises(ValueError, match=f"return_lse is True, but {message}"):
        attention(q, k, k, variant=variant, return_lse=True)
    with pytest.raises(ValueError, match=message):
        single_decode(q[0, 0], k[0], k[0], variant=variant, return_lse=True)
    batch = BatchAttention(HEADS, KV_HEADS, DIM, dtype=q.dtype, variant=variant, device="cpu")
    batch.plan([0, 5], RaggedKV([0, 9]))
    lse = torch.empty(5, HEADS)
    with pytest.raises(ValueError, match=f"lse is given, but {message}"):
        batch.run(q[0], k[0], k[0], lse=lse)
    with pytest.raises(ValueError, match=f"lse is given, but {message}"):
        torch.ops.cute_attn.run(batch.handle, q[0], k[0], k[0], torch.empty_like(q[0]), lse)
    out = torch.empty_like(q[0])
    torch.ops.cute_attn.run(batch.handle, q[0], k[0], k[0], out, None)
    assert torch.equal(out, batch.run(q[0], k[0], k[0]))
    assert torch.equal(out, attention(q, k, k, variant=variant)[0])


def test_hidden_keys_weigh_nothing() -> None:
    """Whatever is there: NaN in a page that no query sees."""
    k, v = random(1, 6, 16, KV_HEADS, DIM), random(2, 6, 16, KV_HEADS, DIM)
    k[2], v[2] = torch.nan, torch.nan
    pages = PagedKV([0, 6], [5, 4, 3, 2, 1, 0], [16], 16)
    variant = causal() & sliding_window() & sigmoid_attention(8)
    batch = BatchAttention(HEADS, KV_HEADS, DIM, dtype=k.dtype, variant=variant, device="cpu")
    q = random(0, 1, HEADS, DIM)
    batch.plan([0, 1], pages, scalars={"window_left": 20})
    out = batch.run(q, k, v)
    order = [5, 4, 3, 2, 1, 0]
    keys, values = (x[order].flatten(0, 1)[-21:] for x in (k, v))
    expected = times(1 / (1 + 8 * (-scores_of(q, keys)).exp()), values)
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-6)


def test_text_without_numpy_is_for_gpus() -> None:
    variant = Variant("t", output=Hook("twice", "2.f * out"))
    q = random(0, 1, 4, 2, DIM)
    with pytest.raises(ValueError, match=r"'twice' is C\+\+ text without evaluate="):
        attention(q, q, q, variant=variant)


def test_wrong_tensors() -> None:
    batch = BatchAttention(
        HEADS, KV_HEADS, DIM, dtype=torch.float32, variant=attention_sinks(), device="cpu"
    )
    with pytest.raises(IndexError, match=r"sink\[h\] reads outside sink: .* 0 and 5"):
        batch.plan([0, 1], RaggedKV([0, 9]), tensors={"sink": torch.zeros(5)})
    with pytest.raises(IndexError, match="reads outside sink"):  # rows without keys have one, too
        batch.plan([0, 1], RaggedKV([0, 0]), tensors={"sink": torch.zeros(5)})
    batch.plan([0, 1], RaggedKV([0, 9]))
    q, k = random(0, 1, HEADS, DIM), random(1, 9, KV_HEADS, DIM)
    with pytest.raises(ValueError, match="the variant reads tensor 'sink': give it in tensors="):
        batch.run(q, k, k)


def test_the_merge_kernel_is_given_parameters(fake_gpu: Any) -> None:
    """Those that its hooks read, new ones when they change."""
    variant = causal() & attention_sinks() & sliding_window()
    batch = fake_gpu.batch(8, 2, 64, variant=variant, schedule="ampere_tile")
    first, second = torch.zeros(8), torch.ones(9)
    batch.plan([0, 60], RaggedKV([0, 6000]), tensors={"sink": first})
    assert batch.last_plan.num_split_tiles > 0
    q, k = (torch.zeros(n, h, 64, dtype=torch.bfloat16) for n, h in ((60, 8), (6000, 2)))
    for given, tensor in ((None, first), ({"sink": second}, second), (None, first)):
        batch.run(q, k, k, tensors=given)
        attend, merge = fake_gpu.launches[-2:]
        assert merge.name.startswith("merge_bf16_d64") and "_finish_" in merge.name
        for launch in (attend, merge):
            assert launch.params["sink"] == tensor.data_ptr()
            assert launch.params["sink_size_0"] == len(tensor)
        assert "window_left" in attend.params and "window_left" not in merge.params
    plain = fake_gpu.batch(8, 2, 64, variant=full(), schedule="ampere_tile")
    plain.plan([0, 60], RaggedKV([0, 6000])).run(q, k, k)
    assert "_finish_" not in fake_gpu.launches[-1].name


def test_what_kernels_are_given_without_softmax(fake_gpu: Any) -> None:
    variant = causal() & sigmoid_attention(64)
    batch = fake_gpu.batch(8, 2, 64, variant=variant, sm_scale=0.25)
    batch.plan([0, 1], RaggedKV([0, 100]), scalars={"sigmoid_bias": -3.0})
    q, k = (torch.zeros(n, h, 64, dtype=torch.bfloat16) for n, h in ((1, 8), (100, 2)))
    batch.run(q, k, k)
    params = fake_gpu.launches[-1].params
    # Its exponential has the base 2.
    assert params["sm_scale"] == pytest.approx(0.25 * math.log2(math.e))
    assert params["sigmoid_bias"] == -3.0 and params["lse"] == 0
    with pytest.raises(ValueError, match="has no softmax"):
        batch.run(q, k, k, return_lse=True)
    assert len(fake_gpu.launches) == 1


@pytest.mark.parametrize("variant", [causal() & attention_sinks(), sigmoid_attention(64) & GATED])
def test_fixed_pieces(fake_gpu: Any, variant: Variant) -> None:
    """Batch invariance has kernels of its own, with the same hooks and parameters."""
    tensors = {"sink": torch.zeros(8)} if variant.softmax else {"gate": torch.zeros(1, 100, 8, 64)}
    batch = fake_gpu.batch(8, 2, 64, variant=variant, batch_invariant=True)
    batch.plan([0, 1], RaggedKV([0, 100]), tensors=tensors)
    q, k = (torch.zeros(n, h, 64, dtype=torch.bfloat16) for n, h in ((1, 8), (100, 2)))
    batch.run(q, k, k)
    (launch,) = fake_gpu.launches
    assert "fixed_pieces" in launch.name
    name = next(iter(tensors))
    assert launch.params[name] == tensors[name].data_ptr()

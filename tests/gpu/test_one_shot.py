"""The calls without a wrapper object, on a device."""

from __future__ import annotations

import pytest
import torch

from cute_attn import attention, single_decode, single_prefill
from tests.gpu import oracle64
from tests.gpu.check import BOUNDS, LSE_BOUND, ROW_BOUND

pytestmark = pytest.mark.gpu

HEADS, KV_HEADS, DIM = 8, 2, 128


def normal(*shape: int, device: torch.device) -> torch.Tensor:
    return torch.randn(shape, device=device).bfloat16()


def assert_close(out: torch.Tensor, lse: torch.Tensor, want: tuple[torch.Tensor, ...]) -> None:
    err, row, far, exact = oracle64.errors(out, lse, want[0], want[1])
    assert err <= BOUNDS["bf16"] and row <= ROW_BOUND and far <= LSE_BOUND and exact


@pytest.mark.parametrize("variant", ["full", "causal"])
def test_dense_batch(variant: str, device: torch.device) -> None:
    for q_len, kv_len in ((300, 300), (17, 1000), (300, 300), (129, 64)):
        q = normal(3, q_len, HEADS, DIM, device=device)
        k, v = (normal(3, kv_len, KV_HEADS, DIM, device=device) for _ in range(2))
        out, lse = attention(q, k, v, variant=variant, return_lse=True)
        assert out.shape == q.shape and lse.shape == q.shape[:3]
        want, want_lse = oracle64.attend_batch(
            q.flatten(0, 1), [q_len] * 3, list(k), list(v), causal=variant == "causal"
        )
        assert_close(out.flatten(0, 1), lse.flatten(0, 1), (want, want_lse))


def test_single_prefill_and_decode(device: torch.device) -> None:
    q = normal(200, HEADS, DIM, device=device)
    k, v = (normal(KV_HEADS, 777, DIM, device=device) for _ in range(2))  # HND
    out, lse = single_prefill(q, k, v, kv_layout="HND", return_lse=True)
    want, want_lse = oracle64.attend(q, k.transpose(0, 1), v.transpose(0, 1), causal=True)
    assert_close(out, lse, (want, want_lse))
    # The last query alone: another kernel, the same row.
    out, lse = single_decode(q[-1], k, v, kv_layout="HND", return_lse=True)
    assert_close(out[None], lse[None], (want[-1:], want_lse[-1:]))

"""Bad input raises, and the message names the argument, what it is and what is taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from cute_attn import (
    BatchAttention,
    PagedKV,
    RaggedKV,
    RoPE,
    append_paged_kv,
    attention,
    merge_states,
    single_decode,
    single_prefill,
)

BF16 = torch.bfloat16


def zeros(*size: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.zeros(*size, dtype=dtype)


def meta(*size: int) -> torch.Tensor:
    return torch.zeros(*size, dtype=BF16, device="meta")


def misaligned(*size: int) -> torch.Tensor:
    """Rows that start 2 bytes past a multiple of 16."""
    count = torch.Size(size).numel()
    raw = torch.zeros(count + 16, dtype=BF16)
    offset = -raw.data_ptr() % 16 // 2
    return raw[offset + 1 :][:count].view(size)


CONSTRUCTOR: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    ("group", {"num_kv_heads": 3}, ValueError, "num_qo_heads is 8.*num_kv_heads = 3"),
    ("no heads", {"num_kv_heads": 0}, ValueError, "num_kv_heads is 0.*at least 1"),
    ("float", {"head_dim": 64.0}, TypeError, "head_dim is 64.0.*integer"),
    ("layout", {"kv_layout": "HDN"}, ValueError, "kv_layout is 'HDN'.*'NHD' or 'HND'"),
    ("dtype", {"dtype": torch.float64}, TypeError, "dtype is torch.float64.*torch.bfloat16"),
    ("variant", {"variant": "casual"}, ValueError, "variant is 'casual'.*causal"),
    ("scale", {"sm_scale": float("nan")}, ValueError, "sm_scale is nan.*finite"),
    ("no scale", {"sm_scale": 0.0}, ValueError, "sm_scale is 0.0.*positive"),
    ("capacity", {"max_requests": 0}, ValueError, "max_requests is 0"),
    ("device", {"device": "meta"}, ValueError, "device is meta.*'cuda' or 'cpu'"),
    ("workspace", {"workspace": zeros(8)}, TypeError, "workspace has dtype.*torch.uint8"),
    ("schedule", {"schedule": "volta"}, ValueError, "schedule is 'volta'.*'hopper_tile'"),
]


@pytest.mark.parametrize(
    ("options", "error", "message"), [c[1:] for c in CONSTRUCTOR], ids=[c[0] for c in CONSTRUCTOR]
)
def test_constructor(options: dict[str, Any], error: type[Exception], message: str) -> None:
    sizes = {"num_qo_heads": 8, "num_kv_heads": 2, "head_dim": 64, "device": "cpu"}
    with pytest.raises(error, match=message):
        BatchAttention(**{**sizes, **options})


PLAN: list[tuple[str, Callable[[BatchAttention], Any], type[Exception], str]] = [
    ("decreasing", lambda b: b.plan([0, 5, 3], RaggedKV([0, 5, 9])), ValueError,
     r"qo_indptr decreases: qo_indptr\[1\] is 5"),
    ("not from 0", lambda b: b.plan([1, 5], RaggedKV([0, 5])), ValueError, r"qo_indptr\[0\] is 1"),
    ("floats", lambda b: b.plan([0.0, 5.0], RaggedKV([0, 5])), TypeError, "qo_indptr has dtype"),
    ("rank", lambda b: b.plan([[0, 5]], RaggedKV([0, 5])), ValueError, "qo_indptr has shape"),
    ("requests", lambda b: b.plan([0, 5], RaggedKV([0, 5, 9])), ValueError,
     "qo_indptr describes 1 requests, kv_format 2"),
    ("device", lambda b: b.plan(meta(2), RaggedKV([0, 5])), TypeError,
     "qo_indptr is on device meta"),
    ("format", lambda b: b.plan([0, 5], [0, 5]), TypeError, "kv_format is a list.*PagedKV"),
    ("no lengths", lambda b: b.plan(None, RaggedKV([0, 5])), TypeError, "qo_indptr is None"),
    ("scalar", lambda b: b.plan([0, 5], RaggedKV([0, 5]), scalars={"window_left": 3}), ValueError,
     "no scalar.*window_left"),
    ("capacity", lambda b: b.plan(range(10), RaggedKV(range(10))), ValueError,
     "9 requests.*max_requests is 8"),
    ("page", lambda b: b.plan([0, 1], PagedKV([0, 1], [-1], [1], 4)), ValueError, "page -1"),
    ("last page 0", lambda b: b.plan([0, 1], PagedKV([0, 1], [0], [0], 4)), ValueError,
     r"kv_last_page_len\[0\] is 0"),
    ("last page 5", lambda b: b.plan([0, 1], PagedKV([0, 1], [0], [5], 4)), ValueError,
     r"kv_last_page_len\[0\] is 5"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("call", "error", "message"), [c[1:] for c in PLAN], ids=[c[0] for c in PLAN]
)
def test_plan(call: Callable[[BatchAttention], Any], error: type[Exception], message: str) -> None:
    batch = BatchAttention(8, 2, 64, max_requests=8, device="cpu")
    with pytest.raises(error, match=message):
        call(batch)
    with pytest.raises(RuntimeError, match=r"run\(\) before plan"):
        batch.run(zeros(5, 8, 64), zeros(5, 2, 64), zeros(5, 2, 64))


Q, K = (5, 8, 64), (9, 2, 64)
RUN: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    ("q type", {"q": 3}, TypeError, "q is a int"),
    ("k type", {"k": 3}, TypeError, "k is a int"),
    ("out type", {"out": 3}, TypeError, "out is a int"),
    ("lse type", {"lse": 3}, TypeError, "lse is a int"),
    ("q dtype", {"q": zeros(*Q, dtype=torch.float16)}, TypeError, "q has dtype torch.float16"),
    ("q device", {"q": meta(*Q)}, TypeError, "q is on device meta"),
    ("q rank", {"q": zeros(5, 512)}, ValueError, "q has 2 dimensions.*num_qo_heads = 8"),
    ("q rows", {"q": zeros(6, 8, 64)}, ValueError, r"q has 6 rows.*qo_indptr\[-1\] = 5"),
    ("q heads", {"q": zeros(5, 4, 64)}, ValueError, "num_qo_heads is 4"),
    ("q head_dim", {"q": zeros(5, 8, 128)}, ValueError, "head_dim is 128"),
    ("q inner stride", {"q": zeros(5, 8, 128)[..., ::2]}, ValueError, "q has strides.*contiguous"),
    ("q stride", {"q": zeros(5, 8, 68)[..., :64]}, ValueError, "dimension.*multiple of 8"),
    ("q address", {"q": misaligned(*Q)}, ValueError, "q starts at.*multiple of 16"),
    ("k dtype", {"k": zeros(*K, dtype=torch.float16)}, TypeError, "torch.float16"),
    ("k and v dtype", {"k": zeros(*K, dtype=torch.float16), "v": zeros(*K, dtype=torch.float16)},
     TypeError, "k has dtype torch.float16"),
    ("k heads", {"k": zeros(9, 4, 64), "v": zeros(9, 4, 64)}, ValueError,
     "k has num_kv_heads 4; planned for 2"),
    ("k head_dim", {"k": zeros(9, 2, 32)}, ValueError, "k has head_dim 32; planned for 64"),
    ("v head_dim", {"v": zeros(9, 2, 32)}, ValueError, "v has head_dim 32; planned for 64"),
    ("k rows", {"k": zeros(8, 2, 64), "v": zeros(8, 2, 64)}, ValueError, "k has 8 rows"),
    ("k rank", {"k": zeros(9, 128)}, ValueError, "k has shape"),
    ("k device", {"k": meta(*K), "v": meta(*K)}, TypeError, "k is on device meta"),
    ("no v", {"v": None}, ValueError, "v is None"),
    ("v type", {"v": [1]}, TypeError, "v is a list"),
    ("v stride", {"v": zeros(9, 2, 68)[..., :64]}, ValueError, "v has strides"),
    ("out shape", {"out": zeros(4, 8, 64)}, ValueError, "out has shape.*q_tokens is 4"),
    ("out dtype", {"out": zeros(*Q, dtype=torch.float32)}, TypeError, "out has dtype"),
    ("out stride", {"out": zeros(5, 64, 8).transpose(1, 2)}, ValueError, "out has strides"),
    ("lse dtype", {"lse": zeros(5, 8)}, TypeError, "lse has dtype torch.bfloat16"),
    ("lse shape", {"lse": torch.zeros(8, 5)}, ValueError, "lse has shape"),
    ("lse stride", {"lse": torch.zeros(8, 5).t()}, ValueError, "lse has shape.*contiguous"),
    ("scalar", {"scalars": {"logits_soft_cap": 1.0}}, ValueError, "no scalar.*logits_soft_cap"),
]  # fmt: skip


@pytest.mark.parametrize("backend", ["cpu", "cuda"])
@pytest.mark.parametrize(
    ("tensors", "error", "message"), [c[1:] for c in RUN], ids=[c[0] for c in RUN]
)
def test_run(
    fake_gpu: Any, backend: str, tensors: dict[str, Any], error: type[Exception], message: str
) -> None:
    make = fake_gpu.batch if backend == "cuda" else BatchAttention
    batch = make(8, 2, 64, **({} if backend == "cuda" else {"device": "cpu"}))
    batch.plan([0, 5], RaggedKV([0, 9]))
    given = {"q": zeros(*Q), "k": zeros(*K), "v": zeros(*K), **tensors}
    with pytest.raises(error, match=message):
        batch.run(**given)
    assert fake_gpu.launches == []
    # The object still works.
    assert batch.run(zeros(*Q), zeros(*K), zeros(*K)).shape == Q


def test_nothing_is_launched_after_a_replan_with_fewer_rows(fake_gpu: Any) -> None:
    """Tensors that were right for the last plan are looked at again after the next."""
    batch = fake_gpu.batch(8, 2, 64)
    k = zeros(*K)
    batch.plan([0, 5], RaggedKV([0, 9])).run(zeros(*Q), k, k)
    batch.plan([0, 4], RaggedKV([0, 9]))
    with pytest.raises(ValueError, match="q has 5 rows"):
        batch.run(zeros(*Q), k, k)
    batch.plan([0, 5], RaggedKV([0, 10]))
    with pytest.raises(ValueError, match=r"k has 9 rows.*10"):
        batch.run(zeros(*Q), k, k)
    assert len(fake_gpu.launches) == 1


ONE_SHOT: list[tuple[str, Callable[[], Any], type[Exception], str]] = [
    ("rank", lambda: attention(zeros(5, 8, 64), zeros(1, 5, 8, 64), zeros(1, 5, 8, 64)),
     ValueError, r"q has shape \(5, 8, 64\); it takes \(batch, seq"),
    ("batch", lambda: attention(zeros(2, 5, 8, 64), zeros(1, 5, 8, 64), zeros(1, 5, 8, 64)),
     ValueError, "k has batch 1, q has 2"),
    ("keys", lambda: attention(zeros(1, 5, 8, 64), zeros(1, 5, 8, 64), zeros(1, 6, 8, 64)),
     ValueError, "k has 5 keys, v has 6"),
    ("group", lambda: attention(zeros(1, 5, 8, 64), zeros(1, 5, 3, 64), zeros(1, 5, 3, 64)),
     ValueError, "num_qo_heads is 8"),
    ("prefill rank", lambda: single_prefill(zeros(8, 64), zeros(5, 8, 64), zeros(5, 8, 64)),
     ValueError, "q has shape"),
    ("decode rank", lambda: single_decode(zeros(1, 8, 64), zeros(5, 8, 64), zeros(5, 8, 64)),
     ValueError, r"q has shape \(1, 8, 64\)"),
    ("lse dtype", lambda: merge_states(zeros(2, 3, 1, 8), zeros(2, 3, 1)), TypeError,
     "lse has dtype torch.bfloat16"),
    ("lse shape", lambda: merge_states(zeros(2, 3, 1, 8), torch.zeros(3, 2, 1)), ValueError,
     "lse has shape"),
    ("no states", lambda: merge_states(zeros(0, 3, 1, 8), torch.zeros(0, 3, 1)), ValueError,
     "at least one state"),
    ("rope", lambda: RoPE("neox"), ValueError, "style is 'neox'"),
    ("theta", lambda: RoPE(theta=0.0), ValueError, "theta is 0.0"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("call", "error", "message"), [c[1:] for c in ONE_SHOT], ids=[c[0] for c in ONE_SHOT]
)
def test_one_shot(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_append_leaves_the_cache_alone_when_it_refuses() -> None:
    cache = zeros(2, 2, 4, 1, 16)
    new, one = torch.ones(1, 1, 16, dtype=BF16), torch.ones(1, dtype=torch.int32)
    kv_format = PagedKV([0, 1], [1], [3], 4)
    good: dict[str, Any] = {
        "key": new, "value": new, "batch_indices": 0 * one, "positions": one,
        "k_cache": cache, "v_cache": None, "kv_format": kv_format,
    }  # fmt: skip
    for wrong, error, message in (
        ({"positions": 3 * one}, ValueError, "positions holds 3.*3 keys"),
        ({"batch_indices": one}, ValueError, "batch_indices holds 1.*1 requests"),
        ({"positions": one.long()}, TypeError, "positions has dtype torch.int64"),
        ({"key": new.half()}, TypeError, "key has dtype torch.float16"),
        ({"value": torch.ones(2, 1, 16, dtype=BF16)}, ValueError, "value has shape"),
        ({"key": torch.ones(1, 2, 16, dtype=BF16)}, ValueError, "num_kv_heads is 2"),
        ({"kv_format": RaggedKV([0, 3])}, TypeError, "kv_format is a RaggedKV"),
        ({"kv_format": PagedKV([0, 1], [2], [3], 4)}, ValueError, "page 2 but the cache has 2"),
        ({"kv_format": PagedKV([0, 1], [1], [3], 8)}, ValueError, "pages of 4.*says 8"),
        ({"kv_layout": "NDH"}, ValueError, "kv_layout is 'NDH'"),
        ({"rope": "half_split"}, TypeError, "rope is a str"),
    ):
        with pytest.raises(error, match=message):
            append_paged_kv(**{**good, **wrong})
    assert cache.count_nonzero() == 0
    append_paged_kv(**good)
    assert cache.count_nonzero() == 32

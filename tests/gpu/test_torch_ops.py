"""The torch operators compiled by inductor, in CUDA graphs, on other streams."""

from __future__ import annotations

import pytest
import torch

from cute_attn import attention, merge_states
from tests.gpu.serving import (
    DIM,
    KV_HEADS,
    QO_HEADS,
    assert_right,
    serving_attention,
    serving_batch,
)

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(240, method="thread")]

STEPS = ([(1, 900), (1, 70)], [(1, 333), (1, 1500)])
PREFILL = [(70, 900), (1, 70)]


def test_reduce_overhead_follows_new_plans(device: torch.device) -> None:
    """One compiled model, its CUDA graph replayed with plans of other lengths."""
    pytest.importorskip("triton", reason="inductor needs Triton")
    batches = [
        serving_batch(requests, device, memory="combined", seed=i)
        for i, requests in enumerate(STEPS)
    ]
    wrapper = serving_attention(device, cuda_graph=True, max_requests=2, max_pages=256)
    handle = wrapper.handle
    pages = max(len(batch.kv[0]) for batch in batches)
    cache = torch.zeros(pages, *batches[0].kv[0].shape[1:], dtype=torch.bfloat16, device=device)
    torch._dynamo.mark_static_address(cache)

    @torch.compile(fullgraph=True, mode="reduce-overhead")
    def layer(q: torch.Tensor, cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = torch.ops.cute_attn.forward(handle, q * 1.0, cache, None, True)
        return out * 2, lse + 1

    with torch.inference_mode():
        for batch in batches * 4:  # warm-up, capture, replays
            cache[: len(batch.kv[0])] = batch.kv[0]
            wrapper.plan(batch.qo_indptr, batch.kv_format)
            torch.compiler.cudagraph_mark_step_begin()
            out, lse = layer(batch.q, cache)
            assert_right(batch, out / 2, lse - 1)


def test_inductor_keeps_what_is_written(device: torch.device) -> None:
    pytest.importorskip("triton", reason="inductor needs Triton")
    batch = serving_batch(PREFILL, device, memory="combined")
    wrapper = serving_attention(device)
    wrapper.plan(batch.qo_indptr, batch.kv_format)
    handle = wrapper.handle

    @torch.compile(fullgraph=True)
    def layer(q: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(q)
        torch.ops.cute_attn.run(handle, q, cache, None, out, None)
        return out + torch.ops.cute_attn.forward(handle, q, cache, None)[0]

    with torch.no_grad():
        assert_right(batch, layer(batch.q, batch.kv[0]) / 2)


def test_inductor_and_the_one_shot_call(device: torch.device) -> None:
    pytest.importorskip("triton", reason="inductor needs Triton")
    q = torch.randn(2, 100, QO_HEADS, DIM, device=device).bfloat16()
    k, v = (torch.randn(2, 300, KV_HEADS, DIM, device=device).bfloat16() for _ in range(2))
    traced = torch.compile(lambda q, k, v: attention(q, k, v, variant="causal") * 2, fullgraph=True)
    with torch.no_grad():
        assert torch.equal(traced(q, k, v), attention(q, k, v, variant="causal") * 2)


@pytest.mark.parametrize("dim", [DIM])
def test_operators_on_a_device(dim: int, device: torch.device) -> None:
    batch = serving_batch(PREFILL, device, memory="combined")
    wrapper = serving_attention(device)
    wrapper.plan(batch.qo_indptr, batch.kv_format)
    cache = batch.kv[0]
    torch.library.opcheck(
        torch.ops.cute_attn.forward.default, (wrapper.handle, batch.q, cache, None, True)
    )
    v = torch.randn(3, 7, 5, dim, device=device).bfloat16()
    lse = torch.randn(3, 7, 5, device=device)
    torch.library.opcheck(torch.ops.cute_attn.merge_states.default, (v, lse))
    with pytest.raises(RuntimeError, match="v requires grad, and there is no backward"):
        merge_states(v.requires_grad_(), lse)


def test_operators_run_on_the_current_stream(device: torch.device) -> None:
    batch = serving_batch(PREFILL, device, memory="combined")
    wrapper = serving_attention(device)
    wrapper.plan(batch.qo_indptr, batch.kv_format)
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    late = torch.zeros_like(batch.q)
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        late.copy_(batch.q)  # read before this, and the result is that of zeros
        out, _ = torch.ops.cute_attn.forward(wrapper.handle, late, batch.kv[0], None)
    torch.cuda.current_stream(device).wait_stream(stream)
    assert_right(batch, out)


def test_arrays_by_dlpack(device: torch.device) -> None:
    """What CuPy and JAX arrays are to torch: memory with `__dlpack__`, and nothing else."""

    class Foreign:
        def __init__(self, tensor: torch.Tensor) -> None:
            self.__dlpack__, self.__dlpack_device__ = tensor.__dlpack__, tensor.__dlpack_device__

    batch = serving_batch(PREFILL, device, memory="combined")
    wrapper = serving_attention(device)
    wrapper.plan(batch.qo_indptr, batch.kv_format)
    assert_right(batch, wrapper.run(Foreign(batch.q), Foreign(batch.kv[0])))

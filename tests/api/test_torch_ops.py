"""The torch operators: schema, tracing, gradients, and the same answers as the direct calls."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cute_attn import (
    BatchAttention,
    PagedKV,
    RaggedKV,
    append_paged_kv,
    attention,
    attention_sinks,
    causal,
    merge_states,
    single_decode,
    single_prefill,
)

OPS = torch.ops.cute_attn
NO_BACKWARD = "requires grad, and there is no backward: call under torch.no_grad"


def normal(*size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed))


def planned() -> tuple[BatchAttention, torch.Tensor, torch.Tensor]:
    q, k = normal(5, 4, 16), normal(30, 2, 16, seed=1)
    batch = BatchAttention(4, 2, 16, dtype=torch.float32, device="cpu")
    return batch.plan([0, 5], RaggedKV([0, 30])), q, k


def compiled(function: Any) -> Any:
    torch.compiler.reset()
    return torch.compile(function, fullgraph=True, backend="aot_eager")


def test_run_is_a_well_formed_operator() -> None:
    batch, q, k = planned()
    out, lse = torch.empty_like(q), torch.empty(5, 4)
    arguments = (batch.handle, q, k, k, out, lse)
    torch.library.opcheck(OPS.run.default, arguments)
    OPS.run(*arguments)
    expected, expected_lse = batch.run(q, k, k, return_lse=True)
    assert torch.equal(out, expected) and torch.equal(lse, expected_lse)


@pytest.mark.parametrize("return_lse", [False, True])
def test_forward_is_a_well_formed_operator(return_lse: bool) -> None:
    q, k, v = normal(5, 4, 16), normal(30, 2, 16, seed=1), normal(30, 2, 8, seed=2)
    batch = BatchAttention(4, 2, 16, head_dim_vo=8, dtype=torch.float32, device="cpu")
    batch.plan([0, 5], RaggedKV([0, 30]))
    torch.library.opcheck(OPS.forward.default, (batch.handle, q, k, v, return_lse))
    out, lse = OPS.forward(batch.handle, q, k, v, return_lse)
    expected, expected_lse = batch.run(q, k, v, return_lse=True)
    assert torch.equal(out, expected)
    assert torch.equal(lse, expected_lse) if return_lse else lse.shape == (0,)


def test_a_whole_cache_is_taken_as_one_tensor() -> None:
    cache = normal(4, 2, 8, 2, 16)
    batch = BatchAttention(4, 2, 16, dtype=torch.float32, device="cpu")
    batch.plan([0, 5], PagedKV([0, 4], [2, 0, 3, 1], [6], 8))
    torch.library.opcheck(OPS.forward.default, (batch.handle, normal(5, 4, 16), cache, None))


def test_a_compiled_model_follows_new_plans() -> None:
    batch, q, k = planned()
    handle = batch.handle

    @compiled
    def layer(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(q)
        torch.ops.cute_attn.run(handle, q, k, 2 * k, out, None)
        return out + torch.ops.cute_attn.forward(handle, q, k, k)[0]

    for kv in ([0, 30], [0, 11]):
        batch.plan([0, 5], RaggedKV(kv))
        assert torch.equal(layer(q, k), batch.run(q, k, 2 * k) + batch.run(q, k, k))


def test_one_graph_serves_other_numbers_of_tokens() -> None:
    batch, q, k = planned()
    handle, graphs = batch.handle, []

    def count(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        graphs.append(graph)
        return graph.forward

    @torch.compile(fullgraph=True, backend=count, dynamic=True)
    def layer(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        out, lse = torch.ops.cute_attn.forward(handle, 2 * q, k, k, True)
        return out * lse.unsqueeze(-1)

    for tokens, keys in ((5, 30), (3, 12), (9, 9)):
        q, k = normal(tokens, 4, 16), normal(keys, 2, 16, seed=1)
        batch.plan([0, tokens], RaggedKV([0, keys]))
        out, lse = batch.run(2 * q, k, k, return_lse=True)
        assert torch.equal(layer(q, k), out * lse.unsqueeze(-1))
    assert len(graphs) == 1


def test_merge_states_is_a_well_formed_operator() -> None:
    v, lse = normal(3, 4, 2, 8), normal(3, 4, 2)
    torch.library.opcheck(OPS.merge_states.default, (v, lse))
    for got, expected in zip(OPS.merge_states(v, lse), merge_states(v, lse), strict=True):
        assert torch.equal(got, expected)
    assert torch.equal(compiled(OPS.merge_states)(v, lse)[0], merge_states(v, lse)[0])


@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_append_is_a_well_formed_operator(layout: str) -> None:
    shape = (4, 2, 8, 2, 16) if layout == "NHD" else (4, 2, 2, 8, 16)
    tables = torch.tensor([[2, 0], [3, -1]], dtype=torch.int32)
    key, value = normal(3, 2, 16), normal(3, 2, 16, seed=1)
    requests, positions = torch.tensor([[0, 1, 0], [9, 2, 3]], dtype=torch.int32)
    caches = torch.zeros(shape), None
    arguments = (key, value, requests, positions, *caches, tables)
    options = {"kv_layout": layout, "rope_style": "half_split"}
    torch.library.opcheck(OPS.append_paged_kv.default, arguments, options)

    @compiled
    def step(cache: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        torch.ops.cute_attn.append_paged_kv(
            2 * key, value, requests, positions, cache, None, tables, kv_layout=layout
        )
        return cache.sum()

    cache, expected = torch.zeros(shape), torch.zeros(shape)
    kv_format = PagedKV([0, 2, 3], [2, 0, 3], [2, 3], 8)
    append_paged_kv(
        2 * key, value, requests, positions, expected, None, kv_format, kv_layout=layout
    )
    total = step(cache, key)
    assert torch.equal(cache, expected) and torch.equal(total, expected.sum())


def test_attention_is_a_well_formed_operator() -> None:
    q, k, v = normal(2, 5, 4, 16), normal(2, 30, 2, 16), normal(2, 30, 2, 8)
    for arguments in (
        (q, k, v),
        (q.transpose(1, 2).contiguous().transpose(1, 2), k, v, "causal", 0.3),
        (q, k, v, "sliding_window", None, ["window_left"], [7], None, None, True),
    ):
        torch.library.opcheck(OPS.attention.default, arguments)


def test_one_shot_calls_are_traced_as_one_operator() -> None:
    q, k = normal(2, 5, 4, 16), normal(2, 30, 2, 16)

    def model(q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, ...]:
        dense = attention(q, k, 2 * k, variant="causal")
        window = {"variant": "sliding_window", "scalars": {"window_left": 5}}
        one, lse = single_prefill(q[0], k[0], k[0], return_lse=True, **window)
        heads_first = k[0].transpose(0, 1).contiguous()
        last = single_decode(q[0, -1], heads_first, heads_first, kv_layout="HND", sm_scale=0.2)
        return dense, one, lse, last

    for got, expected in zip(compiled(model)(q, k), model(q, k), strict=True):
        assert torch.equal(got, expected)


def test_a_variant_object_cannot_be_traced() -> None:
    q = normal(1, 5, 4, 16)
    variant = causal()
    traced = compiled(lambda q: attention(q, q, q, variant=variant))
    with pytest.raises(Exception, match="variant is a Variant; a traced call takes a name"):
        traced(q)


def test_a_handle_ends_with_its_object() -> None:
    batch, q, k = planned()
    handle = batch.handle
    assert batch.handle == handle
    del batch
    for call in (
        lambda: OPS.run(handle, q, k, k, torch.empty_like(q), None),
        lambda: OPS.forward(handle, q, k, k),
    ):
        with pytest.raises(ValueError, match=f"handle is {handle}; it takes"):
            call()


@pytest.mark.parametrize("which", ["q", "k", "v"])
def test_gradients_are_refused(which: str) -> None:
    batch, q, k = planned()
    handle = batch.handle
    given = {"q": q, "k": k, "v": k.clone()}
    given[which].requires_grad_()
    q, k, v = given.values()
    out = torch.empty(5, 4, 16)
    one = (x.unsqueeze(0) for x in (q, k, v))
    q1, k1, v1 = one
    calls = [
        lambda: batch.run(q, k, v),
        lambda: OPS.run(handle, q, k, v, out, None),
        lambda: OPS.forward(handle, q, k, v),
        lambda: attention(q1, k1, v1),
        lambda: OPS.attention(q1, k1, v1),
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match=f"{which} {NO_BACKWARD}"):
            call()
        for mode in (torch.no_grad(), torch.inference_mode()):
            with mode:
                call()


def test_gradients_are_refused_while_tracing() -> None:
    batch, q, k = planned()
    handle = batch.handle
    layer = compiled(lambda q, k: torch.ops.cute_attn.forward(handle, q, k, k)[0])
    with pytest.raises(RuntimeError, match=f"q {NO_BACKWARD}"):
        layer(q.requires_grad_(), k)
    with torch.no_grad():
        assert torch.equal(layer(q, k), batch.run(q, k, k))


def test_gradients_of_other_tensors_are_refused() -> None:
    v, lse = normal(3, 4, 2, 8).requires_grad_(), normal(3, 4, 2)
    with pytest.raises(RuntimeError, match=f"v {NO_BACKWARD}"):
        merge_states(v, lse)
    with pytest.raises(RuntimeError, match=f"v {NO_BACKWARD}"):
        OPS.merge_states(v, lse)
    cache = torch.zeros(1, 2, 8, 2, 16)
    one = torch.zeros(1, dtype=torch.int32)
    key = normal(1, 2, 16).requires_grad_()
    with pytest.raises(RuntimeError, match=f"key {NO_BACKWARD}"):
        append_paged_kv(key, key.detach(), one, one, cache, None, PagedKV([0, 1], [0], [1], 8))
    batch = BatchAttention(
        4, 2, 16, dtype=torch.float32, variant=causal() & attention_sinks(), device="cpu"
    )
    sink = torch.nn.Parameter(torch.zeros(4))
    with pytest.raises(RuntimeError, match=f"sink {NO_BACKWARD}"):
        batch.plan([0, 1], RaggedKV([0, 1]), tensors={"sink": sink})
    with torch.no_grad():
        batch.plan([0, 1], RaggedKV([0, 1]), tensors={"sink": sink})

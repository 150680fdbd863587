"""The torch operators: schema, tracing, and the same answers as the direct calls."""

from __future__ import annotations

import pytest
import torch

from cute_attn import BatchAttention, RaggedKV, merge_states


def planned() -> tuple[BatchAttention, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(n, 2, 16, generator=generator) for n in (5, 30))
    batch = BatchAttention(2, 2, 16, dtype=torch.float32, device="cpu")
    return batch.plan([0, 5], RaggedKV([0, 30])), q, k


def test_run_is_a_well_formed_operator() -> None:
    batch, q, k = planned()
    out, lse = torch.empty_like(q), torch.empty(5, 2)
    arguments = (batch.handle, q, k, k, out, lse)
    torch.library.opcheck(torch.ops.cute_attn.run.default, arguments)
    torch.ops.cute_attn.run(*arguments)
    expected, expected_lse = batch.run(q, k, k, return_lse=True)
    assert torch.equal(out, expected) and torch.equal(lse, expected_lse)


def test_a_compiled_model_follows_new_plans() -> None:
    batch, q, k = planned()
    handle = batch.handle

    @torch.compile(fullgraph=True, backend="aot_eager")
    def layer(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(q)
        torch.ops.cute_attn.run(handle, q, k, 2 * k, out, None)
        return out + 1

    for kv in ([0, 30], [0, 11]):
        batch.plan([0, 5], RaggedKV(kv))
        assert torch.equal(layer(q, k), batch.run(q, k, 2 * k) + 1)


def test_merge_states_is_a_well_formed_operator() -> None:
    batch, _, _ = planned()
    assert batch.handle > 0  # registers the operators
    v, lse = torch.randn(3, 4, 2, 8), torch.randn(3, 4, 2)
    torch.library.opcheck(torch.ops.cute_attn.merge_states.default, (v, lse))
    for got, expected in zip(
        torch.ops.cute_attn.merge_states(v, lse), merge_states(v, lse), strict=True
    ):
        assert torch.equal(got, expected)


def test_a_handle_ends_with_its_object() -> None:
    batch, q, k = planned()
    handle = batch.handle
    assert batch.handle == handle
    del batch
    with pytest.raises(ValueError, match=f"handle is {handle}; it takes"):
        torch.ops.cute_attn.run(handle, q, k, k, torch.empty_like(q), None)

"""merge_states against the formula in float64."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from cute_attn import merge_states
from tests.gpu.batches import DTYPES
from tests.gpu.check import BOUNDS, LSE_BOUND
from tests.gpu.specs import STATES

pytestmark = pytest.mark.gpu


def expected(v: torch.Tensor, lse: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    total = torch.logsumexp(lse.double(), dim=0)
    weights = torch.exp(lse.double() - torch.where(total == -math.inf, 0.0, total))
    return (weights[..., None] * v.double()).sum(dim=0), total


@pytest.mark.parametrize(("dtype", "dim"), STATES, ids=str)
@pytest.mark.parametrize("states", [1, 2, 7])
def test_merge(
    dtype: str, dim: int, states: int, device: torch.device, record: Callable[..., None]
) -> None:
    generator = torch.Generator(device).manual_seed(states)
    wide = torch.randn(states, 50, 2 * 5, dim, generator=generator, device=device)
    v = wide.to(DTYPES[dtype])[:, :, :5]  # strided
    lse = 5 * torch.randn(states, 50, 5, generator=generator, device=device)
    lse[torch.rand(lse.shape, generator=generator, device=device) < 0.3] = -math.inf
    lse[:, :3] = -math.inf  # rows that no state has seen a key for
    v = torch.where(lse[..., None] == -math.inf, 0, v)
    out, out_lse = merge_states(v, lse)
    want, want_lse = expected(v, lse)
    err = float((out.double() - want).norm() / want.norm())
    record("G", f"merge_states {dtype} d{dim} n{states}", err=err)
    assert err <= BOUNDS.get(dtype, 1e-6)
    seen = want_lse > -math.inf
    assert (out_lse[seen] - want_lse[seen]).abs().max() <= LSE_BOUND
    assert (out_lse[~seen] == -math.inf).all() and (out[~seen] == 0).all()


def test_an_empty_state_changes_nothing(device: torch.device) -> None:
    v = torch.randn(2, 20, 4, 128, device=device).bfloat16()
    lse = torch.randn(2, 20, 4, device=device)
    v[1], lse[1] = 0, -math.inf
    out, out_lse = merge_states(v, lse)
    assert torch.equal(out, v[0])
    assert torch.allclose(out_lse, lse[0], rtol=0, atol=1e-6)

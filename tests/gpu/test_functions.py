"""Approximate functions of hooks on a device: their errors are those of their docstrings."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from cute_attn import BatchAttention, RaggedKV
from tests.gpu.function_cases import DIM, FUNCTIONS

pytestmark = pytest.mark.gpu

ROWS = 4096  # the rows stand at 1 - ROWS .. 0


@pytest.mark.parametrize(
    ("name", "exact", "bound"),
    [
        ("sigmoid_approx", torch.sigmoid, 1.4e-4),
        ("sigmoid2_approx", lambda x: torch.sigmoid(x * math.log(2)), 1.4e-4),
        ("sigmoid", torch.sigmoid, 2e-5),
        ("tanh_approx", torch.tanh, 2**-11 * 1.05),
    ],
)
def test_relative_errors(
    name: str,
    exact: Callable[[torch.Tensor], torch.Tensor],
    bound: float,
    device: torch.device,
    record: Callable[..., None],
) -> None:
    small, large = torch.linspace(-4, 4, ROWS // 2), torch.linspace(-85, 85, ROWS // 2)
    x = torch.cat([small, large]).to(device)
    batch = BatchAttention(1, 1, DIM, variant=FUNCTIONS[name], device=device)
    batch.plan([0, ROWS], RaggedKV([0, 1]), tensors={"x": x})
    q = torch.zeros(ROWS, 1, DIM, dtype=torch.bfloat16, device=device)
    _, lse = batch.run(q, q[:1], q[:1], return_lse=True)
    want = exact(x.double()).flip(0)
    err = float(((lse[:, 0].double() - want) / want.abs().clamp(min=1e-300)).abs().max())
    record("G", f"function {name}", err=err)
    assert err <= bound

"""Hooks on rows where pieces of tiles are cut by each request alone: batch invariance."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.gpu import oracle64
from tests.gpu.check import BOUNDS, LSE_BOUND, ROW_BOUND
from tests.gpu.row_cases import INVARIANT, PAGE_SIZE
from tests.gpu.variant_case import (
    ROW_LENGTHS,
)
from tests.gpu.variant_cases import (
    CASES,
    outputs,
)

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("phase", ROW_LENGTHS)
@pytest.mark.parametrize("name", INVARIANT)
def test_batch_invariance(
    name: str, phase: str, device: torch.device, record: Callable[..., None]
) -> None:
    out, lse, want, want_lse = outputs(
        name, phase, device, torch.bfloat16, page_size=PAGE_SIZE, batch_invariant=True
    )
    err, row, far, exact = oracle64.errors(out, lse, want, want_lse)
    record("G", f"row hooks {name} {phase} batch invariant", err=err)
    assert err <= BOUNDS["bf16"] and row <= ROW_BOUND and far <= LSE_BOUND
    assert exact or CASES[name].finish is not None

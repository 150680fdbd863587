"""Dual-chunk attention, out of three variants, on a device."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.gpu import dual_chunk, oracle64
from tests.gpu.check import BOUNDS, LSE_BOUND, ROW_BOUND
from tests.gpu.variant_case import LENGTHS
from tests.gpu.variant_cases import PAGE_SIZES

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("page_size", PAGE_SIZES)
@pytest.mark.parametrize("phase", [*LENGTHS, "ampere_tile"])
def test_against_a_dense_formula(
    phase: str, page_size: int | None, device: torch.device, record: Callable[..., None]
) -> None:
    schedule = phase if phase not in LENGTHS else None
    phase = "append" if schedule else phase
    results = dual_chunk.outputs(phase, page_size, device, torch.bfloat16, schedule)
    err, row, far, exact = oracle64.errors(*results)
    record("G", f"dual chunk {phase} {schedule or ''} page {page_size}", err=err)
    assert err <= BOUNDS["bf16"] and row <= ROW_BOUND and far <= LSE_BOUND and exact

"""Traced variants, scalars and tensors on a device, against dense formulas in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.gpu import oracle64
from tests.gpu.check import BOUNDS, LSE_BOUND, ROW_BOUND
from tests.gpu.variant_cases import CASES, LENGTHS, PAGE_SIZES, ROW_CASES, ROW_LENGTHS, outputs

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("phase", [*LENGTHS, "ampere_tile"])
@pytest.mark.parametrize("name", CASES)
def test_against_a_dense_formula(
    name: str, phase: str, device: torch.device, record: Callable[..., None]
) -> None:
    schedule = phase if phase not in LENGTHS else None
    phase = "append" if schedule else phase
    out, lse, want, want_lse = outputs(name, phase, device, torch.bfloat16, schedule=schedule)
    err, row, far, exact = oracle64.errors(out, lse, want, want_lse)
    record("G", f"variant {name} {phase} {schedule or ''}".strip(), err=err)
    assert err <= BOUNDS["bf16"] and row <= ROW_BOUND and far <= LSE_BOUND
    assert exact or CASES[name].finish is not None  # which empty rows have as well


@pytest.mark.parametrize("page_size", PAGE_SIZES)
@pytest.mark.parametrize("phase", ROW_LENGTHS)
@pytest.mark.parametrize("schedule", [None, "hopper_tile", "ampere_tile"])
@pytest.mark.parametrize("name", ROW_CASES)
def test_hooks_on_rows(
    name: str,
    schedule: str | None,
    phase: str,
    page_size: int | None,
    device: torch.device,
    record: Callable[..., None],
) -> None:
    if schedule == "hopper_tile" and torch.cuda.get_device_capability(device)[0] < 9:
        pytest.skip("no TMA")
    out, lse, want, want_lse = outputs(
        name, phase, device, torch.bfloat16, schedule=schedule, page_size=page_size
    )
    err, row, far, exact = oracle64.errors(out, lse, want, want_lse)
    record("G", f"row hooks {name} {phase} {schedule} page {page_size}", err=err)
    assert err <= BOUNDS["bf16"] and row <= ROW_BOUND and far <= LSE_BOUND
    assert exact or CASES[name].finish is not None
    if lse is not None:
        assert torch.equal(lse.isneginf(), want_lse.isneginf())

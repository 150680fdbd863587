"""A registered template runs plans, variants and merges as the built-in schedules do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.gpu import oracle64
from tests.gpu.check import BOUNDS, LSE_BOUND, ROW_BOUND
from tests.gpu.own_template import NAMES, registered
from tests.gpu.variant_case import (
    LENGTHS,
)
from tests.gpu.variant_cases import (
    CASES,
    outputs,
)

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("page_size", [None, 1])
@pytest.mark.parametrize("phase", LENGTHS)
@pytest.mark.parametrize("name", NAMES)
def test_against_a_dense_formula(
    name: str,
    phase: str,
    page_size: int | None,
    device: torch.device,
    record: Callable[..., None],
) -> None:
    out, lse, want, want_lse = outputs(
        name, phase, device, torch.bfloat16, schedule=registered(), page_size=page_size
    )
    err, row, far, exact = oracle64.errors(out, lse, want, want_lse)
    record("G", f"own template {name} {phase} page {page_size}", err=err)
    assert err <= BOUNDS["bf16"] and row <= ROW_BOUND and far <= LSE_BOUND
    assert exact or CASES[name].finish is not None

"""The grid on a device: every kernel against the float64 oracle, with everything else NaN."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.gpu.check import check_case
from tests.gpu.grid import CASES, Case

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("case", CASES, ids=str)
def test_case(case: Case, device: torch.device, arch: str, record: Callable[..., None]) -> None:
    if case.schedule == "hopper_tile" and arch != "sm_90a":
        pytest.skip(f"hopper_tile is for sm_90a; this is {arch}")
    errors, wrapper = check_case(case, device, arch)
    plan = wrapper.last_plan
    assert plan is not None
    record("G", str(case), **errors.row_of(), split_tiles=plan.num_split_tiles)
    assert wrapper.kernels[0].name.startswith(case.schedule)
    # Long KV and few tiles must have been split over the blocks; that is what these cases are for.
    if case.batch in ("long_kv_decode", "long_kv") and "window" not in case.variant:
        assert case.table == "bsr" or plan.num_split_tiles > 0
    assert not errors.failures()

"""A thousand launches of one batch give the same bits, ten at a time without a gap between them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.gpu.batches import make_batch
from tests.gpu.grid import Case
from tests.gpu.stress import BATCHES, GATHER, PAGED, RAGGED, WIDE, Runs

pytestmark = pytest.mark.gpu

LAUNCHES = 1000
AT_ONCE = 10


@pytest.mark.parametrize("case", [RAGGED, PAGED, GATHER, WIDE], ids=str)
def test_a_thousand_launches_give_the_same_bits(
    case: Case, device: torch.device, arch: str, record: Callable[..., None]
) -> None:
    if arch != "sm_90a":
        pytest.skip(f"hopper_tile is for sm_90a; this is {arch}")
    batch = make_batch(case, device, requests=BATCHES["line"])
    runs = Runs(case, batch, AT_ONCE)
    plan = runs.wrapper.last_plan
    assert plan is not None and plan.num_split_tiles > 0
    runs.launch()
    out, lse = runs.out.clone(), runs.lse.clone()
    assert out.isfinite().all() and not lse.isnan().any()
    for _ in range(LAUNCHES // AT_ONCE):
        runs.launch()
        runs.compare(out, lse)
    record("G", f"repeats: {case}", launches=LAUNCHES, different=runs.different)
    assert runs.different == 0

"""The tile kernels with random delays in all their warps (hopper/delays.py) give the same bits.

Outputs and partial results are poisoned before every launch: what is read too early or is not
written shows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from cute_attn import KernelSpec, choose
from cute_attn.api import dispatch
from tests.gpu.batches import make_batch
from tests.gpu.grid import Case
from tests.gpu.stress import BATCHES, CASES, Runs

# A hang is what a missing arrival looks like.
pytestmark = [pytest.mark.gpu, pytest.mark.timeout(60, method="thread")]

LAUNCHES = 8  # of the delayed kernel; delays differ from launch to launch


@pytest.fixture(autouse=True)
def _needs_hopper(arch: str) -> None:
    if arch != "sm_90a":
        pytest.skip(f"hopper_tile is for sm_90a; this is {arch}")


def choose_delayed(*args: Any, **options: Any) -> KernelSpec:
    """In the place of `choose`."""
    return replace(choose(*args, **options), delays=True)


@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_delays_change_no_bit(
    case: Case,
    name: str,
    device: torch.device,
    record: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batch = make_batch(case, device, requests=BATCHES[name])
    plain = Runs(case, batch)
    with monkeypatch.context() as patch:
        patch.setattr(dispatch, "choose", choose_delayed)
        delayed = Runs(case, batch)
    (kernel,) = delayed.wrapper.kernels
    spec = plain.wrapper.kernels[0].spec
    assert spec is not None and kernel.spec == replace(spec, delays=True)
    plan, same = plain.wrapper.last_plan, delayed.wrapper.last_plan
    assert plan is not None and same is not None and (plan.buffer == same.buffer).all()
    blocks = len(plan.block_costs)
    if name == "many items":
        assert plan.num_tiles > 2 * blocks
    elif name == "split" and "window" not in case.variant:
        assert plan.num_split_tiles > 0

    plain.launch()
    assert plain.out.isfinite().all() and not plain.lse.isnan().any()
    for _ in range(LAUNCHES):
        delayed.launch()
        delayed.compare(plain.out, plain.lse)
    record(
        "G", f"delays, {name}: {case}", launches=LAUNCHES, items=plan.num_tiles,
        split_tiles=plan.num_split_tiles, different=delayed.different,
    )  # fmt: skip
    assert delayed.different == 0

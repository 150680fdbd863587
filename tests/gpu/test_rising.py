"""Scores that rise from block to block, towards the first key: the softmax must follow them.

Blocks go from last to first, so every block outdoes the ones before it, by factors that are finite
in float32 and by factors that are not.
"""

from __future__ import annotations

import pytest
import torch

from tests.gpu import oracle64
from tests.gpu.batches import Batch, make_batch
from tests.gpu.check import BOUNDS, LSE_BOUND, ROW_BOUND, wanted
from tests.gpu.grid import Case
from tests.gpu.stress import CASES, DECODES, Runs
from tests.gpu.test_neighbours import requests_of, rows_of

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _needs_hopper(arch: str) -> None:
    if arch != "sm_90a":
        pytest.skip(f"hopper_tile is for sm_90a; this is {arch}")


def raise_scores(case: Case, batch: Batch, highest: float) -> None:
    """Multiplies keys with factors from 0.05 at a request's last one to `highest` at its first."""
    for request, keys in enumerate(batch.keys):
        steps = torch.linspace(1, 0, len(keys), device=keys.device)
        keys *= (0.05 * (highest / 0.05) ** steps)[:, None, None].to(keys.dtype)
        rows = rows_of(case, batch, request).to(keys.device)
        if case.page_size:
            tokens = batch.kv[0][rows].flatten(0, 1)
            tokens[: len(keys)] = keys
            batch.kv[0][rows] = tokens.unflatten(0, (len(rows), case.page_size))
        else:
            batch.kv[0][rows] = keys


@pytest.mark.parametrize("highest", [4.0, 100.0], ids=["finite", "infinite"])
@pytest.mark.parametrize("case", CASES + DECODES, ids=str)
def test_rising_scores(case: Case, highest: float, device: torch.device) -> None:
    batch = make_batch(case, device, requests=requests_of(case))
    raise_scores(case, batch, highest)
    runs = Runs(case, batch)
    runs.launch()
    want, want_lse = wanted(case, batch)
    err, row, far, exact = oracle64.errors(runs.out, runs.lse, want, want_lse)
    # The bound is for values up to 16; float32 holds scores of hundreds less finely.
    scale = max(1.0, float(want_lse[want_lse.isfinite()].abs().max()) / 16)
    bound = BOUNDS[case.family.dtype]
    assert err <= bound and row <= ROW_BOUND and far <= LSE_BOUND * scale, (err, row, far)
    assert exact

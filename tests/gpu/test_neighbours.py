"""What lies around a row does not show in it: other rows of its tile, keys of other requests.

Rows of a warp vote on when their softmax follows the maximum, and a block of keys or a tile of
queries reaches into the next request: still every row's bits are its own.
"""

from __future__ import annotations

import math

import pytest
import torch

from tests.gpu.batches import Batch, make_batch
from tests.gpu.check import as_integers
from tests.gpu.grid import Case
from tests.gpu.stress import CASES, DECODES, Runs

pytestmark = pytest.mark.gpu

REQUESTS = [(1, 300), (40, 700), (2, 90), (150, 150), (3, 3), (70, 3000)]
FEW_TOKENS = [(1, 300), (2, 700), (1, 90), (2, 3), (1, 3000)]
LARGE = 1e4  # finite, but every reference follows at once


@pytest.fixture(autouse=True)
def _needs_hopper(arch: str) -> None:
    if arch != "sm_90a":
        pytest.skip(f"hopper_tile is for sm_90a; this is {arch}")


def requests_of(case: Case) -> list[tuple[int, int]]:
    """Requests that the case's kernel is for."""
    return FEW_TOKENS if case.schedule == "ampere_decode" else REQUESTS


def results(runs: Runs) -> tuple[torch.Tensor, torch.Tensor]:
    """Bits of out and lse of a launch."""
    runs.launch()
    return as_integers(runs.out).clone(), as_integers(runs.lse).clone()


@pytest.mark.parametrize("case", CASES + DECODES, ids=str)
def test_queries_do_not_show_in_other_rows(case: Case, device: torch.device) -> None:
    """Rows anywhere in a tile, also of the same token and of the same warp."""
    batch = make_batch(case, device, requests=requests_of(case))
    runs = Runs(case, batch)
    want, want_lse = results(runs)
    clean = batch.q.clone()
    for share in (0.1, 0.9):
        bad = torch.rand(clean.shape[:2], generator=torch.Generator().manual_seed(1)) < share
        bad = bad.to(device)
        for value in (math.nan, math.inf, -math.inf, LARGE, -LARGE):
            batch.q.copy_(clean)
            batch.q[bad] = value
            out, lse = results(runs)
            assert torch.equal(out[~bad], want[~bad]) and torch.equal(lse[~bad], want_lse[~bad])
            assert not torch.equal(lse[bad], want_lse[bad])


def rows_of(case: Case, batch: Batch, request: int) -> torch.Tensor:
    """(rows or pages,) places of a request along the first dimension of its K and V."""
    kv_format = batch.kv_format
    if case.page_size:
        return torch.as_tensor(kv_format.pages_of(request)).long()
    start = int(kv_format.kv_start[request])
    return torch.arange(start, start + batch.kv_lens[request])


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("case", CASES + DECODES, ids=str)
def test_keys_and_values_do_not_show_in_other_requests(
    case: Case, value: float, device: torch.device
) -> None:
    """All cache rows but those of one request are bad, those behind its last key included."""
    batch = make_batch(case, device, requests=requests_of(case))
    runs = Runs(case, batch)
    want, want_lse = results(runs)
    clean = [x.clone() for x in batch.kv]
    rows = batch.qo_indptr
    for at in range(len(batch.q_lens)):
        own = rows_of(case, batch, at).to(device)
        for x, good in zip(batch.kv, clean, strict=True):
            x.fill_(value)
            x[own] = good[own]
            if case.page_size:
                used = batch.kv_lens[at] - (len(own) - 1) * case.page_size
                x[own[-1], used:] = value
        out, lse = results(runs)
        mine = slice(rows[at], rows[at + 1])
        assert torch.equal(out[mine], want[mine]) and torch.equal(lse[mine], want_lse[mine])
        others_out = torch.cat([out[: rows[at]], out[rows[at + 1] :]])
        assert not torch.equal(others_out, torch.cat([want[: rows[at]], want[rows[at + 1] :]]))

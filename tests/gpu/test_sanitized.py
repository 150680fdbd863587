"""Tests that are quick enough for compute-sanitizer (`python -m perf.sanitize`), and smoke tests by
themselves: `test_small` is a subset of the grid, one batch per kernel family, loader and head_dim;
`test_races` is for the tools that are slower still and look at one launch of few kernels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from cute_attn.abi import UNBOUNDED
from cute_attn.api.device_planner import DevicePlanner
from cute_attn.hopper import FEW_ROWS
from cute_attn.scheduler import Geometry
from tests.gpu import stress
from tests.gpu.batches import make_batch
from tests.gpu.check import check_case
from tests.gpu.grid import CASES, CUT, Case
from tests.gpu.specs import ampere_arch
from tests.gpu.test_device_planner import assert_same_plan

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300, method="thread")]

PLANS = {"whole few": 5, "whole many": 300, "tails": 700}
"""Requests of steps that are planned on the device: even pieces, one sort, several rounds."""
RACES = [
    stress.RAGGED,
    stress.PAGED,
    stress.GATHER,
    stress.WIDE,
    *(case for case in stress.CASES if case.family.group == 5),  # Q by cp.async
    replace(stress.PAGED, schedule="ampere_decode"),
]
WHOLE_BLOCKS = 384
"""Keys that are whole blocks of every kernel in RACES (see test_stress_cpu)."""


def subset() -> list[Case]:
    """The first "mixed" or "few_tokens" case of every (schedule, ragged or paged, head_dim)."""
    found: dict[tuple[object, ...], Case] = {}
    for case in CASES:
        if case.batch in ("mixed", "few_tokens"):
            paging = 0 if not case.page_size else 1 if case.page_size % 16 else 16
            found.setdefault((case.schedule, paging, case.family.head_dim), case)
    return list(found.values())


@pytest.mark.parametrize("case", subset(), ids=str)
def test_small(case: Case, device: torch.device, arch: str) -> None:
    if case.schedule == "hopper_tile" and arch != "sm_90a":
        pytest.skip(f"hopper_tile is for sm_90a; this is {arch}")
    errors, _ = check_case(case, device, arch, CUT)
    assert not errors.failures()


def few(case: Case, keys: int) -> stress.Requests:
    """A request whose tiles are split."""
    return [(1 if case.schedule == "ampere_decode" else 64, 2 * keys)]


@pytest.mark.parametrize("keys", [WHOLE_BLOCKS, WHOLE_BLOCKS - 3], ids=["whole", "tails"])
@pytest.mark.parametrize("case", RACES, ids=str)
def test_races(case: Case, keys: int, device: torch.device, arch: str) -> None:
    """Split tiles, and blocks with several items, in one launch each; nothing is poisoned, so that
    initcheck sees partial results that are read and were not written."""
    if case.schedule == "hopper_tile" and arch != "sm_90a":
        pytest.skip(f"hopper_tile is for sm_90a; this is {arch}")
    case = replace(case, num_kv_heads=1)
    many = [[(1, keys)] * 300]
    if case.schedule == "hopper_tile":  # two consumer warpgroups, where one token has one
        many.append([(FEW_ROWS // case.family.group + 1, keys)] * 300)
    for requests in (few(case, keys), *many):
        runs = stress.Runs(case, make_batch(case, device, requests=requests))
        plan = runs.wrapper.last_plan
        assert plan is not None
        assert plan.num_tiles == 300 if len(requests) == 300 else plan.num_split_tiles > 0
        runs.launch(poison=False)
        assert runs.out.isfinite().all() and runs.lse.isfinite().all()


def plan_on_device(count: int, device: torch.device, arch: str) -> None:
    """Two steps of `count` requests, for grids of which one leaves threads that only write."""
    geometry = Geometry(8, 64, 4, 8, UNBOUNDED, window_right=0)
    kv_len = np.random.default_rng(count).integers(0, 40_000, count)
    for num_blocks in (396, 528):
        planner = DevicePlanner(ampere_arch(arch), device, num_blocks)
        assert_same_plan(planner, geometry, 1, kv_len, device)


@pytest.mark.parametrize("count", PLANS.values(), ids=PLANS)
def test_small_plan(count: int, device: torch.device, arch: str) -> None:
    plan_on_device(count, device, arch)


@pytest.mark.parametrize("count", PLANS.values(), ids=PLANS)
def test_races_plan(count: int, device: torch.device, arch: str) -> None:
    plan_on_device(count, device, arch)

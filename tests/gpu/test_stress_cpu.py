"""The batches of the tests of synchronisation are what they claim to be, on a GPU of 132 SMs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cute_attn import choose
from cute_attn.hopper import FEW_ROWS, long_keys
from cute_attn.scheduler import CostModel, Geometry, Plan, RequestBatch, plan_batch
from tests.gpu import stress, test_sanitized
from tests.gpu.batches import variant_of
from tests.gpu.check import problem_of
from tests.gpu.grid import Case

BLOCKS = 132


def plan(case: Case, requests: stress.Requests) -> Plan:
    rows = max(q_len for q_len, _ in requests) * case.family.group
    spec = choose(problem_of(case, "sm_90a"), rows=rows, schedule=case.schedule)
    window = case.window_left if "window" in case.variant else None
    left, right = variant_of(case.variant).band.resolve({"window_left": window or 0})
    lengths = np.array(requests)
    return plan_batch(
        RequestBatch.from_lengths(lengths[:, 0], lengths[:, 1]),
        Geometry(spec.tile.q, spec.tile.kv, spec.group, case.num_kv_heads, left, right),
        BLOCKS * spec.tile.blocks_per_sm,
        cost=CostModel.for_kernel(
            spec.head_dim_qk,
            spec.head_dim_vo,
            schedule=spec.schedule,
            blocks_per_sm=spec.tile.blocks_per_sm,
        ),
    )


@pytest.mark.parametrize("case", stress.CASES, ids=str)
def test_batches(case: Case) -> None:
    assert plan(case, stress.BATCHES["many items"]).num_tiles > 2 * BLOCKS
    if "window" not in case.variant:
        assert plan(case, stress.BATCHES["split"]).num_split_tiles > 0
    assert plan(case, stress.BATCHES["mixed"]).num_tiles > 0
    line = plan(case, stress.BATCHES["line"])
    assert line.num_split_tiles > 0 or "window" in case.variant
    assert line.num_tiles > BLOCKS or case.family.group < 4
    few = stress.BATCHES["few rows"]
    assert max(q_len for q_len, _ in few) * case.family.group <= FEW_ROWS
    own = plan(case, few)
    assert own.num_tiles > 2 * BLOCKS
    assert own.num_split_tiles > 0 or "window" in case.variant


@pytest.mark.parametrize("case", test_sanitized.RACES, ids=str)
def test_races(case: Case) -> None:
    spec = choose(problem_of(case, "sm_90a"), rows=None, schedule=case.schedule)
    assert test_sanitized.WHOLE_BLOCKS % spec.tile.kv == 0
    one_head = replace(case, num_kv_heads=1)
    few = plan(one_head, test_sanitized.few(case, test_sanitized.WHOLE_BLOCKS))
    assert few.num_split_tiles > 0
    for tokens in (1, FEW_ROWS // case.family.group + 1):
        if tokens == 1 or case.schedule == "hopper_tile":
            many = [(tokens, test_sanitized.WHOLE_BLOCKS)] * 300
            assert plan(one_head, many).num_tiles == 300


@pytest.mark.parametrize("case", test_sanitized.RACES, ids=str)
def test_whole_blocks_are_whole_blocks(case: Case) -> None:
    """No V rows are zeroed, which racecheck reports; also not of the kernel for long keys."""
    for rows in (FEW_ROWS, None):
        spec = choose(problem_of(case, "sm_90a"), rows=rows, schedule=case.schedule)
        assert test_sanitized.WHOLE_BLOCKS % spec.tile.kv == 0
    least = long_keys(spec.head_dim_qk, spec.head_dim_vo, spec.variant)
    assert least > 2 * test_sanitized.WHOLE_BLOCKS

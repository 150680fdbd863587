"""Launches told without a GPU are those that `BatchAttention` makes on one (a fake one)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cute_attn import Problem, RaggedKV, causal, sliding_window
from cute_attn.api.launches import explained_launch, measured_launch, parts_of, timing_of
from cute_attn.scheduler import BUILT_IN, H200, Constants

SMS = 4  # of the fake GPU
SLOW = Constants(replace(H200, read_gbps=1000.0), BUILT_IN.times)
STEPS = {
    "decode": ((1, 1, 1), (9000, 40, 700)),
    "prefill": ((100, 7), (100, 3000)),
    "both": ((1, 100, 1), (56_000, 160, 56_000)),
    "nothing": ((0, 1), (0, 0)),
}


@pytest.mark.parametrize("constants", [BUILT_IN, SLOW], ids=["built in", "slow"])
@pytest.mark.parametrize("window", [None, 500])
@pytest.mark.parametrize("name", STEPS)
def test_parts_are_the_launches_of_a_batch(
    name: str, window: int | None, constants: Constants, fake_gpu: Any
) -> None:
    q_lens, kv_lens = STEPS[name]
    variant = causal() if window is None else causal() & sliding_window()
    scalars = {} if window is None else {"window_left": window}
    batch = fake_gpu.batch(8, 2, 128, variant=variant, costs=constants)
    rows, keys = (np.r_[0, np.cumsum(lengths)] for lengths in (q_lens, kv_lens))
    batch.plan(rows, RaggedKV(keys), scalars=scalars)
    parts = parts_of(
        q_lens,
        kv_lens,
        Problem("sm_90a", "bf16", 128, 128, 4, variant, None),
        num_kv_heads=2,
        num_sms=SMS,
        scalars=scalars,
        constants=constants,
    )
    assert [part.spec for part in parts] == [kernel.spec for kernel in batch.kernels]
    assert len(parts) == (2 if name == "both" and window is None else 1)
    for part, plan in zip(parts, batch.plans, strict=True):
        assert np.array_equal(part.plan(constants).buffer, plan.buffer)


def test_a_kernels_launch(fake_gpu: Any) -> None:
    batch = fake_gpu.batch(8, 2, 128).plan([0, 100], RaggedKV([0, 300]))
    (plan,), spec = batch.plans, batch.kernels[0].spec
    explained, measured = explained_launch(plan, spec, SLOW), measured_launch(plan, spec)
    assert explained.name == spec.schedule
    assert explained.timing == measured.timing(SLOW) == timing_of(spec, SLOW)
    assert explained.timing.gpu == SLOW.gpu

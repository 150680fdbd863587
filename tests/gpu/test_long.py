"""The tile for long keys: taken where rows see many, right, and changed from step to step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from cute_attn import BatchAttention, full
from cute_attn.hopper import long_keys
from tests.gpu.batches import DTYPES, make_batch, variant_of
from tests.gpu.serving import assert_right
from tests.gpu.specs import LONG_KERNELS
from tests.gpu.stress import Requests, case_of

pytestmark = pytest.mark.gpu

LONG: Requests = [(700, 3000), (193, 5000), (0, 17), (64, 64), (1, 2000), (400, 1900), (5, 0)]
SHORT: Requests = [(130, 300), (500, 700), (0, 17), (97, 97), (1, 1), (17, 2)]
TILE_ROWS = {True: 192, False: 128}


@pytest.mark.parametrize(("dtype", "dim", "variant", "group"), LONG_KERNELS)
def test_long_and_short_steps_of_one_object(
    dtype: str,
    dim: int,
    variant: str,
    group: int,
    device: torch.device,
    arch: str,
    record: Callable[..., None],
) -> None:
    if arch != "sm_90a":
        pytest.skip(f"hopper_tile is for sm_90a; this is {arch}")
    times = long_keys(dim, dim, variant_of(variant)) // long_keys(dim, dim, full())
    case = case_of(dtype, dim, group, variant)
    case = replace(case, window_left=2000 * times, num_kv_heads=2)
    long_requests = [(q_len, times * kv_len) for q_len, kv_len in LONG]
    wrapper = BatchAttention(
        2 * group, 2, dim, dtype=DTYPES[dtype], variant=variant_of(variant), device=device
    )
    worst = 0.0
    for seed, long in enumerate([True, False, True]):
        requests = long_requests if long else SHORT
        batch = make_batch(replace(case, seed=seed), device, requests=requests)
        wrapper.plan(batch.qo_indptr, batch.kv_format, scalars=batch.scalars)
        spec = wrapper.kernels[0].spec
        assert spec is not None and spec.tile.q == TILE_ROWS[long]
        out, lse = wrapper.run(batch.q, *batch.kv, return_lse=True)
        worst = max(worst, assert_right(batch, out, lse))
    record("G", f"long and short keys, {dtype} d{dim} {variant} group {group}", err=worst)

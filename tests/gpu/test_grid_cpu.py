"""The same grid on CPU tensors, scaled down: same public calls, reference executor, same oracle.

It also keeps the grid honest: every value of every axis occurs with several others, and the number
of kernels to compile stays bounded.
"""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from tests.gpu.check import check_case
from tests.gpu.grid import CASES, CUT, LAYOUTS, LENGTHS, MEMORY, PAGE_SIZES, VARIANTS, Case
from tests.gpu.specs import grid_kernels

MAX_KERNELS = 225  # pages of 16 and of 64 have a tile each for head_dim 128; decode has up to
# four, and a few rows take one consumer warpgroup
MAX_LONG_KERNELS = 12  # of what has a tile for long keys: ragged head_dim 64 to 128, and 256


@pytest.mark.parametrize("case", CASES[::13], ids=str)
def test_case_on_the_cpu(case: Case) -> None:
    errors, _ = check_case(case, torch.device("cpu"), None, CUT)
    assert not errors.failures()


def test_every_value_of_every_axis_occurs_often() -> None:
    def least(values: tuple[object, ...], counts: Counter[object]) -> int:
        return min(counts[value] for value in values)

    assert least(LENGTHS, Counter(n for c in CASES for pair in c.requests() for n in pair)) >= 20
    assert least((1, 2, 3, 4, 5, 7, 8, 16), Counter(c.family.group for c in CASES)) >= 20
    assert least(PAGE_SIZES, Counter(c.page_size for c in CASES)) >= 20
    assert least(("ragged", "csr", "block_tables", "bsr"), Counter(c.table for c in CASES)) >= 20
    assert least(LAYOUTS, Counter(c.layout for c in CASES)) >= 100
    assert least(MEMORY, Counter(c.memory for c in CASES)) >= 20
    for schedule in ("hopper_tile", "ampere_tile", "ampere_decode"):
        own = [c for c in CASES if c.schedule == schedule]
        assert least(("bf16", "fp16"), Counter(c.family.dtype for c in own)) >= 10
        assert least((64, 128, 256), Counter(c.family.head_dim for c in own)) >= 10
        assert least(VARIANTS, Counter(c.variant for c in own)) >= 5


def test_batches_hold_the_hard_requests() -> None:
    batches = [c.requests() for c in CASES if c.table != "bsr"]
    assert sum(any(q > kv > 0 for q, kv in b) for b in batches) >= 50
    assert sum(any(q > 0 == kv for q, kv in b) for b in batches) >= 50
    assert sum(any(q == 0 for q, _ in b) for b in batches) >= 50


def test_number_of_kernels_is_bounded() -> None:
    names = {kernel.name for kernel in grid_kernels("sm_90a", long_tiles=False)}
    assert len(names) <= MAX_KERNELS
    long = {kernel.name for kernel in grid_kernels("sm_90a")} - names
    assert 1 <= len(long) <= MAX_LONG_KERNELS

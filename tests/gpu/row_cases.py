"""Cases of hooks on rows with batch invariance, and their kernels."""

from __future__ import annotations

from cute_attn import KernelSpec, Problem
from cute_attn.api.fixed_kernels import FixedKernels
from cute_attn.scheduler.constants import H200
from tests.gpu.variant_case import (
    DIM,
    HEADS,
    KV_HEADS,
)
from tests.gpu.variant_cases import (
    CASES,
)

INVARIANT = ("sinks", "sigmoid", "all_hooks")
PAGE_SIZE = 16


def kernels(arch: str) -> list[KernelSpec]:
    """Those of the tests."""
    group = HEADS // KV_HEADS
    specs = []
    for name in INVARIANT:
        problem = Problem(arch, "bf16", DIM, DIM, group, CASES[name].variant, PAGE_SIZE)
        both = FixedKernels(problem, KV_HEADS, H200.sms, None)
        specs += [both.prefill, both.decode]
    return specs

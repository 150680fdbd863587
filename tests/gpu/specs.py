"""Every kernel that the GPU tests need, so that they can be compiled beforehand, without a GPU.

python -m tests.gpu.specs [--arch sm_90a]     lists them
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from itertools import product

import numpy as np

from cute_attn import (
    KernelSpec,
    Problem,
    UnsupportedSpecError,
    causal,
    choose,
    full,
    sliding_window,
)
from cute_attn.abi import UNBOUNDED
from cute_attn.api.dispatch import all_specs, is_long, tiles_per_sm
from cute_attn.api.fixed_kernels import FixedKernels
from cute_attn.api.kernel import launched_with
from cute_attn.codegen.kernels import (
    emit_append,
    emit_merge_states,
    emit_plan_decode,
)
from cute_attn.codegen.source import GeneratedKernel
from cute_attn.hopper import FEW_ROWS
from cute_attn.scheduler.constants import H200
from tests.gpu import (
    dual_chunk,
    fp8,
    function_cases,
    levels,
    mla,
    own_template,
    row_cases,
    sparse,
    stress,
    transformers_cases,
    tuning_cases,
    variant_cases,
)
from tests.gpu.batches import variant_of
from tests.gpu.check import problem_of
from tests.gpu.grid import CASES, CUT, LENGTHS, Case

AnyKernel = KernelSpec | GeneratedKernel

LONG_KERNELS = (  # dtype, head_dim, variant, group: see test_long
    ("bf16", 64, "causal", 1),
    ("bf16", 64, "causal", 4),
    ("fp16", 64, "causal_window", 5),
    ("bf16", 80, "causal_window", 5),
    ("fp16", 96, "causal", 4),
)
APPENDS = (
    ("bf16", 128, None),
    ("bf16", 64, None),
    ("fp16", 64, "half_split"),
    ("bf16", 128, "interleaved"),
    ("bf16", 80, "half_split"),
    ("fp16", 112, "interleaved"),
)
"""dtype, head_dim and RoPE style of the append kernels."""
STATES = (("bf16", 128), ("fp16", 64), ("fp32", 128), ("bf16", 80), ("fp16", 112), ("bf16", 192))
"""dtype and head_dim of the merge_states kernels."""


def ampere_arch(arch: str) -> str:
    """What Ampere-style kernels are compiled for on a device of `arch`."""
    return arch.removesuffix("a")


def with_merges(specs: Iterable[KernelSpec]) -> list[AnyKernel]:
    """The specs, each followed by the small kernels that are launched with it; none twice."""
    kernels: dict[str, AnyKernel] = {}
    for spec in specs:
        kernels.setdefault(spec.name, spec)
        for small in launched_with(spec):
            kernels.setdefault(small.name, small)
    return list(kernels.values())


def serving_problem(arch: str, page_size: int | None, *, is_causal: bool = True) -> Problem:
    """The common serving case (bf16, head_dim 128, group 4), which tests of behaviour use."""
    variant = causal() if is_causal else full()
    return Problem(arch, "bf16", 128, 128, 4, variant, page_size)


def takes_long_tile(case: Case) -> bool:
    """Whether the dispatcher takes the tile for long keys; block-sparse KV is short."""
    if case.table == "bsr":
        return False
    q_len, kv_len = np.array(case.requests(), np.int64).T
    left = case.window_left if "window" in case.variant else UNBOUNDED
    band = (left, 0 if "causal" in case.variant else UNBOUNDED)
    return is_long(problem_of(case, "sm_90a"), q_len, kv_len, band)


def decode_tiles(case: Case) -> set[tuple[int, int]]:
    """(rows, tiles_per_sm) of the case on an H200, at full length and cut for sanitizers."""
    found = set()
    for longest in (LENGTHS[-1], CUT):
        if case.table == "bsr":
            rows, _, pattern = case.bsr()
            q_len = np.full(len(pattern), rows)
        else:
            q_len = np.array([q for q, _ in case.requests(longest)])
        rows = int(q_len.max()) * case.family.group
        found.add((rows, tiles_per_sm(q_len, rows, case.num_kv_heads, H200.sms)))
    return found


def grid_kernels(arch: str, *, long_tiles: bool = True) -> list[AnyKernel]:
    """Kernels of the grid, those for long keys among them if `long_tiles`; what cannot be generated
    on `arch` is left out."""
    specs = []
    for case in CASES:
        with suppress(UnsupportedSpecError):
            # The short one in any case: lengths are cut for sanitizers.
            for long in {False, long_tiles and takes_long_tile(case)}:
                for rows, tiles in decode_tiles(case):
                    problem = problem_of(case, arch)
                    specs.append(
                        choose(
                            problem,
                            rows=rows,
                            tiles_per_sm=tiles,
                            long=long,
                            schedule=case.schedule,
                        )
                    )
    return with_merges(specs)


def behaviour_kernels(arch: str) -> list[AnyKernel]:
    """Kernels of the other tests."""
    specs = [
        *all_specs(serving_problem(arch, 16)),
        *all_specs(serving_problem(arch, None)),
        *all_specs(serving_problem(arch, None, is_causal=False)),
        choose(serving_problem(arch, 16), rows=None, schedule="ampere_tile"),
    ]
    specs += all_specs(replace(serving_problem(arch, 16), variant=causal() & sliding_window()))
    specs += invariant_kernels(arch)
    for cases in (
        variant_cases, row_cases, function_cases, own_template, dual_chunk, tuning_cases, sparse,
        fp8, mla, transformers_cases,
    ):  # fmt: skip
        specs += cases.kernels(arch)
    if arch == "sm_90a":  # see test_rising, test_neighbours, test_queries
        for case in stress.DECODES:
            every = all_specs(problem_of(case, arch))
            specs += [spec for spec in every if spec.schedule == case.schedule]
        specs += [
            choose(
                Problem(arch, "bf16", 128, 128, group, causal(), page_size),
                rows=rows,
                schedule="hopper_tile",
            )
            for group, page_size in product((1, 2, 3, 4, 5, 8), (None, 16, 3))
            if page_size is None or group in (1, 4, 5)
            for rows in (FEW_ROWS, None)
        ]
        for dtype, dim, name, group in LONG_KERNELS:
            problem = Problem(arch, dtype, dim, dim, group, variant_of(name), None)
            specs += all_specs(problem)[-2:]
    own, level_kernels = ampere_arch(arch), levels.kernels(arch)
    return [
        *with_merges(specs),
        *(emit_append(own, dtype, dim, dim, rope) for dtype, dim, rope in APPENDS),
        *(emit_merge_states(own, dtype, dim) for dtype, dim in STATES),
        *with_merges(x for x in level_kernels if isinstance(x, KernelSpec)),
        *(x for x in level_kernels if isinstance(x, GeneratedKernel)),
        *planner_kernels(arch),
    ]


def invariant_kernels(arch: str) -> list[KernelSpec]:
    """Of test_batch_invariant."""
    specs = []
    for page_size, schedule in product((16, 3, None), (None, "ampere_tile", "ampere_decode")):
        kernels = FixedKernels(serving_problem(arch, page_size), 2, H200.sms, schedule)
        specs += [kernels.prefill, kernels.decode]
    return specs


def traced_kernels(arch: str) -> list[AnyKernel]:
    """Of test_trace: those that keep time, beside the plain ones."""
    plain = [
        spec
        for page_size, schedule in product((16, None, 3), (None, "ampere_tile", "ampere_decode"))
        for spec in all_specs(serving_problem(arch, page_size), schedule)
    ]
    return with_merges([*plain, *(replace(spec, trace=True) for spec in plain)])


def planner_kernels(arch: str) -> list[GeneratedKernel]:
    """Of plans made on the device, for grids of any size."""
    own = ampere_arch(arch)
    plain = [emit_plan_decode(own, threads=threads) for threads in (512, 1024)]
    return [*plain, emit_plan_decode(own, per_head=True)]


def stress_kernels(arch: str) -> list[AnyKernel]:
    """Kernels of the tests of synchronisation, plain and with delays."""
    if arch != "sm_90a":
        return []
    plain = [
        choose(problem_of(case, arch), rows=rows, long=long, schedule=case.schedule)
        for case in stress.CASES
        for rows in (FEW_ROWS, None)
        for long in (False, True)
    ]
    return [
        kernel for spec in dict.fromkeys(plain) for kernel in (spec, replace(spec, delays=True))
    ]


def all_kernels(arch: str) -> list[AnyKernel]:
    """Every kernel of `pytest -m gpu`, none twice."""
    kernels = [
        *grid_kernels(arch),
        *behaviour_kernels(arch),
        *traced_kernels(arch),
        *stress_kernels(arch),
    ]
    return list({kernel.name: kernel for kernel in kernels}.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", default="sm_90a", help="of the device (default: sm_90a)")
    kernels = all_kernels(parser.parse_args().arch)
    for kernel in kernels:
        print(kernel.name)
    print(f"{len(kernels)} kernels")


if __name__ == "__main__":
    main()

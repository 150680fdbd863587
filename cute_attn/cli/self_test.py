"""The self-test of `cute-attn doctor`: a small batch against a dense softmax, and one compile."""

from __future__ import annotations

import torch

from cute_attn.api import BatchAttention, Problem, choose
from cute_attn.api.dispatch import VARIANTS, all_specs, emit
from cute_attn.api.kernel import launched_with, request_of
from cute_attn.cli.demo_batch import HEAD_DIM, PAGE_SIZE, SMALL_HEADS, make_batch
from cute_attn.cli.demo_check import compare
from cute_attn.cli.terminal import first_line
from cute_attn.runtime import compile_source, default_arch, device_count, env, find_kernel
from cute_attn.workloads import Step

_ARCH = "sm_80"  # where there is no GPU; its kernels compile fastest
# A prefill, a chunk behind a cache, decodes, one of them of a single key.
_STEP = Step("self-test", ((70, 70), (20, 150), (1, 300), (1, 1), (1, 2000)))


def arch_to_test() -> tuple[str, str]:
    """(architecture, where it comes from)."""
    arch = default_arch()
    if arch is None:
        return _ARCH, "no GPU"
    return arch, "the GPU here" if device_count() else "CUTE_ATTN_ARCH"


def _problem(arch: str) -> Problem:
    group = SMALL_HEADS.qo // SMALL_HEADS.kv
    return Problem(arch, "bf16", HEAD_DIM, HEAD_DIM, group, VARIANTS["causal"], PAGE_SIZE)


def usual_kernels(arch: str) -> tuple[list[tuple[str, str]], int]:
    """What a batch of head_dim 128, four query heads per KV head and pages of 16 may take.

    Returns:
        (name, architecture that it is compiled for) of each kernel, and how many are compiled.

    Raises:
        UnsupportedSpecError: there are none for the architecture.
    """
    specs = all_specs(_problem(arch))
    small = [kernel for spec in specs for kernel in launched_with(spec)]
    kernels = list(dict.fromkeys([*map(emit, specs), *small]))
    cached = sum(find_kernel(request_of(kernel)) is not None for kernel in kernels)
    return [(kernel.name, kernel.arch) for kernel in kernels], cached


def self_test() -> tuple[str, str]:
    """Runs a small batch on the GPU or, without one, on the CPU executor, and compiles one kernel.

    Returns:
        what was done in words, and what went wrong or "".
    """
    on_gpu = bool(device_count())
    device = torch.device("cuda" if on_gpu else "cpu")
    done = "a batch on the GPU" if on_gpu else "a batch on the CPU executor"
    try:
        batch = make_batch(_STEP, SMALL_HEADS, device)
        attention = BatchAttention(SMALL_HEADS.qo, SMALL_HEADS.kv, HEAD_DIM, device=device)
        attention.plan(batch.qo_indptr, batch.kv_format)
        out, lse = attention.run(batch.q, batch.cache, return_lse=True)
        errors = compare(batch, out, lse)
        done += f": error {errors.relative:.1e} against a dense softmax"
        if not errors.passed:
            return done, f"wrong results: worst row {errors.worst_row:.1e}, lse {errors.lse:.1e}"
        if not env.NO_COMPILE.get():  # anew: what the cache holds says nothing of the compiler
            rows = SMALL_HEADS.qo // SMALL_HEADS.kv
            generated = emit(choose(_problem(arch_to_test()[0]), rows=rows))
            compiled = compile_source(request_of(generated))
            done += f"; {generated.name} compiled in {compiled.seconds:.1f} s"
            return done, "; ".join(compiled.lint())
    except Exception as error:  # whatever it is, it is what the command is asked for
        return done, f"{type(error).__name__}: {first_line(error)}"
    return done, ""

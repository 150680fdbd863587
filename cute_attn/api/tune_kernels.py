"""Compiles the kernels that the tuner compares, in parallel, and drops what is not fit to run."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cute_attn.api import dispatch
from cute_attn.api.kernel import launched_with, request_of
from cute_attn.api.tune_space import Contest
from cute_attn.codegen.spec import KernelSpec
from cute_attn.runtime.build import known_toolchains, toolchain_in_use, toolchain_named
from cute_attn.runtime.compiler import CompileRequest
from cute_attn.runtime.errors import CacheMissError, CompileError
from cute_attn.runtime.pool import CompilePool, Progress, Result
from cute_attn.tuning import Candidate

_AT_ONCE = 3
"""Kernels per process that are begun together where there is a deadline."""


@dataclass(frozen=True)
class Compiled:
    """What came of compiling.

    Attributes:
        contests: with the candidates that are fit.
        left: steps for whose kernels the time did not suffice.
        configurations: different kernels of attention that were asked for.
        unfit: of them, those that spill or are serialised: dropped.
        missing: of them, those that are in no cache while nothing may be compiled: dropped.
        failed: messages of those that do not compile: dropped.
    """

    contests: list[Contest]
    left: int
    configurations: int
    unfit: int
    missing: int
    failed: tuple[str, ...]


def further_toolchains() -> list[str]:
    """Names of toolchains that are installed or recorded in a cache, but for the default one."""
    known = known_toolchains()
    default = toolchain_in_use() or (known[0] if known else None)
    return [t.name for t in known if t != default]


def compile_contests(
    found: Sequence[Contest],
    *,
    jobs: int | None = None,
    progress: Progress | None = None,
    deadline: float | None = None,
) -> Compiled:
    """Compiles all candidates and the merges behind them, or finds them in the cache.

    Args:
        found: what is compared.
        jobs: processes; None takes as many as CPUs and free memory allow.
        progress: called as progress(done, total, result) after each kernel.
        deadline: of `time.monotonic`, after which no more are begun.
    """
    wanted = dict.fromkeys(kernel for one in found for kernel in _kernels_of(one))
    requests = {kernel: _request(*kernel) for kernel in wanted}
    with_it = {
        kernel: [request, *map(request_of, launched_with(kernel[0]))]
        for kernel, request in requests.items()
    }
    every = list(dict.fromkeys(request for own in with_it.values() for request in own))
    results = _built(every, jobs, progress, deadline)
    kernels = {
        kernel: results[requests[kernel]]
        for kernel, own in with_it.items()
        if results.keys() >= set(own)
    }
    ready = [one for one in found if kernels.keys() >= set(_kernels_of(one))]
    for kernel in kernels:
        for generated in launched_with(kernel[0]):
            result = results[request_of(generated)]
            if isinstance(result, Exception):  # without its merge a kernel is of no use
                kernels[kernel] = result
    fit = {kernel for kernel, result in kernels.items() if _is_fit(result)}
    kept = [one for one in (_with(contest, fit, kernels) for contest in ready) if one is not None]
    errors = [r for r in kernels.values() if isinstance(r, Exception)]
    for error in errors:
        if not isinstance(error, CompileError | CacheMissError):
            raise error
    missing = sum(isinstance(error, CacheMissError) for error in errors)
    return Compiled(
        contests=kept,
        left=len(found) - len(ready),
        configurations=len(kernels),
        unfit=len(kernels) - len(fit) - len(errors),
        missing=missing,
        failed=tuple(str(e).splitlines()[0] for e in errors if isinstance(e, CompileError)),
    )


def _kernels_of(contest: Contest) -> list[tuple[KernelSpec, str | None]]:
    return [(spec, candidate.toolchain) for candidate, spec in contest.specs.items()]


def _built(
    requests: Sequence[CompileRequest],
    jobs: int | None,
    progress: Progress | None,
    deadline: float | None,
) -> dict[CompileRequest, Result]:
    """Kernels in their order, as far as the time suffices."""
    found: dict[CompileRequest, Result] = {}
    with CompilePool(jobs) as pool:
        size = max(len(requests), 1) if deadline is None else _AT_ONCE * pool.jobs
        for begin in range(0, len(requests), size):
            if deadline is not None and time.monotonic() >= deadline:
                break
            part = requests[begin : begin + size]

            def advance(done: int, _: int, result: Result, before: int = begin) -> None:
                if progress is not None:
                    progress(before + done, len(requests), result)

            found |= zip(part, pool.build(part, advance), strict=True)
    return found


def _request(spec: KernelSpec, toolchain: str | None) -> CompileRequest:
    chosen = None if toolchain is None else toolchain_named(toolchain)
    return request_of(dispatch.emit(spec), chosen)


def _is_fit(result: Result) -> bool:
    return not isinstance(result, Exception) and not result.lint()


def _with(
    contest: Contest,
    fit: set[tuple[KernelSpec, str | None]],
    kernels: dict[tuple[KernelSpec, str | None], Result],
) -> Contest | None:
    """A contest of the candidates that are fit; None where there is no default, which may spill."""
    default, *others = contest.candidates
    if isinstance(kernels[contest.specs[default], default.toolchain], Exception):
        return None
    kept: list[Candidate] = [
        default,
        *(c for c in others if (contest.specs[c], c.toolchain) in fit),
    ]
    return replace(contest, specs={c: contest.specs[c] for c in kept})

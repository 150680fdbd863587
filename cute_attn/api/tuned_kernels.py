"""The kernels that tune databases name, ahead of the plans that take them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from cute_attn.api import dispatch
from cute_attn.api.kernel import launched_with, request_of
from cute_attn.api.tuned import Tuned
from cute_attn.codegen.spec import KernelSpec
from cute_attn.runtime.build import toolchain_named
from cute_attn.runtime.compiler import CompileRequest
from cute_attn.runtime.kernel import CompiledKernel
from cute_attn.runtime.pool import Result, compile_many
from cute_attn.tuning import files


def tuned_kernels(problem: dispatch.Problem) -> list[tuple[KernelSpec, str | None]]:
    """Kernels that plans may take beside those of the tables, on GPUs of the problem's architecture
    of which there is a database; each with the name of its toolchain, None: the default one."""
    found: dict[tuple[KernelSpec, str | None], None] = {}
    for database in files.known_of_arch(problem.arch):
        tuned = Tuned(database)
        of_problem = tuned.of_problem(problem, 1, database.sms)
        for spec in of_problem.all_specs() if of_problem else ():
            found[spec, tuned.toolchain_of(spec)] = None
    return list(found)


def warmup_tuned(
    kernels: Iterable[tuple[KernelSpec, str | None]],
    *,
    jobs: int | None = None,
    progress: Callable[[int, int, Result], None] | None = None,
) -> list[CompiledKernel]:
    """Compiles what `tuned_kernels` gives, and what is launched with it; see `warmup`.

    Raises:
        CompileError, ToolchainError: of the first kernel that failed, after all were tried.
    """
    requests: dict[CompileRequest, None] = {}
    for spec, name in kernels:
        toolchain = None if name is None else toolchain_named(name)
        requests[request_of(dispatch.emit(spec), toolchain)] = None
        requests |= {request_of(small): None for small in launched_with(spec)}
    compiled = []
    for result in compile_many(list(requests), jobs, progress):
        if isinstance(result, Exception):
            raise result
        compiled.append(result)
    return compiled

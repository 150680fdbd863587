"""Many kernels through the compile pool, and what came of each: for `compile` and `demo`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cute_attn.api.kernel import request_of
from cute_attn.cli.terminal import first_line, progress_bar
from cute_attn.codegen.source import GeneratedKernel
from cute_attn.runtime import CompiledKernel, compile_many
from cute_attn.runtime.toolchain import Toolchain


@dataclass(frozen=True)
class Outcome:
    """What came of one kernel.

    Attributes:
        generated: source, threads, shared memory.
        result: the compiled kernel, or why there is none.
    """

    generated: GeneratedKernel
    result: CompiledKernel | Exception

    @property
    def status(self) -> str:
        """ "compiled", "cached" or "failed"."""
        if isinstance(self.result, Exception):
            return "failed"
        return "cached" if self.result.from_cache else "compiled"

    @property
    def problems(self) -> list[str]:
        """Why it failed, or what the linter says against it; empty when all is well."""
        if isinstance(self.result, Exception):
            return [first_line(self.result)]
        return self.result.lint()

    @property
    def line(self) -> str:
        """One line for people."""
        if isinstance(self.result, Exception):
            return f"{'failed':19}{self.generated.name}: {first_line(self.result)}"
        used = self.result.resources
        spilled = used.spill_store_bytes + used.spill_load_bytes
        seconds = "" if self.result.from_cache else f"{self.result.compile_seconds:.1f} s"
        return (
            f"{self.status:9}{seconds:>7}"
            f"{used.registers:5} registers"
            f"{self.smem_bytes / 1024:7.1f} KiB smem"
            f"   {f'{spilled} bytes spilled' if spilled else 'no spills'}   {self.generated.name}"
        )

    @property
    def smem_bytes(self) -> int:
        """Shared memory of a block, static and dynamic."""
        static = 0
        if isinstance(self.result, CompiledKernel):
            static = self.result.resources.static_smem_bytes
        return self.generated.smem_bytes + static

    def to_json(self) -> dict[str, Any]:
        """JSON values: name, arch, status, problems and, unless it failed, what it takes."""
        facts: dict[str, Any] = {
            "name": self.generated.name,
            "arch": self.generated.arch,
            "status": self.status,
            "problems": self.problems,
        }
        if isinstance(self.result, CompiledKernel):
            used = self.result.resources
            facts |= {
                "seconds": round(self.result.compile_seconds, 3),
                "threads": self.generated.threads,
                "registers": used.registers,
                "smem_bytes": self.smem_bytes,
                "spill_bytes": used.spill_store_bytes + used.spill_load_bytes,
                "stack_bytes": used.stack_bytes,
                "cubin_bytes": len(self.result.cubin),
                "toolchain": self.result.toolchain.name,
            }
        return facts


def compile_all(
    kernels: Sequence[GeneratedKernel],
    *,
    further: Sequence[tuple[GeneratedKernel, Toolchain]] = (),
    jobs: int | None = None,
    each: Callable[[Outcome], None] | None = None,
    show_bar: bool = True,
) -> tuple[list[Outcome], float]:
    """Compiles kernels, or finds them in the cache.

    Args:
        kernels: what to compile, none twice.
        further: what to compile with toolchains other than the default one.
        jobs: processes; None takes as many as CPUs and free memory allow.
        each: called with each kernel that is ready, in the order in which they are.
        show_bar: a progress bar, if standard error is a terminal.

    Returns:
        outcomes in the order of `kernels`, then of `further`, and the seconds that all of it took.
    """
    every = [*kernels, *(kernel for kernel, _ in further)]
    requests = [request_of(kernel) for kernel in kernels]
    requests += [request_of(*pair) for pair in further]
    of_name = {kernel.name: kernel for kernel in every}
    start = time.perf_counter()
    with progress_bar("kernels", len(every), shown=show_bar) as advance:

        def progress(done: int, total: int, result: CompiledKernel | Exception) -> None:
            advance(done)
            if each is not None and isinstance(result, CompiledKernel):
                each(Outcome(of_name[result.name], result))

        results = compile_many(requests, jobs, progress)
    seconds = time.perf_counter() - start
    pairs = zip(every, results, strict=True)
    return [Outcome(kernel, result) for kernel, result in pairs], seconds

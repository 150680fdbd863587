"""Compiles what the GPU tests and the benchmarks need into a cache directory; needs no GPU.

    python -m perf.precompile --cache .cache/cute_attn [--section A,B] [--only tests|benches]
    python -m perf.precompile --cache .cache/cute_attn --prune

Carry the directory to the machine with the GPU and run there with CUTE_ATTN_CACHE_DIR=<directory>
and CUTE_ATTN_NO_COMPILE=1.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from cute_attn import KernelSpec, warmup
from cute_attn.api.tuned_kernels import tuned_kernels, warmup_tuned
from cute_attn.runtime import CompiledKernel, cache_key
from cute_attn.runtime.cache_upkeep import entries, remove
from perf import cases
from perf.cases import shared, sparse
from perf.cases.tuning import held_out
from perf.cases.variants import variant_specs
from tests.gpu import specs


def kernels(only: str | None, arch: str, sections: Sequence[str] = ()) -> list[specs.AnyKernel]:
    """What to compile, none twice; `sections`: of the benchmarks, all if empty."""
    found: dict[str, specs.AnyKernel] = {}
    if only != "benches":
        found |= {kernel.name: kernel for kernel in specs.all_kernels(arch)}
    if only != "tests":
        own = specs.with_merges(cases.all_specs(arch, sections))
        if not sections:
            own += [*specs.with_merges(variant_specs(arch)), *specs.planner_kernels(arch)]
            own += [*specs.with_merges(shared.shared_specs(arch)), *shared.row_kernels(arch)]
            own += specs.with_merges(sparse.sparse_specs(arch))
        found |= {kernel.name: kernel for kernel in own}
    return list(found.values())


def tuned(arch: str, sections: Sequence[str] = ()) -> list[tuple[KernelSpec, str | None]]:
    """Kernels of the tune databases that benchmarks then take, none twice: see `tuned_kernels`."""
    problems = cases.all_problems(arch, sections)
    if not sections:
        problems += [shared.problem(arch), *(case.problem(arch) for case in held_out())]
        problems += [problem for problem in sparse.problems(arch) if not problem.per_head]
    return list(dict.fromkeys(k for problem in problems for k in tuned_kernels(problem)))


def progress(done: int, total: int, result: object) -> None:
    """One line per kernel."""
    if isinstance(result, Exception):
        first = str(result).strip().split("\n")[0]
        print(f"[{done}/{total}] FAILED {first}", flush=True)
        return
    seconds = getattr(result, "compile_seconds", 0.0)
    how = "cached" if getattr(result, "from_cache", False) else f"{seconds:.1f} s"
    print(f"[{done}/{total}] {getattr(result, 'name', result)} ({how})", flush=True)


def prune(cache: Path, kept: Sequence[CompiledKernel]) -> int:
    """Removes every other kernel from a cache directory; the number removed."""
    keys = {cache_key(kernel.request, kernel.toolchain) for kernel in kept}
    return len(remove(cache, [entry for entry in entries(cache) if entry.key not in keys]))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cache", type=Path, help="cache directory (default: the user's)")
    parser.add_argument("--arch", default="sm_90a", help="of the GPU (default: sm_90a)")
    parser.add_argument("--only", choices=("tests", "benches"), help="default: both")
    parser.add_argument("--section", default="", help="only benchmarks of these sections, e.g. A,B")
    parser.add_argument("--match", default="", help="only kernels whose name contains this")
    parser.add_argument("--jobs", type=int, help="compile processes (default: by CPUs and memory)")
    parser.add_argument("--list", action="store_true", help="print names, compile nothing")
    parser.add_argument(
        "--prune", action="store_true", help="remove every other kernel from --cache"
    )
    options = parser.parse_args()
    sections = [sec for sec in options.section.split(",") if sec]
    known = {case.sec for case in cases.all_cases()}
    if unknown := set(sections) - known:
        parser.error(f"--section has {', '.join(unknown)}; it takes {', '.join(sorted(known))}")
    if sections and options.only == "tests":
        parser.error("--section names benchmarks; it does not go with --only tests")
    if options.prune and (options.cache is None or options.match or options.only or sections):
        parser.error("--prune takes --cache, and neither --match, --only nor --section")
    only = "benches" if sections else options.only
    if options.cache is not None:
        os.environ["CUTE_ATTN_CACHE_DIR"] = str(options.cache.resolve())
    wanted = [k for k in kernels(only, options.arch, sections) if options.match in k.name]
    named = [] if only == "tests" else tuned(options.arch, sections)
    named = [pair for pair in named if options.match in pair[0].name]
    if options.list:
        print("\n".join(kernel.name for kernel in [*wanted, *(spec for spec, _ in named)]))
        print(f"{len(wanted)} kernels, {len(named)} of the tune database")
        return 0
    attention = sum(isinstance(kernel, KernelSpec) for kernel in wanted)
    print(
        f"{len(wanted)} kernels, {attention} of them attention; {len(named)} of the tune database",
        flush=True,
    )
    start = time.perf_counter()
    try:
        compiled = warmup(wanted, jobs=options.jobs, progress=progress)
        compiled += warmup_tuned(named, jobs=options.jobs, progress=progress)
    except Exception as error:
        print(f"at least one kernel failed:\n{error}", file=sys.stderr)
        return 1
    if options.prune:
        print(f"{prune(options.cache, compiled)} other kernels removed")
    print(f"done in {time.perf_counter() - start:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Times of cold compiles (section J): source to cubin, one after the other on one core; no GPU.

    python -m perf.bench_compile [--quick] [--match TEXT] [--out FILE]

A dozen kernels of both emitters into an empty cache. `us` is what NVRTC takes (and the assembler,
where it is another), `cpu_us` the processor time in it, which is what a core takes that nobody
else uses, `emit_us` what the generator takes. The first kernel also loads the compiler, so one that
is not measured goes before.
"""

from __future__ import annotations

import os
import platform
import resource
import sys
import tempfile
import time

from cute_attn import KernelSpec, Problem, alibi, build, causal, choose, full, rope, soft_cap
from cute_attn.api.dispatch import emit
from perf import harness, records
from perf.bench_plan import cpu_name

QUICK = 3


def specs() -> list[KernelSpec]:
    """Kernels of prefill and decode, plain and with variants, for both architectures."""
    found = []
    for arch in ("sm_90a", "sm_80"):
        for dim in (64, 128, 256):
            problem = Problem(arch, "bf16", dim, dim, 1, full(), None)
            found.append(choose(problem, rows=None, long=True))
        paged = Problem(arch, "bf16", 128, 128, 4, causal(), 16)
        found += [choose(paged, rows=None), choose(paged, rows=4)]
    for variant in (causal() & soft_cap(), causal() & alibi(16), causal() & rope()):
        problem = Problem("sm_90a", "bf16", 128, 128, 1, variant, None)
        found.append(choose(problem, rows=None, long=True))
    return list(dict.fromkeys(found))


def cpu_seconds() -> float:
    """Processor time of this process and of the children that it has waited for."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


def main() -> int:
    options = harness.parser("Times of cold compiles, section J.").parse_args()
    wanted = [spec for spec in specs() if options.match in spec.name]
    wanted = wanted[:QUICK] if options.quick else wanted
    if not wanted:
        print(f"no kernel's name contains {options.match!r}", file=sys.stderr)
        return 2
    machine = {"cpu": cpu_name(), "cores": os.cpu_count(), "python": platform.python_version()}
    with tempfile.TemporaryDirectory() as empty:
        os.environ["CUTE_ATTN_CACHE_DIR"] = empty
        os.environ.pop("CUTE_ATTN_CACHE_PATH", None)  # other caches to look in
        os.environ.pop("CUTE_ATTN_NO_COMPILE", None)
        first = build(choose(Problem("sm_80", "fp16", 64, 64, 1, full(), None), rows=None))
        environment = records.environment(str(first.compiled.toolchain)) | machine
        results = records.Records(options.out or records.default_path("compile"), environment)
        for spec in wanted:
            begin = time.perf_counter()
            emit(spec)
            emitted = time.perf_counter() - begin
            before = cpu_seconds()
            compiled = build(spec).compiled
            cpu_us = 1e6 * (cpu_seconds() - before)
            assert not compiled.from_cache, spec.name
            us = 1e6 * compiled.compile_seconds
            results.add("J", spec.name, us=us, cpu_us=cpu_us, emit_us=1e6 * emitted)
            print(f"{spec.name:64s} {us / 1e6:5.2f} s, cpu {cpu_us / 1e6:5.2f} s", flush=True)
    print(f"rows: {results.path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

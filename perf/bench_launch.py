"""Host times (section L): run(), plan(), cold compile and warm load.

run() is timed in bursts of 32 calls, as for the layers of a model, and alone on an idle device.

    python -m perf.bench_launch [--quick]

Goals: run() with known pointers and `out` given at most 10 us, at the first use of new pointers at
most 25 us, through the torch operator at most 18 us, load of a cached kernel at most 10 ms, compile
at most 6 s.
"""

from __future__ import annotations

import os
import statistics
import sys
import time

import torch

from cute_attn import BatchAttention, Kernel, build
from perf import harness
from perf.cases import Case, lengths, prefill_dense, steps

REPEATS = 320
LAYERS = 32


def decode_case(batch: int) -> Case:
    """A decode batch of 1k keys each: short on the device, so that the queue never fills."""
    own = tuple(lengths("c1024", batch))
    return Case("L", f"decode b{batch}", (1,) * batch, own, 32, 8, 128, 16, True)


def run_us(
    prepared: harness.Prepared, repeats: int, *, give_out: bool, burst: int = LAYERS
) -> float:
    """run() with known pointers."""
    run, q, kv = prepared.wrapper.run, prepared.q, prepared.caches[0]
    out = prepared.out if give_out else None
    return harness.host_us(lambda i: run(q, *kv, out=out), repeats, burst=burst)


def operator_us(prepared: harness.Prepared, repeats: int) -> float:
    """run() through the torch operator."""
    handle = prepared.wrapper.handle
    run = torch.ops.cute_attn.run
    q, out, kv = prepared.q, prepared.out, prepared.caches[0]
    k, v = kv[0], kv[1] if len(kv) > 1 else None
    return harness.host_us(lambda i: run(handle, q, k, v, out, None), repeats, burst=LAYERS)


def new_pointer_us(prepared: harness.Prepared) -> float:
    """run() on caches that the wrapper has not seen."""
    (cache,) = prepared.caches[0]
    fresh = [torch.empty_like(cache) for _ in range(LAYERS)]
    return harness.host_us(
        lambda i: prepared.wrapper.run(prepared.q, fresh[i], out=prepared.out),
        LAYERS,
        burst=LAYERS,
    )


def reload_seconds(kernel: Kernel) -> float:
    """Look-up on disk, load and first launch path of a kernel, as in a new process."""
    from cute_attn.runtime import build_kernel, forget_kernels

    forget_kernels()
    begin = time.perf_counter()
    found = build_kernel(kernel.compiled.request)
    found.module.prepare(kernel.generated.smem_bytes, torch.cuda.current_device())
    return time.perf_counter() - begin


def main() -> int:
    options = harness.parser("Host times, section L.").parse_args()
    repeats = 64 if options.quick else REPEATS
    cases = [decode_case(16), decode_case(256), steps()[1], prefill_dense()[0]]
    results = harness.open_records("launch", options.out, cases[0].spec(harness.arch()))

    def note(cfg: str, us: float) -> None:
        results.add("L", cfg, us=us)
        print(f"{cfg:44s} {us:10.1f} us")

    kernels: dict[str, Kernel] = {}
    for case in cases:
        prepared = harness.prepare(case)
        note(f"run, out given: {case.cfg}", run_us(prepared, repeats, give_out=True))
        note(f"run, idle device: {case.cfg}", run_us(prepared, repeats, give_out=True, burst=1))
        note(f"run, out allocated: {case.cfg}", run_us(prepared, repeats, give_out=False))
        note(f"run, torch operator: {case.cfg}", operator_us(prepared, repeats))
        if case.page_size is not None:
            note(f"run, new pointers: {case.cfg}", new_pointer_us(prepared))
        note(f"plan: {case.cfg}", prepared.plan_us)
        kernels |= {kernel.name: kernel for kernel in prepared.wrapper.kernels}
    note("BatchAttention()", harness.host_us(lambda i: BatchAttention(32, 8, 128), 20))
    for kernel in kernels.values():
        seconds = [reload_seconds(kernel) for _ in range(3)]
        note(f"load from disk: {kernel.name}", 1e6 * statistics.median(seconds))
        note(f"compile (as recorded): {kernel.name}", 1e6 * kernel.compiled.compile_seconds)
    if os.environ.get("CUTE_ATTN_NO_COMPILE", "0") in ("", "0"):
        cold = build(cases[0].spec(harness.arch()), stages=2)
        note(f"compile (now): {cold.name}", 1e6 * cold.compiled.compile_seconds)
    print(f"rows: {results.path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

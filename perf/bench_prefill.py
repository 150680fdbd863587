"""Prefill: dense (section A) and batches over a paged cache (section B), TFLOP/s.

python -m perf.bench_prefill [--quick] [--schedule ampere_tile] [--peers FILE]
"""

from __future__ import annotations

import sys

import torch

from perf import compare, harness
from perf.cases import Case, prefill_dense, prefill_paged

QUICK = ("d128 full   s4096", "d128 causal s4096", "d128 full   s16384", "d128 causal s16384")
QUICK_PAGED = ("b16 c1024 p16", "b16 z1024 p1")


def selected(quick: bool, match: str) -> list[Case]:
    """Cases to measure."""
    cases = [*prefill_dense(), *prefill_paged()]
    if quick:
        cases = [case for case in cases if case.cfg in (*QUICK, *QUICK_PAGED)]
    return [case for case in cases if match in case.cfg]


def main() -> int:
    parser = harness.parser("Prefill benchmark, sections A and B.")
    parser.add_argument("--schedule", help="force a kernel family, e.g. ampere_tile")
    options = parser.parse_args()
    cases = selected(options.quick, options.match)
    name = f"prefill-{options.schedule}" if options.schedule else "prefill"
    results = harness.open_records(
        name, options.out, cases[0].spec(harness.arch(), options.schedule)
    )
    for case in cases:
        prepared = harness.prepare(case, schedule=options.schedule)
        err = harness.check(prepared)
        us = harness.flushed_us(prepared)
        # Section A counts half of the square for causal, section B the exact triangle.
        flops = case.nominal_flops if case.sec == "A" else case.flops
        results.add(
            case.sec,
            case.cfg,
            peer="cute_attn",
            us=us,
            tflops=flops / us / 1e6,
            err=err,
            kernel=prepared.wrapper.kernels[0].name,
            plan_us=prepared.plan_us,
        )
        print(f"{case.cfg:22s} {us:9.1f} us {flops / us / 1e6:6.0f} TFLOP/s  err {err:.2e}")
        del prepared
        torch.cuda.empty_cache()
    compare.print_tables(results.rows, options.peers)
    return 0


if __name__ == "__main__":
    sys.exit(main())

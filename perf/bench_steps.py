"""Real steps (section T): sixteen continuous-batching steps of production traces, one call each;
and a mixed batch (section X).

    python -m perf.bench_steps [--quick] [--batch-invariant] [--peers FILE]

The floor of a step is the larger of its FLOPs at the matrix rate and its bytes (K, V, q, out) at
the read rate that were measured on an H200 (796 TFLOP/s, 4,633 GB/s).
"""

from __future__ import annotations

import sys

import torch

from perf import compare, harness
from perf.cases import Case, mixed, steps

MATRIX_FLOPS = 796e12
READ_BYTES = 4633e9
QUICK = ("azure-chat-500", "azure-chat-1700", "azure-code-500", "mooncake-1400")


def floor_us(case: Case) -> float:
    """What no implementation can be faster than, on an H200."""
    rows = 2 * sum(case.q_lens) * case.num_qo_heads * case.head_dim * 2  # q and out
    return 1e6 * max(case.flops / MATRIX_FLOPS, (case.kv_bytes + rows) / READ_BYTES)


def main() -> int:
    parser = harness.parser("Real steps and a mixed batch, sections T and X.")
    harness.add_batch_invariant(parser)
    options = parser.parse_args()
    cases = [case for case in [*steps(), *mixed()] if not options.quick or case.cfg in QUICK]
    cases = [case for case in cases if options.match in case.cfg]
    name = "steps" + "-batch-invariant" * options.batch_invariant
    results = harness.open_records(name, options.out, cases[0].spec(harness.arch()))
    for case in cases:
        prepared = harness.prepare(case, rotate=True, batch_invariant=options.batch_invariant)
        err = harness.check(prepared)
        us_graph = harness.graph_us(prepared)
        us = harness.flushed_us(prepared, rep_ms=30)
        plan = prepared.wrapper.last_plan
        floor = floor_us(case)
        results.add(
            case.sec,
            case.cfg,
            peer="cute_attn",
            us=us,
            us_graph=us_graph,
            err=err,
            floor_us=floor,
            kernel=prepared.wrapper.kernels[0].name,
            plan_us=prepared.plan_us,
            imbalance=plan.imbalance if plan else 0.0,
        )
        ratio = us_graph / floor
        print(f"{case.cfg:18s} {us_graph:9.1f} us, {ratio:.2f} x floor  err {err:.2e}")
        del prepared
        torch.cuda.empty_cache()
    compare.print_tables(results.rows, options.peers)
    return 0


if __name__ == "__main__":
    sys.exit(main())

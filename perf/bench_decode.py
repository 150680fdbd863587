"""Decode over a paged cache (section C; section Q: a few tokens per request), GB/s of K and V.

python -m perf.bench_decode [--quick] [--batch-invariant] [--peers FILE]
"""

from __future__ import annotations

import sys

import torch

from perf import compare, harness
from perf.cases import Case, decode, few_tokens


def selected(quick: bool, match: str) -> list[Case]:
    """Cases to measure; quick: 32/8 heads, page 16, three batch sizes."""
    cases = [*decode(), *few_tokens()]
    if quick:
        cases = [
            case
            for case in cases
            if case.cfg.startswith("32/8 p16") and len(case.q_lens) in (1, 16, 64)
        ]
    return [case for case in cases if match in case.cfg]


def main() -> int:
    parser = harness.parser("Decode benchmark, sections C and Q.")
    parser.add_argument("--schedule", help="force a kernel family")
    harness.add_batch_invariant(parser)
    options = parser.parse_args()
    cases = selected(options.quick, options.match)
    name = f"decode-{options.schedule}" if options.schedule else "decode"
    name += "-batch-invariant" * options.batch_invariant
    results = harness.open_records(
        name, options.out, cases[0].spec(harness.arch(), options.schedule)
    )
    for case in cases:
        prepared = harness.prepare(
            case,
            rotate=True,
            schedule=options.schedule,
            batch_invariant=options.batch_invariant,
        )
        err = harness.check(prepared)
        us_graph = harness.graph_us(prepared)
        us = harness.flushed_us(prepared, rep_ms=30)
        plan = prepared.wrapper.last_plan
        results.add(
            case.sec,
            case.cfg,
            peer="cute_attn",
            us=us,
            us_graph=us_graph,
            gbps=case.kv_bytes / us / 1e3,
            gbps_graph=case.kv_bytes / us_graph / 1e3,
            err=err,
            kernel=prepared.wrapper.kernels[0].name,
            plan_us=prepared.plan_us,
            split_tiles=plan.num_split_tiles if plan else 0,
        )
        gbps = case.kv_bytes / us_graph / 1e3
        print(f"{case.cfg:26s} {us_graph:9.1f} us {gbps:6.0f} GB/s  err {err:.2e}")
        del prepared
        torch.cuda.empty_cache()
    compare.print_tables(results.rows, options.peers)
    return 0


if __name__ == "__main__":
    sys.exit(main())

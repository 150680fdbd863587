"""Decode of multi-head latent attention over a paged cache, GB/s of latent rows: section D as the
peers' (128 heads, one token), DH other numbers of heads and tokens.

    python -m perf.bench_mla [--quick] [--match TEXT] [--peers FILE]

Section E is how fast the card reads, measured first.
"""

from __future__ import annotations

import sys
import time

import torch

from perf import compare, harness
from perf.cases import latent
from perf.joining import OURS


def main() -> int:
    options = harness.parser("MLA decode benchmark, sections D and DH.").parse_args()
    cases = [case for case in latent() if options.match in case.cfg]
    if options.quick:
        cases = [case for case in cases if case.sec == "D" and "p64" in case.cfg]
    results = harness.open_records("mla", options.out, cases[0].spec(harness.arch()))
    from perf.read_rate import read_rate  # Triton, which is not there without a GPU

    us, gbps = read_rate()
    results.add("E", "read 8 GiB", peer="triton", us_graph=us, gbps_graph=gbps)
    print(f"{'read 8 GiB':26s} {us:9.1f} us {gbps:6.0f} GB/s", flush=True)
    for case in cases:
        prepared = harness.prepare(case, rotate=True)
        err = harness.check(prepared)
        torch.cuda.synchronize()
        time.sleep(harness.REST_S)  # 128 heads draw what power there is: no case pays for another
        us = harness.graph_us(prepared, budget_us=20_000)
        gbps, tflops = case.kv_bytes / us / 1e3, case.flops / us / 1e6
        plan = prepared.wrapper.last_plan
        results.add(
            case.sec,
            case.cfg,
            peer=OURS,
            us_graph=us,
            gbps_graph=gbps,
            tflops_graph=tflops,
            err=err,
            kernel=prepared.wrapper.kernels[0].name,
            plan_us=prepared.plan_us,
            split_tiles=plan.num_split_tiles if plan else 0,
        )
        name = f"{case.sec} {case.cfg}"
        print(
            f"{name:28s} {us:9.1f} us {gbps:6.0f} GB/s {tflops:5.0f} TFLOP/s  err {err:.2e}",
            flush=True,
        )
        del prepared
        torch.cuda.empty_cache()
    compare.print_tables(results.rows, options.peers)
    return 0


if __name__ == "__main__":
    sys.exit(main())

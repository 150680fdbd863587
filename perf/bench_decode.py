"""Decode over a paged cache (section C; section Q: a few tokens per request), GB/s of K and V.

    python -m perf.bench_decode [--quick] [--batch-invariant] [--fa3 FILE] [--peers FILE]

Section E is how fast the card reads, measured first.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from perf import compare, harness, live_peers
from perf.cases import Case, decode, few_tokens
from perf.joining import OURS


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
    parser.add_argument(
        "--fa3", type=Path, help="FlashAttention-3 in turns with us: path of fa3_fwd/_C.abi3.so"
    )
    options = parser.parse_args()
    if options.fa3 is not None:
        if not options.fa3.is_file():
            parser.error(f"--fa3 is {options.fa3}: no such file")
        live_peers.load_fa3(options.fa3)
    cases = selected(options.quick, options.match)
    name = f"decode-{options.schedule}" if options.schedule else "decode"
    name += "-batch-invariant" * options.batch_invariant
    results = harness.open_records(
        name, options.out, cases[0].spec(harness.arch(), options.schedule)
    )
    from perf.read_rate import read_rate  # Triton, which is not there without a GPU

    us, gbps = read_rate()
    results.add("E", "read 8 GiB", peer="triton", us_graph=us, gbps_graph=gbps)
    print(f"{'read 8 GiB':26s} {us:9.1f} us {gbps:6.0f} GB/s", flush=True)
    for case in cases:
        prepared = harness.prepare(
            case,
            rotate=True,
            schedule=options.schedule,
            batch_invariant=options.batch_invariant,
        )
        err = harness.check(prepared)
        calls = {OURS: prepared.run}
        if options.fa3 is not None:
            fa3 = live_peers.fa3_contiguous(prepared)
            peer_err = harness.relative_error(prepared, fa3())
            calls["fa3"] = fa3
        times = harness.graphs_us(calls, len(prepared.caches))
        us_graph = times[OURS]
        us = harness.flushed_us(prepared, rep_ms=30)
        plan = prepared.wrapper.last_plan
        results.add(
            case.sec,
            case.cfg,
            peer=OURS,
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
        line = f"{case.cfg:26s} {us_graph:9.1f} us {gbps:6.0f} GB/s  err {err:.2e}"
        if "fa3" in times:
            peer_us = times["fa3"]
            peer_gbps = case.kv_bytes / peer_us / 1e3
            results.add(
                case.sec, case.cfg, peer="fa3", us_graph=peer_us, gbps_graph=peer_gbps, err=peer_err
            )
            line += f"  fa3 {peer_us:.1f} us"
        print(line, flush=True)
        del prepared, calls
        torch.cuda.empty_cache()
    compare.print_tables(results.rows, options.peers)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Prefill, TFLOP/s: dense, paged, windows, MLA head dims, chunks, other head dims, page sizes.

    python -m perf.bench_prefill [--section A,B] [--quick] [--with-peers] [--fa3 fa3_fwd/_C.abi3.so]

Sections: see perf/README.md. The matrix product of 8192^3 is measured first (section E): attention
is held against it. What has no kernel is skipped, with the reason.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from itertools import groupby
from pathlib import Path

import torch

from cute_attn import KernelSpec, UnsupportedSpecError
from cute_attn.runtime import CacheMissError
from perf import compare, harness, live_peers
from perf.cases import Case, prefill
from perf.cases.case import GRAPH_SECTIONS
from perf.clocks import SmClock
from perf.joining import OURS
from perf.records import Records

QUICK = {
    *(("A", f"d128 {mask} s{n}") for mask in ("full  ", "causal") for n in (4096, 16384)),
    ("B", "b16 c1024 p16"),
    ("B", "b16 z1024 p1"),
    ("W", "b1 s16384 d128 window1024"),
    ("M", "b2 s8192 64 heads (192,128) causal"),
    ("K", "8/1 q256 kv32768"),
}
ROUNDS = 3
"""Turns that we and the peers of the same run take, per case, and cases held against each other."""


def selected(quick: bool, match: str, sections: list[str]) -> list[Case]:
    """Cases to measure.

    Raises:
        ValueError: a section has no cases here.
    """
    cases = prefill()
    known = list(dict.fromkeys(case.sec for case in cases))
    for sec in sections:
        if sec not in known:
            raise ValueError(f"--section has {sec!r}; it takes {', '.join(known)}")
    if quick:
        cases = [case for case in cases if (case.sec, case.cfg) in QUICK]
    return [case for case in cases if match in case.cfg and (not sections or case.sec in sections)]


def runnable(cases: list[Case], arch: str, schedule: str | None) -> list[tuple[Case, KernelSpec]]:
    """Cases that have a kernel; the others are printed with the reason."""
    found = []
    for case in cases:
        try:
            found.append((case, case.spec(arch, schedule)))
        except UnsupportedSpecError as error:
            print(f"skipped {case.sec} {case.cfg}: {'; '.join(error.reasons)}")
    return found


def peers_of(
    prepared: harness.Prepared, makers: dict[str, Callable[[harness.Prepared], live_peers.Call]]
) -> dict[str, tuple[live_peers.Call, float]]:
    """Calls and errors of the peers that serve a case; the others are printed with the reason."""
    found = {}
    for name, make in makers.items():
        try:
            call = make(prepared)
            err = harness.relative_error(prepared, call().flatten(0, -3))
        except (live_peers.Unsupported, RuntimeError, TypeError) as error:
            reason = str(error).strip().split("\n")[0]
            print(f"skipped {name} at {prepared.case.sec} {prepared.case.cfg}: {reason}")
            continue
        found[name] = (call, err)
    return found


def held_against(case: Case) -> str:
    """The same for cases that goals hold against each other: pages and ragged KV, head dims."""
    if case.sec == "P":
        return "P " + case.cfg.rpartition(" ")[0]
    if case.sec == "H":
        return "H " + case.cfg.partition(" ")[2]
    return f"{case.sec} {case.cfg}"


def measure(
    cases: list[Case],
    schedule: str | None,
    makers: dict[str, Callable[[harness.Prepared], live_peers.Call]],
    results: Records,
) -> None:
    """Measures one case, ours and the peers' of the same run, or several in turns; records them."""
    if len(cases) == 1:
        measure_case(cases[0], schedule, makers, results)
        return
    prepared = {case.cfg: harness.prepare(case, schedule=schedule) for case in cases}
    errors = {cfg: harness.check(own) for cfg, own in prepared.items()}
    calls = {cfg: own.run for cfg, own in prepared.items()}
    with SmClock() as clock:
        times = harness.interleaved_us(calls, rounds=ROUNDS, rep_ms=50)
    for cfg, own in prepared.items():
        numbers: dict[str, object] = {"err": errors[cfg]}
        if clock.mhz is not None:
            numbers["sm_mhz"] = clock.mhz
        line = record(own, times[cfg], numbers, results)
        print(f"{line}  err {errors[cfg]:.2e}  {clock.mhz or '?'} MHz", flush=True)


def record(
    prepared: harness.Prepared, us: float, numbers: dict[str, object], results: Records
) -> str:
    """Adds our row of a case; what to print of it."""
    case, kernel = prepared.case, prepared.wrapper.kernels[0]
    if kernel.spec is not None:
        numbers["tile"] = [kernel.spec.tile.q, kernel.spec.tile.kv]
    numbers |= {"kernel": kernel.name, "plan_us": prepared.plan_us}
    tflops = case.counted_flops / us / 1e6
    own = results.add(case.sec, case.cfg, peer=OURS, us=us, tflops=tflops, **numbers)
    return f"{case.sec:3s} {case.cfg:34s} {own['us']:9.1f} us {own['tflops']:6.0f} TFLOP/s"


def measure_case(
    case: Case,
    schedule: str | None,
    makers: dict[str, Callable[[harness.Prepared], live_peers.Call]],
    results: Records,
) -> None:
    """Measures one case, ours and the peers' of the same run, and records it."""
    prepared = harness.prepare(case, rotate=case.sec in GRAPH_SECTIONS, schedule=schedule)
    err = harness.check(prepared)
    peers = peers_of(prepared, makers if case.sec in live_peers.SECTIONS else {})
    calls = {OURS: prepared.run, **{name: call for name, (call, _) in peers.items()}}
    graph_times: dict[str, float] = {}
    with SmClock() as clock:
        if case.sec in GRAPH_SECTIONS:
            graph_times = harness.graphs_us(calls, len(prepared.caches))
        times = harness.interleaved_us(
            calls, rounds=ROUNDS if peers else 1, rep_ms=50 if peers else 100
        )

    def rates(name: str) -> dict[str, object]:
        if name not in graph_times:
            return {}
        us = graph_times[name]
        return {"us_graph": us, "tflops_graph": case.counted_flops / us / 1e6}

    numbers: dict[str, object] = {"err": err, **rates(OURS)}
    if clock.mhz is not None:
        numbers["sm_mhz"] = clock.mhz
    line = record(prepared, times[OURS], numbers, results)
    for name, (_, peer_err) in peers.items():
        own: dict[str, object] = {"us": times[name], "err": peer_err, **rates(name)}
        tflops = case.counted_flops / times[name] / 1e6
        results.add(case.sec, case.cfg, peer=name, tflops=tflops, **own)
        line += f"  {name} {tflops:.0f}"
    print(f"{line}  err {err:.2e}  {clock.mhz or '?'} MHz", flush=True)


def options() -> argparse.Namespace:
    """The command line, checked."""
    parser = harness.parser("Prefill benchmark.")
    parser.add_argument("--section", default="", help="only these, e.g. A,B (default: all)")
    parser.add_argument("--schedule", help="force a kernel family, e.g. ampere_tile")
    parser.add_argument(
        "--with-peers", action="store_true", help="cuDNN through torch in the same run"
    )
    parser.add_argument("--fa3", type=Path, help="FlashAttention-3 too: path of fa3_fwd/_C.abi3.so")
    parsed = parser.parse_args()
    parsed.sections = [sec for sec in parsed.section.split(",") if sec]
    try:
        parsed.cases = selected(parsed.quick, parsed.match, parsed.sections)
    except ValueError as error:
        parser.error(str(error))
    if not parsed.cases:
        parser.error("no case is left")
    if parsed.fa3 is not None and not parsed.fa3.is_file():
        parser.error(f"--fa3 is {parsed.fa3}: no such file")
    return parsed


def main() -> int:
    given = options()
    cases = runnable(given.cases, harness.arch(), given.schedule)
    if not cases:
        return 1
    makers: dict[str, Callable[[harness.Prepared], live_peers.Call]] = {}
    if given.with_peers:
        makers["sdpa_cudnn"] = live_peers.cudnn
    if given.fa3 is not None:
        live_peers.load_fa3(given.fa3)
        makers["fa3"] = live_peers.fa3
    name = f"prefill-{given.schedule}" if given.schedule else "prefill"
    results = harness.open_records(name, given.out, cases[0][1])
    us, tflops = harness.matrix_rate()
    results.add("E", "matmul 8192^3 bf16", peer="torch", us=us, tflops=tflops)
    missing = []
    for name, together in groupby((case for case, _ in cases), key=held_against):
        try:
            measure(list(together), given.schedule, makers, results)
        except CacheMissError as error:  # a machine that cannot compile: the other cases still run
            missing.append(f"not measured: {name}: {error}")
        torch.cuda.empty_cache()
    compare.print_tables(results.rows, given.peers)
    print("\n".join(missing))
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())

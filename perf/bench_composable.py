"""Decodes that share keys, with and without levels: a long prefix (section SP), samples of one
prompt (PG), prompts of a production trace (MP).

    python -m perf.bench_shared [--quick] [--match TEXT]
    python -m perf.bench_shared --predict      bytes and predicted times; needs no GPU

`flat` reads what is shared for each request, `auto` is what the cost model makes of it, `levels`
shares all that can be. Times are of a run within a replayed CUDA graph over rotating caches.
"""

from __future__ import annotations

import sys
from functools import partial

import torch

from cute_attn import CompositeAttention
from perf import harness, records
from perf.cases import shared
from perf.cases.shared import SharedCase

SHARE = {"flat": "never", "auto": "auto", "levels": "always"}
QUICK = ("prefix 32768 + 128, b64", "prefix 1024 + 128, b16")


def predict(cases: list[SharedCase], results: records.Records) -> None:
    """What bytes and simulator say."""
    for case in cases:
        made = {peer: shared.planned(case, share, "cpu") for peer, share in SHARE.items()}
        line = f"{case.sec} {case.cfg:28s}"
        for peer, own in made.items():
            us, size = shared.predicted_us(own, case), shared.read_bytes(own, case)
            results.add(case.sec, case.cfg, peer=peer, predicted_us=us, kv_bytes=size)
            line += f"  {peer} {size / 1e6:7.0f} MB {us:7.1f} us"
        print(line, flush=True)


def measure(case: SharedCase, results: records.Records) -> str:
    """Times a case; a line for people."""
    device = torch.device("cuda", torch.cuda.current_device())
    generator = torch.Generator(device).manual_seed(0)
    own_bytes = shared.KEY_BYTES * shared.PAGE_SIZE * case.num_pages
    count = min(harness.MAX_CACHES, 1 + harness.ROTATION_BYTES // own_bytes)

    def normal(*shape: int) -> torch.Tensor:
        x = torch.empty(shape, dtype=torch.bfloat16, device=device)
        return x.normal_(generator=generator)

    page = (2, shared.PAGE_SIZE, shared.KV_HEADS, shared.DIM)
    caches = [normal(case.num_pages, *page) for _ in range(count)]
    q = normal(len(case.kv_len), shared.HEADS, shared.DIM)
    made = {peer: shared.planned(case, share, device) for peer, share in SHARE.items()}
    outs = {peer: torch.empty_like(q) for peer in SHARE}

    def run(peer: str, index: int) -> None:
        made[peer].run(q, caches[index % count], out=outs[peer])

    rows, kv = case.rows, case.kv

    def replan(own: CompositeAttention, _: int) -> None:
        own.plan(rows, kv)

    for peer in SHARE:
        run(peer, 0)
    flat = outs["flat"].double()
    errors = {peer: float((out.double() - flat).norm() / flat.norm()) for peer, out in outs.items()}
    calls = {peer: partial(run, peer) for peer in SHARE}
    times = harness.graphs_us(calls, count)
    line = f"{case.sec} {case.cfg:28s}"
    for peer, us in times.items():
        results.add(
            case.sec,
            case.cfg,
            peer=peer,
            us_graph=us,
            kv_bytes=shared.read_bytes(made[peer], case),
            predicted_us=shared.predicted_us(made[peer], case),
            err=errors[peer],
            shares=made[peer].levels is not None,
            plan_us=harness.host_us(partial(replan, made[peer]), 10),
            kernels=[kernel.name for kernel in made[peer].attention.kernels],
        )
        line += f"  {peer} {us:7.1f} us ({times['flat'] / us:.2f})"
    return f"{line}  err {errors['levels']:.1e}"


def main() -> int:
    parser = harness.parser("Decodes that share keys, sections SP, PG and MP.")
    parser.add_argument("--predict", action="store_true", help="measure nothing; needs no GPU")
    options = parser.parse_args()
    cases = [case for case in shared.all_shared() if options.match in case.cfg]
    if options.quick:
        cases = [case for case in cases if case.cfg in QUICK]
    if options.predict:
        path = options.out or records.default_path("shared-predicted")
        predict(cases, records.Records(path, records.environment("none: nothing is compiled")))
        return 0
    results = harness.open_records("shared", options.out, shared.shared_specs(harness.arch())[-1])
    for case in cases:
        print(measure(case, results), flush=True)
        torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())

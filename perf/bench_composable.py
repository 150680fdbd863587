"""Composable formats and sparse KV. Decodes that share keys, with and without levels: a long prefix
(section SP), samples of one prompt (PG), prompts of a production trace (MP). Block-sparse prefill
(SB), and decode that reads some of the pages, others for each KV head (SL).

    python -m perf.bench_composable [--quick] [--match TEXT] [--section SB,SL]
    python -m perf.bench_composable --predict      bytes and predicted times; needs no GPU

Of SP, PG and MP, `flat` reads what is shared for each request, `auto` is what the cost model makes
of it, `levels` shares all that can be. Of these and of SL times are of a run within a replayed CUDA
graph over rotating caches; SB is timed beside the dense case, the L2 emptied before each call.
"""

from __future__ import annotations

import sys
from functools import partial

import torch

from cute_attn import CompositeAttention
from perf import compare, harness, measure_sparse, records
from perf.cases import shared, sparse
from perf.cases.shared import SharedCase

SHARE = {"flat": "never", "auto": "auto", "levels": "always"}
QUICK = (
    "prefix 32768 + 128, b64", "prefix 1024 + 128, b16", "32/32 block 128 25%",
    "32/8 block 64 10%", "32/8 NHD 1/8 of 8k, b64",
)  # fmt: skip
SECTIONS = ("SP", "PG", "MP", "SB", "SL")


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
    parser = harness.parser("Composable formats and sparse KV.")
    parser.add_argument("--predict", action="store_true", help="measure nothing; needs no GPU")
    parser.add_argument("--section", default=",".join(SECTIONS), help="default: %(default)s")
    options = parser.parse_args()
    sections = options.section.split(",")
    if unknown := sorted({*sections} - {*SECTIONS}):
        parser.error(f"--section has {', '.join(unknown)}; it takes {', '.join(SECTIONS)}")

    def wanted(sec: str, cfg: str) -> bool:
        return sec in sections and options.match in cfg and (not options.quick or cfg in QUICK)

    sharing = [case for case in shared.all_shared() if wanted(case.sec, case.cfg)]
    some = [case for case in sparse.all_sparse() if wanted(case.sec, case.cfg)]
    if options.predict:
        path = options.out or records.default_path("composable-predicted")
        results = records.Records(path, records.environment("none: nothing is compiled"))
        predict(sharing, results)
        for case in some:
            print(measure_sparse.predict(case, results), flush=True)
        return 0
    spec = shared.shared_specs(harness.arch())[-1]
    results = harness.open_records("composable", options.out, spec)
    for shares in sharing:
        print(measure(shares, results), flush=True)
        torch.cuda.empty_cache()
    for case in some:
        print(measure_sparse.measure(case, results), flush=True)
        torch.cuda.empty_cache()
    print("\n".join(map(str, compare.all_goals(list(records.read(results.path)), []))))
    return 0


if __name__ == "__main__":
    sys.exit(main())

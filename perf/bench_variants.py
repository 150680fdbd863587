"""Variants in prefill, against FlexAttention's records, and in decode (section V); StreamingLLM
with rotary embedding fused, against two kernels (section R).

    python -m perf.bench_variants [--quick] [--match TEXT] [--peers FILE]

`of_plain` is a rate over that of our own kernel without the variant: prefill of `causal` (prefixlm,
documents and windows have other pairs: see `tflops`), decode of `causal`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable

import torch

from cute_attn import BatchAttention, Problem, RaggedKV, choose
from perf import compare, harness
from perf.cases.variants import (
    AGAINST_PLAIN,
    DECODE_HEADS,
    DECODE_KEYS,
    DECODE_KV_HEADS,
    DECODE_REQUESTS,
    DIM,
    HEADS,
    PAGE_SIZE,
    PLAIN_SHAPES,
    SHAPES,
    STREAMING,
    STREAMING_HEADS,
    VariantCase,
    streaming_cases,
    variant_cases,
    visible_pairs,
)
from perf.joining import OURS
from perf.records import Records

ROWS = 64  # that are compared, of the first and the last request


def error(
    case: VariantCase,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
) -> float:
    """Frobenius-relative error on some rows of one request, (length, heads, dim) each."""
    length = k.shape[0]
    at = torch.randperm(q.shape[0], generator=torch.Generator().manual_seed(1))[:ROWS].to(q.device)
    positions = (at + length - q.shape[0])[:, None]
    keys = torch.arange(length, device=q.device)[None]
    heads = torch.arange(q.shape[1], device=q.device)[:, None, None]
    group = q.shape[1] // k.shape[1]
    k, v = (x.float().repeat_interleave(group, 1).transpose(0, 1) for x in (k, v))
    rows, k = case.rows(q[at].float().transpose(0, 1), positions[:, 0]), case.rows(k, keys[0])
    scores = rows @ k.mT * q.shape[2] ** -0.5
    scores = case.bend(scores, heads, positions, keys)
    hidden = ~case.keep(positions, keys)
    if case.softmax:
        scores = scores.masked_fill(hidden, -torch.inf)
        total = scores.logsumexp(-1, keepdim=True)
        if case.sinks is not None:
            total = torch.logaddexp(total, case.sinks.to(scores)[:, None, None])
        weights = (scores - total).exp()
    else:
        weights = scores.masked_fill(hidden, 0)
    want = (weights @ v).transpose(0, 1)
    return float((out[at] - want).norm() / want.norm())


def prefill(name: str, shape: str, results: Records, plain: dict[str, float]) -> None:
    """One row."""
    requests, length = {**SHAPES, **PLAIN_SHAPES}[shape]
    case = variant_cases(requests, length, HEADS)[name]
    q, k, v = (
        torch.randn(requests * length, HEADS, DIM, device="cuda", dtype=torch.bfloat16)
        for _ in range(3)
    )
    out = torch.full_like(q, math.nan)
    batch = BatchAttention(HEADS, HEADS, DIM, variant=case.variant)
    rows = range(0, requests * length + 1, length)
    tensors = {name: tensor.cuda() for name, tensor in case.tensors.items()}
    # Peers, too, look at the mask before they are timed.
    given = {"scalars": case.scalars, "tensors": tensors, "expected": case.tensors}
    batch.plan(rows, RaggedKV(rows), **given)
    batch.run(q, k, v, out=out)
    ends = (slice(0, length), slice(-length, None))
    err = max(error(case, q[own], k[own], v[own], out[own]) for own in ends)
    us = harness.interleaved_us({"": lambda: batch.run(q, k, v, out=out)}, rounds=1, rep_ms=100)[""]
    pairs = requests * HEADS * visible_pairs(case, length)
    tflops = 4 * DIM * pairs / us / 1e6
    if name == "causal":
        plain[shape] = tflops
    of_plain = tflops / plain.get(shape, math.nan)
    cfg = f"{shape} {name}"
    kernel = batch.kernels[0].name
    results.add(
        "V", cfg, peer=OURS, us=us, tflops=tflops, of_plain=of_plain, err=err, kernel=kernel
    )
    print(
        f"{cfg:24s} {us:9.1f} us {tflops:5.0f} TFLOP/s {of_plain:5.2f}  err {err:.1e}", flush=True
    )


def decode(name: str, results: Records, plain: dict[str, float]) -> None:
    """One row."""
    case = variant_cases(DECODE_REQUESTS, DECODE_KEYS, DECODE_HEADS)[name]
    kv_format, pages = harness.page_format((DECODE_KEYS,) * DECODE_REQUESTS, PAGE_SIZE)
    shape = (sum(map(len, pages)), 2, PAGE_SIZE, DECODE_KV_HEADS, DIM)
    cache = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    q = torch.randn(DECODE_REQUESTS, DECODE_HEADS, DIM, device="cuda", dtype=torch.bfloat16)
    out = torch.full_like(q, math.nan)
    batch = BatchAttention(DECODE_HEADS, DECODE_KV_HEADS, DIM, variant=case.variant)
    tensors = {name: tensor.cuda() for name, tensor in case.tensors.items()}
    batch.plan(range(DECODE_REQUESTS + 1), kv_format, scalars=case.scalars, tensors=tensors)
    batch.run(q, cache, out=out)
    used = cache[pages[-1].cuda()]
    k, v = (used[:, i].flatten(0, 1) for i in range(2))
    err = error(case, q[-1:], k, v, out[-1:])
    us = harness.graphs_us({"": lambda _: batch.run(q, cache, out=out)}, 1)[""]
    gbps = cache.nbytes / us / 1e3  # what the mask hides counts as read
    if name == "causal":
        plain["decode"] = gbps
    of_plain = gbps / plain.get("decode", math.nan)
    cfg = f"decode b{DECODE_REQUESTS} c{DECODE_KEYS} {name}"
    results.add("V", cfg, peer=OURS, us_graph=us, gbps_graph=gbps, of_plain=of_plain, err=err)
    print(f"{cfg:24s} {us:9.1f} us {gbps:5.0f} GB/s {of_plain:5.2f}  err {err:.1e}", flush=True)


def streaming(requests: int, window: int, results: Records) -> None:
    """One row of section R."""
    kv_format, pages = harness.page_format((window,) * requests, PAGE_SIZE)
    shape = (sum(map(len, pages)), 2, PAGE_SIZE, STREAMING_HEADS, DIM)
    cache = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    q = torch.randn(requests, STREAMING_HEADS, DIM, device="cuda", dtype=torch.bfloat16)
    out = torch.full_like(q, math.nan)
    cases, batches = streaming_cases(window), {}
    for name, case in cases.items():
        batches[name] = BatchAttention(STREAMING_HEADS, STREAMING_HEADS, DIM, variant=case.variant)
        batches[name].plan(range(requests + 1), kv_format, scalars=case.scalars)
    batches["streaming"].run(q, cache, out=out)
    used = cache[pages[-1].cuda()]
    k, v = (used[:, i].flatten(0, 1)[:window] for i in range(2))
    err = error(cases["streaming"], q[-1:], k, v, out[-1:])

    def call(batch: BatchAttention) -> Callable[[int], object]:
        return lambda _: batch.run(q, cache, out=out)

    times = harness.graphs_us({name: call(batch) for name, batch in batches.items()}, 1)
    us = times["streaming"]
    of_plain, gbps = times["plain"] / us, cache.nbytes / us / 1e3
    cfg = f"b{requests} w{window} {STREAMING_HEADS} heads"
    kernel = batches["streaming"].kernels[0].name
    results.add("R", cfg, peer=OURS, us=us, gbps=gbps, of_plain=of_plain, err=err, kernel=kernel)
    print(f"{cfg:24s} {us:9.1f} us {gbps:5.0f} GB/s {of_plain:5.2f}  err {err:.1e}", flush=True)


def main() -> int:
    parser = harness.parser("Variants, sections V and R.")
    options = parser.parse_args()
    problem = Problem(
        harness.arch(), "bf16", DIM, DIM, 1, variant_cases(1, 1, 1)["full"].variant, None
    )
    results = harness.open_records("variants", options.out, choose(problem, rows=None))
    plain: dict[str, float] = {}
    names = sorted(variant_cases(1, 1, 1), key=lambda name: name != "causal")
    for name in names:
        shapes = list(SHAPES)[: 1 if options.quick else 2]
        for shape in shapes + list(PLAIN_SHAPES) * (name in AGAINST_PLAIN):
            if options.match in f"{shape} {name}":
                prefill(name, shape, results, plain)
        if options.match in f"decode {name}":
            decode(name, results, plain)
    for requests, window in STREAMING[: 3 if options.quick else None]:
        if options.match in f"b{requests} w{window} {STREAMING_HEADS} heads":
            streaming(requests, window, results)
    compare.print_tables(results.rows, options.peers)
    return 0


if __name__ == "__main__":
    sys.exit(main())

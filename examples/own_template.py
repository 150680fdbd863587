"""A kernel schedule of your own: a template, a tile table, and `register_template`.

The kernel (`row_per_thread.cu.jinja`) gives each thread a query row. It takes its work from the
plan and serves variants, pages and split keys, as the built-in ones do; it is generated and
compiled here, GPU or not, and runs where there is one.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from cute_attn import (
    BatchAttention,
    Problem,
    RaggedKV,
    Tile,
    attention,
    attention_sinks,
    build,
    causal,
    choose,
    register_template,
)

HEADS, KV_HEADS, HEAD_DIM = 8, 2, 64


def main() -> int:
    tile = Tile(q=64, kv=32, stages=1, threads=64, blocks_per_sm=4)
    register_template(
        "row_per_thread",
        Path(__file__).with_name("row_per_thread.cu.jinja"),
        tiles={HEAD_DIM: tile},
        archs=["sm_80", "sm_86", "sm_89", "sm_90"],
        loaders=["ragged", "paged"],
        hooks=["mask", "logits", "row_state", "output"],
    )
    variant = causal() & attention_sinks()
    problem = Problem("sm_90a", "bf16", HEAD_DIM, HEAD_DIM, HEADS // KV_HEADS, variant, None)
    kernel = build(choose(problem, rows=None, schedule="row_per_thread"))
    print(f"{kernel.name}: {kernel.resources.registers} registers")
    if not torch.cuda.is_available():
        print("no GPU: compiled only")
        return 0
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(300, heads, HEAD_DIM, generator=generator).to(torch.bfloat16)
        for heads in (HEADS, KV_HEADS, KV_HEADS)
    )
    sink = torch.linspace(-2, 2, HEADS)
    batch = BatchAttention(HEADS, KV_HEADS, HEAD_DIM, variant=variant, schedule="row_per_thread")
    batch.plan([0, 300], RaggedKV([0, 300]), tensors={"sink": sink.cuda()})
    out = batch.run(q.cuda(), k.cuda(), v.cuda()).cpu().float()
    on_cpu = (x.float()[None] for x in (q, k, v))
    expected = attention(*on_cpu, variant=variant, tensors={"sink": sink})[0]
    error = float((out - expected).norm() / expected.norm())
    print(f"error against the CPU executor {error:.1e}")
    return 0 if error < 4e-3 else 1


if __name__ == "__main__":
    sys.exit(main())

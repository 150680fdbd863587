"""For experiments with kernels: build one with other tiles, look at it, launch it by hand.

Generates and compiles on any machine; launches where there is a GPU. The kernel is the tile
schedule of Ampere, which runs on every GPU from sm_80 on.
"""

from __future__ import annotations

import math
import sys
from dataclasses import replace

import numpy as np
import torch

from cute_attn import Kernel, KernelSpec, Problem, build, causal, choose, supports
from cute_attn.runtime import ToolchainError, count_opcodes, current_device, device_info
from cute_attn.scheduler import Geometry, Plan, RequestBatch, plan_batch

QO_HEADS, KV_HEADS, HEAD_DIM = 8, 2, 64
LENGTHS = [2000, 700, 64]  # prefill: as many keys as queries
TILES: list[dict[str, int]] = [{}, {"kv": 32}, {"q": 256}]  # fields to override


def inspect(kernel: Kernel) -> str:
    """One line of what the assembler made of a kernel."""
    assert kernel.spec is not None
    used, tile = kernel.resources, kernel.spec.tile
    text = (
        f"tile {tile.q} x {tile.kv}, {tile.stages} stages, {tile.threads} threads\n"
        f"    {used.registers} registers, {kernel.generated.smem_bytes} bytes of shared memory,"
        f" {used.spill_store_bytes} bytes spilled"
    )
    try:
        count = count_opcodes(kernel.sass)
        text += f"; {count['HMMA']} HMMA, {count['LDGSTS']} LDGSTS, {count['LDSM']} LDSM"
    except ToolchainError as error:  # no disassembler
        text += f"; {error}"
    return text


def plan_for(spec: KernelSpec, num_blocks: int) -> Plan:
    """Whole tiles only: then no partial results are written and no merge has to follow."""
    requests = RequestBatch.from_lengths(np.array(LENGTHS), np.array(LENGTHS))
    geometry = Geometry(spec.tile.q, spec.tile.kv, spec.group, KV_HEADS, window_right=0)
    return plan_batch(requests, geometry, num_blocks, policy="whole")


def launch(kernel: Kernel, device: int) -> tuple[float, float]:
    """Runs the kernel on random input; (error against torch, microseconds)."""
    assert kernel.spec is not None
    rows = sum(LENGTHS)
    q = torch.randn(rows, QO_HEADS, HEAD_DIM, device="cuda", dtype=torch.bfloat16)
    k, v = (torch.randn(rows, KV_HEADS, HEAD_DIM, device="cuda").bfloat16() for _ in range(2))
    out = torch.empty_like(q)
    num_blocks = device_info(device).num_sms * kernel.spec.tile.blocks_per_sm
    plan = torch.from_numpy(plan_for(kernel.spec, num_blocks).buffer).cuda()

    scale = HEAD_DIM**-0.5
    arguments = kernel.arguments()  # fields as in the generated `struct Params`; zero at first
    arguments.set(
        q=q.data_ptr(),
        k=k.data_ptr(),
        v=v.data_ptr(),
        out=out.data_ptr(),
        plan=plan.data_ptr(),
        q_token_stride=q.stride(0),
        q_head_stride=q.stride(1),
        k_token_stride=k.stride(0),
        k_head_stride=k.stride(1),
        v_token_stride=v.stride(0),
        v_head_stride=v.stride(1),
        out_token_stride=out.stride(0),
        out_head_stride=out.stride(1),
        num_kv_heads=KV_HEADS,
        sm_scale=scale,
        scale_log2=scale * math.log2(math.e),
    )
    stream = torch.cuda.current_stream().cuda_stream
    kernel.launch(num_blocks, stream, arguments, device)
    expected = dense(q, k, v)
    error = float((out.float() - expected).norm() / expected.norm())

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(20):
        kernel.launch(num_blocks, stream, arguments, device)
    end.record()
    end.synchronize()
    return error, start.elapsed_time(end) * 1e3 / 20


def dense(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal attention of each request, in float32."""
    outs = []
    for parts in zip(*(x.float().split(LENGTHS) for x in (q, k, v)), strict=True):
        own_q, own_k, own_v = (x.transpose(0, 1) for x in parts)
        own_k, own_v = (x.repeat_interleave(QO_HEADS // KV_HEADS, 0) for x in (own_k, own_v))
        hidden = torch.ones(own_q.shape[1], own_k.shape[1], device=q.device).triu(1).bool()
        scores = (own_q @ own_k.mT / HEAD_DIM**0.5).masked_fill(hidden, -torch.inf)
        outs.append((scores.softmax(-1) @ own_v).transpose(0, 1))
    return torch.cat(outs)


def main() -> int:
    on_gpu = torch.cuda.is_available()
    arch = device_info(current_device()).arch if on_gpu else "sm_80"
    group = QO_HEADS // KV_HEADS
    problem = Problem(arch, "bf16", HEAD_DIM, HEAD_DIM, group, causal(), page_size=None)
    spec = choose(problem, rows=None, schedule="ampere_tile")
    wrong = False
    for overrides in TILES:
        reasons = supports(replace(spec, tile=replace(spec.tile, **overrides)))
        if reasons:
            print(f"{overrides}: not possible: {'; '.join(reasons)}")
            continue
        kernel = build(spec, **overrides)
        print(inspect(kernel))
        if on_gpu:
            error, us = launch(kernel, current_device())
            print(f"    error {error:.1e}, {us:.0f} us")
            wrong = wrong or not error < 4e-3
    if not on_gpu:
        print("no GPU here: nothing was launched")
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())

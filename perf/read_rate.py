"""How fast this card reads: the measure of decode, as the matrix product is that of prefill."""

from __future__ import annotations

import statistics

import torch
import triton
import triton.language as tl

from perf.harness import captured, replay_us

READ_BYTES = 8 << 30
BLOCK = 8192  # words that a program reads at a time: 32 KB
PROGRAMS_PER_SM = 4  # 128 KB in flight
REPLAYS = 10


@triton.jit
def _read(x, out, rounds, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # Triton types them
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    step = tl.num_programs(0) * BLOCK
    folded = tl.zeros((BLOCK,), tl.int32)
    for i in range(rounds):
        folded ^= tl.load(x + i.to(tl.int64) * step + lanes)
    tl.store(out + lanes, folded)


def read_rate() -> tuple[float, float]:
    """(us, GB/s) of reading 8 GiB of random words once, in a replayed CUDA graph.

    Raises:
        RuntimeError: the words that were read are not those that are there.
    """
    programs = PROGRAMS_PER_SM * torch.cuda.get_device_properties(0).multi_processor_count
    rounds = READ_BYTES // (4 * BLOCK * programs)
    words = torch.randint(-(1 << 31), 1 << 31, (rounds, programs * BLOCK), device="cuda").int()
    out = torch.empty(programs * BLOCK, dtype=torch.int32, device="cuda")

    def read(_: int) -> None:
        _read[programs,](words, out, rounds, BLOCK, num_warps=8)

    graph = captured(read, 1, 1)
    if not torch.equal(out[:64], _folded(words[:, :64])):
        raise RuntimeError("the reading kernel has not read what is in memory")
    us = statistics.median(replay_us(graph) for _ in range(REPLAYS))
    return us, words.nbytes / us / 1e3


def _folded(words: torch.Tensor) -> torch.Tensor:
    """Exclusive or over the first dimension."""
    folded = words[0].clone()
    for row in words[1:]:
        folded ^= row
    return folded

"""Decodes that share keys: a long prefix (section SP), samples of one prompt (PG), and the prompts
of a production trace by their hashes (MP). 32/8 heads, head_dim 128, pages of 16.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from cute_attn import CompositeAttention, KernelSpec, PagedKV, Problem, causal
from cute_attn.api.dispatch import all_specs
from cute_attn.api.launches import parts_of_step, timing_of
from cute_attn.api.step import make_step
from cute_attn.codegen.kernels import emit_copy_rows, emit_merge_rows
from cute_attn.codegen.source import GeneratedKernel
from cute_attn.formats import KVFormat
from cute_attn.scheduler import simulate_plans
from cute_attn.scheduler.constants import H200
from cute_attn.workloads import BLOCK_TOKENS, load_prefixes, load_steps

HEADS, KV_HEADS, DIM, PAGE_SIZE = 32, 8, 128, 16
KEY_BYTES = 2 * 2 * DIM * KV_HEADS
SAMPLES = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class SharedCase:
    """Decodes of one token.

    Attributes:
        sec, cfg: section and name.
        tables: page numbers of each request.
        kv_len: keys of each request.
    """

    sec: str
    cfg: str
    tables: tuple[tuple[int, ...], ...]
    kv_len: tuple[int, ...]

    @property
    def rows(self) -> list[int]:
        """qo_indptr."""
        return list(range(len(self.kv_len) + 1))

    @property
    def num_pages(self) -> int:
        return 1 + max(max(table) for table in self.tables)

    @property
    def flat_bytes(self) -> int:
        """K and V, read for each request by itself."""
        return KEY_BYTES * sum(self.kv_len)

    @property
    def kv(self) -> PagedKV:
        """The page tables, pages shuffled."""
        order = np.random.default_rng(0).permutation(self.num_pages)
        pointer = np.cumsum([0, *map(len, self.tables)])
        last = [(n - 1) % PAGE_SIZE + 1 for n in self.kv_len]
        return PagedKV(pointer, order[np.concatenate(self.tables)], last, PAGE_SIZE)


def samples(sec: str, cfg: str, count: int, prompt: int, own: int) -> SharedCase:
    """Requests that share the whole pages of a prompt and have `own` keys behind it."""
    shared, rest = divmod(prompt, PAGE_SIZE)
    pages = -(-(rest + own) // PAGE_SIZE)
    tables = tuple(
        (*range(shared), *range(shared + i * pages, shared + (i + 1) * pages)) for i in range(count)
    )
    return SharedCase(sec, cfg, tables, (prompt + own,) * count)


def shared_prefix() -> list[SharedCase]:
    """Section SP: a prefix and 128 keys of each request."""
    return [
        samples("SP", f"prefix {prefix} + 128, b{batch}", batch, prefix, 128)
        for prefix in (1024, 2048, 8192, 32768)
        for batch in (16, 64, 256)
    ]


def parallel_generation() -> list[SharedCase]:
    """Section PG: n samples of a prompt, each 128 tokens on; prompts as long as the median request
    of the steps of three traces."""
    found = []
    for trace in ("azure-chat", "azure-code", "mooncake"):
        lengths = [n for step in load_steps() if trace in step.name for n in step.kv_lens]
        prompt = int(np.median(lengths))
        found += [
            samples("PG", f"{trace} {prompt}, n{count}", count, prompt, 128) for count in SAMPLES
        ]
    return found


def trace_prefixes() -> list[SharedCase]:
    """Section MP: batches of 64 concurrent requests of the Mooncake trace, at their first token."""
    found, per = [], BLOCK_TOKENS // PAGE_SIZE
    for batch in load_prefixes():
        tables = tuple(
            tuple(
                page
                for block in blocks
                for page in range(block * per, block * per + per)
            )[: -(-length // PAGE_SIZE)]
            for length, blocks in zip(batch.lengths, batch.blocks, strict=True)
        )  # fmt: skip
        found.append(SharedCase("MP", batch.name, tables, batch.lengths))
    return found


def all_shared() -> list[SharedCase]:
    return [*shared_prefix(), *parallel_generation(), *trace_prefixes()]


def planned(case: SharedCase, share: str, device: torch.device | str) -> CompositeAttention:
    """The case, planned."""
    made = CompositeAttention(HEADS, KV_HEADS, DIM, share_prefixes=share, device=device)
    return made.plan(case.rows, case.kv)


def stacked(made: CompositeAttention, case: SharedCase) -> tuple[KVFormat, list[int] | None]:
    """What the kernels are given: keys and, of flat ones, qo_indptr."""
    return (case.kv, case.rows) if made.stack is None else (made.stack.kv, None)


def read_bytes(made: CompositeAttention, case: SharedCase) -> int:
    """K and V of a step, each range read once."""
    return KEY_BYTES * int(stacked(made, case)[0].kv_len.sum())


def predicted_us(made: CompositeAttention, case: SharedCase) -> float:
    """Time of the attention launches on an H200, by the simulator; not of the copy of query rows
    and the merge of states."""
    kv, rows = stacked(made, case)
    asked = problem("sm_90a")
    step = make_step(rows, kv, asked.variant, None, torch.device("cpu"))
    parts = parts_of_step(step, asked, num_kv_heads=KV_HEADS, num_sms=H200.sms)
    plans, timings = [part.plan() for part in parts], [timing_of(part.spec) for part in parts]
    first = parts[0]
    in_turn = len(parts) == 2 and first.num_blocks == H200.sms * first.spec.tile.blocks_per_sm
    if in_turn:
        alone = [simulate_plans([p], [t])[0] for p, t in zip(plans, timings, strict=True)]
        return sum(report.predicted_us for report in alone)
    return max(report.predicted_us for report in simulate_plans(plans, timings))


def problem(arch: str) -> Problem:
    """What the kernels of the cases are chosen by."""
    return Problem(arch, "bf16", DIM, DIM, HEADS // KV_HEADS, causal(), PAGE_SIZE)


def shared_specs(arch: str) -> list[KernelSpec]:
    """Attention kernels of the cases."""
    return all_specs(problem(arch))


def row_kernels(arch: str) -> list[GeneratedKernel]:
    """The kernels that copy their query rows and merge their states."""
    own = arch.removesuffix("a")
    return [emit_copy_rows(own, DIM), emit_merge_rows(own, "bf16", DIM)]

"""Dual-chunk attention (An et al., "Training-Free Long-Context Scaling of Large Language Models",
arXiv 2402.17463) out of three variants: no rotary position exceeds those the model was trained on.

Positions are cut in chunks. A key has its position within its chunk. A query has another position
for keys of its own chunk, for those of the chunk before and for all earlier ones: three launches,
each with its own query hook and mask, whose states `merge_states` makes one softmax.
"""

from __future__ import annotations

import sys
from itertools import pairwise
from typing import Any

import torch

from cute_attn import BatchAttention, PagedKV, Variant, merge_states
from cute_attn.variants import functions as f

QO_HEADS, KV_HEADS, HEAD_DIM = 8, 2, 64
CHUNK, LONGEST = 96, 128
THETA = 10000.0


def rotated(x: Any, position: Any, theta: Any) -> Any:
    """A row, turned by its position (half-split layout)."""
    pairs = x.halves()
    cosine, sine = f.turn(position, theta ** -(pairs.index / pairs.count))
    return pairs.join(
        pairs.first * cosine - pairs.second * sine, pairs.second * cosine + pairs.first * sine
    )


def dual_chunk(chunk: int, longest: int) -> tuple[Variant, Variant, Variant]:
    """The variants for keys of the query's own chunk, of the chunk before, and of earlier ones.

    Args:
        chunk: positions in a chunk.
        longest: positions that the model was trained on, at least `chunk`.
    """

    def key(x: Any, b: Any, h: Any, pos: Any, *, theta: float = THETA) -> Any:
        return rotated(x, pos % chunk, theta)

    def within(x: Any, b: Any, h: Any, pos: Any, *, theta: float = THETA) -> Any:
        return rotated(x, pos % chunk, theta)

    def next_to(x: Any, b: Any, h: Any, pos: Any, *, theta: float = THETA) -> Any:
        return rotated(x, f.minimum(pos % chunk + chunk, longest - 1), theta)

    def beyond(x: Any, b: Any, h: Any, pos: Any, *, theta: float = THETA) -> Any:
        return rotated(x, longest - 1, theta)

    def in_own(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return (kv_idx <= q_idx) & (kv_idx // chunk == q_idx // chunk)

    def in_last(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return kv_idx // chunk == q_idx // chunk - 1

    def in_earlier(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return kv_idx // chunk < q_idx // chunk - 1

    return (
        Variant("own_chunk", mask=in_own, query=within, key=key),
        Variant("last_chunk", mask=in_last, query=next_to, key=key),
        Variant("earlier_chunks", mask=in_earlier, query=beyond, key=key),
    )


class DualChunkAttention:
    """Three `BatchAttention` of the same step, merged.

    Args:
        chunk, longest: as for `dual_chunk`.
        sizes: heads and head_dim, as for `BatchAttention`.
        options: of `BatchAttention`.
    """

    def __init__(self, chunk: int, longest: int, *sizes: int, **options: Any) -> None:
        self.parts = [
            BatchAttention(*sizes, variant=variant, **options)
            for variant in dual_chunk(chunk, longest)
        ]

    def plan(self, qo_indptr: Any, kv_format: Any, theta: float = THETA) -> None:
        """As `BatchAttention.plan`; theta: base of the frequencies."""
        for part in self.parts:
            part.plan(qo_indptr, kv_format, scalars={"theta": theta})

    def run(self, q: torch.Tensor, *cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """out and lse, as `BatchAttention.run` returns them. Keys are not rotated yet."""
        out = q.new_empty(len(self.parts), *q.shape)
        lse = torch.empty(out.shape[:-1], device=q.device)
        for part, own_out, own_lse in zip(self.parts, out, lse, strict=True):
            part.run(q, *cache, out=own_out, lse=own_lse)
        return merge_states(out, lse)


def dense(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The same of one request by its definition, in float64: a score depends on the difference of
    the two positions alone, which a table has for every pair of query and key."""
    i, j = torch.arange(len(k))[len(k) - len(q) :, None], torch.arange(len(k))
    chunks = i // CHUNK - j // CHUNK
    position = torch.where(chunks == 0, i % CHUNK, (i % CHUNK + CHUNK).clamp(max=LONGEST - 1))
    position = torch.where(chunks > 1, LONGEST - 1, position)
    frequency = THETA ** -torch.arange(0, 1, 2 / HEAD_DIM, dtype=torch.float64)
    turns = torch.polar(torch.ones(()).double(), (position - j % CHUNK)[..., None] * frequency)
    q, k, v = (x.double().transpose(0, 1) for x in (q, k, v))
    k, v = (x.repeat_interleave(len(q) // len(k), 0) for x in (k, v))
    q_pairs, k_pairs = (torch.complex(*x.chunk(2, dim=-1)) for x in (q, k))
    scores = torch.einsum("hid,hjd,ijd->hij", q_pairs, k_pairs.conj(), turns).real
    out: torch.Tensor = (scores / HEAD_DIM**0.5).masked_fill(j > i, -torch.inf).softmax(-1) @ v
    return out.transpose(0, 1)


def main() -> int:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator().manual_seed(0)
    # A prefill, a chunk of one, a decode; pages of 16 keys.
    q_lens, kv_lens = [150, 40, 1], [150, 500, 401]
    pages = [-(-n // 16) for n in kv_lens]
    rows, entries = (torch.tensor([0, *x]).cumsum(0) for x in (q_lens, pages))
    order = torch.randperm(int(entries[-1]), generator=generator)
    kv = PagedKV(entries, order, [(n - 1) % 16 + 1 for n in kv_lens], 16)
    shape = (len(order), 2, 16, KV_HEADS, HEAD_DIM)
    cache = torch.randn(shape, generator=generator).to(torch.bfloat16)
    q = torch.randn(int(rows[-1]), QO_HEADS, HEAD_DIM, generator=generator).to(torch.bfloat16)

    attention = DualChunkAttention(CHUNK, LONGEST, QO_HEADS, KV_HEADS, HEAD_DIM, device=device)
    attention.plan(rows, kv)
    out, _ = attention.run(q.to(device), cache.to(device))
    errors = []
    for b, (begin, end) in enumerate(pairwise(rows.tolist())):
        own = order[entries[b] : entries[b + 1]]
        k, v = cache[own].transpose(0, 1).flatten(1, 2)[:, : kv_lens[b]]
        expected = dense(q[begin:end], k, v)
        errors.append(float((out[begin:end].cpu().double() - expected).norm() / expected.norm()))
        print(f"{device}: {q_lens[b]} queries, {kv_lens[b]} keys: error {errors[-1]:.1e}")
    return 0 if max(errors) < 5e-3 else 1


if __name__ == "__main__":
    sys.exit(main())

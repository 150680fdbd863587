"""`CompositeAttention` on the CPU executor against each request by itself in float64."""

from __future__ import annotations

from itertools import pairwise, product
from typing import Any

import numpy as np
import oracle
import pytest
import torch

from cute_attn import (
    CompositeAttention,
    Level,
    LevelsKV,
    PagedKV,
    RaggedKV,
    Variant,
    alibi,
    attention_sinks,
    causal,
    document_mask,
    rope,
    sigmoid_attention,
    sliding_window,
    soft_cap,
)
from cute_attn.formats.radix import from_radix

HEADS, KV_HEADS, DIM = 6, 2, 16
BOUND = 2e-5


def paged(lengths: list[int], size: int, first: int) -> tuple[PagedKV, int]:
    """Requests of so many keys in pages from `first` on; and the first free page."""
    pages = [-(-n // size) for n in lengths]
    rows = np.cumsum([0, *pages])
    last = [(n - 1) % size + 1 if n else 0 for n in lengths]
    return PagedKV(rows, np.arange(first, first + rows[-1]), last, size), first + int(rows[-1])


def random(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def keys_of(levels: LevelsKV, request: int) -> np.ndarray:
    """(keys, 2) page and row of each key of a request, by position."""
    seg, size, found = levels.segments, levels.page_size, []
    for at in range(seg.kv_len.size):
        if request in seg.members[seg.indptr[at] : seg.indptr[at + 1]]:
            j = np.arange(seg.kv_len[at])
            pages = levels.page_table[seg.kv_start[at] + j // size]
            found.append((seg.kv_pos[at], np.stack([pages, j % size], 1)))
    found.sort(key=lambda x: x[0])
    return np.concatenate([x for _, x in found] or [np.zeros((0, 2), np.int64)])


def expected(
    q: torch.Tensor, rows: Any, cache: torch.Tensor, levels: LevelsKV, **options: Any
) -> tuple[Any, Any]:
    keys = [keys_of(levels, i) for i in range(levels.num_requests)]
    k, v = ([cache[x[:, 0], part, x[:, 1]] for x in keys] for part in (0, 1))
    return oracle.attend_batch(q, rows, k, v, **options)


def check(result: Any, wanted: Any) -> None:
    out, lse = (x.double().numpy() for x in result)
    assert np.abs(out - wanted[0]).max(initial=0) < BOUND
    seen = np.isfinite(wanted[1])
    assert np.array_equal(seen, np.isfinite(lse))
    assert np.abs(lse - wanted[1])[seen].max(initial=0) < BOUND


def attention(**options: Any) -> CompositeAttention:
    return CompositeAttention(HEADS, KV_HEADS, DIM, device="cpu", dtype=torch.float32, **options)


VARIANTS: dict[str, tuple[Any, dict[str, int], Any]] = {
    "causal": (causal(), {}, oracle.mask_of("causal")),
    "full": ("full", {}, None),
    "window": (causal() & sliding_window(), {"window_left": 19}, oracle.mask_of("causal_window", 19)),
    "no key but its own": (
        causal() & sliding_window(), {"window_left": 0}, oracle.mask_of("causal_window", 0)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("prefix", [0, 1, 15, 16, 17, 1000])
def test_a_shared_prefix_and_suffixes(prefix: int, name: str) -> None:
    variant, scalars, mask = VARIANTS[name]
    suffixes = [0, 1, 15, 16, 17, 1000]
    q_lens = [min(q, prefix + n) for q, n in zip([1, 1, 3, 1, 20, 2], suffixes, strict=True)]
    shared, free = paged([prefix], 16, 1)
    own, free = paged(suffixes, 16, free)
    levels = LevelsKV([Level(shared, [4, 0, 2, 1, 5, 3], [0, 6]), Level(own)])
    rows = np.cumsum([0, *q_lens])
    q, cache = random(0, int(rows[-1]), HEADS, DIM), random(1, free, 2, 16, KV_HEADS, DIM)
    made = attention(variant=variant).plan(rows, levels, scalars=scalars)
    result = made.run(q, cache, return_lse=True)
    check(result, expected(q, rows, cache, levels, mask=mask))


def random_tree(rng: np.random.Generator, size: int, whole: bool) -> Any:
    """parents, pages, kv_len, nodes and the number of pages."""
    count = int(rng.integers(1, 9))
    parents = [int(rng.integers(-1, i)) if i else -1 for i in range(count)]
    lengths = rng.integers(0, 5 * size, count)
    if whole:
        lengths = lengths // size * size
    pages = -(-lengths // size)
    numbers = rng.permutation(int(pages.sum()) + 3)
    ends = np.cumsum(pages)
    tables = [numbers[e - n : e] for n, e in zip(pages, ends, strict=True)]
    nodes = rng.integers(-1, count, int(rng.integers(1, 9)))
    return parents, tables, lengths, nodes, numbers.size


@pytest.mark.parametrize(("size", "seed"), list(product([1, 4, 16], range(8))))
def test_random_trees(size: int, seed: int) -> None:
    rng = np.random.default_rng(100 * size + seed)
    parents, tables, lengths, nodes, pages = random_tree(rng, size, False)
    levels = from_radix(parents, tables, nodes, size, kv_len=lengths)
    name = list(VARIANTS)[seed % len(VARIANTS)]
    variant, scalars, mask = VARIANTS[name]
    q_lens = np.minimum(rng.integers(0, 5, levels.num_requests), levels.kv_len)
    rows = np.cumsum([0, *q_lens])
    q, cache = random(seed, int(rows[-1]), HEADS, DIM), random(9, pages, 2, size, KV_HEADS, DIM)
    made = attention(variant=variant).plan(rows, levels, scalars=scalars)
    check(made.run(q, cache, return_lse=True), expected(q, rows, cache, levels, mask=mask))

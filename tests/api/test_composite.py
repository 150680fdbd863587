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
    "window": (
        causal() & sliding_window(), {"window_left": 19}, oracle.mask_of("causal_window", 19)
    ),
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


def fan(seed: int = 0) -> tuple[LevelsKV, Any, torch.Tensor, torch.Tensor]:
    """Three levels, groups whose requests are not neighbours, one without a suffix."""
    top, free = paged([48], 16, 2)
    middle, free = paged([20, 16, 64], 16, free)
    own, free = paged([5, 0, 17, 100, 1], 16, free)
    levels = LevelsKV(
        [
            Level(top, [0, 1, 2, 3, 4], [0, 5]),
            Level(middle, [4, 0, 3, 2, 1], [0, 2, 3, 5]),
            Level(own),
        ]
    )
    rows = np.cumsum([0, 2, 1, 7, 1, 1])
    q, cache = random(seed, int(rows[-1]), HEADS, DIM), random(5, free, 2, 16, KV_HEADS, DIM)
    return levels, rows, q, cache


def flat_of(levels: LevelsKV) -> RaggedKV:
    return RaggedKV(np.cumsum([0, *levels.kv_len]))


def ragged_keys(levels: LevelsKV, cache: torch.Tensor) -> list[torch.Tensor]:
    """k and v of all requests, one after the other."""
    keys = np.concatenate([keys_of(levels, i) for i in range(levels.num_requests)])
    return [cache[keys[:, 0], part, keys[:, 1]].contiguous() for part in (0, 1)]


POSITIONAL: dict[str, tuple[Variant, dict[str, torch.Tensor]]] = {
    "rope": (causal() & rope(), {}),
    "interleaved rope and window": (
        causal() & sliding_window().bake(window_left=30) & rope(layout="interleaved"),
        {},
    ),
    "alibi": (causal() & alibi(HEADS), {}),
    "soft cap": (causal() & soft_cap(), {}),
    "documents": (
        causal() & document_mask(),
        {"document": (torch.arange(5)[:, None] + torch.arange(200) // 40).int() % 3},
    ),
}


@pytest.mark.parametrize("name", POSITIONAL)
def test_positions_and_requests_are_true_ones(name: str) -> None:
    variant, tensors = POSITIONAL[name]
    levels, rows, q, cache = fan()
    made = attention(variant=variant).plan(rows, levels, tensors=tensors or None)
    result = made.run(q, cache, return_lse=True)
    flat = attention(variant=variant).plan(rows, flat_of(levels), tensors=tensors or None)
    wanted = flat.run(q, *ragged_keys(levels, cache), return_lse=True)
    assert flat.levels is None and made.levels is levels
    check(result, [x.double().numpy() for x in wanted])


def test_a_value_that_no_query_sees_does_not_count() -> None:
    levels, rows, q, cache = fan()
    variant = causal() & sliding_window()
    made = attention(variant=variant).plan(rows, levels, scalars={"window_left": 3})
    wanted = made.run(q, cache)
    seen = np.zeros(cache.shape[:3:2], bool)
    for request, (begin, end) in enumerate(pairwise(rows)):
        keys = keys_of(levels, request)[-3 - int(end - begin) :]
        seen[keys[:, 0], keys[:, 1]] = True
    poisoned = torch.where(torch.tensor(seen)[:, None, :, None, None], cache, torch.nan)
    assert torch.equal(made.run(q, poisoned), wanted)


def tables(seed: int, size: int) -> tuple[PagedKV, Any, int]:
    """A flat batch whose page tables come from a random tree; query rows; pages of the cache."""
    rng = np.random.default_rng(seed)
    parents, pages, lengths, nodes, count = random_tree(rng, size, True)
    kv = from_radix(parents, pages, nodes, size, kv_len=lengths).flat()
    rows = np.cumsum([0, *np.minimum(rng.integers(0, 4, kv.num_requests), kv.kv_len)])
    return kv, rows, count


@pytest.mark.parametrize("share", ["always", "auto"])
@pytest.mark.parametrize("seed", range(8))
def test_page_tables_that_begin_alike(seed: int, share: str) -> None:
    kv, rows, pages = tables(seed, 4)
    name = list(VARIANTS)[seed % len(VARIANTS)]
    variant, scalars, _ = VARIANTS[name]
    q, cache = random(seed, int(rows[-1]), HEADS, DIM), random(3, pages, 2, 4, KV_HEADS, DIM)
    results = [
        attention(variant=variant, share_prefixes=how).plan(rows, kv, scalars=scalars)
        for how in (share, "never")
    ]
    out, wanted = (made.run(q, cache, return_lse=True) for made in results)
    check(out, [x.double().numpy() for x in wanted])


def samples(count: int, prompt: int, own: int, size: int = 16) -> PagedKV:
    """Requests with a prompt in common, and so many keys of their own."""
    shared = np.arange(prompt // size)
    pages = -(-own // size)
    table = [
        page
        for i in range(count)
        for page in [*shared, *range(shared.size + i * pages, shared.size + (i + 1) * pages)]
    ]
    last = [(own - 1) % size + 1] * count
    return PagedKV((shared.size + pages) * np.arange(count + 1), table, last, size)


@pytest.mark.parametrize(
    ("count", "prompt", "shares"),
    # As measured on an H200 (perf/NOTES.md): 64 behind 1k win, 32 behind 1.2k lose.
    [
        (64, 4096, True), (16, 8192, True), (64, 1024, True), (32, 1246, False), (2, 64, False),
        (1, 4096, False),
    ],
)  # fmt: skip
def test_auto_shares_what_pays(count: int, prompt: int, shares: bool) -> None:
    made = CompositeAttention(32, 8, 128, device="cpu")
    made.plan(np.arange(count + 1), samples(count, prompt, 100))
    assert (made.levels is not None) == shares
    if made.levels is not None:
        segments = made.levels.segments
        assert segments.counts.tolist() == [count] + [1] * count
        assert segments.kv_len.tolist() == [prompt] + [100] * count


def test_auto_shares_only_where_kernels_need_no_positions() -> None:
    kv, rows = samples(64, 4096, 100), np.arange(65)
    window = causal() & sliding_window()
    for variant, scalars, shares in (
        (causal() & rope(), {}, False),
        (window, {"window_left": 300}, False),
        (window, {"window_left": 1 << 20}, True),
        (causal() & soft_cap(), {}, True),
    ):
        made = CompositeAttention(32, 8, 128, device="cpu", variant=variant)
        assert (made.plan(rows, kv, scalars=scalars).levels is not None) == shares


def test_ragged_levels() -> None:
    k, v = random(1, 60, KV_HEADS, DIM), random(2, 60, KV_HEADS, DIM)
    levels = LevelsKV([Level(RaggedKV([0, 40]), [1, 0], [0, 2]), Level(RaggedKV([0, 7, 20]))])
    rows = np.array([0, 2, 3])
    q = random(0, 3, HEADS, DIM)
    keys = [[torch.cat([x[:40], x[a:b]]) for a, b in ((0, 7), (7, 20))] for x in (k, v)]
    result = attention().plan(rows, levels).run(q, k, v, return_lse=True)
    check(result, oracle.attend_batch(q, rows, *keys, mask=oracle.mask_of("causal")))


def test_a_page_may_be_read_twice() -> None:
    """Within a range, in two levels, and in the ranges of two requests."""
    shared = PagedKV([0, 3], [2, 5, 2], [4], 4)
    own = PagedKV([0, 1, 3, 4], [5, 0, 5, 0], [3, 4, 1], 4)
    levels = LevelsKV([Level(shared, [0, 1, 2], [0, 3]), Level(own)])
    rows = np.array([0, 1, 3, 4])
    q, cache = random(0, 4, HEADS, DIM), random(1, 6, 2, 4, KV_HEADS, DIM)
    wanted = expected(q, rows, cache, levels, mask=oracle.mask_of("causal"))
    check(attention().plan(rows, levels).run(q, cache, return_lse=True), wanted)
    flat = attention(share_prefixes="always").plan(rows, levels.flat())
    assert flat.levels is not None
    check(flat.run(q, cache, return_lse=True), wanted)


def test_plans_follow_one_another() -> None:
    made = attention(share_prefixes="always")
    for seed in (3, 1, 0, 3):
        kv, rows, pages = tables(seed, 4)
        q, cache = random(seed, int(rows[-1]), HEADS, DIM), random(3, pages, 2, 4, KV_HEADS, DIM)
        wanted = attention(share_prefixes="never").plan(rows, kv).run(q, cache, return_lse=True)
        check(
            made.plan(rows, kv).run(q, cache, return_lse=True),
            [x.double().numpy() for x in wanted],
        )


def test_rows_beyond_the_step_are_left_alone() -> None:
    levels, rows, q, cache = fan()
    wanted = attention().plan(rows, levels).run(q, cache)
    made = attention(cuda_graph=True, max_rows=64).plan(rows, levels)
    out = torch.full((20, HEADS, DIM), 7.0)
    made.run(torch.cat([q, q[:8]]), cache, out=out)
    assert torch.equal(out[:12], wanted) and bool((out[12:] == 7).all())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: attention(share_prefixes="yes"), "share_prefixes is 'yes'"),
        (lambda: attention(max_rows=0), "max_rows is 0"),
        (lambda: attention(batch_invariant=True), "batch_invariant is True"),
        (lambda: attention(variant=sigmoid_attention(9)), "has no softmax"),
        (lambda: attention(variant=attention_sinks()), "has a row_state hook"),
        (lambda: attention().run(torch.zeros(1, HEADS, DIM), torch.zeros(1)), "run\\(\\) before"),
        (lambda: attention().plan([0, 1], fan()[0]), "qo_indptr describes 1 requests, kv 5"),
        (lambda: attention(max_rows=3).plan(fan()[1], fan()[0]), "stacked query rows; max_rows is"),
    ],
)
def test_bad_input(call: Any, message: str) -> None:
    with pytest.raises((ValueError, RuntimeError), match=message):
        call()


def test_hooks_that_cannot_be_shared_are_refused() -> None:
    def key(x: Any, b: Any, h: Any, pos: Any) -> Any:
        return x * (b + 1)

    levels, rows, _, _ = fan()
    with pytest.raises(ValueError, match="key hook of variant 'by_request' reads the request"):
        attention(variant=Variant("by_request", key=key)).plan(rows, levels)

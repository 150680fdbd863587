"""Batches in levels, for any device, and the kernels that they take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from cute_attn import (
    CompositeAttention,
    KernelSpec,
    LevelsKV,
    PagedKV,
    Problem,
    Variant,
    causal,
    rope,
    sliding_window,
)
from cute_attn.api.dispatch import all_specs
from cute_attn.codegen.kernels import emit_copy_rows, emit_merge_rows
from cute_attn.codegen.source import GeneratedKernel
from cute_attn.formats.radix import from_radix
from cute_attn.variants.looked_up import looked_up
from tests.gpu import oracle64
from tests.gpu.vector_cases import turned

HEADS, KV_HEADS, DIM = 8, 2, 128
DTYPE = torch.bfloat16
SPARE = 3  # pages of the cache that nobody has


@dataclass(frozen=True)
class Tree:
    """A radix tree and the query rows of its requests.

    Attributes:
        parents, kv_len: of each node.
        nodes, q_len: of each request.
        page_size: keys per page.
    """

    parents: list[int]
    kv_len: list[int]
    nodes: list[int]
    q_len: list[int]
    page_size: int

    @property
    def rows(self) -> list[int]:
        """qo_indptr."""
        return np.cumsum([0, *self.q_len]).tolist()

    @property
    def counts(self) -> list[int]:
        """Pages of each node."""
        return [-(-n // self.page_size) for n in self.kv_len]

    @property
    def pages(self) -> list[Any]:
        """Page numbers of each node, shuffled."""
        ends = np.cumsum(self.counts)
        numbers = np.random.default_rng(0).permutation(int(ends[-1]) + SPARE)
        return [numbers[e - n : e] for e, n in zip(ends, self.counts, strict=True)]

    def levels(self) -> LevelsKV:
        return from_radix(self.parents, self.pages, self.nodes, self.page_size, kv_len=self.kv_len)

    def path(self, request: int) -> list[int]:
        """Nodes of a request, from the root on."""
        node, found = self.nodes[request], []
        while node >= 0:
            found.insert(0, node)
            node = self.parents[node]
        return found


def fan(prefix: int, suffixes: list[int], q_len: list[int], page_size: int = 16) -> Tree:
    """A prefix that all requests share, and the keys of each."""
    count = len(suffixes)
    order = np.random.default_rng(1).permutation(count)
    kv_len = [prefix, *np.array(suffixes)[order].tolist()]
    nodes = [int(np.flatnonzero(order == i)[0]) + 1 for i in range(count)]
    return Tree([-1] + [0] * count, kv_len, nodes, q_len, page_size)


_SUFFIXES = [1 + 37 * i % 300 for i in range(40)]
TREES = {
    "decode": fan(2000, _SUFFIXES, [1] * 40),
    "few decodes": fan(5000, [9, 200, 64], [1, 1, 1]),
    "decode, pages of 1": fan(700, _SUFFIXES, [1] * 40, 1),
    "append": fan(600, [150, 20, 77, 40, 16], [90, 5, 1, 33, 16]),
    "three levels": Tree(
        [-1, 0, 0, 1, 1, 1, 2, 2, -1, 8, 0],
        [512, 300, 48, 17, 0, 130, 1, 260, 96, 33, 7],
        [3, 6, 4, 7, 9, 5, 10, -1, 8, 0],
        [3, 1, 1, 70, 2, 1, 7, 0, 96, 20],
        16,
    ),
    "the prefix is everything": Tree([-1], [400], [0] * 6, [1, 1, 7, 1, 130, 1], 16),
}


@dataclass(frozen=True)
class LevelCase:
    """What is asked of the levels of a tree.

    Attributes:
        tree: key of `TREES`.
        variant: the program.
        scalars: of it.
        turns: whether it rotates queries and keys.
        options: of the dense formula.
    """

    tree: str
    variant: Variant = field(default_factory=causal)
    scalars: dict[str, int] = field(default_factory=dict)
    turns: bool = False
    options: dict[str, Any] = field(default_factory=lambda: {"causal": True})


def _window(tree: str, left: int) -> LevelCase:
    variant, options = causal() & sliding_window(), {"causal": True, "window_left": left}
    return LevelCase(tree, variant, {"window_left": left}, options=options)


CASES = {
    **{name: LevelCase(name) for name in TREES},
    "a window in the suffix": _window("append", 10),
    "a window over all": _window("decode", 5000),
    "a window into the prefix": _window("decode", 250),
    "rope": LevelCase("decode", causal() & rope(), turns=True),
    "rope, append": LevelCase("append", causal() & rope(), turns=True),
}


def random(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def tensors(tree: Tree, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """q, and a cache that is NaN where no request has a key."""
    size, pages = tree.page_size, sum(tree.counts) + SPARE
    q = random(0, tree.rows[-1], HEADS, DIM).to(device, DTYPE)
    cache = random(1, pages, 2, size, KV_HEADS, DIM).to(DTYPE)
    for own, count in zip(tree.pages, tree.kv_len, strict=True):
        if count % size:
            cache[own[-1], :, count % size :] = torch.nan
    cache[np.setdiff1d(np.arange(pages), np.concatenate(tree.pages))] = torch.nan
    return q, cache.to(device)


def keys(tree: Tree, cache: torch.Tensor, request: int) -> torch.Tensor:
    """(2, keys, num_kv_heads, head_dim) of a request."""
    pages = tree.pages
    parts = [
        cache[pages[n].tolist()].transpose(0, 1).flatten(1, 2)[:, : tree.kv_len[n]]
        for n in tree.path(request)
    ]
    return torch.cat(parts, 1) if parts else cache[:0].transpose(0, 1).flatten(1, 2)


def dense(
    tree: Tree, case: LevelCase, q: torch.Tensor, cache: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """out and lse in float64, each request by itself."""
    outs, lses = [], []
    for request, (begin, end) in enumerate(pairwise(tree.rows)):
        k, v = keys(tree, cache, request)
        own = q[begin:end]
        if case.turns:
            at = torch.arange(len(k), device=q.device)
            own = _turned(own, at[len(k) - len(own) :])
            k = _turned(k, at)
        out, lse = oracle64.attend(own, k, v, **case.options)
        outs.append(out)
        lses.append(lse)
    return torch.cat(outs), torch.cat(lses)


def _turned(rows: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """(positions, heads, dim), rotated; kernels round that, the executor does not."""
    exact = turned(rows.double().transpose(0, 1), positions).transpose(0, 1)
    return exact if rows.device.type == "cpu" else exact.to(rows.dtype)


def planned(case: LevelCase, device: torch.device, **options: Any) -> CompositeAttention:
    tree = TREES[case.tree]
    made = CompositeAttention(
        HEADS, KV_HEADS, DIM, dtype=DTYPE, variant=case.variant, device=device, **options
    )
    return made.plan(tree.rows, tree.levels(), scalars=case.scalars or None)


def errors(name: str, device: torch.device) -> tuple[float, float, float, bool]:
    """Of one case, as `oracle64.errors`; also that a second run gives the same bits."""
    case = CASES[name]
    q, cache = tensors(TREES[case.tree], device)
    made = planned(case, device)
    out, lse = made.run(q, cache, return_lse=True)
    again = made.run(q, cache)
    found = oracle64.errors(out, lse, *dense(TREES[case.tree], case, q, cache))
    return (*found[:3], bool(found[3]) and torch.equal(out, again))


def samples(count: int, prompt: int, own: Callable[[int], int], page_size: int = 16) -> PagedKV:
    """Page tables of requests that have a prompt in common."""
    tree = fan(prompt, [own(i) for i in range(count)], [1] * count, page_size)
    return tree.levels().flat()


def kernels(arch: str) -> list[KernelSpec | GeneratedKernel]:
    """What the cases take on a GPU."""
    found: dict[str, KernelSpec | GeneratedKernel] = {}
    for case in CASES.values():
        tree = TREES[case.tree]
        variants = [case.variant]
        window = case.scalars.get("window_left", 1 << 30)
        if case.turns or window < 5000 or case.tree == "the prefix is everything":
            variants = [looked_up(case.variant)]
        for variant in variants:
            problem = Problem(arch, "bf16", DIM, DIM, HEADS // KV_HEADS, variant, tree.page_size)
            for spec in all_specs(problem):
                found.setdefault(spec.name, spec)
    own = arch.removesuffix("a")
    return [*found.values(), emit_copy_rows(own, DIM), emit_merge_rows(own, "bf16", DIM)]

"""Batch invariance: a request has the same bits alone, among others, in a replayed graph."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch

from cute_attn import BatchAttention, PagedKV, RaggedKV
from cute_attn.formats import KVFormat
from tests.gpu.batches import indptr
from tests.gpu.check import as_integers
from tests.gpu.oracle64 import attend_batch, errors
from tests.gpu.serving import DIM, DTYPE, KV_HEADS, QO_HEADS, serving_attention

pytestmark = pytest.mark.gpu

LENGTHS = [
    (1, 12_000), (1, 40), (60, 9000), (3, 900), (1, 5000), (700, 700), (0, 7), (4, 2600),
    (1, 20_000), (257, 4000), (1, 1), (2, 2), (9, 30_000), (1, 0), (130, 131),
]  # fmt: skip
SCHEDULES = [None, "ampere_tile", "ampere_decode"]


class Requests:
    """Queries and a cache for all of `LENGTHS`; any of them make a step."""

    def __init__(self, page_size: int, device: torch.device) -> None:
        generator = torch.Generator(device).manual_seed(3)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator, device=device).to(DTYPE)

        self.page_size = page_size
        self.q = [normal(q, QO_HEADS, DIM) for q, _ in LENGTHS]
        self.keys = [normal(n, KV_HEADS, DIM) for _, n in LENGTHS]
        self.values = [normal(n, KV_HEADS, DIM) for _, n in LENGTHS]
        if page_size:
            counts = [-(-n // page_size) for _, n in LENGTHS]
            order = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(1))
            self.pages = order.split(counts)
            shape = (sum(counts), 2, page_size, KV_HEADS, DIM)
            self.cache = torch.full(shape, torch.nan, dtype=DTYPE, device=device)
            for own, k, v in zip(self.pages, self.keys, self.values, strict=True):
                at = torch.arange(len(k))
                page = own[at // page_size].to(device)
                self.cache[page, 0, at % page_size] = k
                self.cache[page, 1, at % page_size] = v

    def step(
        self, which: Sequence[int]
    ) -> tuple[list[int], KVFormat, torch.Tensor, tuple[torch.Tensor, ...]]:
        """qo_indptr, format, queries and KV of some requests."""
        rows = indptr([LENGTHS[i][0] for i in which])
        q = torch.cat([self.q[i] for i in which])
        lens = [LENGTHS[i][1] for i in which]
        if not self.page_size:
            k, v = (torch.cat([x[i] for i in which]) for x in (self.keys, self.values))
            return rows, RaggedKV(indptr(lens)), q, (k, v)
        counts = [len(self.pages[i]) for i in which]
        table = torch.cat([self.pages[i] for i in which]).int()
        last = [n - (c - 1) * self.page_size if c else 0 for n, c in zip(lens, counts, strict=True)]
        return rows, PagedKV(indptr(counts), table, last, self.page_size), q, (self.cache,)

    def run(self, wrapper: BatchAttention, which: Sequence[int]) -> dict[int, list[torch.Tensor]]:
        """Bits of out and lse by request; the same in every repeat."""
        rows, kv_format, q, kv = self.step(which)
        wrapper.plan(rows, kv_format)
        out, lse = wrapper.run(q, *kv, return_lse=True)
        again, again_lse = wrapper.run(q, *kv, return_lse=True)
        assert torch.equal(again, out) and torch.equal(again_lse, lse)
        assert not out.isnan().any() and not lse.isnan().any()
        return {
            i: [as_integers(x[begin:end]).clone() for x in (out, lse)]
            for i, begin, end in zip(which, rows[:-1], rows[1:], strict=True)
        }


def assert_same(got: list[torch.Tensor], want: list[torch.Tensor], what: str) -> None:
    for name, a, b in zip(("out", "lse"), got, want, strict=True):
        assert torch.equal(a, b), f"{name} of {what}"


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("page_size", [16, 3, 0])
def test_a_request_among_others(page_size: int, schedule: str | None, device: torch.device) -> None:
    requests = Requests(page_size, device)
    wrapper = serving_attention(device, batch_invariant=True, schedule=schedule)
    alone = {i: requests.run(wrapper, [i])[i] for i in range(len(LENGTHS))}
    out = torch.cat([bits[0] for bits in alone.values()]).view(DTYPE)
    lse = torch.cat([bits[1] for bits in alone.values()]).view(torch.float32)
    want = attend_batch(
        torch.cat(requests.q), [q for q, _ in LENGTHS], requests.keys, requests.values, causal=True
    )
    err, row, _, exact = errors(out, lse, *want)
    assert err < 4e-3 and row < 2e-2 and exact

    rng = random.Random(7)
    launches = set()
    for _ in range(8):
        which = rng.sample(range(len(LENGTHS)), rng.randint(2, len(LENGTHS)))
        for i, bits in requests.run(wrapper, which).items():
            assert_same(bits, alone[i], f"request {i} among {which}")
        launches.add(len(wrapper.plans))
    many = [0] * 40 + [5, 8, 2] + [4] * 100  # prefill on some SMs, decode on the others
    rows, kv_format, q, kv = requests.step(many)
    wrapper.plan(rows, kv_format)
    out, lse = wrapper.run(q, *kv, return_lse=True)
    for place, i in enumerate(many):
        own = slice(rows[place], rows[place + 1])
        assert_same([as_integers(out[own]), as_integers(lse[own])], alone[i], f"{i} at {place}")
    assert max(launches) == (1 if schedule else 2)


def test_without_it_bits_depend_on_the_batch(device: torch.device) -> None:
    """So the test above can fail."""
    requests = Requests(16, device)
    wrapper = serving_attention(device)
    alone = requests.run(wrapper, [0])[0]
    assert not torch.equal(requests.run(wrapper, [0, 4, 7])[0][0], alone[0])


@pytest.mark.parametrize("kind", ["decode", "both"])
def test_in_a_replayed_graph(kind: str, device: torch.device) -> None:
    requests = Requests(16, device)
    eager = serving_attention(device, batch_invariant=True)
    alone = {i: requests.run(eager, [i])[i] for i in range(len(LENGTHS))}
    known = [i for i, (q, _) in enumerate(LENGTHS) if kind == "both" or q <= 4]  # group 4
    wrapper = serving_attention(
        device, batch_invariant=True, cuda_graph=True, max_requests=16, max_pages=8000
    )
    rows, kv_format, *_ = requests.step(known)
    wrapper.plan(rows, kv_format)
    shape = (sum(q for q, _ in LENGTHS), QO_HEADS, DIM)
    q, out = (torch.zeros(shape, dtype=DTYPE, device=device) for _ in range(2))
    lse = torch.zeros(shape[:2], device=device)
    wrapper.run(q, requests.cache, out=out, lse=lse)  # argument blocks, before the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        wrapper.run(q, requests.cache, out=out, lse=lse)
    rng = random.Random(11)
    for _ in range(10):
        which = rng.sample(known, rng.randint(1, 5))
        rows, kv_format, queries, _ = requests.step(which)
        q[: len(queries)] = queries
        wrapper.plan(rows, kv_format)
        for x in (out, lse):
            x.fill_(torch.nan)
        graph.replay()
        for i, begin, end in zip(which, rows[:-1], rows[1:], strict=True):
            bits = [as_integers(x[begin:end]) for x in (out, lse)]
            assert_same(bits, alone[i], f"request {i} among {which}")

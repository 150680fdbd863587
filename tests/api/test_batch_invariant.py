"""Batch invariance: on the CPU bit by bit, on a GPU by kernels, pieces and memory of requests."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from cute_attn import BatchAttention, DeviceKV, PagedKV
from cute_attn.abi import WorkWalker
from cute_attn.api import cuda_batch
from cute_attn.api.fixed_plans import most_pieces
from cute_attn.scheduler import Geometry, RequestBatch, plan_fixed_pieces

BF16 = torch.bfloat16
LENGTHS = [(1, 3000), (1, 40), (60, 1700), (3, 900), (1, 5000), (130, 130), (0, 7), (2, 2600)]


class Requests:
    """Queries and a paged cache for all of `LENGTHS`; any of them make a step."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        generator = torch.Generator().manual_seed(3)
        self.q = [torch.randn(n, 8, 64, generator=generator).to(dtype) for n, _ in LENGTHS]
        self.pages, begin = [], 0
        for _, keys in LENGTHS:
            count = -(-keys // 16)
            self.pages.append(list(range(begin, begin + count)))
            begin += count
        self.cache = torch.randn(begin, 2, 16, 2, 64, generator=generator).to(dtype)

    def step(self, which: list[int]) -> tuple[list[int], PagedKV]:
        """qo_indptr and the format of some requests."""
        rows, entries, table, last = [0], [0], [], []
        for i in which:
            table += self.pages[i]
            rows.append(rows[-1] + LENGTHS[i][0])
            entries.append(len(table))
            last.append((LENGTHS[i][1] - 1) % 16 + 1)
        return rows, PagedKV(entries, table, last, 16)

    def run(self, batch: BatchAttention, which: list[int]) -> dict[int, tuple[bytes, bytes]]:
        """Bits of out and lse by request."""
        rows, kv = self.step(which)
        q = torch.cat([self.q[i] for i in which])
        out, lse = batch.plan(rows, kv).run(q, self.cache, return_lse=True)
        parts = zip(which, rows[:-1], rows[1:], strict=True)
        return {i: (out[a:b].numpy().tobytes(), lse[a:b].numpy().tobytes()) for i, a, b in parts}


def test_a_request_has_the_same_bits_in_every_batch() -> None:
    requests = Requests()
    batch = BatchAttention(8, 2, 64, dtype=torch.float32, device="cpu", batch_invariant=True)
    alone = {i: requests.run(batch, [i])[i] for i in range(len(LENGTHS))}
    assert batch.last_plan is not None and batch.last_plan.num_split_tiles > 0
    rng = np.random.default_rng(5)
    for _ in range(6):
        which = rng.permutation(len(LENGTHS))[: rng.integers(2, len(LENGTHS) + 1)].tolist()
        for i, bits in requests.run(batch, which).items():
            assert bits == alone[i], f"request {i} among {which}"


def test_without_it_bits_depend_on_the_batch() -> None:
    """So the test above can fail."""
    requests = Requests()
    batch = BatchAttention(8, 2, 64, dtype=torch.float32, device="cpu")
    alone = requests.run(batch, [0])[0]
    assert requests.run(batch, [0, 1, 3, 4])[0] != alone


def names(fake_gpu: Any) -> list[str]:
    """Of the kernels launched since the last call, without digests."""
    found = [launch.name.rsplit("_", 1)[0] for launch in fake_gpu.launches]
    fake_gpu.launches.clear()
    return found


DECODE = "ampere_decode_bf16_d64_paged_g4_causal_fixed_pieces_sm_90"
PREFILL = "hopper_tile_bf16_d64_paged_g4_causal_sm_90a"


@pytest.mark.parametrize(
    ("which", "kernels"),
    [
        ([0], [DECODE]),  # few tiles
        ([0, 1, 4] * 40, [DECODE]),
        ([3, 7], [DECODE]),  # up to 16 packed rows
        ([2], [PREFILL]),
        ([5, 6], [PREFILL]),
        ([0, 2, 3], [PREFILL, DECODE]),
        ([0, 6], [DECODE]),  # no queries
    ],
)
def test_kernels_follow_each_request_alone(
    which: list[int], kernels: list[str], fake_gpu: Any
) -> None:
    requests = Requests(BF16)
    batch = fake_gpu.batch(8, 2, 64, batch_invariant=True)
    rows, kv = requests.step(which)
    batch.plan(rows, kv).run(torch.zeros(rows[-1], 8, 64, dtype=BF16), requests.cache)
    launches = list(fake_gpu.launches)
    assert names(fake_gpu) == kernels
    for kernel, plan in zip(batch.kernels, batch.plans, strict=True):
        assert kernel.spec.fixed_pieces == (plan.view.get("fixed_pieces") == 1)
        if kernel.spec.fixed_pieces:
            assert kernel.spec.tile.q == 8, "of one query token"
    if len(launches) == 2:
        assert launches[1].params["beside"] == 1 and not launches[0].overlap


def test_pieces_of_prefill_have_thread_blocks_of_their_own(fake_gpu: Any) -> None:
    requests = Requests(BF16)
    batch = fake_gpu.batch(8, 2, 64, batch_invariant=True)
    batch.plan(*requests.step([2, 5])).run(torch.zeros(190, 8, 64, dtype=BF16), requests.cache)
    (launch,) = fake_gpu.launches
    (plan,) = batch.plans
    assert launch.grid == plan.layout.num_blocks > 4 == plan.resident_blocks
    assert plan.num_split_tiles > 0
    walker = WorkWalker(plan.view)
    for block in range(launch.grid):
        items = list(walker.items(block))
        assert len(items) == 1 or all(item.slot < 0 for item in items)


@pytest.mark.parametrize(
    ("which", "in_turn"), [([0, 2, 3], True), ([0, 4] * 60 + [2], False), ([2, 5], False)]
)
def test_explanations_know_what_runs_at_the_same_time(
    which: list[int], in_turn: bool, fake_gpu: Any
) -> None:
    requests = Requests(BF16)
    batch = fake_gpu.batch(8, 2, 64, batch_invariant=True)
    explanation = batch.plan(*requests.step(which)).explain()
    assert explanation.in_turn == in_turn
    launches = explanation.launches
    assert len(launches) == (1 if which == [2, 5] else 2)
    if in_turn:
        assert [launch.num_sms for launch in launches] == [4, 4]
        assert launches[1].begin_us == launches[0].predicted_us > 0
    else:
        assert sum(launch.num_sms for launch in launches) == 4
    # Blocks that follow others do so in the explanation.
    (plan, *_), first = batch.plans, launches[0]
    assert len(first.blocks) == plan.layout.num_blocks
    for place in range(4 if len(launches) == 1 else 1):
        own = [block for block in first.blocks if block.place == place and block.items]
        for before, after in pairwise(own):
            assert before.end_us <= after.items[0].start_us


def test_pieces_have_memory_and_counters(fake_gpu: Any) -> None:
    requests = Requests(BF16)
    batch = fake_gpu.batch(8, 2, 64, batch_invariant=True)
    rows, kv = requests.step([0, 2, 4])
    batch.plan(rows, kv).run(torch.zeros(rows[-1], 8, 64, dtype=BF16), requests.cache)
    for launch, plan, one in zip(
        fake_gpu.launches, batch.plans, batch._backend.launches, strict=True
    ):
        memory = one._fixed._memory
        assert launch.params["arrivals"] == memory._arrivals.data_ptr()
        assert launch.params["partial_out"] == memory._out.data_ptr()
        assert memory._arrivals.numel() >= plan.num_slots > 0
        assert not memory._arrivals.any()
        rows_of_slots = plan.num_slots * plan.geometry.tile_q
        assert memory._lse.numel() >= rows_of_slots
        assert memory._out.numel() >= rows_of_slots * 64
    pointers = [launch.params["partial_out"] for launch in fake_gpu.launches]
    assert len(set(pointers)) == 2


def test_older_gpus_merge_in_a_kernel(fake_gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    info = replace(cuda_batch.device_info(0), arch="sm_80")
    monkeypatch.setattr(cuda_batch, "device_info", lambda index: info)
    requests = Requests(BF16)
    batch = fake_gpu.batch(8, 2, 64, batch_invariant=True)
    rows, kv = requests.step([0, 2])
    batch.plan(rows, kv).run(torch.zeros(rows[-1], 8, 64, dtype=BF16), requests.cache)
    tile, merge, decode = fake_gpu.launches
    assert tile.name.startswith("ampere_tile") and merge.name.startswith("merge")
    assert "fixed_pieces_sm_80" in decode.name
    assert tile.grid == merge.grid[0] == batch.plans[0].layout.num_blocks


class TestGraphs:
    def test_capacities(self, fake_gpu: Any) -> None:
        requests = Requests(BF16)
        batch = fake_gpu.batch(
            8, 2, 64, batch_invariant=True, cuda_graph=True, max_requests=8, max_pages=600
        )
        batch.plan(*requests.step([1])).run(torch.zeros(1, 8, 64, dtype=BF16), requests.cache)
        batch.plan(*requests.step([0, 1, 4])).run(torch.zeros(3, 8, 64, dtype=BF16), requests.cache)
        first, second = fake_gpu.launches
        assert first.name == second.name and first.grid == second.grid
        for name in ("plan", "arrivals", "partial_out", "partial_lse", "page_table"):
            assert first.params[name] == second.params[name]

    def test_more_pieces_than_captured(self, fake_gpu: Any) -> None:
        requests = Requests(BF16)
        batch = fake_gpu.batch(8, 2, 64, batch_invariant=True, cuda_graph=True)
        batch.plan(*requests.step([1]))  # 40 keys: memory for 64 requests of one KV block each
        with pytest.raises(ValueError, match=r"cut in .* pieces.*max_requests and max_pages"):
            batch.plan(*requests.step([0] * 64))

    def test_both_kinds(self, fake_gpu: Any) -> None:
        """Whatever later steps hold, both kernels are launched, on all SMs."""
        requests = Requests(BF16)
        batch = fake_gpu.batch(
            8, 2, 64, batch_invariant=True, cuda_graph=True, max_requests=8, max_pages=2000
        )
        grids = []
        for which in ([0, 2, 4], [0, 1], [5], []):
            rows, kv = requests.step(which)
            batch.plan(rows, kv).run(torch.zeros(200, 8, 64, dtype=BF16), requests.cache)
            grids.append([launch.grid for launch in fake_gpu.launches])
            assert names(fake_gpu) == [PREFILL, DECODE]
        assert all(grid == grids[0] for grid in grids)
        with pytest.raises(ValueError, match=r"needs .* thread blocks, but the grid has"):
            batch.plan(*requests.step([2] * 8))

    @pytest.mark.parametrize(("first", "later"), [([0], [2]), ([2], [0]), ([2], [2, 0])])
    def test_the_other_kind(self, first: list[int], later: list[int], fake_gpu: Any) -> None:
        requests = Requests(BF16)
        batch = fake_gpu.batch(8, 2, 64, batch_invariant=True, cuda_graph=True, max_pages=2000)
        batch.plan(*requests.step(first))
        with pytest.raises(ValueError, match="batch_invariant"):
            batch.plan(*requests.step(later))


@pytest.mark.parametrize("tile_q", [8, 16])
def test_capacity_of_pieces(tile_q: int) -> None:
    """No step within the capacities has more; equal lengths come near it."""
    geometry = Geometry(tile_q, 64, group=4, num_kv_heads=2, window_right=0)
    rng = np.random.default_rng(1)
    most = most_pieces(8, 40_000, geometry)
    for _ in range(200):
        count = int(rng.integers(1, 9))
        keys = rng.multinomial(40_000, rng.dirichlet(np.full(count, rng.choice([0.1, 1.0, 50.0]))))
        q_len = rng.integers(1, 5, count)
        requests = RequestBatch.from_lengths(q_len, keys)
        assert plan_fixed_pieces(requests, geometry, 4, in_kernel=True).num_slots <= most
    even = RequestBatch.from_lengths(np.full(8, 4), np.full(8, 5000))
    assert plan_fixed_pieces(even, geometry, 4, in_kernel=True).num_slots > 0.8 * most


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_refused(device: str, fake_gpu: Any) -> None:
    def make(**options: Any) -> Any:
        if device == "gpu":
            return fake_gpu.batch(8, 2, 64, batch_invariant=True, **options)
        return BatchAttention(8, 2, 64, device="cpu", batch_invariant=True, **options)

    with pytest.raises(ValueError, match="batch_invariant is True"):
        make().workspace_size()
    batch = make(cuda_graph=True).plan(*Requests(BF16).step([0]))
    lengths = torch.tensor([3000], dtype=torch.int32)
    table = torch.zeros(1, 188, dtype=torch.int32)
    with pytest.raises(ValueError, match="batch_invariant is True"):
        batch.plan_on_device(DeviceKV.from_block_table(table, lengths, 16))
    if device == "cpu":  # refused where devices do not differ yet
        with pytest.raises(ValueError, match="workspace is given and batch_invariant is True"):
            make(workspace=torch.zeros(8, dtype=torch.uint8))

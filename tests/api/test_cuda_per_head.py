"""Lists and patterns of each KV head on the CUDA back end: what is planned, and launched with which
arguments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from cute_attn import (
    BatchAttention,
    BlockSparseKV,
    BlockTableKV,
    DeviceKV,
    PagedKV,
    PerHeadKV,
    custom_mask,
)
from tests.formats.test_element_mask import pattern

PAGE = 16


def zeros(*size: int) -> torch.Tensor:
    return torch.zeros(*size, dtype=torch.bfloat16)


def ints(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def lists(*lengths: int) -> PerHeadKV:
    """Of two KV heads; pages one after the other."""
    counts = [-(-n // PAGE) for n in lengths]
    pages = np.zeros((len(lengths), max(counts)), np.int32)
    for row, (count, begin) in enumerate(zip(counts, np.cumsum([0, *counts]), strict=False)):
        pages[row, :count] = np.arange(begin, begin + count)
    return PerHeadKV(BlockTableKV(pages, lengths, PAGE), 2)


def test_a_plan_of_decodes(fake_gpu: Any) -> None:
    batch = fake_gpu.batch(8, 2, 128).plan([0, 1, 2], lists(40, 16, 0, 70))
    batch.run(zeros(2, 8, 128), zeros(9, 2, PAGE, 2, 128))
    (launch,) = fake_gpu.launches
    assert launch.name.startswith("ampere_decode_bf16_d128_paged_g4_causal_per_head_sm_90_")
    assert launch.params["num_kv_heads"] == 2
    plan = batch.last_plan
    assert (plan.view.get("heads_in_ids"), plan.view.get("num_kv_heads")) == (2, 1)
    records = {plan.view.request(i).batch: plan.view.request(i) for i in range(4)}
    assert [records[i].q_start for i in range(4)] == [0, 0, 1, 1]
    assert [records[i].kv_len for i in range(4)] == [40, 16, 0, 70]
    assert [records[i].q_pos for i in range(4)] == [39, 15, -1, 69]


def test_prefill_with_a_merge_of_its_own(fake_gpu: Any) -> None:
    kv, q = lists(9000, 16, 0, 70), zeros(60, 8, 128)
    batch = fake_gpu.batch(8, 2, 128).plan([0, 30, 60], kv)
    batch.run(q, zeros(569, 2, PAGE, 2, 128))
    assert "hopper_tile_bf16_d128_paged_g4_causal_per_head_sm_90a" in fake_gpu.launches[0].name
    fake_gpu.launches.clear()
    batch = fake_gpu.batch(8, 2, 128, schedule="ampere_tile", variant="full")
    batch.plan([0, 30, 60], kv).run(q, zeros(569, 2, PAGE, 2, 128))
    assert batch.last_plan.num_split_tiles
    attention, merge = fake_gpu.launches
    assert "_per_head_" in attention.name and "_per_head_" in merge.name
    assert merge.params["num_kv_heads"] == 2


def test_patterns_whose_heads_are_planned_apart(fake_gpu: Any) -> None:
    rng = np.random.default_rng(0)
    kept = rng.random((32, 128)) < 0.5
    pointer = np.r_[0, np.cumsum(kept.sum(1))]
    kv = BlockSparseKV(pointer, np.nonzero(kept)[1], (128, 128), 4096, 16384)
    q, k = zeros(4096, 8, 128), zeros(16384, 8, 128)
    batch = fake_gpu.batch(8, 8, 128, variant="full")
    batch._backend._may_part_heads = True
    batch.plan(None, kv).run(q, k, k)
    assert "_per_head_" in fake_gpu.launches[-1].name
    assert batch.last_plan.num_requests == 32 * 8 and batch.last_plan.common_keys == 16384
    whole = fake_gpu.batch(8, 8, 128, variant="full", cuda_graph=True)
    assert not whole._backend._may_part_heads
    whole.plan(None, kv).run(q, k, k)
    assert "_per_head_" not in fake_gpu.launches[-1].name
    assert whole.last_plan.num_requests == 32


def test_masks_within_blocks(fake_gpu: Any) -> None:
    kv, _ = pattern(0, 96, (32, 16), 160)
    batch = fake_gpu.batch(8, 2, 128, variant=custom_mask()).plan(None, kv)
    q, k = zeros(96, 8, 128), zeros(160, 2, 128)
    batch.run(q, k, k)
    first = fake_gpu.launches[-1].params
    assert first["mask_begin_size_0"] == 3 and first["mask_bits"] != 0
    batch.plan(None, kv).run(q, k, k)
    assert fake_gpu.launches[-1].params["mask_bits"] == first["mask_bits"], "copied once"
    both = PerHeadKV.of_heads([kv, kv])
    heads = fake_gpu.batch(8, 2, 128, variant=custom_mask(per_head=True)).plan(None, both)
    heads.run(q, k, k)
    params = fake_gpu.launches[-1].params
    assert (params["mask_begin_size_0"], params["mask_begin_size_1"]) == (3, 8)


def planned(make: Any) -> Any:
    """For capacities of eight lists."""
    batch = make(8, 2, 128, cuda_graph=True, max_requests=8, max_pages=64)
    return batch.plan([0, 1, 2], lists(40, 16, 0, 70))


def device_lists() -> DeviceKV:
    table = torch.arange(20, dtype=torch.int32).view(4, 5)
    return DeviceKV.from_block_table(table, ints([40, 16, 0, 70]), PAGE, num_kv_heads=2)


def test_planned_on_the_device(fake_gpu: Any) -> None:
    batch, kv = planned(fake_gpu.batch), device_lists()
    batch.plan_on_device(kv).run(zeros(2, 8, 128), zeros(20, 2, PAGE, 2, 128))
    planner, attention = fake_gpu.launches
    assert planner.name.startswith("plan_decode_t512_per_head_sm_90_")
    own = {"num_requests": 4, "num_kv_heads": 1, "heads_in_ids": 2, "q_len": 1, "table_stride": 5}
    assert {name: planner.params[name] for name in own} == own
    assert "_per_head_" in attention.name and attention.params["num_kv_heads"] == 2


def test_planned_on_the_device_of_cpu_tensors() -> None:
    batch = BatchAttention(8, 2, 64, dtype=torch.float32, device="cpu", cuda_graph=True)
    batch.plan([0, 1, 2], lists(40, 16, 0, 70))
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, 8, 64, generator=generator)
    cache = torch.randn(20, 2, PAGE, 2, 64, generator=generator)
    kv = device_lists()
    out = batch.plan_on_device(kv).run(q, cache)
    host = PerHeadKV(BlockTableKV(kv.page_table, [40, 16, 0, 70], PAGE), 2)
    assert torch.equal(out, batch.plan([0, 1, 2], host).run(q, cache))


def test_refused(fake_gpu: Any) -> None:
    batch = planned(fake_gpu.batch)
    one = PagedKV([0, 1, 2], [0, 1], [16, 16], PAGE)
    message = "the step has pages of 16 tokens, but the first plan .* a table for each KV head"
    with pytest.raises(ValueError, match=message):
        batch.plan([0, 1, 2], one)
    table = torch.zeros(4, 5, dtype=torch.int32)
    plain = DeviceKV.from_block_table(table, ints([1, 2, 3, 4]), PAGE)
    with pytest.raises(ValueError, match=message):
        batch.plan_on_device(plain)
    with pytest.raises(ValueError, match="seq_lens has 4 entries, which num_kv_heads = 3 does not"):
        DeviceKV.from_block_table(table, ints([1, 2, 3, 4]), PAGE, num_kv_heads=3)
    other = DeviceKV.from_block_table(table, ints([1, 2, 3, 4]), PAGE, num_kv_heads=4)
    with pytest.raises(ValueError, match="tables for 4 KV heads each; num_kv_heads is 2"):
        batch.plan_on_device(other)
    with pytest.raises(ValueError, match="10 requests but max_requests is 8"):
        batch.plan([0, 1, 2, 3, 4, 5], lists(*[16] * 10))
    with pytest.raises(ValueError, match="batch_invariant is True"):
        fake_gpu.batch(8, 2, 128, batch_invariant=True).plan([0, 1, 2], lists(40, 16, 0, 70))

"""Request batches, geometry, the cost model and workspace sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from cute_attn.abi import UNBOUNDED, PlanLayout
from cute_attn.scheduler import (
    Constants,
    CostModel,
    Geometry,
    Gpu,
    RequestBatch,
    max_slots,
    workspace_size,
)


@pytest.mark.parametrize(
    ("q_len", "least", "most", "equal"),
    [([], 0, 0, 0), ([3, 3], 3, 3, 3), ([4, 0, 7], 0, 7, 0), ([0, 0], 0, 0, 0)],
)
def test_shortest_and_longest_query(q_len: list[int], least: int, most: int, equal: int) -> None:
    batch = RequestBatch.from_lengths(np.array(q_len, np.int64), np.array(q_len, np.int64))
    assert (batch.least_q_len, batch.most_q_len, batch.equal_q_len) == (least, most, equal)


def test_positions_are_bottom_right_aligned_by_default() -> None:
    batch = RequestBatch([0, 4], [4, 1], [0, 9], [9, 3], kv_pos=[0, 100])
    assert batch.q_pos.tolist() == [5, 102]
    assert RequestBatch([0], [9], [0], [4]).q_pos.tolist() == [-5]


def test_lengths_may_be_lists_arrays_or_tensors() -> None:
    lengths = [3, 0, 5]
    for make in (list, np.array, torch.tensor, lambda x: np.array(x, np.uint16)):
        batch = RequestBatch.from_lengths(make(lengths), make(lengths))
        assert batch.q_len.tolist() == lengths
        assert batch.q_start.tolist() == [0, 3, 3]


class _Cuda:
    device = torch.device("cuda", 1)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([0], [1], [0], _Cuda()), TypeError, "kv_len is on device cuda:1; the planner takes host"),
        (([0], [1.5], [0], [1]), TypeError, "q_len has dtype float64"),
        (([0], [[1]], [0], [1]), ValueError, r"q_len has shape \(1, 1\)"),
        (([0], [1], [0, 1], [1]), ValueError, "kv_start has 2 entries but q_len has 1"),
        (([0], [1], [0], [1, 2]), ValueError, "kv_len has 2 entries but q_len has 1"),
        (([0, 0], [1, -1], [0, 0], [1, 1]), ValueError, r"q_len\[1\] is -1"),
        (([1 << 31], [1], [0], [1]), ValueError, r"q_start\[0\] is 2147483648"),
        (([0], [1], [0], [1 << 30]), ValueError, "below 1073741824"),
        (([0], [1], [0], [1], [1 << 30]), ValueError, r"q_pos\[0\] is 1073741824"),
        (([0], [1], [0], [1], [-(1 << 30)]), ValueError, r"q_pos\[0\] is -1073741824"),
    ],
)
def test_bad_batches(arguments: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        RequestBatch(*arguments)


def test_too_many_requests() -> None:
    many = np.zeros(1 << 20, np.int64)
    with pytest.raises(ValueError, match="takes fewer than 1048576"):
        RequestBatch(many, many, many, many)


@pytest.mark.parametrize(
    "change", [{"tile_q": 0}, {"group": -1}, {"window_left": -1}, {"window_right": UNBOUNDED + 1}]
)
def test_bad_geometry(change: dict[str, int]) -> None:
    (name,) = change
    with pytest.raises(ValueError, match=f"{name} is"):
        Geometry(**({"tile_q": 16, "tile_kv": 64, "group": 1, "num_kv_heads": 1} | change))


def test_two_regimes() -> None:
    """Decode pays for bytes, prefill for tensor cores."""
    cost = CostModel.for_kernel(128, 128)
    decode, prefill = Geometry(16, 64, 4, 8), Geometry(128, 128, 4, 8)
    assert cost.block(decode, np.array([1]))[0] == cost.read_block(decode)
    assert cost.read_block(decode) > 5 * cost.compute_block(decode)
    assert cost.block(prefill, np.array([64]))[0] == cost.compute_block(prefill)
    # 128 x 128 scores of head_dim 128 at 75 % of an SM's 6 TFLOP/s; 64 keys of 512 bytes at
    # 35 GB/s.
    assert cost.compute_block(prefill) == pytest.approx(1855, rel=0.01)
    assert cost.read_block(decode) == pytest.approx(933, rel=0.01)


def test_defaults_are_head_dim_128() -> None:
    default, derived = CostModel(), CostModel.for_kernel(128, 128)
    for name in ("row_key_ps", "key_ps", "partial_row_ps", "key_bytes"):
        assert getattr(derived, name) == pytest.approx(getattr(default, name), rel=0.01)


def test_costs_follow_the_device() -> None:
    slow = Gpu("half", sms=132, tflops=398.0, read_gbps=2316.5, sm_read_gbps=64.0)
    fast, half = CostModel.for_kernel(), CostModel.for_kernel(constants=Constants(slow))
    assert half.row_key_ps == pytest.approx(2 * fast.row_key_ps, rel=0.01)
    assert half.key_ps == pytest.approx(2 * fast.key_ps, rel=0.01)
    assert CostModel.for_kernel(blocks_per_sm=2).key_ps == pytest.approx(half.key_ps, rel=0.01)
    assert CostModel.for_kernel(64, 64).key_bytes == 256


def test_costs_of_a_kernel_family() -> None:
    hopper = CostModel.for_kernel(128, 128, schedule="hopper_tile")
    geometry = Geometry(128, 128, 1, 16)
    # 128 x 128 scores of head_dim 128 take 1.39 us at the device's rate.
    assert 1390 < hopper.compute_block(geometry) < 1900
    causal = Geometry(128, 128, 1, 16, window_right=0)
    window = Geometry(128, 128, 1, 16, window_left=99, window_right=0)
    fixed = [hopper.item(g) for g in (geometry, causal, window)]
    assert fixed == [hopper.tile_ns + ends * hopper.masked_ns for ends in range(3)]
    wide, mla = (CostModel.for_kernel(*d, schedule="hopper_tile") for d in ((256, 256), (192, 128)))
    assert hopper.row_key_ps < mla.row_key_ps < wide.row_key_ps
    # Two blocks on an SM share its tensor cores, whatever part of an item they compute.
    one, two = (
        CostModel.for_kernel(schedule="ampere_tile", blocks_per_sm=count) for count in (1, 2)
    )
    assert two.tile_ns == 2 * one.tile_ns
    assert two.row_key_ps == pytest.approx(2 * one.row_key_ps, rel=0.01)
    with pytest.raises(ValueError, match="schedule is 'volta'; known: hopper_tile"):
        CostModel.for_kernel(schedule="volta")


def test_computing_tiles_leave_bandwidth_to_the_others() -> None:
    """A step bound by HBM: all blocks end together if readers get what computing tiles leave."""
    cost, geometry = CostModel(row_key_ps=100, key_ps=15000), Geometry(128, 128, 4, 8)
    read, compute = cost.read_block(geometry), cost.compute_block(geometry)
    assert (read, compute) == (1920, 1638)
    assert cost.read_block_in_step(geometry, loaded=1000, computed=0) == read
    loaded, computed = 1000, 200
    faster = cost.read_block_in_step(geometry, loaded, computed)
    assert loaded * faster + computed * compute == pytest.approx(loaded * read, rel=0.001)
    assert cost.read_block_in_step(geometry, loaded=10, computed=1000) == 0, "bound by compute"
    block = cost.block(geometry, np.array([1, 9]), faster)
    assert block.tolist() == [compute, compute], "and never less than the products take"
    assert cost.read_block_in_step(geometry, loaded=0, computed=0) == read


@pytest.mark.parametrize("change", [{"tile_ns": 0}, {"key_ps": -1}, {"merge_ns": 2.5}])
def test_bad_costs(change: dict[str, Any]) -> None:
    (name,) = change
    with pytest.raises(ValueError, match=f"{name} is"):
        CostModel(**change)


def test_workspace() -> None:
    size = workspace_size(num_blocks=132, max_requests=256, tile_q=128, head_dim_vo=128)
    assert max_slots(132) == 262
    assert size.plan == 4 * PlanLayout(132, 256).size
    assert size.partial_out == 262 * 128 * 128 * 4
    assert size.partial_lse == 262 * 128 * 4
    first, second, third = size.offsets_of()
    assert first == 0
    assert second >= 4 * max_slots(132) and third >= second + size.partial_out
    assert second % 256 == third % 256 == size.total % 256 == 0
    assert size.total >= third + size.partial_lse
    one = workspace_size(num_blocks=1, max_requests=1, tile_q=16, head_dim_vo=64)
    assert one.partial_out == 0, "one block has nobody to share a tile with"


def test_arrivals_lie_at_the_same_place_for_every_kernel() -> None:
    """Kernels that share a workspace must find the counters that the others left at zero."""
    sizes = [
        workspace_size(num_blocks=blocks, max_requests=1, tile_q=tile_q, head_dim_vo=dim)
        for blocks, tile_q, dim in ((132, 128, 128), (396, 16, 64), (264, 16, 256))
    ]
    assert len({size.offsets_of()[:2] for size in sizes}) == 1
    with pytest.raises(ValueError, match="num_blocks is 5000"):
        workspace_size(num_blocks=5000, max_requests=1, tile_q=16, head_dim_vo=64)


def test_workspace_refuses() -> None:
    with pytest.raises(ValueError, match="max_requests is 0"):
        workspace_size(num_blocks=1, max_requests=0, tile_q=16, head_dim_vo=64)

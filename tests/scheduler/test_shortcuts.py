"""What the planner leaves out in common cases changes no plan: held against the general way."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import plan_cases as cases
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cute_attn.scheduler import CostModel, Geometry, RequestBatch, plan_batch, planner, pricing
from cute_attn.scheduler.cuts import (
    Cuts,
    cost_between_tiles,
    cut_between_tiles,
    share_line,
    share_line_equally,
)
from cute_attn.scheduler.rounds import hand_out_rounds
from cute_attn.scheduler.tiles import sort_requests

keys = st.lists(st.one_of(st.sampled_from(cases.KV_LENGTHS), st.integers(0, 9000)), min_size=1)


@given(st.integers(1, 200), st.integers(1, 10**9), st.integers(0, 10**7))
def test_blocks_without_a_load_share_equally(
    num_blocks: int, line_cost: int, min_share: int
) -> None:
    general, smallest = share_line(np.zeros(num_blocks, np.int64), line_cost, min_share)
    shared, share = share_line_equally(num_blocks, line_cost, min_share)
    assert share == smallest
    assert shared.tolist() == general.tolist()


@given(keys, st.integers(1, 4), cases.geometries, cases.num_blocks, cases.costs, cases.min_pieces)
@settings(max_examples=120)
def test_lines_without_loads_repeat_no_cut(
    kv_len: list[int],
    most_q_len: int,
    geometry: Geometry,
    num_blocks: int,
    cost: CostModel,
    min_piece: int | None,
) -> None:
    """Slots are then numbered without a look at which cuts are the same."""
    q_len = [1 + i % most_q_len for i in range(len(kv_len))]
    requests = RequestBatch.from_lengths(q_len, kv_len)
    wrapped = mock.Mock(wraps=pricing.number_slots)
    with mock.patch.object(pricing, "number_slots", wrapped):
        plan_batch(requests, geometry, num_blocks, cost=cost, min_piece=min_piece)
    for call in wrapped.call_args_list:
        (cuts,) = call.args
        slots, general = (pricing.number_slots(cuts, repeated=flag) for flag in (False, True))
        if call.kwargs["repeated"] or slots is None or general is None:
            continue
        assert general.moved is not None and general.moved.all()
        assert general.slot.tolist() == slots.slot.tolist()
        assert general.first.tolist() == slots.first.tolist()
        assert general.pieces.tolist() == slots.pieces.tolist()


def test_repeated_cuts_share_a_slot() -> None:
    """Four cuts: twice the same one in the first tile, one more there, one in the next."""
    tile, block = np.array([0, 3, 3, 3, 4, 9]), np.array([0, 2, 2, 5, 1, 0])
    slots = pricing.number_slots(Cuts(tile, block, tile, 100 * tile), repeated=True)
    assert slots is not None and slots.moved is not None
    assert slots.cut.tolist() == [1, 2, 3, 4]
    assert slots.moved.tolist() == [False, True, True, True]
    assert slots.slot.tolist() == [1, 1, 2, 4]
    assert slots.split.tolist() == [0, 0, 0, 1]
    assert slots.lead.tolist() == [1, 4]
    assert slots.first.tolist() == [0, 3]
    assert slots.pieces.tolist() == [3, 2]
    assert slots.count == 5


def _spied(name: str, made: list[tuple[Any, Any]]) -> Any:
    """Patches a function of the planner so that its arguments and what it returns are kept."""
    real = getattr(planner, name)

    def spy(*args: Any, **kwargs: Any) -> Any:
        returned = real(*args, **kwargs)
        made.append((args, returned))
        return returned

    return mock.patch.object(planner, name, spy)


long_keys = st.lists(st.integers(0, 200_000), min_size=1, max_size=40)
heads = st.builds(Geometry, *(st.sampled_from(x) for x in ([16, 64], [16, 64], [1, 4], [1, 8, 32])))


@given(st.one_of(keys, long_keys), heads, cases.num_blocks, cases.costs, cases.min_pieces)
@settings(max_examples=300)
def test_a_bound_spares_the_prices(
    kv_len: list[int],
    geometry: Geometry,
    num_blocks: int,
    cost: CostModel,
    min_piece: int | None,
) -> None:
    """No cut anywhere takes longer than `_most_cost` says, so cuts between tiles, of which a block
    has the longest tile, are worse where that is longer."""
    requests = RequestBatch.from_lengths([1] * len(kv_len), kv_len)
    bounds: list[tuple[Any, Any]] = []
    made: list[tuple[Any, Any]] = []
    with _spied("_most_cost", bounds), _spied("cut_inside", made):
        plan = plan_batch(requests, geometry, num_blocks, cost=cost, min_piece=min_piece)
    for (_, longest, *_), bound in bounds:
        anywhere = made[0][1]
        assert bound == longest or anywhere.finish <= bound
        if bound < longest:
            assert plan.block_costs.tolist() == anywhere.price.numbers()[0].tolist()


@given(st.one_of(keys, long_keys), heads, cases.num_blocks, cases.costs)
@settings(max_examples=300)
def test_the_first_blocks_end_no_later_than_the_busiest(
    kv_len: list[int], geometry: Geometry, num_blocks: int, cost: CostModel
) -> None:
    requests = RequestBatch.from_lengths([1] * len(kv_len), kv_len)
    marked: list[tuple[Any, Any]] = []
    with _spied("mark_line", marked):
        plan_batch(requests, geometry, num_blocks, cost=cost)
    for (runs, *_), marks in marked:
        begins = cut_between_tiles(runs, marks).begin
        assert cost_between_tiles(marks) <= int((begins[1:] - begins[:-1]).max())


@pytest.mark.parametrize(("step", "priced"), [(480, 0), (30, 1)])  # 16 decodes, 256
def test_few_long_decodes_are_planned_without_a_price(step: int, priced: int) -> None:
    keys = range(500, 8180, step)
    requests = RequestBatch.from_lengths([1] * len(keys), keys)
    cost = CostModel.for_kernel(schedule="ampere_decode")
    price = mock.Mock(wraps=pricing._price_inside)
    with mock.patch.object(pricing, "_price_inside", price):
        plan = plan_batch(requests, Geometry(16, 64, 4, 8), 132, cost=cost)
        assert plan.num_split_tiles > 0
        assert price.call_count == priced
        assert plan.block_costs.size == 132 and plan.merge_cost > 0
        assert price.call_count == 1


def test_plans_share_no_memory() -> None:
    """The blank plan that they begin as is copied."""
    requests = RequestBatch.from_lengths([1] * 9, range(900, 9900, 1000))
    one, two = (plan_batch(requests, Geometry(16, 64, 4, 8), 132) for _ in range(2))
    before = two.buffer.tobytes()
    one.buffer.fill(-7)
    three = plan_batch(requests, Geometry(16, 64, 4, 8), 132)
    assert before == two.buffer.tobytes() == three.buffer.tobytes()


def test_any_kind_of_integer_will_do() -> None:
    requests = RequestBatch.from_lengths([1] * 9, range(900, 9900, 1000))
    one = plan_batch(requests, Geometry(16, 64, 4, 8), 132, min_piece=2)
    geometry = Geometry(*(np.int64(x) for x in (16, 64, 4, 8)))
    two = plan_batch(requests, geometry, 132, min_piece=np.int64(2))
    assert one.num_split_tiles > 0
    assert one.buffer.tobytes() == two.buffer.tobytes()


def test_a_line_too_long_for_multiples() -> None:
    shared, share = share_line_equally(65535, 1 << 61, 1 << 60)
    assert share == 1 << 60
    assert shared[:4].tolist() == [0, 1 << 60, 1 << 61, 1 << 61]


@given(keys, st.integers(1, 4), cases.geometries, cases.num_blocks, cases.costs, cases.min_pieces)
@example(  # two query tiles share their reads; the request without any would have none to share
    [0, 0, 0, 0, 1024, 3000, 3000, 305, 465, 2321],
    3,
    Geometry(16, 16, 7, 1),
    7,
    CostModel(tile_ns=3, row_key_ps=0, key_ps=125, partial_row_ps=0, merge_ns=0, key_bytes=256),
    None,
)
@settings(max_examples=120)
def test_equal_requests_are_planned_as_unequal_ones(
    kv_len: list[int],
    q_len: int,
    geometry: Geometry,
    num_blocks: int,
    cost: CostModel,
    min_piece: int | None,
) -> None:
    """A request without queries adds no work, but numbers are no longer the same for all."""
    n = len(kv_len)
    alike = RequestBatch.from_lengths([q_len] * n, kv_len)
    mixed = RequestBatch.from_lengths([q_len] * n + [0], [*kv_len, 77])
    one = plan_batch(alike, geometry, num_blocks, cost=cost, min_piece=min_piece)
    two = plan_batch(mixed, geometry, num_blocks, cost=cost, min_piece=min_piece)
    assert one.block_costs.tolist() == two.block_costs.tolist()
    assert one.merge_cost == two.merge_cost
    assert one.view.cuts.tolist() == two.view.cuts.tolist()
    assert one.view.splits.tolist() == two.view.splits.tolist()
    assert one.view.requests[:n].tolist() == two.view.requests[:n].tolist()


@given(st.one_of(cases.lengths, cases.decode_lengths), cases.geometries, cases.num_blocks)
@settings(max_examples=120)
def test_default_positions_may_be_given(
    pairs: list[tuple[int, int]], geometry: Geometry, num_blocks: int
) -> None:
    plain = cases.make_batch(pairs)
    given_too = RequestBatch(
        plain.q_start, plain.q_len, plain.kv_start, plain.kv_len, plain.q_pos, plain.kv_pos
    )
    assert plain.aligned and not given_too.aligned
    one, two = (plan_batch(batch, geometry, num_blocks) for batch in (plain, given_too))
    assert one.buffer.tobytes() == two.buffer.tobytes()
    assert one.block_costs.tolist() == two.block_costs.tolist()


@pytest.mark.parametrize("longest", [3000, 5_000_000])  # KV blocks fit 16 bits, and do not
def test_long_batches_are_sorted_like_short_ones(longest: int) -> None:
    rng = np.random.default_rng(longest)
    q_len, kv_len = rng.integers(0, 2, 700), rng.integers(0, longest, 700)
    geometry = Geometry(16, 64, group=4, num_kv_heads=2, window_right=0)
    requests = RequestBatch.from_lengths(q_len, kv_len)
    order = sort_requests(requests, geometry, CostModel(), 0, None).order
    blocks = -(-kv_len // 64)
    assert order.tolist() == sorted(
        range(700), key=lambda i: (q_len[i] == 0, -blocks[i] * q_len[i], i)
    )


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=200).map(lambda x: sorted(x, reverse=True)),
    st.integers(1, 6),
    st.integers(0, 400),
)
def test_full_rounds_within_a_share(costs: list[int], num_blocks: int, share: int) -> None:
    rounds = hand_out_rounds(np.array(costs), num_blocks)
    busiest = [int(rounds.after(i).max()) for i in range(1, rounds.count + 1)]
    assert busiest == sorted(busiest)
    assert rounds.within(share) == sum(most <= share for most in busiest)
    assert int(rounds.after(rounds.count).sum()) == sum(costs)

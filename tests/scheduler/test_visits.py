"""Plans that know which KV blocks a mask empties."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from cute_attn.abi import UNBOUNDED, WorkWalker
from cute_attn.scheduler import Geometry, Plan, RequestBatch, plan_batch
from cute_attn.scheduler.visits import Visits
from cute_attn.variants import EMPTY, Variant, causal, chunked_local, prefix_lm


def sinks(b: Any, h: Any, q_idx: Any, kv_idx: Any, *, first: int = 4, window: int = 200) -> Any:
    return (kv_idx <= q_idx) & ((kv_idx < first) | (kv_idx > q_idx - window))


def of_requests(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return (kv_idx <= q_idx) & ((b % 2 == 0) | (kv_idx > q_idx - 100))


CASES = [
    (Variant("sinks", mask=sinks), {}),
    (prefix_lm(), {"prefix_length": 500}),
    (causal() & chunked_local(), {"chunk_size": 700}),
    (Variant("of_requests", mask=of_requests), {}),
    (Variant("nothing", mask=lambda b, h, q, k: (k <= q) & (k > q + 3)), {}),
]


def step(variant: Variant, rng: np.random.Generator, *, decode: bool) -> tuple[Any, Geometry]:
    left, right = variant.band.resolve({s.name: s.default for s in variant.scalars})
    tile_q, tile_kv, group = (16, 64, 4) if decode else (128, 64, 2)
    geometry = Geometry(tile_q, tile_kv, group, 3, min(left, UNBOUNDED), right)
    count = int(rng.integers(1, 12))
    q_len = np.full(count, 1) if decode else rng.choice([0, 1, 130, 700, 2000], count)
    kv_len = np.maximum(rng.choice([1, 300, 2500, 9000], count), q_len)
    batch = RequestBatch.from_lengths(q_len, kv_len)
    positions = rng.choice([0, 0, 64], count)
    return RequestBatch(
        batch.q_start, q_len, batch.kv_start, kv_len, batch.q_pos + positions, positions
    ), geometry


def visits_of(walker: WorkWalker, plan: Plan, variant: Variant, scalars: Any, item: Any) -> int:
    """Blocks of an item that `classify` does not call empty."""
    r = plan.view.request(item.request)
    block = np.arange(item.block_begin, item.block_end)
    first = block * walker.tile_kv
    q = (r.q_pos + item.row_begin // walker.group,
         r.q_pos + (item.row_begin + item.num_rows - 1) // walker.group)  # fmt: skip
    kv = (r.kv_pos + first, r.kv_pos + np.minimum(first + walker.tile_kv, r.kv_len) - 1)
    return int((variant.classify(q, kv, scalars, b=(r.batch, r.batch)) != EMPTY).sum())


@pytest.mark.parametrize("decode", [False, True])
@pytest.mark.parametrize(("variant", "scalars"), CASES, ids=lambda x: getattr(x, "name", ""))
def test_tiles_are_counted_by_their_visits(
    variant: Variant, scalars: dict[str, Any], decode: bool
) -> None:
    visible = variant.visible(scalars)
    assert visible is not None
    rng = np.random.default_rng(5)
    for _ in range(6):
        requests, geometry = step(variant, rng, decode=decode)
        visits = Visits(requests, geometry, visible)
        # All tiles whole, in the requests' order.
        plan = plan_batch(requests, geometry, 1, policy="whole", visible=visible)
        walker = WorkWalker(plan.view)
        for item in walker.items(0):
            tile = item.row_begin // geometry.tile_q
            request = plan.view.request(item.request).batch
            expected = visits_of(walker, plan, variant, scalars, item)
            assert visits.blocks[visits.begin[request] + tile] == expected


@pytest.mark.parametrize("decode", [False, True])
@pytest.mark.parametrize(("variant", "scalars"), CASES, ids=lambda x: getattr(x, "name", ""))
def test_plans_cover_all_blocks_and_no_piece_is_empty(
    variant: Variant, scalars: dict[str, Any], decode: bool
) -> None:
    rng = np.random.default_rng(6)
    visible = variant.visible(scalars)
    split = 0
    for _ in range(12):
        requests, geometry = step(variant, rng, decode=decode)
        plan = plan_batch(requests, geometry, 40, visible=visible)
        walker = WorkWalker(plan.view)
        covered: dict[int, list[tuple[int, int]]] = {}
        for block in range(40):
            for item in walker.items(block):
                covered.setdefault(item.tile, []).append((item.block_begin, item.block_end))
                if item.slot >= 0:
                    split += 1
                    assert visits_of(walker, plan, variant, scalars, item) > 0
        assert len(covered) == plan.num_tiles
        for tile, ranges in covered.items():
            whole = walker.tile_item(walker._request_of(tile, 0), tile)
            ranges.sort()
            assert ranges[0][0] == whole.block_begin and ranges[-1][1] == whole.block_end
            assert all(a[1] == b[0] for a, b in itertools.pairwise(ranges))
    assert split or variant.name != "prefix_lm"


def test_the_load_is_shared_by_visits() -> None:
    """A window and sinks: the band says that later tiles are longer, the mask that they are not."""
    variant, scalars = CASES[0]
    requests = RequestBatch.from_lengths([8192] * 2, [8192] * 2)
    geometry = Geometry(128, 64, 1, 8, window_right=0)
    worst = {}
    for name, visible in (("band", None), ("visits", variant.visible(scalars))):
        plan = plan_batch(requests, geometry, 132, visible=visible)
        walker = WorkWalker(plan.view)
        loads = [
            sum(3 + visits_of(walker, plan, variant, scalars, item) for item in walker.items(b))
            for b in range(132)
        ]
        worst[name] = max(loads) / np.mean(loads)
    assert worst["visits"] < 1.1 and worst["visits"] <= worst["band"]


def test_a_coarse_table_costs_no_less(monkeypatch: pytest.MonkeyPatch) -> None:
    variant, scalars = CASES[0]
    visible = variant.visible(scalars)
    assert visible is not None
    requests, geometry = step(variant, np.random.default_rng(1), decode=False)
    fine = Visits(requests, geometry, visible)
    monkeypatch.setattr("cute_attn.scheduler.visits._MOST_ENTRIES", fine.blocks.size * 12)
    coarse = Visits(requests, geometry, visible)
    assert (coarse.blocks >= fine.blocks).all() and (coarse.blocks > fine.blocks).any()
    tile = np.flatnonzero(coarse.blocks > 3)
    request = np.searchsorted(coarse.begin, tile, "right") - 1
    at = [coarse.place(request, tile - coarse.begin[request], np.full(tile.size, n))
          for n in range(3)]  # fmt: skip
    assert (np.diff(at, axis=0) > 0).all()


def test_the_band_alone_needs_no_table() -> None:
    assert causal().visible() is None and CASES[0][0].visible() is not None

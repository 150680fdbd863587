"""Random batches for tests of plans, and an independent account of what a plan must compute.

The account knows only the definitions: packed rows, the visible band, KV blocks. It is written with
loops over tokens rather than with the planner's arithmetic.
"""

from __future__ import annotations

import itertools
from collections import defaultdict

import numpy as np
from hypothesis import strategies as st

from cute_attn.abi import UNBOUNDED, Item, PlanView, WorkWalker
from cute_attn.abi.plan import HEADER_FIELDS, START_FIELDS, START_RECORD
from cute_attn.scheduler import CostModel, Geometry, Plan, RequestBatch

Q_LENGTHS = (0, 1, 2, 3, 5, 16, 17, 97, 129, 300)
KV_LENGTHS = (0, 1, 2, 15, 16, 17, 97, 129, 1024, 3000)

lengths = st.lists(st.tuples(st.sampled_from(Q_LENGTHS), st.sampled_from(KV_LENGTHS)), max_size=12)
decode_lengths = st.lists(
    st.tuples(st.sampled_from((0, 1, 1, 1)), st.sampled_from(KV_LENGTHS)), max_size=24
)
windows = st.sampled_from((UNBOUNDED, UNBOUNDED, 0, 1, 40, 511))
geometries = st.builds(
    Geometry,
    tile_q=st.sampled_from((16, 64, 128)),
    tile_kv=st.sampled_from((16, 64, 128)),
    group=st.sampled_from((1, 2, 3, 4, 5, 7, 8, 16)),
    num_kv_heads=st.sampled_from((1, 2, 3, 8)),
    window_left=windows,
    window_right=st.sampled_from((UNBOUNDED, 0, 0, 9)),
)
num_blocks = st.sampled_from((1, 2, 3, 7, 33, 132))
costs = st.builds(
    CostModel,
    tile_ns=st.integers(1, 5000),
    row_key_ps=st.integers(0, 500),
    key_ps=st.integers(0, 50000),
    partial_row_ps=st.integers(0, 50000),
    merge_ns=st.integers(0, 5000),
    key_bytes=st.sampled_from((256, 512, 1024)),
)
min_pieces = st.sampled_from((None, 1, 2, 3, 5))


def make_batch(pairs: list[tuple[int, int]]) -> RequestBatch:
    """Packed requests from (q_len, kv_len) pairs."""
    table = np.array(pairs, np.int64).reshape(-1, 2)
    return RequestBatch.from_lengths(table[:, 0], table[:, 1])


def items_of(plan: Plan) -> list[Item]:
    """Items of all blocks, in block order."""
    walker = WorkWalker(plan.view)
    return [item for block in range(walker.num_blocks) for item in walker.items(block)]


def needed_blocks(requests: RequestBatch, geometry: Geometry, request: int) -> np.ndarray:
    """(packed rows, KV blocks) bool: does the row see any key of the block?"""
    q_len, kv_len = int(requests.q_len[request]), int(requests.kv_len[request])
    shift = int(requests.q_pos[request] - requests.kv_pos[request])
    key = np.arange(kv_len)
    token = shift + np.arange(q_len)[:, None]
    visible = (key >= token - geometry.window_left) & (key <= token + geometry.window_right)
    blocks = -(-kv_len // geometry.tile_kv)
    padded = np.zeros((q_len, blocks * geometry.tile_kv), bool)
    padded[:, :kv_len] = visible
    by_block = padded.reshape(q_len, blocks, geometry.tile_kv).any(axis=2)
    return by_block.repeat(geometry.group, axis=0)


def check_coverage(plan: Plan, requests: RequestBatch, geometry: Geometry) -> None:
    """Every (row, head, key) pair is computed exactly once, every row written exactly once."""
    view: PlanView = plan.view
    by_request: dict[int, list[Item]] = defaultdict(list)
    for item in items_of(plan):
        by_request[view.request(item.request).batch].append(item)
    split_tiles = {tile for tile, *_ in WorkWalker(view).split_tiles()}
    heads = geometry.num_kv_heads
    for request in range(requests.num_requests):
        needed = needed_blocks(requests, geometry, request)
        rows, blocks = needed.shape
        count = np.zeros((heads, rows, blocks), np.int32)
        tiles: dict[int, tuple[int, int, int]] = {}
        for item in by_request.pop(request, []):
            head = item.kv_head
            if geometry.heads_in_ids:  # a request is one KV head
                assert head == request % geometry.heads_in_ids
                head = 0
            assert 0 <= head < heads
            assert 1 <= item.num_rows <= geometry.tile_q
            assert 0 <= item.block_begin <= item.block_end <= blocks or item.block_begin == (
                item.block_end
            )
            assert (item.slot >= 0) == (item.tile in split_tiles)
            own = slice(item.row_begin, item.row_begin + item.num_rows)
            count[head, own, item.block_begin : item.block_end] += 1
            place = (head, item.row_begin, item.num_rows)
            assert tiles.setdefault(item.tile, place) == place
            assert item.slot < 0 or item.block_end > item.block_begin
        assert count.max(initial=0) <= 1, "a pair is computed twice"
        assert (count[:, needed] == 1).all(), "a pair is missing"
        written = np.zeros((heads, rows), np.int32)
        for head, row, size in tiles.values():
            written[head, row : row + size] += 1
        assert (written == 1).all(), "a row is written never or twice"
    assert not by_request


def check_starts(plan: Plan) -> None:
    """What a block is told about its first item is what it would find by itself."""
    view = plan.view
    walker = WorkWalker(view)
    for block, start in enumerate(view.starts.tolist()):
        values = dict(zip(START_FIELDS, start, strict=True))
        for name in set(START_FIELDS) & set(HEADER_FIELDS):
            assert values[name] == view.get(name), name
        first = next(walker.items(block), None)
        if first is not None:
            assert (values["tile"], values["request"]) == (first.tile, first.request)
        assert start[START_RECORD] == view.requests[values["request"]].tolist()


def check_slots(plan: Plan) -> None:
    """Slots are used once each, without gaps; each split tile has its own in KV order."""
    pieces: dict[int, list[Item]] = defaultdict(list)
    for item in items_of(plan):
        if item.slot >= 0:
            pieces[item.tile].append(item)
    used = sorted(item.slot for items in pieces.values() for item in items)
    assert used == list(range(plan.num_slots))
    records = list(WorkWalker(plan.view).split_tiles())
    assert len(records) == plan.num_split_tiles
    assert [record[0] for record in records] == sorted(pieces)
    for tile, request, first, size in records:
        items = sorted(pieces[tile], key=lambda item: item.block_begin)
        assert size >= 2
        assert [item.slot for item in items] == list(range(first, first + size))
        assert {item.request for item in items} == {request}
        for left, right in itertools.pairwise(items):
            assert left.block_end == right.block_begin
    if plan.view.get("fixed_pieces"):
        return
    # Every cut inside a tile knows the slots of all its pieces.
    of_tile = {tile: (first, size) for tile, _, first, size in records}
    for tile, block, _, slot, first, size, *_ in plan.view.cuts.tolist():
        if block > 0:
            assert (first, size) == of_tile[tile]
            assert first < slot < first + size
